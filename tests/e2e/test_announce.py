"""Are the sockets of `republish` registered at Dynamo's services over HTTP, kept registered, and removed at the end?

The services here answer as those of ai-dynamo-runtime 1.6.1 did when they were recorded
(tests/data/vectors/dynamo-select-service-http-1.6.1.txt, dynamo-indexer-http-1.6.1.txt). With KVB_DYNAMO_PYTHON
(test_dynamo_indexer.py) the real ones are used, too."""

import http.client
import http.server
import json
import os
import re
import threading

import pytest

import engine
import programs
from conftest import worker
from programs import wait_for
from test_members import reload
from test_republish import MORE, SIZE

PYTHON = os.environ.get("KVB_DYNAMO_PYTHON")


class Service:
    """A service of one of the two kinds, without its index."""

    def __init__(self, port=0):
        self.workers, self.requests = {}, []
        self.may_remove = threading.Event()  # while it is not set, DELETE waits
        self.may_remove.set()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                if body is not None:
                    assert self.headers["Content-Type"] == "application/json"
                service.requests.append((self.command, self.path, body))
                if self.command == "DELETE":
                    service.may_remove.wait(60)
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
        self.may_remove.set()
        self.server.shutdown()
        self.server.server_close()

    def changes(self):
        return [one for one in self.requests if one[0] != "GET"]


class Select(Service):
    """select_service: POST replaces the worker of that id."""

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


def announcing(*services, host=""):
    rows = ", ".join(f'{{ dynamo = "http://127.0.0.1:{one.port}"; {host} }}' for one in services)
    return f"announce_to = ( {rows} );\n"


def rewrite(bridge, workers, services):
    path = bridge.process.args[-1]
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"workers = \(\n.*?\n\);\nhttp", lambda _: "workers = (\n  " + ",\n  ".join(
            "{ " + one + " }" for one in workers) + "\n);\nhttp", file.read(), flags=re.DOTALL)
    text = re.sub(r"announce_to = .*\n", lambda _: services, text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def state_of(bridge):
    return {one["dynamo"]: one for one in bridge.get("/state")["announce_to"]}


def test_ranks_are_registered_at_both_kinds_and_removed(scene):
    select, indexer = scene.engine_of(Select), scene.engine_of(Indexer)
    one, two = scene.engine(), scene.engine()
    first, second = free_ports(), free_ports()
    rows = [row(one, 7, first, 'address = "http://10.0.0.1:8000";'), row(two, 8, second, host="0.0.0.0")]
    bridge = scene.bridge(*rows, limits=announcing(select, indexer, host='host = "127.0.0.2"; max_batched_tokens = 8192;'))
    sockets = {(7, 0): at("127.0.0.1", first), (8, 0): at("127.0.0.2", second)}
    for service in (select, indexer):
        wait_for("both are registered", lambda one=service: one.sockets() == sockets)
    assert select.workers[7] == {
        "worker_id": 7, "model_name": "m", "endpoint": "http://10.0.0.1:8000", "routing_group": "default",
        "kv_events_endpoint": sockets[7, 0][0], "replay_endpoint": sockets[7, 0][1], "block_size": SIZE,
        "data_parallel_start_rank": 0, "data_parallel_size": 1, "max_num_batched_tokens": 8192, "lifecycle": "schedulable"}
    assert indexer.changes()[0][:2] == ("POST", "/workers") and len(indexer.changes()) == 3
    wait_for("/state shows the registrations", lambda: [
        (one["api"], one["failing"], one["wanted"], one["registered"]) for one in state_of(bridge).values()] == [
            ("select_service", False, 2, 2), ("indexer", False, 2, 2)])
    assert state_of(bridge)[f"http://127.0.0.1:{select.port}"]["why"] == "endpoint is required"
    assert bridge.metric("kvb_announce_ranks_registered") == 4

    # SIGHUP removes one worker and one service.
    rewrite(bridge, rows[:1], announcing(indexer, host='host = "127.0.0.2"; max_batched_tokens = 8192;'))
    reload(bridge)
    wait_for("all is taken back at one", lambda: select.sockets() == {})
    wait_for("and one worker at the other", lambda: set(indexer.sockets()) == {(7, 0)})
    wait_for("/state shows the remaining service", lambda: list(state_of(bridge)) == [f"http://127.0.0.1:{indexer.port}"])

    # A bridge that was killed finds its earlier registrations.
    before = len(indexer.changes())
    bridge.kill()
    bridge = scene.bridge(*rows[:1], name="again", limits=announcing(indexer))
    wait_for("the bridge has found its registration", lambda: bridge.metric("kvb_announce_ranks_registered") == 1)
    assert len(indexer.changes()) == before
    assert bridge.stop() == 0
    assert indexer.sockets() == {}


def test_a_service_that_is_away_or_refuses_is_requested_again(scene):
    port = programs.free_port()
    absent = type("Absent", (), {"port": port})
    bridge = scene.bridge(row(scene.engine(), 7, free_ports()), limits=announcing(absent))
    url = f"http://127.0.0.1:{port}"
    wait_for("the service fails", lambda: state_of(bridge)[url]["failing"])
    assert bridge.metric("kvb_announce_requests_total", outcome="failed") > 0
    wait_for("the log says so", lambda: "a Dynamo service cannot be asked: trying again" in bridge.text())
    service = scene.engine_of(Indexer, port=port)
    service.workers[7, 0] = {"endpoint": "tcp://10.9.9.9:1", "replay_endpoint": "", "model_name": "m", "block_size": SIZE}
    wait_for("another one's sockets are replaced", lambda: service.sockets().get((7, 0), " ")[0].startswith("tcp://127."))
    assert [one[1] for one in service.changes()] == ["/unregister", "/register"]
    wait_for("/state shows the registration", lambda: state_of(bridge)[url]["registered"] == 1)
    service.close()
    assert bridge.stop() == 0


def test_a_service_that_is_put_back_while_it_is_left_keeps_its_ranks(scene):
    select = scene.engine_of(Select)
    rows = [row(scene.engine(), 7, free_ports())]
    bridge = scene.bridge(*rows, limits=announcing(select))
    wait_for("it is registered", lambda: state_of(bridge)[f"http://127.0.0.1:{select.port}"]["registered"] == 1)

    select.may_remove.clear()
    rewrite(bridge, rows, announcing())
    reload(bridge)
    wait_for("it is being removed", lambda: select.changes()[-1][0] == "DELETE")
    rewrite(bridge, rows, announcing(select))
    reload(bridge)
    wait_for("it is there", lambda: [one["registered"] for one in bridge.get("/state")["announce_to"]] == [1])
    select.may_remove.set()
    # Long before the next list, which is read every 10 s.
    wait_for("it is registered again", lambda: select.changes()[-1][0] == "POST" and select.workers, 5)
    assert [one[0] for one in select.changes()] == ["POST", "DELETE", "POST"]


# ---- With the real programs ------------------------------------------------------------------


class Real:
    def __init__(self, scene, module, name, port=None):
        self.port = port or programs.free_port()
        self.program = scene.start(name, [PYTHON, "-m", f"dynamo.{module}", "--port", self.port, "--threads", "1"])
        self.program.is_ours = False
        wait_for("the service answers", lambda: self.ask("GET", "/health")[0] == 200, 30)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
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
    bridge = scene.bridge(*rows, limits=announcing(select, indexer))
    tokens = list(range(100, 100 + 5 * SIZE))
    vllm.publish(engine.batch(engine.MapForm.stored([1, 2, 3], tokens[:3 * SIZE], SIZE), rank=0))
    wait_for("the indexer lists the blocks", lambda: held(indexer, tokens) == 3 * SIZE, 30)
    wait_for("select_service chooses by the blocks", lambda: chosen(select, tokens) == (7, 3 * SIZE), 30)

    # The services and the bridge are killed and started again, and still agree.
    select.program.kill()
    indexer.program.kill()
    select = Real(scene, "select_service", "select2", select.port)
    indexer = Real(scene, "indexer", "indexer2", indexer.port)
    vllm.publish(engine.batch(engine.MapForm.stored([4], tokens[3 * SIZE:4 * SIZE], SIZE, parent=3), rank=0))
    wait_for("the indexer knows four", lambda: held(indexer, tokens) == 4 * SIZE, 40)
    wait_for("select_service knows four", lambda: chosen(select, tokens) == (7, 4 * SIZE), 40)
    bridge.kill()
    bridge = scene.bridge(*rows, name="again", limits=announcing(select, indexer))
    vllm.publish(engine.batch(engine.MapForm.removed(4), rank=0))
    wait_for("the indexer knows three", lambda: held(indexer, tokens) == 3 * SIZE, 40)

    assert bridge.stop() == 0
    assert select.ask("GET", "/workers") == (200, []) and indexer.ask("GET", "/workers") == (200, [])
