"""A row of the matrix, and one run of it: what was done when, and what was observed."""

import dataclasses
import time
from typing import Callable, Optional

from oracle import S
from stage import sleep_until

REPAIRS = [
    ("aggregator", "kvb_sync_repairs_total", {"kind": kind}) for kind in ("range", "snapshot")
] + [("aggregator", "kvb_event_holes_total", {}), ("aggregator", "kvb_heartbeats_ahead_total", {})]
ENGINE_SIDE = [
    ("bridge", name, labels) for name, labels in (
        ("kvb_gaps_total", {}), ("kvb_batches_missed_total", {}), ("kvb_batches_replayed_total", {}),
        ("kvb_engine_restarts_total", {}), ("kvb_streams_cleared_total", {}), ("kvb_announcements_total", {}),
        ("kvb_replays_total", {"step": "completed"}), ("kvb_replays_total", {"step": "failed"}),
        ("kvb_batches_refused_total", {"reason": "payload"}), ("kvb_batches_duplicate_total", {}),
    )
]


@dataclasses.dataclass
class Row:
    name: str
    title: str
    inject: Callable  # (case): begins and ends the fault
    d_limit: Optional[float]
    c_limit: Optional[float]
    must: str
    check: Optional[Callable] = None  # (case): puts what did not hold into case.wrong
    prepare: Optional[Callable] = None  # (stage), before the bridges start
    site: Optional[Callable] = None  # (stage): starts several nats-servers in place of one
    load: dict = dataclasses.field(default_factory=dict)
    limit_s: float = 2.0  # permitted age of a phantom block
    max_growth_bytes: int = 64 << 20  # of one process
    note: str = ""


class LeftOut(Exception):
    """Raised when this machine does not permit the row; the text says what is missing."""


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
        self.figures = ""  # what else was measured

    def begin_fault(self, streams=None):
        self.touched = streams
        if self.is_paused:
            for watcher in self.oracle.watchers:
                watcher.records_moves = True
        self.fault_ns = self.oracle.begin_fault(streams)

    def end_fault(self):
        self.end_ns = self.oracle.end_fault()

    def last(self, seconds):
        sleep_until(self.fault_ns + int(seconds * S))

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
                if self.stage.is_made_up(stream):
                    continue
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
        others = {
            stream for watcher in self.oracle.watchers for stream in watcher.states if stream not in self.touched
        }
        seen = self.changes(others)
        self.expect_that(not seen, f"streams that the fault does not concern changed: {seen[:3]}")
