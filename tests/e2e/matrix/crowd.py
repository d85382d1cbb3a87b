"""Rows of the matrix about numbers: of streams, blocks, workers that are added and removed."""

import signal

from matrix.case import ENGINE_SIDE, LATE
from matrix.liar import Shelf
from matrix.publisher import churn
from programs import wait_for

SHELVES, SHELF_BLOCKS = 12, 3_000  # beside the streams of the fleet

# ---- aggregators ---------------------------------------------------------------------


def add_shelves(stage):
    for at in range(SHELVES):
        stage.add_liar(Shelf(at, SHELF_BLOCKS), 1000 + at, part=at % 2)


def kill_aggregator(case):
    stage = case.stage
    case.begin_fault()
    stage.killed.append(stage.aggregators[0])
    stage.aggregators[0].kill()
    case.wait_until_published()
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
    frozen = case.stage.aggregators[0]
    case.note_metrics(*ENGINE_SIDE)
    case.begin_fault()
    frozen.process.send_signal(signal.SIGSTOP)
    case.last(8)
    frozen.process.send_signal(signal.SIGCONT)
    case.end_fault()


def check_frozen_aggregator(case):
    frozen = case.stage.aggregators[0].name
    others = [row for row in case.changes() if row[1] != frozen and row[3:] not in LATE]
    case.expect_that(not others, f"another aggregator noticed: {others[:3]}")
    case.expect_that(case.grew("bridge", "kvb_announcements_total") == 0, "streams were told anew to everybody")


# ---- workers -------------------------------------------------------------------------


VISITORS_A_SECOND, VISITORS, FIRST_VISITOR = 50, 1000, 1_000_000


def forget_soon(stage):
    stage.aggregator_extra = "forget_ms = 1000;\nload = { expire_ms = 1000; };\n"


def expect_visitors(stage):
    forget_soon(stage)
    stage.is_made_up = lambda stream: stream[0] >= FIRST_VISITOR


def visit(case):
    case.note_metrics(("aggregator", "kvb_streams_forgotten_total", {}))
    case.pause()  # what is measured is theirs
    case.oracle.begin_fault()
    churn(case.stage.nats_port, 300, 2 * VISITORS_A_SECOND, 9 * FIRST_VISITOR)  # tables have their size
    case.resident = case.stage.resident()
    case.begin_fault()
    case.visitors = churn(case.stage.nats_port, VISITORS, VISITORS_A_SECOND, FIRST_VISITOR)
    case.end_fault()


def check_visited(case):
    count = len(case.visitors)
    for watcher in case.oracle.watchers:
        exact = {stream for _, stream, state, _ in watcher.changes if state == "EXACT"}
        missed = set(case.visitors) - exact
        case.expect_that(
            len(missed) <= count // 2, f"{len(missed)} of {count} were not seen EXACT in {watcher.aggregator.name}")
        wait_for("all are forgotten", lambda one=watcher: one.aggregator.metric("kvb_streams_forgotten_total") >= count)
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
    wait_for("all restarts are seen", lambda: restarts_seen(case) >= len(streams))


def restarts_seen(case):
    return case.grew("bridge", "kvb_engine_restarts_total")


def check_all_restarted(case):
    streams = case.stage.load.workers * case.stage.load.ranks
    seen = restarts_seen(case)
    case.expect_that(seen == streams, f"{seen:.0f} restarts were seen, of {streams}")
    at_once = [bridge.metric("kvb_replays_running_most") for bridge in case.stage.bridges]
    took_s = (case.end_ns - case.fault_ns) / 1e9
    case.figures = (
        f"all restarted within {took_s:.2f} s; "
        f"replays in flight, at most: {' and '.join(format(most, '.0f') for most in at_once)}")
    case.expect_that(max(at_once) <= 8, case.figures)
