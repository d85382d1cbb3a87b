"""Simulated engines as the containers of pods, each at the address of its pod, with a record of
their blocks; and a judge that continuously checks what an aggregator lists.

A block that a worker does not hold, because its engine dropped it or because its pod is gone, may
be listed for LISTED_S, unless the list is DOWN.  While no pods are watched, because the API server is away,
nobody can know that the address of a pod is another's by now: the time begins after that.  And a list that is not
EXACT may hold what its engine once held, but nothing of the pod before."""

import threading
import time

import programs
from matrix.oracle import LISTED_S, Asker, read_states
from matrix.stage import TRACE
from matrix.truth import Content, Door, S
from pods.members import worker_id
from programs import wait_for

EVENTS_PORT, REPLAY_PORT = 7000, 7001
SAMPLE_S = 0.1


class Engine:
    """A kvfleet of one worker and one rank, at its own address."""

    def __init__(self, folder, name, ip, seed):
        self.name, self.ip, self.id = name, ip, worker_id(name)
        truth = folder / f"truth-{seed}"
        self.process = programs.Program(folder, f"engine-{seed}", [
            programs.BIN / "kvfleet", "--workers", 1, "--ranks", 1, "--first-id", self.id, "--bind", ip,
            "--base-port", EVENTS_PORT, "--blocks", 256, "--rate", 30, "--scale", 16, "--seed", seed,
            "--trace", TRACE, "--truth", truth, "--log-changes", 100_000, "--model", "m", "--dialect", "vllm-0.31",
        ])

        def connected():
            assert self.process.is_running(), self.process.text()
            return Door(truth)

        self.door = wait_for("the engine's truth can be asked", connected)
        self.next = 0
        self.stored = set()  # names of blocks, also of those that it has dropped

    def changes(self):
        """[(what, ns, ...)] since the last call."""
        self.door.send([f"changes {self.id} 0 {self.next}"])
        answer, = self.door.answers()
        assert answer["lost"] == 0
        self.next = answer["next"]
        return answer["changes"]

    def kill(self):
        self.process.kill()
        self.door.close()


class Judge:
    """A thread. `lives` maps a worker id to the contents of its engines, one after the other.
    is_watched: whether the pods are being watched now."""

    def __init__(self, aggregator, is_watched):
        self.aggregator, self.is_watched = aggregator, is_watched
        self.lock = threading.Lock()
        self.lives, self.engines = {}, {}
        self.killed = {}  # when the last engine of a worker ended: its last actions are unknown
        self.excused_ns = 0  # only times after this count
        self.violations, self.oldest_s, self.judged, self.samples = [], 0.0, 0, 0
        self.trouble = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def add(self, engine):
        with self.lock:
            self.engines[engine.id] = engine
            self.lives.setdefault(engine.id, Content()).names = {}

    def kill(self, engine):
        """The end of the engine, up to which all its actions are known."""
        with self.lock:
            engine.door.send(["pause"])
            engine.door.answers()
            self._follow(engine)
            engine.kill()
            self.lives[engine.id].clear(time.monotonic_ns())
            self.killed[engine.id] = time.monotonic_ns()
            if self.engines.get(engine.id) is engine:
                del self.engines[engine.id]

    def stop(self):
        self.stopping.set()
        self.thread.join()
        if self.trouble:
            raise self.trouble

    def held(self, worker):
        with self.lock:
            return len(self.lives[worker].held)

    # ---- Inside

    def _follow(self, engine):
        content = self.lives[engine.id]
        for change in engine.changes():
            if change[0] == "stored":
                content.store(*change[1:])
                engine.stored.add(content.names[change[2]])
            elif change[0] == "removed":
                content.remove(change[1], content.names[change[2]])
            else:
                content.clear(change[1])

    def _run(self):
        asker = Asker(self.aggregator)
        try:
            while not self.stopping.wait(SAMPLE_S):
                self._sample(asker)
        except Exception as trouble:  # the test fails with it
            self.trouble = trouble
        finally:
            asker.close()

    def _sample(self, asker):
        if not self.is_watched():
            self.excused_ns = time.monotonic_ns()
        before = read_states(asker.get("/streams"))
        t0 = time.monotonic_ns()
        words = asker.get("/dump?format=rows").split()
        after = read_states(asker.get("/streams"))
        down = {stream[0] for states in (before, after) for stream, row in states.items() if row[0] == "DOWN"}
        if not self.is_watched():
            self.excused_ns = time.monotonic_ns()
        with self.lock:
            for engine in self.engines.values():
                self._follow(engine)
            for worker, name in zip(map(int, words[0::4]), map(int, words[3::4])):
                if worker not in down:
                    self._judge(worker, name, t0, after.get((worker, 0)))
        self.samples += 1

    def _judge(self, worker, name, t0, state):
        self.judged += 1
        content, engine = self.lives.get(worker), self.engines.get(worker)
        if content is not None and name in content.held:
            return
        if engine is not None and name in engine.stored and state is not None and state[0] != "EXACT":
            return
        gone = content.gone.get(name, self.killed.get(worker, 0)) if content is not None else 0
        since = max(gone, self.excused_ns)
        age_s = (t0 - since) / S if since else float("inf")
        self.oldest_s = max(self.oldest_s, min(age_s, 999.0))
        if age_s > LISTED_S:
            self.violations.append((round(t0 / S, 2), worker, name, round(age_s, 2), state))
