"""Does kvaggregator answer sgl-router over gRPC exactly as its own index would, and only with statuses after which it
continues? Are clients that misbehave closed, while all others are answered?"""

import contextlib
import socket
import struct

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
from kv_indexer import MATCH, SERVICE, VECTORS, Request, Router, chain, vector
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


@pytest.fixture
def raw(served):
    served.fill()
    with contextlib.closing(Raw(served.port)) as one:
        yield one


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
