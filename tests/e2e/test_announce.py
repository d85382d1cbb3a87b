"""Does etc/examples/announce.py register the sockets of `republish` at Dynamo's services over HTTP, keep them registered,
and take them back at its end?

The services here answer as those of ai-dynamo-runtime 1.6.1 did when they were recorded
(tests/data/vectors/dynamo-select-service-http-1.6.1.txt, dynamo-indexer-http-1.6.1.txt). With KVB_DYNAMO_PYTHON
(test_dynamo_indexer.py) the real ones are used, too."""

import http.client
import http.server
import json
import os
import re
import sys
import threading

import pytest

import engine
import programs
from conftest import worker
from programs import TREE, wait_for
from test_members import reload
from test_republish import MORE, SIZE

PYTHON = os.environ.get("KVB_DYNAMO_PYTHON")


class Service:
    """A service of one of the two kinds, without its index."""

    def __init__(self, port=0):
        self.workers, self.requests = {}, []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                if body is not None:
                    assert self.headers["Content-Type"] == "application/json"
                service.requests.append((self.command, self.path, body))
                code, value = service.answer(self.command, self.path, body)
                text = b"" if value is None else json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def changes(self):
        return [one for one in self.requests if one[0] != "GET"]


class Select(Service):
    """select_service: POST replaces the worker of that id."""

    option = "--select-service"

    def answer(self, method, path, body):
        if (method, path) == ("GET", "/workers"):
            return 200, list(self.workers.values())
        if (method, path) == ("POST", "/workers"):
            record = {"routing_group": "default", "lifecycle": "schedulable", "endpoint": None, **body}
            if record["endpoint"] is None:
                record |= {"lifecycle": "incomplete", "not_schedulable_reasons": ["endpoint is required"]}
            self.workers[body["worker_id"]] = record
            return 201, record
        one = re.fullmatch("/workers/([0-9]+)", path)
        if one and method == "DELETE":
            gone = self.workers.pop(int(one[1]), None)
            return (200, gone) if gone else (404, {"error": f"worker {one[1]} not found"})
        return 404, {"error": "route not found"}

    def sockets(self):
        return {(key, one["data_parallel_start_rank"]): (one["kv_events_endpoint"], one["replay_endpoint"])
                for key, one in self.workers.items()}


class Indexer(Service):
    """The stand-alone indexer: an instance has ranks."""

    option = "--indexer"

    def answer(self, method, path, body):
        if path == "/workers":
            return (200, self.list()) if method == "GET" else (405, None)
        key = body and (body["instance_id"], body.get("dp_rank", 0))
        if (method, path) == ("POST", "/register"):
            if key in self.workers:
                return 409, {"error": f"instance {key[0]} dp_rank {key[1]} already registered"}
            self.workers[key] = body
            return 201, {"status": "ok"}
        if (method, path) == ("POST", "/unregister"):
            assert body["model_name"]
            return (200, {"status": "ok"}) if self.workers.pop(key, None) else (
                404, {"error": f"instance {key[0]} not found"})
        return 404, None

    def list(self):
        return [{"instance_id": key, "source": "zmq", "status": "active", "model_name": one["model_name"],
                 "routing_group": "default", "block_size": one["block_size"],
                 "endpoints": {str(rank): one["endpoint"]}} for (key, rank), one in self.workers.items()]

    def sockets(self):
        return {key: (one["endpoint"], one["replay_endpoint"]) for key, one in self.workers.items()}


def free_ports():
    """For events and replays."""
    return programs.free_port(), programs.free_port()


def at(host, ports):
    return tuple(f"tcp://{host}:{port}" for port in ports)


def row(one, worker_id, ports, more="", host="127.0.0.1"):
    return worker(one, worker_id, block_size=SIZE, more=MORE.format(*at(host, ports), "") + more)


def rewrite(bridge, workers):
    path = bridge.process.args[-1]
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"workers = \(\n.*?\n\);\nhttp", lambda _: "workers = (\n  " + ",\n  ".join(
            "{ " + one + " }" for one in workers) + "\n);\nhttp", file.read(), flags=re.DOTALL)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def announcing(scene, bridge, *services, name="announce", host="127.0.0.1"):
    options = [word for one in services for word in (one.option, f"http://127.0.0.1:{one.port}")]
    one = scene.start(name, [
        sys.executable, TREE / "etc/examples/announce.py", "--bridge", f"http://127.0.0.1:{bridge.port}",
        "--host", host, "--period", "0.1", "--max-batched-tokens", "8192", *options])
    one.is_ours = False
    return one


@pytest.mark.first
def test_ranks_are_registered_at_both_kinds_and_taken_back(scene):
    select, indexer = scene.engine_of(Select), scene.engine_of(Indexer)
    first, second = free_ports(), free_ports()
    rows = [row(scene.engine(), 7, first, 'address = "http://10.0.0.1:8000";'),
            row(scene.engine(), 8, second, host="0.0.0.0")]
    bridge = scene.bridge(*rows)
    program = announcing(scene, bridge, select, indexer, host="127.0.0.2")
    sockets = {(7, 0): at("127.0.0.1", first), (8, 0): at("127.0.0.2", second)}
    for service in (select, indexer):
        wait_for("both are registered", lambda one=service: one.sockets() == sockets)
    assert select.workers[7] == {
        "worker_id": 7, "model_name": "m", "endpoint": "http://10.0.0.1:8000", "routing_group": "default",
        "kv_events_endpoint": sockets[7, 0][0], "replay_endpoint": sockets[7, 0][1], "block_size": SIZE,
        "data_parallel_start_rank": 0, "data_parallel_size": 1, "max_num_batched_tokens": 8192, "lifecycle": "schedulable"}

    # SIGHUP removes a worker; who was killed finds what it registered, and nothing is sent twice.
    rewrite(bridge, rows[:1])
    reload(bridge)
    for service in (select, indexer):
        wait_for("one worker is left", lambda one=service: set(one.sockets()) == {(7, 0)})
    before = [len(one.changes()) for one in (select, indexer)]
    rounds = len(indexer.requests)
    program.kill()
    program = announcing(scene, bridge, select, indexer, name="again", host="127.0.0.2")
    wait_for("it has asked twice", lambda: len(indexer.requests) >= rounds + 2)
    assert [len(one.changes()) for one in (select, indexer)] == before
    assert program.stop() == 0
    assert select.sockets() == indexer.sockets() == {}


def test_a_service_that_is_away_restarts_or_has_other_sockets_gets_ours(scene):
    port = programs.free_port()
    bridge = scene.bridge(row(scene.engine(), 7, free_ports()))
    program = announcing(scene, bridge, type("Absent", (), {"port": port, "option": "--indexer"}))
    wait_for("the service is away", lambda: "trying again" in program.text())
    service = scene.engine_of(Indexer, port=port)
    service.workers[7, 0] = {"endpoint": "tcp://10.9.9.9:1", "replay_endpoint": "", "model_name": "m", "block_size": SIZE}
    wait_for("another one's sockets are replaced", lambda: service.sockets().get((7, 0), " ")[0].startswith("tcp://127."))
    service.workers.clear()
    wait_for("a service that has restarted has them again", lambda: (7, 0) in service.sockets())
    bridge.kill()
    wait_for("the bridge is away", lambda: "what is registered stays" in program.text())
    assert (7, 0) in service.sockets()
    assert program.stop() == 0
    assert service.sockets() == {}


# ---- With the real programs ------------------------------------------------------------------


class Real:
    def __init__(self, scene, module, name, port=None):
        self.option = "--select-service" if module == "select_service" else "--indexer"
        self.port = port or programs.free_port()
        self.program = scene.start(name, [PYTHON, "-m", f"dynamo.{module}", "--port", self.port, "--threads", "1"])
        self.program.is_ours = False
        wait_for("the service answers", lambda: self.ask("GET", "/health")[0] == 200)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except OSError:
            return None, None
        finally:
            connection.close()


def held(service, tokens):
    """How many of the tokens worker 7 has, according to the indexer."""
    status, answer = service.ask("POST", "/query", {"token_ids": tokens, "model_name": "m"})
    return answer["scores"].get("7", {}).get("0", 0) if status == 200 else None


def chosen(service, tokens):
    """The worker that select_service chooses, and its overlap in blocks."""
    status, answer = service.ask("POST", "/select", {"token_ids": tokens, "model_name": "m"})
    return (answer["worker_id"], answer["overlap"]["longest_matched"]) if status == 200 else answer


@pytest.mark.skipif(not PYTHON, reason="KVB_DYNAMO_PYTHON names no Python with ai-dynamo-runtime")
def test_the_real_services_list_the_held_blocks(scene):
    vllm = scene.engine()
    select, indexer = Real(scene, "select_service", "select"), Real(scene, "indexer", "indexer")
    rows = [row(vllm, 7, free_ports(), 'address = "http://10.0.0.1:8000";')]
    bridge = scene.bridge(*rows)
    program = announcing(scene, bridge, select, indexer)
    tokens = list(range(100, 100 + 5 * SIZE))
    vllm.publish(engine.batch(engine.MapForm.stored([1, 2, 3], tokens[:3 * SIZE], SIZE), rank=0))
    wait_for("the indexer lists the blocks", lambda: held(indexer, tokens) == 3 * SIZE)
    wait_for("select_service chooses by the blocks", lambda: chosen(select, tokens) == (7, 3 * SIZE))

    # The services and the bridge are killed and started again, and still agree.
    select.program.kill()
    indexer.program.kill()
    select = Real(scene, "select_service", "select2", select.port)
    indexer = Real(scene, "indexer", "indexer2", indexer.port)
    vllm.publish(engine.batch(engine.MapForm.stored([4], tokens[3 * SIZE:4 * SIZE], SIZE, parent=3), rank=0))
    wait_for("the indexer knows four", lambda: held(indexer, tokens) == 4 * SIZE)
    wait_for("select_service knows four", lambda: chosen(select, tokens) == (7, 4 * SIZE))
    bridge.kill()
    bridge = scene.bridge(*rows, name="again")
    program.kill()
    program = announcing(scene, bridge, select, indexer, name="announce again")
    vllm.publish(engine.batch(engine.MapForm.removed(4), rank=0))
    wait_for("the indexer knows three", lambda: held(indexer, tokens) == 3 * SIZE)

    assert program.stop() == 0
    assert select.ask("GET", "/workers") == (200, []) and indexer.ask("GET", "/workers") == (200, [])
