"""The rows of the fault matrix.  Each: what is done, what must hold, and which counters prove that the
intended path ran.  A fault lasts until it is seen, where something of it must be seen."""

import signal
import time

from matrix import cluster, conditions
from matrix.case import ENGINE_SIDE, MISSED, REPAIRS, Row
from matrix.python_engines import LruEngine, Shelf
from programs import wait_for
from proxy import Proxy

# ---- NATS ------------------------------------------------------------------------


NATS_AWAY = ("STALE", "nats_away")


def kill_nats(case, until_seen=True):
    case.note_metrics(*REPAIRS, *ENGINE_SIDE, MISSED)
    case.begin_fault()
    case.stage.nats.kill()
    if until_seen:
        case.wait_until_seen(NATS_AWAY)
    case.wait_until_published()
    case.stage.start_nats()
    case.end_fault()


def check_nats_killed(case):
    """Who reconnects first decides whether events are missed at all: a bridge sends what it kept, and an
    aggregator that is back by then has everything.  F4 makes the other order."""
    if case.grew(*MISSED[:2]) > 0:
        check_nats_repaired(case)
    case.expect_that(not case.new_epochs(), "streams began new epochs")


def check_nats_repaired(case):
    case.expect_that(not case.new_epochs(), "streams began new epochs")
    repaired = case.grew("aggregator", "kvb_sync_repairs_total", kind="range") + case.grew(
        "aggregator", "kvb_sync_repairs_total", kind="snapshot")
    case.expect_that(repaired > 0, "no stream was repaired by its bridge (kvb_sync_repairs_total)")
    case.expect_that(case.grew("bridge", "kvb_announcements_total") == 0, "streams were told anew to everybody")
    case.expect_that(
        all(state != "DOWN" for state, _ in case.states_seen()), "DOWN was said where STALE is the truth")


def link_aggregator(stage):
    """The first aggregator is connected to NATS over a link that can be cut separately."""
    link = Proxy(stage.nats_port)
    stage.proxies.append(link)
    stage.aggregator_ports = [link.port]


def flush_into_the_void(case):
    """nats-server comes back, and the bridges reconnect and announce everything. One aggregator
    reconnects later, after which nothing is announced any more."""
    stage, link = case.stage, case.stage.proxies[0]
    case.note_metrics(*REPAIRS, *ENGINE_SIDE)
    case.begin_fault()
    link.cut()
    stage.nats.kill()
    case.wait_until_seen(NATS_AWAY)
    stage.start_nats()
    for bridge in stage.bridges:
        wait_for("the bridge is back", bridge.is_ready)
    case.wait_until_published()
    case.pause()
    link.heal()
    case.end_fault()


# ---- bridges and aggregators -------------------------------------------------------


SILENT = ("DOWN", "silent")


def keep_checkpoints(stage):
    stage.keeps_checkpoints = True


def wait_for_checkpoints(case):
    """One of each stream."""
    folders, streams = [case.stage.checkpoints(part) for part in (0, 1)], len(case.oracle.stats())
    wait_for("checkpoints", lambda: streams == sum(
        not path.suffix for folder in folders for path in folder.iterdir()))


def kill_bridge(case):
    wait_for_checkpoints(case)
    # They are written each second; the first ones are of lists that were nearly empty.
    now = time.time()
    wait_for("a checkpoint of each stream that was written since", lambda: all(
        path.stat().st_mtime > now for path in case.stage.checkpoints(0).iterdir() if not path.suffix))
    case.note_metrics(*REPAIRS, ("aggregator", "kvb_sync_requests_total", {"kind": "snapshot"}))
    case.full_replays = full_replays(case)
    case.begin_fault(case.stage.streams_of_bridge(0))
    old = case.stage.bridges[0]
    case.stage.killed.append(old)
    old.kill()
    case.wait_until_seen(SILENT)
    case.stage.start_bridge(0, wait=False)
    case.end_fault()


def full_replays(case):
    return sum(row["full_replays"] for row in case.oracle.stats().values())


def check_killed_bridge(case):
    bridge = case.stage.bridges[0]
    case.others_were_untouched()
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")
    restored = bridge.metric("kvb_checkpoints_restored_total")
    case.expect_that(restored == len(case.touched), f"{restored:.0f} streams were restored")
    case.expect_that(bridge.metric("kvb_announcements_total") == 0, "streams were told anew to everybody")
    asked = case.grew("aggregator", "kvb_sync_requests_total", kind="snapshot")
    lists = len(case.touched) * len(case.stage.aggregators)
    case.figures = f"{asked:.0f} of {lists} lists were fetched as a whole"
    case.expect_that(asked < lists / 2, case.figures)
    asked = full_replays(case) - case.full_replays
    case.expect_that(asked == 0, f"{asked} engines were asked for all they keep")


def add_second_bridge(case):
    """A second process with the configuration of the first, until it is stopped."""
    stage = case.stage
    case.note_metrics(("aggregator", "kvb_streams_two_bridges_total", {}))
    case.begin_fault(stage.streams_of_bridge(0))
    first, second = stage.bridges[0], stage.start_bridge(0)
    stage.bridges[0] = first
    stage.killed.append(second)

    def all_are_told_apart():
        return all(
            watcher.states[stream][:2] == ("UNVERIFIED", "two_bridges")
            for watcher in case.oracle.watchers for stream in case.touched)

    wait_for("every aggregator notices", all_are_told_apart)
    case.last(case.age_s() + 3)
    wait_for("it is so while both live", all_are_told_apart)
    assert second.stop() == 0
    case.end_fault()


def check_second_bridge(case):
    case.others_were_untouched()
    seen = case.grew("aggregator", "kvb_streams_two_bridges_total")
    least = len(case.touched) * len(case.stage.aggregators)
    case.expect_that(seen >= least, f"{seen:.0f} found, {least} at least there are (kvb_streams_two_bridges_total)")
    logs = ["two bridges for one worker" in one.text() for one in case.stage.aggregators]
    case.expect_that(all(logs), "an aggregator's log does not say it")


SHELVES, SHELF_BLOCKS = 12, 3_000  # beside the streams of the fleet

def add_shelves(stage):
    for at in range(SHELVES):
        stage.add_engine(Shelf(at, SHELF_BLOCKS), 1000 + at, part=at % 2)


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


def restart_all(case):
    case.note_metrics(*ENGINE_SIDE)
    streams = case.oracle.stats()
    with case.oracle.lock:
        case.begin_fault()
        case.oracle.fleet.say(*(f"restart {worker} {rank}" for worker, rank in streams))
        case.end_fault()
    wait_for("all restarts are seen", lambda: len(case.new_epochs()) == len(streams))


def check_all_restarted(case):
    at_once = [bridge.metric("kvb_replays_running_most") for bridge in case.stage.bridges]
    took_s = (case.end_ns - case.fault_ns) / 1e9
    case.figures = (
        f"all restarted within {took_s:.2f} s; "
        f"replays in flight, at most: {' and '.join(format(most, '.0f') for most in at_once)}")
    case.expect_that(max(at_once) <= 8, case.figures)


# ---- engines -------------------------------------------------------------------------


def restart_engine(case):
    case.note_metrics(*ENGINE_SIDE)
    case.begin_fault({(1, 0)})
    case.oracle.command("restart 1 0")
    case.end_fault()


def expect_new_epochs(case):
    """A stream that was being repaired when its engine restarted gives up its list, which is no restart of the counter's."""
    wait_for("each stream has begun an epoch", lambda: case.new_epochs(case.touched) == case.touched)
    counted = case.grew("bridge", "kvb_engine_restarts_total")
    case.figures = f"{counted:.0f} restarts were counted, of {len(case.touched)}"


def check_restarted(case):
    case.others_were_untouched()
    expect_new_epochs(case)


def withheld(case, stream):
    return case.oracle.stats()[stream]["withheld"]


def lose_batches(case, count):
    before = withheld(case, (1, 0))
    case.begin_fault({(1, 0)})
    case.oracle.command(f"drop 1 0 {count}")
    wait_for("they are lost", lambda: withheld(case, (1, 0)) - before >= count)
    case.end_fault()


def large_gap(case):
    case.note_metrics(*ENGINE_SIDE)
    case.expect[1, 0] = (("PARTIAL",), ("gone",))
    lose_batches(case, 80)


def check_large_gap(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_streams_cleared_total") >= 1, "not cleared (kvb_streams_cleared_total)")


# So many batches a second that the batches of one silent second are more than a probe would find.
FAST = {"workers": 2, "rate": 220, "step_ms": 5}


def read_pages(stage):
    stage.read_pages()


CHANGES = ("bridge", "kvb_engine_silent_changes_total", {})


def reset_and_sleep(case):
    """One cache is reset under load; another engine falls asleep and wakes again."""
    case.note_metrics(*ENGINE_SIDE, CHANGES)
    case.begin_fault({(1, 0), (2, 0)})
    case.oracle.command("reset 1 0")
    case.oracle.command("sleep 2 0")
    wait_for("it is found", lambda: ("UNVERIFIED", "asleep") in case.states_seen({(2, 0)}))
    case.last(4)
    case.oracle.command("wake 2 0")
    case.end_fault()


def check_reset_and_sleep(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_engine_silent_changes_total") == 1, "not one sleep, or a false alarm")
    case.expect_that(case.grew("bridge", "kvb_engine_restarts_total") == 0, "taken for a restart")


def lose_unnumbered(case):
    """Stores and removals are lost without a gap in the numbers, until the list is contradicted."""
    case.note_metrics(*ENGINE_SIDE, CHANGES)
    case.begin_fault({(1, 0)})
    case.oracle.command("lose 1 0 200")
    wait_for("it is found", lambda: ("UNVERIFIED", "occupancy") in case.states_seen({(1, 0)}))
    case.oracle.command("lose 1 0 0")
    case.oracle.command("reset 1 0")
    case.end_fault()


def check_unnumbered_loss(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_gaps_total") == 0, "a gap showed it (kvb_gaps_total)")
    case.expect_that(case.grew("bridge", "kvb_engine_silent_changes_total") == 1, "not found once, or a false alarm")


def link_one(stage):
    stage.links = {1: stage.link_engine(1)}
    stage.add_engine(LruEngine(stage.seed), 99)


def restart_unseen(case):
    """The new process publishes more batches than the bridge had, while it is disconnected. Another
    one's batches fill the visible gap exactly."""
    stage = case.stage
    case.note_metrics(*ENGINE_SIDE)
    links = [link for pair in stage.links[1] for link in pair]
    before = case.oracle.stats()[1, 0]["batches"]
    other = stage.python_engines[0][1]
    case.begin_fault({(1, rank) for rank in range(stage.load.ranks)} | {(99, 0)})
    for link in links:
        link.cut()
    case.oracle.command("restart 1 0")
    wait_for("it has overtaken us", lambda: case.oracle.stats()[1, 0]["batches"] > before + 20)
    asked = len(other.requests)
    case.last_seq, case.asked = other.be_born_again(unseen=20), asked
    for link in links:
        link.heal()
    case.end_fault()


def check_restarted_unseen(case):
    other = case.stage.python_engines[0][1]
    case.others_were_untouched()
    expect_new_epochs(case)
    asked = other.requests[case.asked:]
    case.expect_that(
        asked[:2] == [case.last_seq, 0], f"asked from {asked[:4]}, not from the last batch known ({case.last_seq})")


def link_three(stage):
    stage.links = {worker: stage.link_engine(worker) for worker in (1, 2, 3)}


AWAY = ("DOWN", "engine_away")


def hush_links(case):
    """Links that go silent without an error: in both directions, and in one."""
    stage = case.stage
    case.note_metrics(*ENGINE_SIDE)
    links = {worker: [link for pair in pairs for link in pair] for worker, pairs in stage.links.items()}
    case.begin_fault({(worker, rank) for worker in links for rank in range(stage.load.ranks)})
    for worker in links:
        for link in links[worker]:
            link.hush(to_server=worker != 3)
    case.wait_until_seen(AWAY)
    for worker in links:
        if worker == 2:
            case.last(case.age_s() + 3)  # the bridge dials in vain meanwhile
        for link in links[worker]:
            link.heal()
    case.end_fault()


def check_hushed(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_replays_total", step="completed") > 0, "no probe on heal")


# ---- Processes of engines ---------------------------------------------------------------


def kill_engines(case):
    """kill -9; another process comes at the same addresses."""
    stage = case.stage
    case.note_metrics(*ENGINE_SIDE)
    program, streams = stage.engines_of(0)
    with case.oracle.lock:
        stage.fleet.stop_asking(0)
        case.begin_fault(streams)
        stage.killed.append(program)
        program.kill()
    case.wait_until_seen(AWAY)
    truth = stage.start_engines(0, life=1)
    wait_for("it answers", truth.exists)
    with case.oracle.lock:
        wait_for("its truth", lambda: stage.fleet.ask_again(0, truth) or True)
    case.end_fault()


def check_killed_engines(case):
    case.others_were_untouched()
    expect_new_epochs(case)


def freeze_engines(case):
    program, streams = case.stage.engines_of(0)
    case.note_metrics(*ENGINE_SIDE)
    with case.oracle.lock:
        case.stage.fleet.stop_asking(0)
        case.begin_fault(streams)
        program.process.send_signal(signal.SIGSTOP)
    case.wait_until_seen(AWAY)
    program.process.send_signal(signal.SIGCONT)
    with case.oracle.lock:
        case.stage.fleet.ask_again(0)
    case.end_fault()


def check_frozen_engines(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_engine_restarts_total") == 0, "not the same engine (kvb_engine_restarts_total)")


def know_totals(stage):
    stage.bridge_parts = [
        text.replace("block_size = 16;", f"block_size = 16; total_blocks = {stage.load.blocks};")
        for text in stage.bridge_parts
    ]


SMALL = {"workers": 4, "blocks": 256, "rate": 80.0}
PROCESSES = {**SMALL, "processes": 2, "keeps_ports": True}

ROWS = [
    Row("F1", "nats-server SIGKILL under load, back when all lists are STALE", kill_nats, "nothing unrepaired",
        check_nats_killed, is_first=True, load=SMALL),
    Row("F4", "bridge reconnects before the aggregator does", flush_into_the_void,
        "found by heartbeat, without a new event", check_nats_repaired, prepare=link_aggregator),
    Row("F6", "bridge SIGKILL, restart", kill_bridge, "same epochs, hardly anything fetched as a whole",
        check_killed_bridge, prepare=keep_checkpoints, is_first=True, load={**SMALL, "blocks": 1024}),
    Row("F9", "two bridges for one worker, then one", add_second_bridge,
        "said, the one with the older epoch is fenced off", check_second_bridge, most_full_replays=2),
    Row("F10", "aggregator SIGKILL, restart", kill_aggregator, "EXACT by snapshots",
        check_given_all, prepare=add_shelves, shows=False, is_first=True, load={**SMALL, "ranks": 1}),
    Row("F13", "engine restart, seq from 0, other content", restart_engine, "old blocks gone", check_restarted),
    Row("F15", "engine restart that overtook our seq unseen; one that fills our gap exactly", restart_unseen,
        "fingerprint mismatch, no phantom", check_restarted_unseen, prepare=link_one, load={**FAST, "ranks": 1}),
    Row("F17", "gap larger than the replay buffer", large_gap, "PARTIAL(gone), no phantom", check_large_gap,
        load={**FAST, "replay_buffer": 50}, prepare=know_totals),
    Row("F22", "cache reset under load; an engine asleep for 4 s (vLLM's sleep mode, no event)", reset_and_sleep,
        "nothing listed of the one asleep, others untouched", check_reset_and_sleep, prepare=read_pages),
    Row("F25", "events lost before they are numbered", lose_unnumbered, "UNVERIFIED(occupancy), cleared by a reset",
        check_unnumbered_loss, prepare=read_pages, judges_exact=False),
    Row("F26", "200 workers restart at once", restart_all, "all EXACT, 8 replays in flight at most",
        check_all_restarted, shows=False,
        load={"workers": 200, "ranks": 1, "blocks": 32, "rate": 150.0, "scale": 64, "processes": 2}),
    Row("F28", "links between bridge and engines fall silent, both ways and one way", hush_links,
        "found by heartbeat; probe on heal", check_hushed, prepare=link_three, is_first=True, load=SMALL),
    Row("F32", "the realtime clock jumps by 3 days, on and back", conditions.jump, "nothing changes",
        conditions.check_jumped, prepare=conditions.shift_clocks, shows=False, load=FAST),
    Row("F34", "memory capped at what the lists are worth, NATS away 10 s, the disk of checkpoints full",
        conditions.leave_without_memory, "never killed", conditions.check_without_memory,
        prepare=conditions.cap_memory),
    Row("F35", "one of three nats-servers SIGKILL, back later", cluster.kill_one, "EXACT by the others",
        cluster.check_killed, site=cluster.Cluster, shows=False),
    Row("F36", "one of three nats-servers SIGSTOP", cluster.freeze_one, "left for another one",
        cluster.check_unharmed, site=cluster.Cluster),
    Row("F37", "one of three nats-servers parted from the others", cluster.part_one, "DOWN(silent), then repaired",
        cluster.check_parted, site=cluster.Cluster),
    Row("F38", "rolling restart of three nats-servers in lame duck mode", cluster.restart_all,
        "each is left before it closes", cluster.check_rolled, site=cluster.Cluster, shows=False),
    Row("F39", "leaf node 50 ms away, its line cut", cluster.cut_line, "kv_sync over the line",
        cluster.check_parted, site=cluster.Leaf),
    Row("F40", "an aggregator disconnected as a slow consumer", cluster.flood_a_sleeper,
        "what it missed is counted and repaired", cluster.check_slow, site=cluster.Narrow, shows=False),
    Row("F41", "a process of engines SIGKILL, another one at its addresses", kill_engines, "old blocks gone",
        check_killed_engines, is_first=True, load=PROCESSES),
    Row("F42", "a process of engines SIGSTOP until its lists are DOWN", freeze_engines, "the same engines go on",
        check_frozen_engines, is_first=True, load=PROCESSES),
]
