"""Events republished for routers that read engines themselves: does each kind of reader end with what the engine holds,
through losses and restarts?  (`KVB_REPUBLISH_SEEDS=100` runs as many random worlds of each kind.)"""

import contextlib
import os
import random
import signal
import socket
import time

import msgspec
import pytest
import zmq

import engine
import programs
import readers
from clock import Clock, build_shim
from conftest import worker
from test_sockets import HELLO, zmtp

SIZE = 4
SEEDS = int(os.environ.get("KVB_REPUBLISH_SEEDS", "1"))
MORE = "republish = {{ events = \"{}\"; replay = \"{}\"; {} }};"


class World:
    """An engine that stores and removes blocks, and a bridge that republishes it."""

    def __init__(self, scene, seed=1, more="", directory=None, source=None):
        self.scene, self.rng, self.directory = scene, random.Random(seed), directory
        self.engine = source or scene.engine()
        self.truth = {}  # hash -> (parent, tokens), of blocks that are held
        self.next_hash = 1 << 40
        self.events, self.replay = (f"tcp://127.0.0.1:{programs.free_port()}" for _ in range(2))
        self.readers = []
        scene.clients.append(self)  # stopped together with this world, whatever happens
        self.bridges = 0
        row = worker(self.engine, block_size=SIZE, more=MORE.format(self.events, self.replay, more))
        limits = f'checkpoint = "{directory}"; checkpoint_s = 1;' if directory else ""
        self.start = lambda: scene.bridge(row, name=f"bridge{self.bridges}", limits=limits)
        self.bridge = self.start()

    def store_more(self):
        self.store()

    def written_ns(self, pattern):
        """When the newest of these files was written."""
        return max((one.stat().st_mtime_ns for one in self.directory.glob(pattern)), default=0)

    def wait_for_checkpoint(self):
        """Waits for a checkpoint that was begun after this call: one at a time is written."""
        for _ in range(2):
            newest = self.written_ns("*[0-9]")
            self.store_more()
            programs.wait_for("a checkpoint is written", lambda: self.written_ns("*[0-9]") > newest)

    def end_bridge(self, is_killed):
        if is_killed and self.directory:
            self.wait_for_checkpoint()
        self.bridge.kill() if is_killed else self.bridge.stop()

    def restart_bridge(self, is_killed):
        self.end_bridge(is_killed)
        self.bridges += 1
        self.bridge = self.start()

    def reader(self, kind, lossy=0.0, **more):
        one = kind(self.events, self.replay, block_size=SIZE, lose=lambda: self.rng.random() < lossy, **more)
        self.readers.append(one)
        return one

    def close(self):
        for one in self.readers:
            one.close()

    # ---- What the engine does ----

    def store(self, count=1, parent=None):
        names = [self.next_hash + i for i in range(count)]
        self.next_hash += count
        tokens = [[self.rng.randrange(150_000) for _ in range(SIZE)] for _ in names]
        self.engine.publish(
            engine.batch(engine.MapForm.stored(names, sum(tokens, []), SIZE, parent=parent), rank=0)
        )
        for above, name, own in zip([parent, *names], names, tokens):
            self.truth[name] = (above, tuple(own))
        return names

    def remove(self, *names):
        self.engine.publish(engine.batch(engine.MapForm.removed(*names), rank=0))
        for name in names:
            del self.truth[name]

    def step(self):
        if not self.truth or self.rng.random() < 0.6:
            self.store(self.rng.randrange(1, 4), self.rng.choice([None, *self.truth]))
        else:  # leaves are removed first, as in an engine's prefix cache
            parents = {parent for parent, _ in self.truth.values()}
            self.remove(self.rng.choice([name for name in self.truth if name not in parents]))

    def restart_engine(self):
        self.engine.restart()
        self.truth.clear()
        self.store(3)

    # ---- Comparing ----

    def wait(self, *some):
        deadline = time.monotonic() + programs.DEADLINE_S
        for one in some:
            while one.held != self.truth:
                assert time.monotonic() < deadline, self.difference(one)
                one.read(100)
        for one in some:
            assert one.batches == sorted(set(one.batches)), "numbers go up"

    def difference(self, reader):
        missing, wrong = self.truth.keys() - reader.held.keys(), reader.held.keys() - self.truth.keys()
        return (
            f"{type(reader).__name__}: {len(reader.held)} held of {len(self.truth)}, {len(wrong)} wrong, "
            f"left out {self.bridge.metric('kvb_republish_blocks_left_out')}, missing {list(missing)[:5]}"
        )


@pytest.fixture
def world(scene):
    return World(scene)


KINDS = [readers.Dynamo, readers.LlmD, readers.LlmDLater, readers.Conductor, readers.Tree, readers.Plain]


@pytest.mark.first
@pytest.mark.parametrize("kind, style", [*((kind, "vllm") for kind in KINDS), (readers.Dynamo, "dynamo")])
def test_a_late_reader_has_the_held_blocks(scene, kind, style):
    world = World(scene, more=f'style = "{style}";')
    names = world.store(5)
    world.store(3, parent=names[1])
    world.remove(names[4])
    reader = world.reader(kind)
    world.wait(reader)
    world.store(2, parent=names[2])
    world.wait(reader)


@pytest.mark.first
def test_a_gap_is_filled_with_the_missed_batches(world):
    world.store(2)
    reader = world.reader(readers.Dynamo)
    world.wait(reader)
    reader.lose = lambda: True
    for _ in range(5):
        world.store()
        reader.read(200)
    reader.lose = lambda: False
    world.wait(reader)  # the next empty batch reveals the gap
    assert world.bridge.metric("kvb_republish_snapshots_total") == 0


def test_numbers_continue_after_a_restart_and_a_gap_gets_a_snapshot(scene, tmp_path):
    directory = tmp_path / "checkpoints"
    directory.mkdir(mode=0o750)
    world = World(scene, directory=directory)
    world.store(5)
    some = [world.reader(kind) for kind in (readers.Dynamo, readers.LlmD, readers.Conductor)]
    world.wait(*some)
    for is_killed in (False, True):
        last = max(one.batches[-1] for one in some)
        world.restart_bridge(is_killed)
        world.store(2)
        world.wait(*some)
        first = next(number for number in some[0].batches if number > last)
        assert first <= last + (16384 + 1 if is_killed else 100), "the jump is what was reserved"
    assert not some[2].is_stale


@pytest.mark.parametrize("is_killed", [False, True])
def test_tokens_survive_a_restart_though_the_engine_has_forgotten_them(scene, tmp_path, is_killed):
    directory = tmp_path / "checkpoints"
    directory.mkdir(mode=0o750)
    world = World(scene, directory=directory)
    names = world.store(15)
    names += world.store(15, parent=names[-1])
    world.store(1)
    some = [world.reader(kind) for kind in (readers.Dynamo, readers.LlmD, readers.Tree)]
    world.wait(*some)
    if is_killed:  # one each second
        world.wait_for_checkpoint()
    world.engine.forget(keep=2)  # these batches prove that it is the same engine
    for _ in range(3):
        world.store(1, parent=names[-1])
    world.restart_bridge(is_killed)
    world.store(1, parent=names[-1])
    world.remove(list(world.truth)[-1])
    world.wait(*some)
    programs.wait_for("nothing is left out", lambda: world.bridge.metric("kvb_republish_blocks_left_out") == 0)


@pytest.mark.first
def test_an_engine_that_restarts_is_cleared(world):
    world.store(4)
    some = [world.reader(kind) for kind in (readers.Dynamo, readers.LlmD, readers.Tree)]
    world.wait(*some)
    world.restart_engine()
    world.wait(*some)


def test_the_blocks_of_a_removed_worker_are_removed(world):
    world.store(4)
    some = [world.reader(kind) for kind in (readers.Tree, readers.Plain)]
    world.wait(*some)
    path = world.scene.folder / f"{world.bridge.name}.cfg"
    text = path.read_text()
    other = worker(world.scene.engine(), worker_id=8)
    start, end = text.index("workers = ("), text.index("\n);")
    path.write_text(text[:start] + "workers = (\n  { " + other + " }" + text[end:])
    world.bridge.process.send_signal(signal.SIGHUP)
    world.truth.clear()
    world.wait(*some)


def ask(address, start):
    """Yields the replies to a request one by one, without the END mark."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.RCVTIMEO, int(1000 * programs.DEADLINE_S))
    dealer.connect(address)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    replies = []
    while not replies or replies[-1] != [b"", b"", readers.END, b""]:
        replies.append(dealer.recv_multipart())
    context.destroy(linger=0)
    return replies[:-1]


def test_arrays_are_those_that_aibrix_reads(scene):
    world = World(scene, more='style = "aibrix"; topic = "kv-events";')
    name = world.store(1)[0]
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.subscribe(b"kv-events")
    sub.connect(world.events)
    stored = []
    while not stored:
        topic, number, payload = sub.recv_multipart()
        assert topic == b"kv-events"
        ts, events, rank = msgspec.msgpack.decode(payload)
        stored = [event for event in events if event[0] == "BlockStored"]
    assert isinstance(ts, float) and rank == 0
    tokens = list(world.truth[name][1])
    assert stored == [["BlockStored", [name], None, tokens, SIZE, None, "GPU", None, None, 0, "full_attention", None]]
    context.destroy(linger=0)
    replies = ask(world.replay, int.from_bytes(number, "big"))
    assert replies[0] == [b"", b"kv-events", number, payload]


def test_a_reader_that_subscribes_without_end_is_disconnected(world):
    """libzmq would keep 30 times what it sends, and do nothing else meanwhile."""
    other = world.reader(readers.Dynamo)
    world.store(10)
    world.wait(other)
    endless = socket.create_connection(("127.0.0.1", int(world.events.rpartition(":")[2])), timeout=programs.DEADLINE_S)
    endless.sendall(HELLO.replace(b"PUB", b"SUB"))
    received = b""
    while len(received) < 64:
        received += endless.recv(4096)
    random_bytes = random.Random(7).randbytes
    with contextlib.suppress(ConnectionError):
        while True:
            endless.sendall(b"".join(zmtp(b"\x01" + random_bytes(1000)) for _ in range(50)))
    endless.close()
    programs.wait_for("it is counted", lambda: world.bridge.metric("kvb_republish_readers_ended_total") >= 1)
    world.store(10)
    world.wait(other)
    assert world.bridge.metric("kvb_republish_readers_ended_total") == 1, "the other reader stays"
    assert world.bridge.bytes_of("VmHWM") < 200 << 20


def test_an_address_in_use_is_reported_and_tried_again(scene):
    taken = scene.engine()
    one = worker(scene.engine(), more=MORE.format(taken.events, f"tcp://127.0.0.1:{programs.free_port()}", ""))
    bridge = scene.bridge(one)
    said = programs.wait_for("the state says why", lambda: bridge.get("/state")["streams"][0]["republish"].get("why"))
    assert taken.events in said
    programs.wait_for("it is counted", lambda: bridge.metric("kvb_republish_not_listening") == 1)
    taken.go_away()
    programs.wait_for("the bridge listens", lambda: "why" not in bridge.get("/state")["streams"][0]["republish"])
    reader = readers.Plain(taken.events, "")
    programs.wait_for("the reader receives events", lambda: reader.read(50))
    reader.close()


def run_random_world(world, kind, lossy):
    reader = world.reader(kind, lossy)
    for _ in range(60):
        for _ in range(world.rng.randrange(8)):
            world.step()
        chance = world.rng.random()
        if chance < 0.04:
            world.readers.remove(reader)
            reader.close()
            reader = world.reader(kind, lossy)
        elif chance < 0.06:
            world.restart_bridge(world.rng.random() < 0.5)
        elif chance < 0.07:
            world.restart_engine()
        reader.read(20)
    reader.lose = lambda: False
    world.wait(reader)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", KINDS)
def test_random_worlds_end_with_correct_readers(scene, tmp_path, kind, seed):
    directory = tmp_path / "checkpoints"
    directory.mkdir(mode=0o750)
    world = World(scene, seed=seed, directory=directory)
    run_random_world(world, kind, 0.03 if kind.replays else 0.0)


def test_numbers_do_not_go_back_with_the_clock(scene, tmp_path, monkeypatch):
    """The clock is set back by an hour while a bridge without checkpoints starts again."""
    clock = Clock(tmp_path / "clock")
    for name, value in clock.environment(build_shim(tmp_path)).items():
        monkeypatch.setenv(name, value)
    world = World(scene)
    names = world.store(40)
    some = [world.reader(kind) for kind in (readers.Dynamo, readers.LlmDLater, readers.Conductor, readers.Tree, readers.Plain)]
    world.wait(*some)
    world.end_bridge(is_killed=True)
    clock.jump(-3600)
    world.remove(*names[10:])
    world.bridges += 1
    world.bridge = world.start()
    world.store(5)
    world.wait(*some)
