"""Rows of the matrix about numbers: of streams, blocks, workers that are added and removed, and the
latency of answers."""

import signal
import time

from case import ENGINE_SIDE
from liar import Shelf
from programs import wait_for
from publisher import churn
from stopwatch import Stopwatch, p99

P99_FLOOR_S = 0.002
SHELVES, SHELF_BLOCKS = 56, 10_000  # beside eight streams of the fleet

# ---- aggregators ---------------------------------------------------------------------


def add_shelves(stage):
    for at in range(SHELVES):
        stage.add_liar(Shelf(at, SHELF_BLOCKS), 1000 + at, part=at % 2)


def kill_aggregator(case):
    stage = case.stage
    case.begin_fault()
    stage.killed.append(stage.aggregators[0])
    stage.aggregators[0].kill()
    case.last(1)
    fresh = stage.start_aggregator(at=0)
    # For the oracle and the watchers it is the same aggregator.
    case.oracle.replace(0, fresh)
    case.end_fault()


def check_given_all(case):
    fresh = case.stage.aggregators[0]
    streams = len(case.oracle.watchers[0].states)
    taken = fresh.metric("kvb_sync_repairs_total", kind="snapshot")
    case.expect_that(taken >= streams, f"{taken:.0f} snapshots for {streams} streams (kvb_sync_repairs_total)")
    listed = fresh.metric("kvb_index_blocks")
    case.expect_that(listed >= SHELVES * SHELF_BLOCKS, f"only {listed:.0f} blocks are listed")


def freeze_aggregator(case):
    """The other aggregator gets queries continuously, from 6 s before the fault to its end."""
    frozen, other = case.stage.aggregators[:2]
    case.note_metrics(*ENGINE_SIDE)
    case.stopwatch = Stopwatch(other)
    case.before = [times_of(case.stopwatch, 2) for _ in range(3)]
    case.begin_fault()
    frozen.process.send_signal(signal.SIGSTOP)
    case.last(15)
    case.during = case.stopwatch.take()
    frozen.process.send_signal(signal.SIGCONT)
    case.end_fault()
    case.stopwatch.stop()


def times_of(stopwatch, seconds):
    time.sleep(seconds)
    return stopwatch.take()


def check_answers(case):
    """The noise: the spread of the p99 of three windows before the fault, and a minimum."""
    before = [p99(times) for times in case.before]
    during, base = p99(case.during), p99(sum(case.before, []))
    allowed = 1.1 * base + max(before) - min(before) + P99_FLOOR_S
    case.figures = f"p99 of the other's answers {base * 1e3:.1f} ms before, {during * 1e3:.1f} ms during"
    case.expect_that(during <= allowed, f"{case.figures}, allowed {allowed * 1e3:.1f} ms")


def check_frozen_aggregator(case):
    check_answers(case)
    frozen = case.stage.aggregators[0].name
    others = [row for row in case.changes() if row[1] != frozen]
    case.expect_that(not others, f"another aggregator noticed: {others[:3]}")
    case.expect_that(case.grew("bridge", "kvb_announcements_total") == 0, "streams were told anew to everybody")


# ---- workers -------------------------------------------------------------------------


VISITORS_A_SECOND, VISIT_S = 50, 20


def forget_soon(stage):
    stage.aggregator_extra = "forget_ms = 1000;\nload = { expire_ms = 1000; };\n"


def visit(case):
    case.note_metrics(("aggregator", "kvb_streams_forgotten_total", {}))
    case.pause()  # what is measured is theirs
    case.oracle.begin_fault()
    churn(case.stage.nats_port, 3, 2 * VISITORS_A_SECOND, first_id=9_000_000)  # tables have their size
    case.resident = case.stage.resident()
    case.begin_fault()
    case.visitors = churn(case.stage.nats_port, VISIT_S, VISITORS_A_SECOND)
    case.end_fault()


def check_visited(case):
    count = len(case.visitors)
    case.expect_that(count >= 0.98 * VISITORS_A_SECOND * VISIT_S, f"only {count} workers came")
    for watcher in case.oracle.watchers:
        exact = {stream for _, stream, state, _ in watcher.changes if state == "EXACT"}
        missed = set(case.visitors) - exact
        case.expect_that(
            len(missed) <= count // 50, f"{len(missed)} of {count} were never EXACT in {watcher.aggregator.name}")
        forgotten = watcher.aggregator.metric("kvb_streams_forgotten_total")
        case.expect_that(forgotten >= count, f"{watcher.aggregator.name} forgot {forgotten:.0f} of {count}")
    grown = {name: size / case.resident[name] - 1 for name, size in case.stage.resident().items()}
    case.figures = "memory " + ", ".join(f"{name} {share * 100:+.1f} %" for name, share in grown.items())
    case.expect_that(max(grown.values()) <= 0.05, case.figures)


def restart_all(case):
    case.note_metrics(*ENGINE_SIDE)
    streams = case.oracle.stats()
    with case.oracle.lock:
        case.begin_fault()
        case.oracle.fleet.say(*(f"restart {worker} {rank}" for worker, rank in streams))
        case.end_fault()
    wait_for("all restarts are seen", lambda: restarts_seen(case) >= len(streams), 20)


def restarts_seen(case):
    return case.grew("bridge", "kvb_engine_restarts_total")


def check_all_restarted(case):
    streams = case.stage.load.workers * case.stage.load.ranks
    seen = restarts_seen(case)
    case.expect_that(seen == streams, f"{seen:.0f} restarts were seen, of {streams}")
    at_once = [bridge.metric("kvb_replays_running_most") for bridge in case.stage.bridges]
    took_s = (case.end_ns - case.fault_ns) / 1e9
    case.expect_that(took_s <= 2, f"the restarts took {took_s:.2f} s")  # 0.5 s on an idle machine
    case.figures = (
        f"all restarted within {took_s:.2f} s; "
        f"replays in flight, at most: {' and '.join(format(most, '.0f') for most in at_once)}")
    case.expect_that(max(at_once) <= 8, case.figures)
