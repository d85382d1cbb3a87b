"""Does kvaggregator answer sgl-router over gRPC exactly as its own index would, and only with statuses after which it
continues? Are clients that misbehave closed, while all others are answered?"""

import contextlib
import json
import socket
import struct
import threading
import time

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest

import engine
import programs
from conftest import worker
from kv_indexer import MATCH, SERVICE, VECTORS, Request, Response, Router, chain, vector
from programs import wait_for

BLOCK = 2
TOKENS = list(range(10, 90, 10))
HASHES = chain(TOKENS, BLOCK)


def publish(one, hashes, first=0, parent=None, **options):
    tokens = TOKENS[first * BLOCK:(first + len(hashes)) * BLOCK]
    one.publish(engine.batch(engine.stored(hashes, tokens, BLOCK, parent, **options)))


class Served:
    """Workers of an SGLang fleet, an aggregator that answers routers, and a router."""

    def __init__(self, scene, extra=""):
        self.port = programs.free_port()
        self.scene = scene
        self.engines = {number: scene.engine() for number in (7, 8, 9)}
        rows = [worker(one, number, block_size=BLOCK, more=address) for (number, one), address in zip(
            self.engines.items(), ('address = "http://10.0.0.1:30000";', 'address = "http://10.0.0.2:30000";', ""))]
        self.bridge = scene.bridge(*rows, hashes="engine", heartbeat_ms=200, formats=["protobuf"])
        self.aggregator = scene.aggregator(
            block_size=BLOCK, extra=f'grpc = {{ listen = "127.0.0.1:{self.port}"; {extra} }};\n')
        self.router = Router(self.port)

    def fill(self):
        for number, count in ((7, 3), (8, 1), (9, 4)):
            publish(self.engines[number], HASHES[:count])
        wait_for("all blocks are there", lambda: sum(
            s["blocks"]["device"] for s in self.aggregator.get("/streams")["streams"] if s["state"] == "EXACT") == 8)
        return self

    def metric(self, status):
        return self.aggregator.metric("kvb_grpc_requests_total", status=status)


@pytest.fixture
def served(scene):
    world = Served(scene)
    yield world
    world.router.close()


def test_the_hashes_are_those_of_sglang():
    """The hashes that the other tests publish are those of SGLang: the recorded chains are computed again."""
    text = (VECTORS / "sglang-hash-chains.txt").read_text()
    part = text.split("[10..80 step 10] bs 2\n")[1].split("\n\n")[0]
    assert HASHES == [int(line.split("|")[0]) for line in part.splitlines()]
    part = text.split("extra_key salt-A, [1,2,3,4,5] bs 4\n")[1].split("\n\n")[0]
    assert chain([1, 2, 3, 4, 5], 4, "salt-A") == [int(line.split("|")[0]) for line in part.splitlines()]
    assert Request(hashes=HASHES).SerializeToString() == vector("request_4")


@pytest.mark.first
def test_answers_to_the_byte(served):
    served.fill()
    assert served.router.call(vector("request_4")) == vector("response_3_1"), "worker 9 has no address"
    assert served.router.match(HASHES[:2]) == [("http://10.0.0.1:30000", 2, "7/0"), ("http://10.0.0.2:30000", 1, "8/0")]
    assert served.router.match(HASHES, max_blocks=1) == [("http://10.0.0.1:30000", 1, "7/0"), ("http://10.0.0.2:30000", 1, "8/0")]
    assert served.router.call(vector("request_4_max_2")) == served.router.call(vector("request_unpacked_2"))
    assert served.router.call(vector("request_all_bits")) == b"", "nobody has it: an empty message, and OK"
    assert served.router.match(HASHES[1:]) == [], "a run begins with the first block"
    assert served.aggregator.metric("kvb_grpc_ranks_without_address_total") >= 4
    assert served.metric("ok") >= 6

    # A block that is removed, one that is only on the host, and one whose hash has its highest bit set.
    served.engines[7].publish(engine.batch(engine.removed(HASHES[1])))
    wait_for("the run is cut", lambda: served.router.match(HASHES) == [
        ("http://10.0.0.1:30000", 1, "7/0"), ("http://10.0.0.2:30000", 1, "8/0")])
    publish(served.engines[8], HASHES[:2], medium="CPU")
    wait_for("the host counts", lambda: served.router.match(HASHES) == [
        ("http://10.0.0.2:30000", 2, "8/0"), ("http://10.0.0.1:30000", 1, "7/0")])


def test_a_call_to_an_idle_index_wakes_no_other_thread(served):
    served.fill()
    before = served.aggregator.metric("kvb_questions_at_once_total")
    wait_for("one is answered where it was received", lambda: served.router.match(HASHES[:2]) == [
        ("http://10.0.0.1:30000", 2, "7/0"), ("http://10.0.0.2:30000", 1, "8/0")]
        and served.aggregator.metric("kvb_questions_at_once_total") > before)


def test_an_empty_index_is_an_empty_answer(served):
    wait_for("the listener is ready", lambda: served.router.code(vector("request_4")) == "OK")
    assert served.router.call(vector("request_4")) == b""


def test_state_and_metrics_show_the_listener(served):
    bus = served.scene.bus()
    state = json.loads(bus.request("namespace.dynamo.component.Router.kv_get.state", b""))
    assert state["grpc"] == {"listen": f"127.0.0.1:{served.port}", "port": served.port, "model": ""}
    wait_for("a connection", lambda: served.router.match(HASHES) == [] and served.aggregator.metric("kvb_grpc_connections") == 1)
    served.router.close()
    wait_for("none", lambda: served.aggregator.metric("kvb_grpc_connections") == 0)
    assert "grpc listening" in served.aggregator.text()


def test_a_router_continues_after_each_status(served):
    served.fill()
    for body in (b"", vector("request_of_texts"), b"\xff", b"\x0a\x07" + bytes(7)):
        assert served.router.code(body) == "INVALID_ARGUMENT", body
    for name in ("ApplyExternalKvBatch", "MatchExternalKv", "GetExternalKvHitCounts", "MatchExternalKvPrefixes"):
        assert served.router.code(vector("apply_batch"), SERVICE + name) == "UNIMPLEMENTED"
    assert served.router.code(vector("request_4"), "/grpc.health.v1.Health/Check") == "UNIMPLEMENTED"
    assert served.router.code(vector("request_4"), compression=grpc.Compression.Gzip) in ("UNIMPLEMENTED", "OK")
    assert served.router.code(vector("request_4") + b"\x1a\x7f" + bytes(127) * 9, compression=grpc.Compression.Gzip) == "UNIMPLEMENTED"
    big = Request(hashes=range(1 << 20)).SerializeToString()
    assert len(big) > 8 << 20
    assert served.router.code(big) == "OUT_OF_RANGE"
    assert served.router.call(vector("request_4")) == vector("response_3_1"), "and it goes on"


def test_the_longest_prompt_of_a_router(served):
    served.fill()
    longest = HASHES + list(range(1048574 - len(HASHES)))
    assert served.router.match(longest) == [("http://10.0.0.1:30000", 3, "7/0"), ("http://10.0.0.2:30000", 1, "8/0")]


def test_a_model_is_named_where_there_are_several(scene):
    sglang, other = scene.engine(), scene.engine()
    port = programs.free_port()
    scene.bridge(worker(sglang, 7, block_size=BLOCK, more='address = "http://a";'),
                 worker(other, 8, model="other", block_size=BLOCK, more='address = "http://b";'), hashes="engine")
    publish(sglang, HASHES[:2])
    publish(other, HASHES[:3])
    named = scene.aggregator(name="named", block_size=BLOCK, extra=f'grpc = {{ listen = "127.0.0.1:{port}"; model = "other"; }};\n')
    with contextlib.closing(Router(port)) as router:
        wait_for("the configured model is matched", lambda: router.match(HASHES) == [("http://b", 3, "8/0")])
    port = programs.free_port()
    unnamed = scene.aggregator(name="unnamed", block_size=BLOCK, extra=f'grpc = {{ listen = "127.0.0.1:{port}"; }};\n')
    wait_for("both are there", lambda: len(unnamed.get("/streams")["streams"]) == 2)
    with contextlib.closing(Router(port)) as router:
        for _ in range(3):
            assert router.match(HASHES) == []
    assert unnamed.metric("kvb_grpc_several_models_total") == 3
    wait_for("the log says so", lambda: "set grpc.model" in unnamed.text())  # by a thread of its own
    assert unnamed.text().count("set grpc.model") == 1
    assert named.metric("kvb_grpc_several_models_total") == 0


def test_canonical_names_match_nothing(scene):
    one = scene.engine()
    port = programs.free_port()
    scene.bridge(worker(one, 7, block_size=BLOCK, more='address = "http://a";'))
    aggregator = scene.aggregator(block_size=BLOCK, extra=f'grpc = {{ listen = "127.0.0.1:{port}"; }};\n')
    publish(one, HASHES[:2])
    wait_for("blocks", lambda: sum(s["blocks"]["device"] for s in aggregator.get("/streams")["streams"]) == 2)
    with contextlib.closing(Router(port)) as router:
        assert router.match(HASHES) == []


def test_a_stop_and_a_start_cost_no_user_a_request(served):
    """Every request meanwhile gets an answer, or a status after which the router continues."""
    served.fill()
    codes, is_over = set(), threading.Event()

    def ask():
        while not is_over.is_set():
            codes.add(served.router.code(vector("request_4"), timeout=0.5))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    before = served.metric("ok")
    wait_for("requests flow", lambda: served.metric("ok") > before + 100)
    assert served.aggregator.stop() == 0
    is_over.set()
    for thread in threads:
        thread.join()
    assert codes <= {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED"}, codes


def test_not_ready_is_unavailable(scene):
    port = programs.free_port()
    scene.aggregator(wait=False, extra=f'grpc = {{ listen = "127.0.0.1:{port}"; }};\n')  # there is no nats-server
    with contextlib.closing(Router(port)) as router:
        wait_for("the listener accepts connections", lambda: socket.create_connection(("127.0.0.1", port)).close() is None)
        assert router.code(vector("request_4")) == "UNAVAILABLE"


# ---- Clients that misbehave ----


class Raw:
    """An HTTP/2 connection (h2) whose frames the test sees and can forge."""

    def __init__(self, port, settings=None):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(0.1)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, validate_outbound_headers=False))
        if settings:
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values={
                **{code: value for code, value in self.h2.local_settings.items()}, **settings})
        self.h2.initiate_connection()
        self.headers, self.bodies, self.ended, self.resets, self.goaway, self.is_closed = {}, {}, set(), {}, None, False
        self.pongs = 0

    def flush(self):
        self.raw(self.h2.data_to_send())

    def raw(self, data, seconds=60):
        """Sends all of it, because half a frame would corrupt the next ones. Gives up when the
        server has closed the connection, or reads nothing for this long."""
        waits = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        with contextlib.suppress(OSError):
            self.socket.sendall(data)
        self.socket.settimeout(waits)

    def read(self):
        """Reads what has arrived."""
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return
        for event in self.h2.receive_data(data):
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                self.headers.setdefault(event.stream_id, {}).update(dict(event.headers))
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
            elif isinstance(event, h2.events.PingAckReceived):
                self.pongs += 1
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goaway = event.error_code
        self.flush()

    def ask(self, body=None, end=True, **more):
        stream = self.h2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":path": MATCH, ":authority": "x", "te": "trailers",
                   "content-type": "application/grpc", **{k.replace("_", "-"): v for k, v in more.items()}}
        self.h2.send_headers(stream, list(headers.items()))
        if body is not None:
            self.h2.send_data(stream, body, end_stream=end)
        self.flush()
        return stream

    def until(self, what, condition, seconds=60):
        def turn():
            if not condition():
                self.read()
            return condition()
        wait_for(what, turn, seconds)

    def status(self, stream):
        return self.headers.get(stream, {}).get(b"grpc-status", b"").decode()

    def close(self):
        self.socket.close()


def framed(message, flag=0):
    return struct.pack(">BI", flag, len(message)) + message


GOOD = framed(vector("request_4"))
BODY = framed(vector("response_3_1"))


@pytest.fixture
def raw(served):
    served.fill()
    with contextlib.closing(Raw(served.port)) as one:
        yield one


def answered(one, stream):
    one.until("an answer", lambda: stream in one.ended)
    return one.status(stream), one.bodies.get(stream)


def test_frames_as_the_contract_has_them(raw, served):
    assert answered(raw, raw.ask(GOOD)) == ("0", BODY)
    assert raw.h2.remote_settings.max_concurrent_streams == 64
    stream = raw.ask(framed(vector("request_all_bits")))
    assert answered(raw, stream) == ("0", bytes(5)), "nobody: five zero bytes"
    assert answered(raw, raw.ask(framed(vector("request_4"), flag=1))) == ("12", None)
    assert answered(raw, raw.ask(bytes(5))) == ("3", None)
    assert answered(raw, raw.ask(GOOD + b"more")) == ("3", None)
    assert answered(raw, raw.ask(GOOD[:-1])) == ("3", None)
    assert answered(raw, raw.ask(GOOD, grpc_timeout="0u")) == ("4", None)
    assert answered(raw, raw.ask(GOOD, grpc_timeout="5S", x_unknown="y")) == ("0", BODY)


def test_a_message_in_many_padded_frames(raw):
    stream = raw.ask()
    for byte in GOOD:
        raw.h2.send_data(stream, bytes([byte]), pad_length=200)
        raw.h2.send_data(stream, b"")
    raw.h2.end_stream(stream)
    raw.h2.ping(b"12345678")
    raw.flush()
    assert answered(raw, stream) == ("0", BODY)


def test_a_window_of_zero(served):
    served.fill()
    with contextlib.closing(Raw(served.port, {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})) as one:
        stream = one.ask(GOOD)
        one.until("the answer's headers arrive", lambda: stream in one.headers)
        assert stream not in one.bodies
        assert served.router.call(vector("request_4")) == vector("response_3_1"), "others are answered meanwhile"
        one.h2.increment_flow_control_window(1 << 16, stream)
        one.flush()
        assert answered(one, stream) == ("0", BODY)
        stuck = one.ask(GOOD)
        one.until("the stream is reset", lambda: stuck in one.resets, 20)
        assert one.resets[stuck] == h2.errors.ErrorCodes.CANCEL


def test_a_reset_at_any_moment(raw, served):
    for length in range(len(GOOD) + 1):
        stream = raw.ask(GOOD[:length], end=False)
        raw.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        raw.flush()
        stream = raw.ask(GOOD)
        raw.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        raw.flush()
    raw.h2.ping(b"12345678")
    raw.flush()
    raw.until("the server has read all frames", lambda: raw.pongs == 1)
    wait_for("nothing is under way", lambda: served.aggregator.metric("kvb_grpc_requests_under_way") == 0)
    assert answered(raw, raw.ask(GOOD)) == ("0", BODY)
    assert served.aggregator.metric("kvb_grpc_held_bytes") == 0


def test_rapid_resets_end_the_connection(raw, served):
    for _ in range(3000):
        stream = raw.ask()
        raw.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        raw.flush()
    raw.until("the connection ends with GOAWAY", lambda: raw.goaway is not None or raw.is_closed)
    assert raw.goaway == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    raw.until("closed", lambda: raw.is_closed)
    assert served.router.call(vector("request_4")) == vector("response_3_1")
    assert served.aggregator.metric("kvb_grpc_closed_total", reason="misbehaved") == 1


def test_a_flood_of_continuations(raw, served):
    header = struct.pack(">I", 1)[1:] + b"\x01\x00" + struct.pack(">I", 1) + b"\x83"  # HEADERS without END_HEADERS
    more = struct.pack(">I", 8)[1:] + b"\x09\x00" + struct.pack(">I", 1) + b"\x00\x01a\x04bbbb"
    raw.flush()
    raw.raw(header + more * 10000)
    raw.until("closed", lambda: raw.is_closed)
    assert served.router.call(vector("request_4")) == vector("response_3_1")


def test_floods_of_small_frames_cost_nobody_else_an_answer(raw, served):
    raw.flush()
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    for kind in (ping, settings):
        raw.raw(kind * 50000, seconds=2)  # the answers to them are not read
        assert served.router.call(vector("request_4")) == vector("response_3_1")


def test_a_slow_preface_and_what_is_not_http2(served):
    served.fill()
    slow = socket.create_connection(("127.0.0.1", served.port))
    begun = time.monotonic()
    slow.settimeout(0.2)

    def is_closed():
        with contextlib.suppress(OSError):
            slow.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[len(sent):len(sent) + 1])
            sent.append(1)
        try:
            return slow.recv(1 << 16) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    sent = []
    with contextlib.closing(slow):
        wait_for("the connection is closed", is_closed)
    assert time.monotonic() - begun > 5
    with contextlib.closing(socket.create_connection(("127.0.0.1", served.port))) as one:
        one.settimeout(10)
        one.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        data = b""
        while part := one.recv(1 << 16):
            data += part
        assert data[3] == 4, "our settings, and the end"
    assert served.router.call(vector("request_4")) == vector("response_3_1")


def test_more_streams_than_there_may_be(raw):
    raw.h2.remote_settings = h2.settings.Settings(client=False)  # as if the client ignored the server's SETTINGS
    raw.h2.remote_settings.max_concurrent_streams = 1000
    streams = [raw.ask(GOOD[:5], end=False) for _ in range(70)]
    raw.until("excess streams are refused or the connection ended", lambda: len(raw.resets) >= 6 or raw.is_closed)
    assert raw.is_closed or set(raw.resets.values()) == {h2.errors.ErrorCodes.REFUSED_STREAM}
    assert set(streams[:64]).isdisjoint(raw.resets)


def test_more_requests_than_may_be_under_way(served):
    """Some requests of a burst may be RESOURCE_EXHAUSTED.  Each is answered once, and later ones are OK."""
    served.fill()
    method = served.router.method()
    calls = [method.future(vector("request_4"), timeout=10) for _ in range(500)]
    codes = [call.code().name for call in calls]
    assert set(codes) <= {"OK", "RESOURCE_EXHAUSTED"} and codes.count("OK") >= 32, set(codes)
    assert served.router.call(vector("request_4")) == vector("response_3_1")


def push(one, left, body):
    """Sends more of the body on each stream, as far as its windows allow.  True: everything is sent."""
    assert one.goaway is None, one.goaway
    for stream, sent in list(left.items()):
        if stream in one.ended or stream in one.resets or sent == len(body):
            del left[stream]
            continue
        count = min(one.h2.local_flow_control_window(stream), 1 << 18, len(body) - sent)
        for at in range(sent, sent + count, 16384):
            one.h2.send_data(stream, body[at:min(at + 16384, sent + count)])
        left[stream] = sent + count
    one.flush()
    one.read()
    return not left or one.is_closed


def test_bodies_of_many_take_no_more_than_their_share(served):
    """The memory for all bodies is limited; meanwhile clients that send and read properly are answered."""
    served.fill()
    body = framed(bytes(8 << 20))[:7 << 20]  # the end of the body is never sent
    statuses = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            one = stack.enter_context(contextlib.closing(Raw(served.port)))
            one.socket.settimeout(0.005)
            streams = [one.ask() for _ in range(8)]
            left = dict.fromkeys(streams, 0)
            wait_for("all bodies are sent or refused", lambda: push(one, left, body))
            assert served.aggregator.metric("kvb_grpc_held_bytes") <= 64 << 20
            assert served.router.call(vector("request_4")) == vector("response_3_1")
            statuses += [one.status(stream) for stream in streams]
        assert set(statuses) == {"", "8"}, statuses
    wait_for("all is given back", lambda: served.aggregator.metric("kvb_grpc_held_bytes") == 0)


def test_a_used_port_is_reported(scene):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        aggregator = scene.aggregator(wait=False, extra=f'grpc = {{ listen = "127.0.0.1:{port}"; }};\n')
        wait_for("the aggregator ends", lambda: not aggregator.is_running())
        assert f"127.0.0.1:{port}" in aggregator.text() and "Address already in use" in aggregator.text()
        scene.started.remove(aggregator)
