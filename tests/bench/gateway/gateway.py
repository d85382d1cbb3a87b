"""What a pick adds to a request that passes a real Envoy, and what a running answer costs the picker.

    gateway.py --seconds N [--small] [NAME...]

h2load (Debian: nghttp2-client) sends 1,000 requests a second with bodies of 4 KB, in turns: to an Envoy that asks nobody,
that asks bench_picker, which picks at once, and that asks kvaggregator. The engines are an Envoy that answers at once.
Then chats grow to 100,000 tokens, and the time of each pick is what kvb_gateway_pick_seconds has grown by. Prints the rows gateway.*, one JSON object a line; ../rows.py says what they are."""

import contextlib
import json
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import h2.config  # noqa: E402
import h2.connection  # noqa: E402

import measure  # noqa: E402 (it adds tests/e2e to the path)
import conftest  # noqa: E402
import engine  # noqa: E402
import envoys  # noqa: E402
import gateway  # noqa: E402 (that of tests/e2e)
import openai_engine  # noqa: E402
import programs  # noqa: E402
from measure import figure  # noqa: E402
from programs import wait_for  # noqa: E402

RATE, CLIENTS, TURNS = 1000, 20, 5
TOKENS = [10_000 + number % 3_000 for number in range(672)]  # with commas and blanks 4.7 KB
STREAMS, STREAMS_OF_CONNECTION = 10_000, 3_400
WAYS = ["none", "at_once", "kvaggregator"]
# Of a chat: its turns, and tokens of the first one and of each other one. As with an agent's context, no engine is asked
# for the tokens of a later turn, because at least 3/4 of it are known.
CHAT_TURNS, FIRST_TOKENS, TURN_TOKENS, TOKEN_BYTES = 25, 76_000, 1_000, 4


@contextlib.contextmanager
def started_scene():
    with tempfile.TemporaryDirectory() as folder:
        scene = conftest.Scene(pathlib.Path(folder), conftest.SERVERS["debian"])
        try:
            scene.start_nats()
            yield scene
        except BaseException:
            print(scene.logs(), file=sys.stderr)
            raise
        finally:
            trouble = scene.close()
        assert not trouble, trouble


def engine_envoy(scene, count):
    """Engines that answer at once."""
    ports = {f"engine{number}": programs.free_port() for number in range(count)}
    reply = {"status": 200, "body": {"inline_string": json.dumps({"choices": [], "usage": {
        "prompt_tokens": len(TOKENS), "prompt_tokens_details": {"cached_tokens": 0}}})}}
    listeners = []
    for name, port in ports.items():
        one = envoys.listener(name, port, picker=None)
        manager = one["filter_chains"][0]["filters"][0]["typed_config"]
        del manager["access_log"]
        (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
        del route["route"]
        route["direct_response"] = reply
        listeners.append(one)
    envoys.Envoy(scene, {"static_resources": {"listeners": listeners, "clusters": []}}, ports, "engines")
    return [f"127.0.0.1:{port}" for port in ports.values()]


class Place:
    def __init__(self, scene):
        self.scene = scene
        endpoints = engine_envoy(scene, 2)
        events = [scene.engine() for _ in endpoints]
        scene.bridge(*(conftest.worker(one, number, more=f'address = "http://{endpoint}";')
                       for number, (one, endpoint) in enumerate(zip(events, endpoints), 1)), heartbeat_ms=200)
        self.picker_port, at_once = programs.free_port(), programs.free_port()
        self.aggregator = scene.aggregator(wait=False, extra=(
            f'gateway = ( {{ listen = "127.0.0.1:{self.picker_port}"; }} );\n'))
        wait_for("the picker knows the engines", lambda: self.aggregator.metric("kvb_gateway_endpoints") == len(endpoints))
        scene.start("bench_picker", [programs.BIN / "tests/bench_picker", at_once, *endpoints])
        blocks = len(TOKENS) // gateway.BLOCK
        events[0].publish(engine.batch(engine.stored(list(range(1, blocks + 1)), TOKENS[:blocks * gateway.BLOCK], gateway.BLOCK)))
        listeners = {way: {"picker": None if way == "none" else way, "response": "NONE"} for way in WAYS}
        self.envoy = envoys.start(scene, listeners, [
            envoys.picker_cluster("kvaggregator", self.picker_port), envoys.picker_cluster("at_once", at_once),
            envoys.override_host("pool", endpoints)])
        self.body = scene.folder / "body"
        self.body.write_text(json.dumps({"model": "m", "prompt": TOKENS, "max_tokens": 1}))

    def latencies(self, way, seconds):
        """Microseconds of each request, sorted."""
        log = self.scene.folder / "h2load.log"
        log.unlink(missing_ok=True)
        subprocess.run(
            # A client begins each millisecond, so that requests come one by one and not 20 at once.
            ["h2load", "--h1", "--clients", str(CLIENTS), "--rate", "1", "--rate-period", "1ms",
             "--rps", str(RATE / CLIENTS), "--requests", str(RATE * seconds), "--data", self.body,
             "--header", "content-type: application/json", "--log-file", log,
             f"http://127.0.0.1:{self.envoy.ports[way]}{gateway.TEXT}"], check=True, capture_output=True)
        rows = [line.split("\t") for line in log.read_text().splitlines()]
        bad = [row for row in rows if row[1] != "200"]
        if bad or len(rows) != RATE * seconds:
            raise SystemExit(f"gateway.py: {way}: {len(rows)} answers, {len(bad)} of them not 200")
        return sorted(int(row[2]) for row in rows)


def measure_latency(place, seconds):
    each = max(2, round(seconds / TURNS / len(WAYS)))
    for way in WAYS:
        place.latencies(way, 1)  # connections are open, and code is warm
    rounds = measure.take_turns(WAYS, TURNS, lambda way: place.latencies(way, each))
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        none, at_once, ours = ([one[int(share * len(one))] for one in rounds[way]] for way in WAYS)
        figure(f"gateway.request.{name}", "us", ours, "picks at once", at_once)
        figure(f"gateway.request.without.{name}", "us", none)
        figure(f"gateway.added.{name}", "us", [statistics.median(ours) - statistics.median(at_once)])


# ---- Streams that stay open ----------------------------------------------------------


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def grpc_message(data):
    return b"\0" + len(data).to_bytes(4, "big") + data


def first_message():
    """request_headers that end the request, both bodies FULL_DUPLEX_STREAMED."""
    headers = b"".join(field(1, field(1, name) + field(3, value)) for name, value in (
        (b":method", b"GET"), (b":path", b"/v1/models"), (b":authority", b"x"), (b"user-agent", b"bench")))
    return grpc_message(field(2, field(1, headers) + b"\x18\x01") + field(11, b"\x08\x04\x10\x04"))


def open_streams(port, count):
    """The connection, when each of its streams was answered with a pick."""
    link = socket.create_connection(("127.0.0.1", port))
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    client.increment_flow_control_window(1 << 30)
    answered, message, opened = set(), first_message(), 0
    while len(answered) < count:
        while opened < count and opened - len(answered) < 50:
            number = client.get_next_available_stream_id()
            client.send_headers(number, [
                (":method", "POST"), (":scheme", "http"), (":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
                (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")])
            client.send_data(number, message)
            opened += 1
        link.sendall(client.data_to_send())
        for event in client.receive_data(link.recv(1 << 20)):
            if type(event).__name__ == "DataReceived":
                answered.add(event.stream_id)
            assert type(event).__name__ not in ("StreamReset", "StreamEnded", "ConnectionTerminated"), event
    return link


def measure_memory(place, streams):
    pid = place.aggregator.process.pid
    before = measure.resident_bytes(pid)
    links = [open_streams(place.picker_port, min(STREAMS_OF_CONNECTION, streams - at))
             for at in range(0, streams, STREAMS_OF_CONNECTION)]
    wait_for("all streams are counted", lambda: place.aggregator.metric("kvb_gateway_streams") == streams)
    figure("gateway.stream.bytes", "bytes", [round((measure.resident_bytes(pid) - before) / streams)])
    for link in links:
        link.close()
    wait_for("all streams are gone", lambda: place.aggregator.metric("kvb_gateway_streams") == 0)


# ---- Chats of 100,000 tokens ---------------------------------------------------------


def measure_chats(scene, count):
    world = gateway.World(scene, {"watched": {"response": "NONE", "watch": "picker"}}, gateway="deadline_ms = 60000;")
    for one in world.engines:
        one.token_bytes = TOKEN_BYTES
    chance, picks, blocks = random.Random(20261129), [], 0

    def text(tokens):
        return "".join(chance.choices("etaoin shrdlu,\n", k=tokens * TOKEN_BYTES))

    for _ in range(count):
        texts, stored = [text(FIRST_TOKENS)], 0
        for turn in range(CHAT_TURNS):
            before = world.metric("pick_seconds_sum")
            answer = world.send("watched", gateway.chat(*texts))
            assert answer.status == 200, answer
            if turn > 0:
                picks.append(1e6 * (world.metric("pick_seconds_sum") - before))
            # The engine that served it stores what is new.
            tokens = openai_engine.tokens_of("".join(texts), TOKEN_BYTES)
            full = len(tokens) // gateway.BLOCK
            world.events[int(answer.engine()) - 1].publish(engine.batch(engine.stored(
                list(range(blocks + 1, blocks + 1 + full - stored)), tokens[stored * gateway.BLOCK:full * gateway.BLOCK],
                gateway.BLOCK, parent=blocks if stored else None)))
            blocks, stored = blocks + full - stored, full
            wait_for("the blocks are listed", lambda: world.aggregator.metric("kvb_index_blocks") == blocks)
            wait_for("the turn has ended", lambda: world.in_flight() == 0)
            texts += [text(TURN_TOKENS // 2), text(TURN_TOKENS // 2)]
    if world.by("prefix") != len(picks):
        raise SystemExit(f"gateway.py: {world.by('prefix')} of {len(picks)} turns were picked by an earlier one")
    picks.sort()
    for name, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99)):
        figure(f"gateway.chat.{name}", "us", [round(picks[int(share * len(picks))], 3)])


def main():
    options = measure.begin(__doc__)
    if not shutil.which("h2load"):
        raise SystemExit("gateway.py needs h2load: apt install nghttp2-client")
    if any(map(options.wants, ("gateway.request", "gateway.added", "gateway.stream"))):
        with started_scene() as scene:
            place = Place(scene)
            measure_latency(place, 6 if options.small else 3 * options.seconds)
            measure_memory(place, options.size(STREAMS))
    if options.wants("gateway.chat"):
        with started_scene() as scene:
            measure_chats(scene, 2 if options.small else 20)


main()
