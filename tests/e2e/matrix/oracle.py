"""The oracle: watches every aggregator from outside, and knows the truth.

    Watcher   one a aggregator: asks /streams every few milliseconds, writes down each
              change of state with its time
    Oracle    asks for everything that is listed, again and again, and looks up each
              block: held, or gone for how long?

A list is asked for at t0 and answered at t1; the truth is read after t1.  A block that
the truth calls gone since before t0 was gone whenever the list was made: no race can
make a right list look wrong."""

import http.client
import threading
import time

import msgspec

from matrix.heartbeats import Heartbeats

S = 1_000_000_000
POLL_S = 0.01
SAMPLE_S = 0.2
# The oldest phantom that is never excused by a busy machine. How soon a block must leave the lists is judged by
# the simulator, in virtual time.
LISTED_S = 30.0
NEVER_S = 999.0
AGAIN_S = 5.0
# Event ids of a new epoch begin at the wall clock's microseconds; within one they count.
EPOCH_JUMP = 100_000


class Asker:
    """A kept connection to one daemon."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.connection = None

    def get(self, path, seconds=20):
        """The body; None when there is no answer."""
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=seconds)
            self.connection.request("GET", path)
            answer = self.connection.getresponse()
            body = answer.read()
            return body if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            self.close()
            return None

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None


def read_states(body):
    rows = msgspec.json.decode(body)["streams"]
    return {
        (row["worker_id"], row["dp_rank"]): (row["state"], row["reason"], row["last_event_id"], row["doubtful"],
                                               row["missing_at_most"])
        for row in rows
    }


class Watcher:
    def __init__(self, aggregator):
        self.aggregator = aggregator
        self.asker = Asker(aggregator)
        self.states = {}
        self.changes = []  # (ns, stream, state, reason)
        self.moves = []  # (ns, stream): the list changed
        self.records_moves = False
        self.asked = 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopping.set()
        self.thread.join()
        self.asker.close()

    def _run(self):
        while not self.stopping.wait(POLL_S * max(1, len(self.states) // 50)):
            body = self.asker.get("/streams")
            if body is not None:
                self._note(time.monotonic_ns(), read_states(body))

    def _note(self, now, states):
        for stream, row in states.items():
            before = self.states.get(stream)
            if before is None or before[:2] != row[:2]:
                self.changes.append((now, stream, *row[:2]))
            elif row[2] - before[2] > EPOCH_JUMP:
                self.changes.append((now, stream, row[0], "new epoch"))
            elif self.records_moves and before[2] != row[2]:
                self.moves.append((now, stream))
        for stream in self.states.keys() - states.keys():
            self.changes.append((now, stream, "FORGOTTEN", ""))
        self.states = states
        self.asked += 1


class Oracle:
    """Judges continuously: a list has no block that its engine dropped LISTED_S ago, or never held. `fault` excuses
    streams from its start until its end, and from then on they have the same time as everybody; but what says EXACT
    is never excused (judges_exact=False: where an engine lies, it is)."""

    def __init__(self, fleet, python_engines, aggregators, nats_port, judges_exact=True):
        self.fleet = fleet
        self.python_engines = python_engines  # {stream: Content} of engines outside the fleet
        self.watchers = [Watcher(aggregator) for aggregator in aggregators]
        self.heartbeats = Heartbeats(nats_port)
        self.judges_exact = judges_exact
        self.judged_exact = 0  # lists that said EXACT during a fault
        self.lock = threading.Lock()  # requests on the fleet's control socket
        self.faults = []  # [start_ns, end_ns or None, streams or None]
        self.violations = []
        self.oldest_s = 0.0
        self.samples = 0
        self.judged = 0
        self.replays = []  # (ns, {stream: full replays})
        self.trouble = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopping.set()
        self.thread.join()
        self.heartbeats.stop()
        for watcher in self.watchers:
            watcher.stop()

    def add(self, aggregator):
        self.watchers.append(Watcher(aggregator))

    def replace(self, at, aggregator):
        """A new process takes the place of one; what was observed of the old one is kept."""
        old, fresh = self.watchers[at], Watcher(aggregator)
        old.stop()
        fresh.changes += old.changes
        self.watchers[at] = fresh

    # ---- faults ------------------------------------------------------------------

    def begin_fault(self, streams=None):
        self.faults.append([time.monotonic_ns(), None, streams])
        return self.faults[-1][0]

    def end_fault(self):
        for fault in self.faults:
            fault[1] = fault[1] or time.monotonic_ns()
        return self.faults[-1][1]

    def _excused_until(self, stream, now):
        """The time until which the stream was exempt; nothing before it counts."""
        until = 0
        for _, end, streams in self.faults:
            if streams is None or stream in streams:
                until = max(until, end or now)
        return until

    # ---- judging -----------------------------------------------------------------

    def command(self, *words):
        with self.lock:
            return self.fleet.say(*words)

    def stats(self):
        with self.lock:
            return self.fleet.stats()

    def _run(self):
        askers = {}
        try:
            while not self.stopping.wait(SAMPLE_S):
                for aggregator in [watcher.aggregator for watcher in self.watchers]:
                    if aggregator.is_running():
                        self.judge(askers.setdefault(aggregator.name, Asker(aggregator)))
                with self.lock:
                    stats = self.fleet.stats()
                    self.fleet.forget()
                self.replays.append((
                    time.monotonic_ns(), {stream: row["full_replays"] for stream, row in stats.items()}
                ))
        except Exception as error:  # the row fails with this text
            self.trouble.append(f"the oracle stopped: {type(error).__name__}: {error}")
        finally:
            for asker in askers.values():
                asker.close()

    def listing(self, asker):
        """(t0, {stream: names}, {streams that were DOWN}, {stream: row}, {streams that were EXACT}), or None."""
        before = asker.get("/streams")
        t0 = time.monotonic_ns()
        body = asker.get("/dump?format=rows")
        after = asker.get("/streams")
        if before is None or body is None or after is None:
            return None
        before, after = read_states(before), read_states(after)
        down = {s for states in (before, after) for s, row in states.items() if row[0] == "DOWN"}
        exact = {s for s, row in before.items() if row[0] == "EXACT" and after.get(s, row)[0] == "EXACT"}
        listed = {stream: [] for stream in after}
        words = body.split()
        for worker, rank, name in zip(words[0::4], words[1::4], words[3::4]):
            listed.setdefault((int(worker), int(rank)), []).append(int(name))
        return t0, listed, down, after, exact

    def judge(self, asker):
        answer = self.listing(asker)
        if answer is None:
            return
        t0, listed, down, states, exact = answer
        with self.lock:
            self.fleet.follow()
            contents = {**self.fleet.streams, **self.python_engines}
            for stream, names in listed.items():
                if stream not in down:
                    self._judge_stream(
                        asker.daemon.name, (stream, states.get(stream, ("ABSENT", ""))[:2]), names,
                        contents.get(stream), t0, self.judges_exact and stream in exact)
        self.samples += 1

    def _judge_stream(self, who, whose, names, content, t0, is_exact):
        stream, state = whose
        held, gone = (content.held, content.gone) if content else ({}, {})
        excused_until = self._excused_until(stream, t0)
        self.judged += len(names)
        self.judged_exact += is_exact and excused_until >= t0
        for name in names:
            if name in held:
                continue
            # After the exemption the time begins at its end.
            since = gone.get(name, 0) if is_exact else max(gone.get(name, 0), excused_until)
            age_s = (t0 - since) / S if since else NEVER_S
            if age_s <= 0:
                continue
            self.oldest_s = max(self.oldest_s, age_s)
            if age_s > LISTED_S:
                self.violations.append((t0, who, (*stream, *state), name, round(age_s, 2) if since else "never held"))

    # ---- the end -----------------------------------------------------------------

    def all_states(self):
        return [(watcher, stream, row) for watcher in self.watchers for stream, row in watcher.states.items()]

    def compare(self, aggregator):
        """What is wrong with the lists, block by block, while nothing changes: a list of texts."""
        asker = Asker(aggregator)
        answer = self.listing(asker)
        asker.close()
        if answer is None:
            return [f"{aggregator.name} does not answer"]
        _, listed, _, states, _ = answer
        with self.lock:
            truth = self.fleet.whole_truth()
        truth.update({stream: set(content.held) for stream, content in self.python_engines.items()})
        wrong = []
        for stream in truth.keys() | listed.keys():
            state, reason, _, doubtful, at_most = states.get(stream, ("ABSENT", "", 0, 0, None))
            names, held = set(listed.get(stream, ())), truth.get(stream, set())
            phantom, missing = len(names - held), len(held - names)
            hides = at_most is not None and missing > at_most
            if phantom or state in ("ABSENT", "DOWN") or (state == "EXACT" and missing > doubtful) or hides:
                wrong.append(
                    f"{aggregator.name} {stream} {state}({reason}): {phantom} phantoms, "
                    f"{missing} missing (said: {at_most} at most), {doubtful} doubtful, {len(held)} held"
                )
        return wrong

    def most_full_replays(self, since_ns):
        """The most that one publisher was certainly asked for within AGAIN_S: (count, words of whose). A bridge asks at
        most once in 10 s; half of that is left to a busy machine."""
        worst = (0, "")
        began = self.faults[-1][0] if self.faults else since_ns  # attacks that affect no stream are not faults
        for (stream, _), times in self.full_replay_times(since_ns).items():
            for at, (first, _) in enumerate(times):
                within = [seen for _, seen in times[at:] if seen - first <= AGAIN_S * S]
                if len(within) > worst[0]:
                    ages = ", ".join(f"{(t - began) / S:+.2f}" for t in within)
                    worst = (len(within), f"{stream} at {ages} s after the fault")
        return worst

    def full_replay_times(self, since_ns):
        """{(stream, process of it): [(ns of the look before, ns of the look that found one more)]}"""
        times, before, process, last = {}, {}, {}, 0
        for at, counts in self.replays:
            for stream, count in counts.items():
                known = before.get(stream, count)
                if count < known:  # of another process
                    process[stream], known = process.get(stream, 0) + 1, 0
                if at >= since_ns:
                    times.setdefault((stream, process.get(stream, 0)), []).extend([(last, at)] * (count - known))
                before[stream] = count
            last = at
        return times
