"""A row of the matrix, and one run of it: what was done when, and what was observed."""

import dataclasses
import time
from typing import Callable, Optional

from matrix.oracle import S
from programs import machine, wait_for

REPAIRS = [
    ("aggregator", "kvb_sync_repairs_total", {"kind": kind}) for kind in ("range", "snapshot")
] + [("aggregator", "kvb_event_holes_total", {}), ("aggregator", "kvb_heartbeats_ahead_total", {})]
MISSED = ("aggregator", "kvb_events_missed_total", {})
ENGINE_SIDE = [
    ("bridge", name, labels) for name, labels in (
        ("kvb_gaps_total", {}), ("kvb_batches_missed_total", {}), ("kvb_batches_replayed_total", {}),
        ("kvb_engine_restarts_total", {}), ("kvb_streams_cleared_total", {}), ("kvb_announcements_total", {}),
        ("kvb_replays_total", {"step": "completed"}), ("kvb_replays_total", {"step": "failed"}),
        ("kvb_batches_refused_total", {"reason": "payload"}), ("kvb_batches_duplicate_total", {}),
    )
]


# What may happen to a stream of a machine that is busy: its bridge or its engine is heard too late.
LATE = (("DOWN", "silent"), ("DOWN", "engine_away"), ("STALE", "no_heartbeat"))
# And where the machine has withheld a second from one of the programs: a bridge asks its engines again, or has no answer
# in time, and an aggregator has no room for what it has not read.
WITHHELD = (("SYNCING", "replaying"), ("UNVERIFIED", "replay_failed"), ("PARTIAL", "replay_failed"), ("STALE", "lagging"))


@dataclasses.dataclass
class Row:
    name: str
    title: str
    inject: Callable  # (case): begins and ends the fault
    must: str
    check: Optional[Callable] = None  # (case): puts what did not hold into case.wrong
    prepare: Optional[Callable] = None  # (stage), before the bridges start
    site: Optional[Callable] = None  # (stage): starts several nats-servers in place of one
    load: dict = dataclasses.field(default_factory=dict)
    shows: bool = True  # a state or a list changes by the fault
    judges_exact: bool = True  # also during the fault, nothing false is EXACT
    is_first: bool = False  # part of tests/run's fast answer
    max_growth_bytes: int = 64 << 20  # of one process
    most_full_replays: int = 1


class Case:
    """One run of a row."""

    def __init__(self, stage, row):
        self.stage = stage
        self.row = row
        self.oracle = stage.oracle
        self.wrong = []
        self.fault_ns = None
        self.end_ns = None
        self.began = {}
        self.touched = None  # streams; None: all
        self.expect = {}  # stream -> (state, reasons) instead of EXACT at the end
        self.is_paused = False
        self.right_s = 0.0  # from the end of the fault to the last change on the way to what is right
        self.figures = ""  # what else was measured

    def begin_fault(self, streams=None):
        self.touched = streams
        self.withheld_at_s = {one: machine.withheld_s(one.process.pid) for one in self.stage.started}
        if self.is_paused:
            for watcher in self.oracle.watchers:
                watcher.records_moves = True
        self.fault_ns = self.oracle.begin_fault(streams)

    def withheld_s(self):
        """From one of the programs that run since then."""
        return max((machine.withheld_s(one.process.pid) - before_s
                    for one, before_s in self.withheld_at_s.items() if one.is_running()), default=0.0)

    def end_fault(self):
        self.end_ns = self.oracle.end_fault()

    def last(self, seconds):
        """Until the fault is at least so old: the only wait without a condition."""
        time.sleep(max(0.0, seconds - self.age_s()))

    def wait_until_seen(self, *kinds, streams=None):
        """Until each aggregator has shown each stream in one of these (state, reason)."""
        wanted = {(watcher.aggregator.name, stream) for watcher in self.oracle.watchers
                  for stream in streams or self.touched or watcher.states}
        wait_for(f"all are seen in {kinds}", lambda: wanted <= {
            (who, stream) for _, who, stream, state, reason in self.changes() if (state, reason) in kinds})

    def wait_until_published(self, batches=3):
        """By each engine of the fleet, since the fault began."""
        before = self.oracle.stats()
        wait_for("each engine has published", lambda: all(
            row["batches"] >= before[stream]["batches"] + batches for stream, row in self.oracle.stats().items()))

    def age_s(self):
        """Seconds since the fault began."""
        return (time.monotonic_ns() - self.fault_ns) / S

    def pause(self):
        self.stage.pause()
        self.is_paused = True

    def expect_that(self, holds, words):
        if not holds:
            self.wrong.append(words)

    def note_metrics(self, *rows):
        """(side, name, labels): remembered, for grew()."""
        for side, name, labels in rows:
            self.began[side, name, tuple(labels.items())] = self._metric(side, name, labels)

    def metric(self, side, name, **labels):
        return self._metric(side, name, labels)

    def _metric(self, side, name, labels):
        ask = self.stage.bridge_metric if side == "bridge" else self.stage.aggregator_metric
        return ask(name, **labels)

    def grew(self, side, name, **labels):
        return self._metric(side, name, labels) - self.began.get((side, name, tuple(labels.items())), 0)

    # ---- what the watchers observed ------------------------------------------------

    def changes(self, streams=None, since=None):
        """[(ns, aggregator, stream, state, reason)] in order of time."""
        since = since or self.fault_ns
        return sorted(
            (at, watcher.aggregator.name, stream, state, reason)
            for watcher in self.oracle.watchers for at, stream, state, reason in watcher.changes
            if at >= since and (streams is None or stream in streams)
        )

    def measured_d(self):
        """Seconds from the fault to the first change of state, in an aggregator or in a heartbeat;
        when nothing else changes, a change of a list counts."""
        times = [row[0] for row in self.changes(self.touched)]
        times += [
            at for at, stream, _, _ in self.oracle.heartbeats.changes
            if at >= self.fault_ns and (self.touched is None or stream in self.touched)
        ]
        times += [
            at for watcher in self.oracle.watchers for at, stream in watcher.moves
            if at >= self.fault_ns and (self.touched is None or stream in self.touched)
        ]
        return (min(times) - self.fault_ns) / S if times else None

    def is_settled(self):
        for watcher in self.oracle.watchers:
            if not watcher.aggregator.is_running() or not watcher.states:
                return False
            for stream, row in watcher.states.items():
                states, reasons = self.expect.get(stream, (("EXACT",), None))
                if row[0] not in states or (reasons and row[1] not in reasons):
                    return False
        return True

    def settled_since(self):
        """When the last change was observed, or the end of the fault."""
        times = [row[0] for row in self.changes(self.touched, since=self.end_ns)] + [
            at for watcher in self.oracle.watchers for at, stream in watcher.moves
            if at >= self.end_ns and (self.touched is None or stream in self.touched)
        ]
        return max(times, default=self.end_ns)

    def states_seen(self, streams=None):
        return {(state, reason) for _, _, _, state, reason in self.changes(streams)}

    def new_epochs(self, streams=None):
        """Streams that began an epoch since the fault. An epoch that is published again is not a
        new one."""
        found = set()
        for stream, rows in self.oracle.heartbeats.epochs.items():
            known = {epoch for at, epoch in rows if at < self.fault_ns}
            if {epoch for _, epoch in rows} - known and (streams is None or stream in streams):
                found.add(stream)
        return found

    def others_were_untouched(self):
        """But for being heard late, until all is well again."""
        late, wrong, withheld_s = set(), [], self.withheld_s()
        for at, who, stream, state, reason in self.changes():
            if stream in self.touched:
                continue
            if (state, reason) in LATE or (state, reason) in WITHHELD and withheld_s > 1:
                late.add((who, stream))
            elif (who, stream) not in late or reason == "new epoch":
                wrong.append((at, who, stream, state, reason))
            elif state == "EXACT":
                late.discard((who, stream))
        self.expect_that(not wrong, f"streams that the fault does not concern changed: {wrong[:3]}")
