"""Sockets to engines: who may connect to a bridge that listens, what a replay may cost, and how a
frozen peer is detected."""

import contextlib
import re
import resource
import socket
import struct

import pytest
import zmq

import engine
import programs
from conftest import worker
from programs import wait_for
from test_faults import Reader, name_of, store

# ZMTP 3.0 by hand: greeting without encryption, then READY as a PUB.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
HELLO = GREETING + b"\x04" + bytes([len(READY)]) + READY


def streams(bridge, state):
    return bridge.metric("kvb_streams", state=state)


def listening(scene, kind="tcp", **options):
    """An engine that connects to the address where a bridge will listen; returns both."""
    address = f"tcp://127.0.0.1:{programs.free_port()}"
    if kind == "ipc":
        address = f"ipc://{scene.folder}/events"
    vllm = scene.engine_of(engine.ConnectingEngine, address=address, **options)
    return address, vllm


def raw(address):
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=programs.DEADLINE_S)


@pytest.mark.first
@pytest.mark.sanitize
def test_a_peer_without_a_handshake_is_no_engine(scene):
    reader = Reader(scene.bus())
    address, vllm = listening(scene)
    bridge = scene.bridge(worker(vllm, more="bind = true;"))
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    wait_for("EXACT", lambda: streams(bridge, "exact") == 1)
    connected = bridge.metric("kvcache_zmq_connections_total")

    half_open = raw(address)  # sends nothing until libzmq's handshake timeout
    for bytes_sent in (
        b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 40, b"\xff" * 80, GREETING[:20],
        GREETING, GREETING.replace(b"NULL", b"CURV"), GREETING + b"\x04\xff" + b"x" * 99,
        GREETING + b"\x00\x03abc", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
        HELLO.replace(b"PUB", b"SUB"),
    ):
        for _ in range(3):
            with raw(address) as stray, contextlib.suppress(OSError):
                stray.sendall(bytes_sent)
    vllm.publish(store(2))
    wait_for("block 2 comes as if nothing had been", reader.holds(1, 2))
    assert half_open.recv(4096), "libzmq's greeting"
    wait_for("the half-open connection is given up",
             lambda: half_open.recv(4096) == b"")
    vllm.publish(store(3))
    wait_for("block 3", reader.holds(1, 2, 3))
    wait_for("EXACT still", lambda: streams(bridge, "exact") == 1)
    assert bridge.metric("kvcache_zmq_connections_total") == connected or bridge.was_kept_waiting()
    assert bridge.metric("kvb_streams_cleared_total") == 0
    assert bridge.metric("kvb_engine_restarts_total") == 0
    half_open.close()


def test_two_engines_on_one_port_are_refused_until_one_is_left(scene):
    reader = Reader(scene.bus())
    address, vllm = listening(scene)
    bridge = scene.bridge(worker(vllm, more="bind = true;"))
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    wait_for("EXACT", lambda: streams(bridge, "exact") == 1)

    other = scene.engine_of(engine.ConnectingEngine, address=address)
    wait_for("two engines make the stream DOWN", lambda: streams(bridge, "down") == 1)
    wait_for("the log says so", lambda: "several engines are connected" in bridge.text())
    other.publish(store(50))
    other.publish(store(51))  # seq 1 is what the real engine would send next
    wait_for("both are refused",
             lambda: bridge.metric("kvb_batches_refused_total", reason="stranger") >= 2)
    vllm.publish(store(2))
    other.go_away()
    wait_for("EXACT again", lambda: streams(bridge, "exact") == 1)
    wait_for("what came meanwhile is replayed", reader.holds(1, 2))
    assert "cleared" not in reader.log[1:], "the engine that stayed was proven to be the same"
    assert not {name_of(50), name_of(51)} & reader.names()
    vllm.publish(store(3))
    wait_for("block 3", reader.holds(1, 2, 3))


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_an_engine_that_connects_is_followed_through_a_restart(scene, kind):
    reader = Reader(scene.bus())
    _, vllm = listening(scene, kind)
    bridge = scene.bridge(worker(vllm, more="bind = true;"))
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    vllm.go_away()
    wait_for("DOWN", lambda: streams(bridge, "down") == 1)
    vllm.forget()
    vllm.next_seq = 0
    vllm._open(None, vllm.replay)
    vllm.publish(store(9))
    wait_for("another life", reader.holds(9))
    wait_for("EXACT", lambda: streams(bridge, "exact") == 1)


@contextlib.contextmanager
def accepted_engine():
    """A PUB socket made by hand that completes the handshake and then sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(programs.DEADLINE_S)
        yield server


@pytest.mark.first
def test_a_frozen_engine_is_detected_by_heartbeats(scene):
    with accepted_engine() as server:
        bridge = scene.bridge(
            f'id = 7; model = "m"; block_size = 16; '
            f'events = "tcp://127.0.0.1:{server.getsockname()[1]}";'
        )
        frozen, _ = server.accept()
        frozen.sendall(HELLO)
        wait_for("the engine is connected", lambda: streams(bridge, "unverified") == 1)
        wait_for("the silent engine is disconnected", lambda: streams(bridge, "down") == 1)
        again, _ = server.accept()  # the bridge tries to connect again
        frozen.close()
        again.close()


def zmtp(*frames):
    """One message by hand."""
    out = b""
    for at, body in enumerate(frames):
        more = at + 1 < len(frames)
        out += (bytes([more, len(body)]) if len(body) < 256
                else bytes([2 | more]) + len(body).to_bytes(8, "big")) + body
    return out


def subscribed(server):
    """Accepts the bridge, as a PUB that it has subscribed to. libzmq may connect again before the bridge has noticed
    a loss; the bridge ends that connection, and makes its own."""
    while True:
        connection, _ = server.accept()
        connection.settimeout(programs.DEADLINE_S)
        received = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(HELLO)
            while zmtp(b"\x01") not in received[len(GREETING):] and (data := connection.recv(4096)):
                received += data
        if zmtp(b"\x01") in received[len(GREETING):]:
            return connection
        connection.close()


def reset(connection):
    """Ends it as a process that was killed with unread input does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def flood(connection):
    """Sends 100 MB, which the bridge reads more slowly, until it stops reading or ends the connection."""
    blocks = range(1, 301)
    batches = [engine.batch(engine.stored(blocks, [10000 + i for i in range(16 * len(blocks))], 16)),
               engine.batch(engine.cleared())]
    connection.settimeout(0.5)
    with contextlib.suppress(OSError):
        for seq in range(0, 12000, 20):
            connection.sendall(b"".join(
                zmtp(b"kv", at.to_bytes(8, "big"), batches[at % 2]) for at in range(seq, seq + 20)))


def test_an_engine_that_floods_and_resets_costs_its_connection_only(scene):
    """libzmq aborts the process when a ping is due on a connection that has failed while its queue was full, and
    when a full queue is read after the next connection has taken it over. Without a limit to the queue, the bridge
    ends a connection that brings too much."""
    other = scene.engine()
    reader = Reader(scene.bus())
    with accepted_engine() as server:
        server.settimeout(programs.DEADLINE_S)
        bridge = scene.bridge(
            f'id = 8; model = "m"; block_size = 16; events = "tcp://127.0.0.1:{server.getsockname()[1]}";',
            worker(other, 7))
        for _ in range(3):
            connection = subscribed(server)
            flood(connection)
            reset(connection)
        endless = subscribed(server)
        frames = zmtp(bytes(60_000), b"")[:-2] * 16  # of a message whose last frame never comes
        endless.settimeout(1)
        at, pauses = 0, 0
        with contextlib.suppress(ConnectionError):
            while True:
                try:
                    at = (at + endless.send(frames[at:])) % len(frames)
                except TimeoutError:  # it reads no more, or is kept from it
                    pauses += 1
                    if bridge.metric("kvcache_zmq_errors_total", pod_key="8", error_type="flood") or pauses > programs.DEADLINE_S:
                        break
        endless.close()
        again, _ = server.accept()  # the bridge lives, and connects again
        other.publish(store(1))
        wait_for("block 1 of the other engine", reader.holds(1))
        assert bridge.is_running()
        wait_for("the flood is counted",
                 lambda: bridge.metric("kvcache_zmq_errors_total", pod_key="8", error_type="flood") >= 1)
        assert bridge.bytes_of("VmHWM") < 400 << 20
        again.close()


class PatientEngine(engine.Engine):
    """Waits for a slow reader of a replay instead of dropping replies, and stops when the reader
    has disconnected."""

    def _open(self, events, replay):
        super()._open(events, replay)
        self.router.set(zmq.ROUTER_MANDATORY, 1)
        self.router.set(zmq.SNDHWM, 8)
        self.router.set(zmq.SNDTIMEO, 10_000)

    def _reply(self, peer, seq, payload):
        with contextlib.suppress(zmq.ZMQError):
            super()._reply(peer, seq, payload)


def test_a_replay_larger_than_its_bound_comes_in_rounds(scene):
    """400 MB, of which 4 MiB may be queued: the process must not grow with the replay, and all of
    it must arrive."""
    vllm = scene.engine_of(PatientEngine)
    batches = 1000
    vllm.publish(store(1), live=False)
    unknown = engine.batch(engine.removed(*range(1 << 40, (1 << 40) + 45_000)))
    assert len(unknown) > 400_000
    for _ in range(batches):
        vllm.publish(unknown, live=False)
    vllm.publish(store(2), live=False)
    reader = Reader(scene.bus())
    bridge = scene.bridge(worker(vllm))
    wait_for("EXACT", lambda: streams(bridge, "exact") == 1)
    wait_for("both blocks", reader.holds(1, 2))
    wait_for("the figures follow",
             lambda: bridge.metric("kvb_batches_applied_total") == batches + 2)
    assert bridge.metric("kvb_replays_total", step="cut") > 0
    assert bridge.metric("kvb_streams_cleared_total") == 0
    assert vllm.requests[0] == 0 and (vllm.requests.count(0) == 1 or bridge.was_kept_waiting()), "one full replay"
    assert bridge.bytes_of("VmHWM") < 250 << 20


def test_too_few_open_files_are_told_at_start_and_by_check(scene):
    rows = ",\n".join(
        f'{{ id = {i}; model = "m"; block_size = 16; ranks = 16;'
        f' events = "tcp://127.0.0.1:{10000 + 100 * i}"; }}' for i in range(1, 33)
    )
    config = scene.folder / "many.cfg"
    config.write_text(
        f'nats = {{ url = "{scene.nats_url}"; }};\nhttp = "";\n'
        f'publish = {{ namespace = "n"; component = "c"; }};\nworkers = ({rows});\n'
    )

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))

    for options in (["--check"], []):
        done = programs.run("kvbridge", "--config", config, *options, preexec_fn=few)
        assert done.returncode == 78, done
        assert re.search(r"many\.cfg: workers: 512 ranks need \d{4} open files, the limit is 300",
                         done.stderr), done.stderr
        assert "LimitNOFILE" in done.stderr
    done = programs.run("kvbridge", "--config", config, "--check", text=False)
    assert done.returncode == 0, done
