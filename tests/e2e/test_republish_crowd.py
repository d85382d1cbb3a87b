"""Many readers of republished events, each a process of its own: does each hold the engine's blocks
at each quiet point, although each joined at some time and was killed once, and engine and bridge
were killed too?

    KVB_REPUBLISH_BATCHES=50000 KVB_BIN=build/release build/venv/bin/python -m pytest -q tests/e2e/test_republish_crowd.py

is the large one: some minutes, 20 readers of all kinds.  Its figures are at the end of what is printed.  The small one has
the kinds that are answered at once (`style = "dynamo"`), for announcements are at most one in 10 s.
"""

import collections
import os
import time

import engine
import programs
import readers
from engine_process import EngineProcess
from reader_process import ReaderProcess, digest_of
from test_republish import KINDS, SIZE, World

SMALL = 600
BATCHES = int(os.environ.get("KVB_REPUBLISH_BATCHES", SMALL))
IS_SMALL = BATCHES <= SMALL
READERS = 3 if IS_SMALL else 20
QUIET_POINTS = 3 + BATCHES // 5000
KILLS = 1 + BATCHES // 10_000  # kills of the engine; as many of the bridge, and as many normal stops of it
MAX_HELD = 2000  # blocks in the engine's cache
RATE = 1000  # maximum batches a second: the engine's buffer of 10,000 then covers 10 s
MISSED = 50  # batches that the engine publishes while no bridge runs


class CrowdWorld(World):
    """An engine that first evicts the block that has been a leaf for longest."""

    def __init__(self, scene, directory):
        self.children = collections.Counter()
        self.leaves = collections.OrderedDict()
        self.recent = collections.deque(maxlen=64)
        self.count = collections.Counter()
        more = 'style = "dynamo";' if IS_SMALL else ""
        super().__init__(scene, seed=BATCHES, more=more, directory=directory, source=scene.engine_of(EngineProcess))

    def publish(self, *events):
        self.engine.publish(engine.batch(*events, rank=0))
        self.count["batches"] += 1

    def store_prompt(self):
        """Stores a block below a recent one, or as a prompt of its own."""
        parent = self.rng.choice([None, *(name for name in self.recent if name in self.truth)])
        names = [self.next_hash + i for i in range(self.rng.randrange(1, 6))]
        tokens = [[self.rng.randrange(150_000) for _ in range(SIZE)] for _ in names]
        self.next_hash += len(names)
        self.publish(engine.MapForm.stored(names, sum(tokens, []), SIZE, parent=parent))
        for above, name, own in zip([parent, *names], names, tokens):
            self.truth[name] = (above, tuple(own))
            self.children[above] += 1
            self.leaves.pop(above, None)
        self.leaves[names[-1]] = True
        self.recent.extend(names)
        self.count["stored"] += len(names)

    def evict(self):
        names = []
        for _ in range(min(self.rng.randrange(1, 9), len(self.leaves))):
            name = self.leaves.popitem(last=False)[0]
            parent, _ = self.truth.pop(name)
            self.children[parent] -= 1
            if parent is not None and not self.children[parent]:
                self.leaves[parent] = True
            names.append(name)
        self.publish(engine.MapForm.removed(*names))
        self.count["evicted"] += len(names)

    def step(self):
        if len(self.truth) > MAX_HELD or (self.truth and self.rng.random() < 0.2):
            self.evict()
        else:
            self.store_prompt()

    # ---- Kills, stops and joins ----

    def kill_engine(self):
        self.engine.restart()
        for empty in (self.truth, self.children, self.leaves, self.recent):
            empty.clear()
        self.count["engine kills"] += 1

    def store_more(self):
        self.store_prompt()

    def change_bridge(self, is_killed):
        """Waits for a checkpoint that is newer than the 10,000 batches of the engine's buffer,
        which cover a second or two here."""
        began = time.time_ns()
        self.store_prompt()
        programs.wait_for("a checkpoint is written", lambda: self.written_ns("*[0-9]") > began)
        self.end_bridge(is_killed)
        for _ in range(MISSED):
            self.step()
        self.bridges += 1
        self.bridge = self.start()
        self.count["bridge kills" if is_killed else "bridge stops"] += 1

    def join(self, at):
        kinds = [readers.Dynamo, readers.LlmDLater] if IS_SMALL else KINDS
        kind = kinds[at % len(kinds)]
        log = self.scene.folder / f"reader{at}.log"
        self.crowd[at] = ReaderProcess(kind, self.events, self.replay, SIZE, log)
        self.count["joined"] += 1

    def kill_reader(self, at):
        self.crowd[at].kill()
        self.count["readers killed"] += 1
        self.join(at)


def plan(world):
    """{batch: what happens before it}."""
    events = collections.defaultdict(list)
    for at in range(READERS):
        join, kill = sorted(world.rng.sample(range(1, BATCHES), 2))
        events[join].append(lambda at=at: world.join(at))
        events[kill].append(lambda at=at: world.kill_reader(at))
    for _ in range(KILLS):
        events[world.rng.randrange(1, BATCHES)].append(world.kill_engine)
        events[world.rng.randrange(1, BATCHES)].append(lambda: world.change_bridge(True))
        events[world.rng.randrange(1, BATCHES)].append(lambda: world.change_bridge(False))
    for i in range(QUIET_POINTS):
        events[BATCHES * (i + 1) // QUIET_POINTS - 1].append(lambda: compare(world))
    return events


def compare(world, seconds=60):
    """Waits until every reader holds the engine's blocks; nothing is published meanwhile."""
    truth, began = digest_of(world.truth), time.monotonic()
    for reader in world.crowd.values():
        while reader.digest() != truth:
            if time.monotonic() > began + seconds * programs.PATIENCE:
                held = reader.blocks()
                raise AssertionError(
                    f"{reader.kind.__name__}: {len(held)} held of {len(world.truth)}, {len(held - world.truth.keys())} "
                    f"phantoms, left out {world.bridge.metric('kvb_republish_blocks_left_out')}"
                )
            time.sleep(0.05)
        world.count["comparisons"] += 1
    world.count["quiet points"] += 1
    world.count["blocks compared"] += len(world.truth) * len(world.crowd)
    world.slowest_s = max(world.slowest_s, time.monotonic() - began)


def test_every_reader_of_many_is_correct_at_quiet_points(scene, tmp_path, record_property):
    directory = tmp_path / "checkpoints"
    directory.mkdir(mode=0o750)
    world = CrowdWorld(scene, directory)
    world.crowd, world.slowest_s = {}, 0.0
    began = time.monotonic()
    try:
        events = plan(world)
        for batch in range(BATCHES):
            for happen in events[batch]:
                happen()
            world.step()
            if batch % 10 == 0:
                time.sleep(10 / RATE)
        world.count["requests without an end"] = sum(int(reader.ask("hung")) for reader in world.crowd.values())
        assert world.count["readers killed"] == READERS and world.count["quiet points"] == QUIET_POINTS
    finally:
        for reader in world.crowd.values():
            reader.kill()
    figures = {**world.count, "slowest quiet point": f"{world.slowest_s:.1f} s",
               "all": f"{time.monotonic() - began:.0f} s"}
    record_property("figures", ", ".join(f"{name} {value}" for name, value in figures.items()))
