"""Are workers added and removed while a bridge runs, by SIGHUP and over HTTP, without an effect on
the others?"""

import http.server
import json
import os
import pathlib
import signal
import threading

import pytest

import marked
from conftest import PUBLISH, worker
from programs import BIN, free_port, wait_for
from test_faults import Reader, name_of, store
from test_notify import Manager, start
from test_sync import FORMATS

TOKEN = "a-token-of-the-tests"


def config_of(bridge):
    return pathlib.Path(bridge.process.args[-1])


def rewrite(bridge, *workers):
    """The same file with other workers."""
    path = config_of(bridge)
    before, _, rest = path.read_text().partition("workers = (\n")
    after = rest.partition("\n);\n")[2]
    rows = ",\n  ".join("{ " + row + " }" for row in workers)
    path.write_text(f"{before}workers = (\n  {rows}\n);\n{after}")


def reload(bridge):
    """Sends SIGHUP; returns the lines that it adds to the log."""
    seen = len(bridge.text())
    bridge.process.send_signal(signal.SIGHUP)

    def is_over():
        said = bridge.text()[seen:]
        return said if "configuration read again" in said or "configuration rejected" in said else None

    return wait_for("the bridge has read its file again", is_over)


def streams(daemon, path):
    return {(s["worker_id"], s["dp_rank"]): s for s in daemon.get(path)["streams"]}


def state_of(aggregator, worker_id, dp_rank=0):
    return streams(aggregator, "/streams")[worker_id, dp_rank]["state"]


def rows_of(aggregator, worker_id):
    return {int(row[3]) for row in aggregator.rows() if row[0] == str(worker_id)}


def lists(aggregator, worker_id, *numbers):
    return lambda: rows_of(aggregator, worker_id) == {name_of(n) for n in numbers}


class Traffic:
    """An engine that stores blocks until it is stopped."""

    def __init__(self, vllm):
        self.vllm = vllm
        self.stopping = threading.Event()
        self.stored = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.stopping.wait(0.003):
            number = 1000 + len(self.stored)
            self.vllm.publish(store(number))
            self.stored.append(number)

    def stop(self):
        self.stopping.set()
        self.thread.join()
        return self.stored


@pytest.mark.first
@pytest.mark.sanitize
@FORMATS
def test_sighup_adds_and_removes_workers_without_affecting_others(scene, format):
    stays, goes, comes = scene.engine(), scene.engine(), scene.engine()
    reader = Reader(scene.bus()) if format == "json" else None
    bridge = scene.bridge(worker(stays, 7), worker(goes, 8), formats=[format])
    aggregator = scene.aggregator()
    stays.publish(store(1))
    goes.publish(store(2))
    comes.publish(store(3))
    wait_for("both are listed", lambda: lists(aggregator, 7, 1)() and lists(aggregator, 8, 2)())
    traffic = Traffic(stays)
    announced = bridge.metric("kvb_announcements_total")
    asked = len(stays.requests)
    rewrite(bridge, worker(stays, 7), worker(comes, 9))
    said = reload(bridge)
    assert "added=1 removed=1 changed=0 unchanged=1 failed=0" in said
    wait_for("the new one is listed", lists(aggregator, 9, 3))
    wait_for("and exact", lambda: state_of(aggregator, 9) == "EXACT")
    wait_for("the removed worker's stream is DOWN", lambda: state_of(aggregator, 8) == "DOWN")
    assert set(streams(bridge, "/state")) == {(7, 0), (9, 0)}
    stored = traffic.stop()
    wait_for("nothing of the other is lost", lists(aggregator, 7, 1, *stored))
    wait_for("the other worker's stream is EXACT", lambda: state_of(aggregator, 7) == "EXACT")
    wait_for("its connection is the same", lambda: bridge.is_connected_once(pod_key="7"))
    if bridge.metric("kvcache_zmq_disconnections_total", pod_key="7") == 0:
        assert bridge.metric("kvcache_zmq_missed_events_total", pod_key="7") == 0
    assert bridge.metric("kvcache_zmq_connection_status", pod_key="8") == 0
    assert 'pod_key="8"' not in bridge.http("GET", "/metrics")[1]
    assert bridge.metric("kvb_epochs_missed_total") == 0
    assert aggregator.metric("kvb_sync_requests_total", kind="snapshot") <= 3, "none for 7 again"
    assert len(stays.requests) - asked <= 3, "the tail is probed, nothing is fetched"
    if reader:
        wait_for("readers of json have dropped worker 8", lambda: reader.names(8) == set())
        wait_for("and have the rest", lambda: reader.names(7) == {name_of(n) for n in (1, *stored)})
        # One announcement of the added worker, and one goodbye of the removed one.
        assert bridge.metric("kvb_announcements_total") <= announced + 2


def test_a_file_with_errors_changes_nothing_and_all_are_reported(scene):
    vllm = scene.engine()
    bridge = scene.bridge(worker(vllm, 7), formats=["protobuf"])
    before = streams(bridge, "/state")
    rewrite(bridge, 'id = 7; model = "m"; block_size = 0; events = "x://y"; colour = 1;')
    said = reload(bridge)
    for word in ("block_size: 0 is out of range", "events: expected tcp://", "colour: unknown key"):
        assert word in said, said
    assert "keeping the running one mistakes=3" in said
    assert set(streams(bridge, "/state")) == set(before)
    config_of(bridge).write_text("{")
    assert "configuration rejected" in reload(bridge)
    wait_for("the one connection is counted", lambda: bridge.is_connected_once(pod_key="7"))


def test_the_service_manager_is_told_of_a_reload(scene, tmp_path):
    manager = Manager(tmp_path / "notify")
    bridge, _ = start(scene, "kvbridge", manager)
    manager.wait_for("READY=1")
    bridge.process.send_signal(signal.SIGHUP)
    heard = manager.wait_for("RELOADING=1")
    assert any(line.startswith("MONOTONIC_USEC=") for line in heard)
    manager.wait_for("READY=1")


def test_sighup_before_the_file_is_read_does_not_end_the_bridge(scene):
    vllm, port = scene.engine(), free_port()
    path = scene.folder / "pipe.cfg"
    os.mkfifo(path)  # the bridge waits for its file for as long as the test wants
    text = (f'nats = {{ url = "{scene.nats_url}"; }};\npublish = {{ namespace = "dynamo"; component = "VllmWorker"; }};\n'
            f'workers = ({{ {worker(vllm, 7)} }});\nhttp = "127.0.0.1:{port}";\n')
    bridge = scene.start("kvbridge", [BIN / "kvbridge", "--config", path])

    def holds_reloads():
        status = pathlib.Path(f"/proc/{bridge.process.pid}/status").read_text()
        return int(status.split("SigBlk:")[1].split()[0], 16) >> (signal.SIGHUP - 1) & 1

    wait_for("SIGHUP waits", holds_reloads)
    bridge.process.send_signal(signal.SIGHUP)
    path.write_text(text)
    wait_for("the bridge has started", lambda: "started" in bridge.text() or not bridge.is_running())
    assert bridge.is_running(), bridge.text()
    path.write_text(text)  # for the reload that waited
    wait_for("and reads its file again", lambda: "configuration read again" in bridge.text())


# ---- Over HTTP ----


def registering(scene, *workers, **options):
    """A bridge that takes registrations."""
    path = scene.folder / "token"
    path.write_text(marked.mark(TOKEN) + "\n")
    path.chmod(0o640)
    return scene.bridge(*workers, limits=f'register = {{ token_file = "{path}"; }};', **options)


def post(bridge, path, body, token=TOKEN, kind="application/json"):
    headers = {"Content-Type": kind}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    status, text = bridge.http("POST", path, body=body, headers=headers)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def registration(vllm, **more):
    return {"endpoint": vllm.events, "replay_endpoint": vllm.replay, "model_name": "m", "block_size": 16, **more}


@pytest.mark.first
@pytest.mark.sanitize
@FORMATS
def test_a_worker_registers_and_unregisters(scene, format):
    of_file, dynamo, mooncake = scene.engine(), scene.engine(), scene.engine()
    beats = scene.bus().watch(f"{PUBLISH}.kv_heartbeat_json")
    bridge = registering(scene, worker(of_file, 7), formats=[format])
    aggregator = scene.aggregator()
    for number, vllm in enumerate((of_file, dynamo, mooncake), 1):
        vllm.publish(store(number))
    assert post(bridge, "/register", registration(dynamo, instance_id=8, dp_rank=1)) == (
        201, {"status": "ok", "instance_id": 8, "worker_id": 8, "dp_rank": 1})
    body = {
        "endpoint": mooncake.events, "replay_endpoint": mooncake.replay, "type": "vLLM", "modelname": "m",
        "instance_id": "vllm-1", "block_size": 16, "dp_rank": 0, "lora_name": None,
    }
    status, answer = post(bridge, "/register", body)
    assert status == 201 and answer["instance_id"] == "vllm-1"
    named = answer["worker_id"]
    assert 0 <= named < 1 << 53
    wait_for("both are listed", lambda: lists(aggregator, 8, 2)() and lists(aggregator, named, 3)())
    origins = {key: s["origin"] for key, s in streams(bridge, "/state").items()}
    assert origins == {(7, 0): "file", (8, 1): "registered", (named, 0): "registered"}
    # The registered workers are not in the file: reading it again does not affect them.
    assert "added=0 removed=0 changed=0 unchanged=1" in reload(bridge)
    wait_for("the connection is the same", lambda: bridge.is_connected_once(pod_key="8"))
    assert post(bridge, "/unregister", {"instance_id": 8, "dp_rank": 0})[0] == 404
    assert post(bridge, "/unregister", {"instance_id": 8, "model_name": "m", "dp_rank": 1})[0] == 200
    status, answer = post(bridge, "/unregister", {**body, "endpoint": None})
    assert (status, answer["removed_instances"]) == (200, ["vllm-1"])
    assert set(streams(bridge, "/state")) == {(7, 0)}
    for key in ((8, 1), (named, 0)):
        wait_for("the unregistered stream is DOWN", lambda: state_of(aggregator, *key) == "DOWN")
    wait_for("the other worker's stream is EXACT", lambda: state_of(aggregator, 7) == "EXACT")
    wait_for("the other worker's connection is the same", lambda: bridge.is_connected_once(pod_key="7"))
    assert len({beat["epoch"] for beat in map(json.loads, (one.data for one in list(beats))) if beat["worker_id"] == 7}) == 1


def test_bad_registrations_are_refused_with_a_reason(scene):
    of_file, other = scene.engine(), scene.engine()
    bridge = registering(scene, worker(of_file, 7))
    good = registration(other, instance_id=8)
    rows = [
        (401, "token", "/register", good, {"token": None}),
        (401, "token", "/register", good, {"token": TOKEN + "x"}),
        (401, "token", "/unregister", {"instance_id": 7}, {"token": ""}),
        (415, "Content-Type", "/register", good, {"kind": "text/plain"}),
        (400, "no JSON", "/register", "{", {}),
        (422, "expected an object", "/register", [1], {}),
        (422, "missing field `endpoint`", "/register", {}, {}),
        (422, "block_size", "/register", {**good, "block_size": "16"}, {}),
        (422, "tenant_id", "/register", {**good, "tenant_id": "other"}, {}),
        (422, "additional_salt", "/register", {**good, "additional_salt": "s"}, {}),
        (400, "endpoint: expected tcp://", "/register", {**good, "endpoint": "nonsense"}, {}),
        (400, "connect tcp://*:5557", "/register", {**good, "endpoint": "tcp://*:5557"}, {}),
        (409, "is in the configuration file", "/register", {**good, "instance_id": 7}, {}),
        (409, "is read already, as instance 7", "/register", {**good, "endpoint": of_file.events}, {}),
        (409, "is in the configuration file", "/unregister", {"instance_id": 7}, {}),
        (404, "instance 99 not found", "/unregister", {"instance_id": 99}, {}),
        (413, "16384 bytes", "/register", " " * 20000, {}),
    ]
    for status, sentence, path, body, more in rows:
        got, text = post(bridge, path, body, **more)
        assert got == status and sentence in json.dumps(text), (status, sentence, got, text)
    assert bridge.http("GET", "/register")[0] == 401
    assert bridge.http("GET", "/register", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 405
    assert post(bridge, "/register", good)[0] == 201
    assert post(bridge, "/register", good) == (409, {"error": "instance 8 dp_rank 0 already registered"})
    third = scene.engine()
    status, text = post(bridge, "/register", registration(third, instance_id=9, block_size=32))
    assert status == 409 and "block_size mismatch for model=m: existing=16, requested=32" in text["error"]
    assert set(streams(bridge, "/state")) == {(7, 0), (8, 0)}


def test_without_a_token_registrations_are_refused_and_the_key_is_named(scene):
    vllm, other = scene.engine(), scene.engine()
    bridge = scene.bridge(worker(vllm, 7))
    for path in ("/register", "/unregister"):
        status, text = post(bridge, path, registration(other, instance_id=8))
        assert status == 403 and "register.token_file" in text["error"]


def test_two_hundred_rounds_leave_memory_and_files_where_they_were(scene):
    of_file, guest = scene.engine(), scene.engine()
    aggregator = scene.aggregator()
    bridge = registering(scene, worker(of_file, 7), formats=["protobuf"])
    for number in range(1, 400):
        guest.publish(store(number))
    of_file.publish(store(1))
    traffic = Traffic(of_file)

    def come_and_go(rounds):
        for _ in range(rounds):
            assert post(bridge, "/register", registration(guest, instance_id=8))[0] == 201
            wait_for("the stream is read", lambda: bridge.metric("kvb_stream_blocks", pod_key="8") == 399)
            assert post(bridge, "/unregister", {"instance_id": 8})[0] == 200

    def files():
        return len(os.listdir(f"/proc/{bridge.process.pid}/fd"))

    def resident():
        return bridge.bytes_of("VmRSS")

    come_and_go(20)  # allocations made once, such as libzmq's threads and the allocator's arenas
    before = files(), resident()
    come_and_go(200)
    stored = traffic.stop()
    wait_for("no descriptor is left over", lambda: files() <= before[0])
    # Meanwhile the list of the other worker grows, and the allocator's arenas do; 200 lists of 399
    # blocks with their digests would take about 12 MiB.
    assert resident() < before[1] + (8 << 20), (resident(), before)
    wait_for("the other one lost nothing", lists(aggregator, 7, 1, *stored))
    wait_for("its connection is the same", lambda: bridge.is_connected_once(pod_key="7"))
    if bridge.metric("kvcache_zmq_disconnections_total", pod_key="7") == 0:
        assert bridge.metric("kvcache_zmq_missed_events_total", pod_key="7") == 0


# ---- What the log says ----


def test_an_absent_engine_is_named_in_the_log_and_its_return_too(scene):
    vllm, present = scene.engine(), scene.engine()
    bridge = scene.bridge(worker(vllm, 7), worker(present, 8), formats=["protobuf"])

    def said(words):
        return [line for line in bridge.text().splitlines() if words in line and "worker=7" in line]

    vllm.publish(store(1))
    present.publish(store(2))
    wait_for("both are well", lambda: bridge.metric("kvb_streams", state="exact") == 2)
    vllm.go_away()
    wait_for("the log says that the engine is missed", lambda: said("a stream is DOWN or PARTIAL"))
    (line,) = said("a stream is DOWN or PARTIAL")
    assert line.startswith("warning") and "state=DOWN reason=" in line and vllm.events in line
    vllm.come_back()
    wait_for("and is back", lambda: said("a stream has recovered"))
    assert said("a stream has recovered")[0].startswith("info")
    assert "worker=8" not in bridge.text()


# ---- Discovered ----


class EngineApi:
    """The HTTP server of an engine, as far as /kv_event_sources."""

    def __init__(self, form="array"):
        self.form = form
        self.sources = []
        self.asked = 0
        self.key = ""  # that requests must show; "": none
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                api.asked += 1
                answer = api.answer(self.path)
                if api.key and self.headers.get("Authorization") != f"Bearer {api.key}":
                    self.send_response(401)
                    self.send_header("Content-Length", "0")
                    return self.end_headers()
                body = json.dumps({"detail": "Not Found"} if answer is None else answer).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

        self.port = free_port()
        self.handler = Handler
        self.server = None

    def answer(self, path):
        """The content of the page; None: there is no such page."""
        if path != "/kv_event_sources":
            return None
        if self.form == "keyed":
            return {str(row["data_parallel_rank"]): row for row in self.sources}
        return self.sources if self.form == "array" else {"sources": self.sources}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, host="127.0.0.1"):
        self.server = http.server.ThreadingHTTPServer((host, self.port), self.handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        if self.server:
            self.server.shutdown()
            self.server.server_close()


@pytest.fixture
def api(request):
    one = EngineApi(getattr(request, "param", "array"))
    yield one
    one.close()


def source(vllm, rank=0, **more):
    port = vllm.events.rsplit(":", 1)[1]
    return {"data_parallel_rank": rank, "endpoint": f"tcp://*:{port}", "replay_endpoint": vllm.replay, "topic": "", **more}


def discovered(api, worker_id=7, more=""):
    return f'id = {worker_id}; model = "m"; block_size = 16; discover = "{api.url}"; {more}'


@pytest.mark.sanitize
@pytest.mark.parametrize("api", ["array", "object", "keyed"], indirect=True)
def test_an_engine_reports_its_ranks_and_where_they_have_moved(scene, api):
    one, two, other, plain = (scene.engine() for _ in range(4))
    aggregator = scene.aggregator()
    bridge = scene.bridge(discovered(api, 7), worker(plain, 9), formats=["protobuf"])
    for number, vllm in enumerate((one, two, other, plain), 1):
        vllm.publish(store(number))
    wait_for("the log says that the engine does not answer", lambda: "does not give its event sockets" in bridge.text())
    api.sources = [source(two, 1), source(one, 0, buffer_steps=10000)]
    api.start()  # not earlier, because requests are repeated until the engine answers
    wait_for("both ranks are listed", lists(aggregator, 7, 1, 2))
    assert streams(bridge, "/state")[7, 1]["origin"] == "discovered"
    # Started again elsewhere, with one rank more.
    one.go_away()
    api.sources = [source(other, 0), source(two, 1), source(one, 2)]
    wait_for("rank 0 is read at its new address", lambda: streams(bridge, "/state")[7, 0]["endpoint"] == other.events)
    wait_for("the new list", lists(aggregator, 7, 3, 2))
    wait_for("rank 1 did not notice", lambda: bridge.is_connected_once(pod_key="7", dp_rank="1"))
    wait_for("its connection is the same", lambda: bridge.is_connected_once(pod_key="9"))
    # The file is read again without a change, so nothing happens.
    assert "added=0 removed=0 changed=0 unchanged=4" in reload(bridge)
    wait_for("its connection is the same", lambda: bridge.is_connected_once(pod_key="7", dp_rank="1"))
    # The file now has its addresses: a rank at the same address stays open.
    one.come_back()
    rewrite(bridge, worker(other, 7), worker(plain, 9))
    assert "added=0 removed=2 changed=0 unchanged=2 failed=0" in reload(bridge)
    assert {key: s["origin"] for key, s in streams(bridge, "/state").items()} == {(7, 0): "file", (9, 0): "file"}
    asked = api.asked
    for dp_rank in (1, 2):
        wait_for("the removed stream is DOWN", lambda: state_of(aggregator, 7, dp_rank) == "DOWN")
    wait_for("the remaining stream is EXACT", lambda: state_of(aggregator, 7) == "EXACT")
    assert api.asked == asked, "nobody asks any more"
