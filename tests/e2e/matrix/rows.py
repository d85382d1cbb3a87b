"""The rows of the fault matrix.  Each: what is done, what must hold, and which counters prove that the
intended path ran.  A fault lasts until it is seen, where something of it must be seen."""

import signal
import time

import engine
from matrix import cluster, conditions, crowd, identity
from matrix.case import ENGINE_SIDE, MISSED, REPAIRS, Row
from matrix.liar import LruEngine
from matrix.publisher import Tape
from matrix.spoil import KINDS, newest_seq, read_all, spoil_all
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


def restart_nats_at_once(case):
    kill_nats(case, until_seen=False)


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


def freeze_nats(case):
    case.note_metrics(*REPAIRS, *ENGINE_SIDE)
    case.begin_fault()
    case.stage.nats.process.send_signal(signal.SIGSTOP)
    case.wait_until_seen(NATS_AWAY)
    case.stage.nats.process.send_signal(signal.SIGCONT)
    case.end_fault()


def check_stale_not_down(case):
    case.expect_that(all(state != "DOWN" for state, _ in case.states_seen()), "DOWN was said where STALE is the truth")


CONNECTS = ("aggregator", "kvb_nats_connects_total", {})


def flap_nats(case):
    case.note_metrics(*REPAIRS, ("aggregator", "kvb_sync_requests_total", {"kind": "snapshot"}), CONNECTS)
    case.begin_fault()
    for _ in range(20):
        case.stage.nats.kill()
        time.sleep(0.15)
        case.stage.start_nats()
        time.sleep(0.15)
    case.end_fault()


def check_flap(case):
    asked = case.grew("aggregator", "kvb_sync_requests_total", kind="snapshot")
    most = len(case.oracle.watchers[0].states) * case.grew(*CONNECTS[:2])
    case.expect_that(asked <= most, f"{asked:.0f} snapshots asked for; each stream once after each connect: {most:.0f}")


# ---- bridges and aggregators -------------------------------------------------------


SILENT = ("DOWN", "silent")


def keep_checkpoints(stage):
    stage.keeps_checkpoints = True


def saved(case):
    return read_all([case.stage.checkpoints(part) for part in (0, 1)])


def wait_for_checkpoints(case):
    """One of each stream."""
    streams = len(case.oracle.stats())
    wait_for("checkpoints", lambda: len(saved(case)) == streams)
    return saved(case)


def kill_bridge(case):
    wait_for_checkpoints(case)
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
    # The checkpoint of a busy bridge may be so old that a list differs in most of its parts.
    lists = len(case.touched) * len(case.stage.aggregators)
    case.figures = f"{asked:.0f} of {lists} lists were fetched as a whole"
    case.expect_that(asked < lists / 2, case.figures)
    asked = full_replays(case) - case.full_replays
    case.expect_that(asked == 0, f"{asked} engines were asked for all they keep")


def kill_bridges_and_spoil(case):
    """Both bridges at once: sixteen streams, one kind of corruption each."""
    stage = case.stage
    early = wait_for_checkpoints(case)
    wait_for("newer ones", lambda: all(
        newest_seq(data) > newest_seq(early[path]) + 20 for path, data in saved(case).items()))
    case.begin_fault()
    for bridge in stage.bridges:
        stage.killed.append(bridge)
        bridge.kill()
    spoil_all(early, saved(case))
    case.wait_until_seen(SILENT)
    for part in (0, 1):
        stage.start_bridge(part, wait=False)
    case.end_fault()


def check_spoilt(case):
    refused = case.stage.bridge_metric("kvb_checkpoints_refused_total")
    restored = case.stage.bridge_metric("kvb_checkpoints_restored_total")
    case.expect_that(
        (refused, restored) == (len(KINDS) - 1, 1), f"{refused:.0f} checkpoints were refused, {restored:.0f} used")
    streams = {row[2] for row in case.changes()}
    kept = streams - case.new_epochs()
    case.expect_that(len(kept) == 1, f"streams that went on in their epoch: {sorted(kept)}")


def freeze_bridge(case):
    case.note_metrics(*REPAIRS, *ENGINE_SIDE)
    case.begin_fault(case.stage.streams_of_bridge(0))
    case.stage.bridges[0].process.send_signal(signal.SIGSTOP)
    case.wait_until_seen(SILENT)
    case.last(case.age_s() + 5)
    case.stage.bridges[0].process.send_signal(signal.SIGCONT)
    case.end_fault()


def check_frozen_bridge(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_replays_total", step="completed") > 0, "no tail was probed")


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


def new_aggregator(case):
    case.begin_fault()
    fresh = case.stage.start_aggregator()
    case.oracle.add(fresh)
    case.end_fault()


def check_by_snapshot(case):
    fresh = case.oracle.watchers[-1].aggregator
    case.expect_that(
        fresh.metric("kvb_sync_repairs_total", kind="snapshot") > 0, "not by snapshots (kvb_sync_repairs_total)")


# ---- engines -------------------------------------------------------------------------


def restart_engine(case):
    case.note_metrics(*ENGINE_SIDE)
    case.begin_fault({(1, 0)})
    case.oracle.command("restart 1 0")
    case.end_fault()


def restart_engine_then_silence(case):
    case.note_metrics(*ENGINE_SIDE)
    case.expect[1, 0] = (("UNVERIFIED",), ("no_base",))  # until the new incarnation publishes something
    case.pause()
    case.begin_fault({(1, 0)})
    case.oracle.command("restart 1 0")
    case.end_fault()


def check_restarted(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_engine_restarts_total") == 1, "not one restart (kvb_engine_restarts_total)")


def withheld(case, stream):
    return case.oracle.stats()[stream]["withheld"]


def lose_batches(case, count):
    before = withheld(case, (1, 0))
    case.begin_fault({(1, 0)})
    case.oracle.command(f"drop 1 0 {count}")
    wait_for("they are lost", lambda: withheld(case, (1, 0)) - before >= count)
    case.end_fault()


def small_gap(case):
    case.note_metrics(*ENGINE_SIDE)
    lose_batches(case, 50)


def check_small_gap(case):
    case.others_were_untouched()
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")
    case.expect_that(case.grew("bridge", "kvb_gaps_total") >= 1, "no gap was seen (kvb_gaps_total)")
    case.expect_that(case.grew("bridge", "kvb_batches_replayed_total") >= 50, "not replayed (kvb_batches_replayed_total)")
    for name in ("kvb_streams_cleared_total", "kvb_engine_restarts_total", "kvb_announcements_total"):
        case.expect_that(case.grew("bridge", name) == 0, f"a new epoch ({name})")


def large_gap(case):
    case.note_metrics(*ENGINE_SIDE)
    case.expect[1, 0] = (("PARTIAL",), ("gone",))
    lose_batches(case, 80)


def check_large_gap(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_streams_cleared_total") >= 1, "not cleared (kvb_streams_cleared_total)")


def lost_tail(case):
    case.note_metrics(*ENGINE_SIDE)
    before = withheld(case, (1, 0))
    case.oracle.command("drop 1 0 1000000")
    case.oracle.begin_fault({(1, 0)})
    wait_for("100 batches are lost", lambda: withheld(case, (1, 0)) - before >= 100)
    case.pause()
    case.begin_fault({(1, 0)})
    case.oracle.command("drop 1 0 0")
    case.end_fault()


def check_lost_tail(case):
    case.others_were_untouched()
    case.expect_that(case.grew("bridge", "kvb_batches_replayed_total") >= 100, "not replayed (kvb_batches_replayed_total)")
    for name in ("kvb_streams_cleared_total", "kvb_engine_restarts_total"):
        case.expect_that(case.grew("bridge", name) == 0, f"a new epoch ({name})")


def add_liar(stage):
    stage.add_liar(LruEngine(stage.seed), 99)


def malformed(case):
    engine = case.stage.liars[0][1]
    case.note_metrics(*ENGINE_SIDE)
    case.expect[99, 0] = (("PARTIAL",), ("poison",))
    case.begin_fault({(99, 0)})
    engine.poison_every(100)
    wait_for("the first one", lambda: engine.poisoned > 0)
    case.fault_ns = engine.first_poison_ns
    wait_for("all kinds were sent", lambda: engine.poisoned >= engine.kinds_of_poison)
    engine.poison_every(0)
    case.end_fault()


def check_malformed(case):
    engine = case.stage.liars[0][1]
    case.others_were_untouched()
    refused = case.grew("bridge", "kvb_batches_refused_total", reason="payload")
    case.expect_that(refused >= engine.kinds_of_poison // 2, f"only {refused:.0f} payloads were refused")
    case.expect_that(("PARTIAL", "poison") in case.states_seen({(99, 0)}), "never PARTIAL(poison)")


# So many batches a second that the batches of one silent second are more than a probe would find.
FAST = {"workers": 2, "rate": 220, "step_ms": 5}

def lose_and_lie(case, lies, hidden=20):
    """Engines whose live batches are lost and whose replays are made by the test."""
    case.note_metrics(*ENGINE_SIDE)
    case.asked = {worker: len(engine.requests) for worker, engine in case.stage.liars}
    case.begin_fault({(worker, 0) for worker, _ in case.stage.liars})
    for (_, engine), lie in zip(case.stage.liars, lies):
        engine.lie = lie
        engine.hidden = hidden


def cut_replays(case):
    lose_and_lie(case, [lambda rows, start: rows[:60]], hidden=200)
    engine = case.stage.liars[0][1]
    wait_for("they are lost", lambda: engine.hidden == 0)
    case.end_fault()


def check_cut_replays(case):
    case.others_were_untouched()
    asked = case.stage.liars[0][1].requests[case.asked[99]:]
    case.expect_that(asked == sorted(asked), f"not asked again from the first hole: {asked[:8]}")
    case.expect_that(len(set(asked)) >= 3, f"asked only {asked[:8]}")
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")


def add_three_liars(stage):
    for worker in (99, 98, 97):
        stage.add_liar(LruEngine(stage.seed + worker), worker)


def lying_replays(case):
    """One never answers, one answers garbage, one answers like another engine."""
    other = [(seq, engine_batch_of_another(seq)) for seq in range(3000)]
    lose_and_lie(case, [
        lambda rows, start: None,
        lambda rows, start: [(seq * 7919 % 1000, bytes([seq % 256]) * 40) for seq, _ in rows],
        lambda rows, start: other[start:],
    ])
    for worker in (99, 98):
        case.expect[worker, 0] = (("PARTIAL",), ("replay_failed",))
    case.expect[97, 0] = (("UNVERIFIED",), ("no_base",))
    for stream, (states, reasons) in case.expect.items():
        case.wait_until_seen((states[0], reasons[0]), streams={stream})
    case.last(8)
    case.end_fault()


def engine_batch_of_another(seq):
    return engine.batch(engine.MapForm.stored([1 << 40 | seq], list(range(seq, seq + 16)), 16))


def check_lying_replays(case):
    case.others_were_untouched()
    for worker, one in case.stage.liars:
        asked = len(one.requests) - case.asked[worker]
        case.expect_that(asked <= case.age_s(), f"worker {worker} was asked {asked} times: no back-off")
        seen = {state for _, _, _, state, _ in case.changes({(worker, 0)})}
        case.expect_that("EXACT" not in seen, f"worker {worker} was EXACT")
    case.expect_that(case.grew("bridge", "kvb_replays_total", step="failed") > 0, "no replay failed (kvb_replays_total)")


def unnumbered_batch(case):
    one = case.stage.liars[0][1]
    case.note_metrics(*ENGINE_SIDE)
    case.asked = {99: len(one.requests)}
    case.expect[99, 0] = (("PARTIAL",), ("hole",))
    case.begin_fault({(99, 0)})
    one.lost = 1
    case.end_fault()


def check_unnumbered_batch(case):
    case.others_were_untouched()
    asked = len(case.stage.liars[0][1].requests) - case.asked[99]
    case.expect_that(asked <= 6, f"asked {asked} times: a loop")


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


def end_epoch_on_tape(case):
    """The events of the liar's first incarnation, in an epoch that is over."""
    tape = Tape(case.stage.nats_port, 99)
    wait_for("something to say again", lambda: len(tape.recorded()) > 200)
    rows = tape.recorded()
    epochs = len(case.oracle.heartbeats.epochs[99, 0])
    case.stage.liars[0][1].be_born_again(unseen=5)
    wait_for("another epoch", lambda: len(case.oracle.heartbeats.epochs[99, 0]) > epochs)
    wait_for("EXACT in it", case.is_settled)
    return tape, rows


def repeat_and_reorder(case):
    one = case.stage.liars[0][1]
    tape, rows = end_epoch_on_tape(case)
    case.note_metrics(*ENGINE_SIDE, ("aggregator", "kvb_events_old_total", {}))
    case.begin_fault({(99, 0)})
    case.asked, case.said_again = len(one.requests), 0
    one.duplicates, one.swaps, one.ancient, one.former_share = 0.2, 0.1, 0.02, 0.01
    one.repeats = 0.02
    for row in rows[-200:]:
        tape.say(row)
        case.said_again += 1
        case.last(4 * case.said_again / 200)
    tape.close()
    one.ancient = one.former_share = 0.0
    case.last(6)
    one.duplicates = one.swaps = one.repeats = 0.0
    case.end_fault()


def check_repeated(case):
    case.others_were_untouched()
    one = case.stage.liars[0][1]
    doubtful = [watcher.states[99, 0][3] for watcher in case.oracle.watchers]
    case.figures = f"{one.repeated} chains stored again, doubtful blocks: {doubtful}"
    case.expect_that(one.repeated > 10 and min(doubtful) > 0, case.figures)
    case.expect_that(one.duplicated > 50, "hardly anything was sent twice")
    asked = len(one.requests) - case.asked
    old = case.grew("aggregator", "kvb_events_old_total")
    least = case.said_again * len(case.stage.aggregators)
    case.expect_that(old >= least, f"{old:.0f} events of the old epoch were dropped, not {least} or more")
    case.expect_that(asked <= one.swapped + 20, f"asked {asked} times for {one.swapped} gaps")
    case.expect_that(case.grew("bridge", "kvb_batches_duplicate_total") > 0, "no duplicate was counted")
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")


def link_one(stage):
    stage.links = {1: stage.link_engine(1)}
    add_liar(stage)


def restart_unseen(case):
    """The new process publishes more batches than the bridge had, while it is disconnected. Another
    one's batches fill the visible gap exactly."""
    stage = case.stage
    case.note_metrics(*ENGINE_SIDE)
    links = [link for pair in stage.links[1] for link in pair]
    before = case.oracle.stats()[1, 0]["batches"]
    liar = stage.liars[0][1]
    case.begin_fault({(1, rank) for rank in range(stage.load.ranks)} | {(99, 0)})
    for link in links:
        link.cut()
    case.oracle.command("restart 1 0")
    wait_for("it has overtaken us", lambda: case.oracle.stats()[1, 0]["batches"] > before + 20)
    asked = len(liar.requests)
    case.last_seq, case.asked = liar.be_born_again(unseen=20), asked
    for link in links:
        link.heal()
    case.end_fault()


def check_restarted_unseen(case):
    liar = case.stage.liars[0][1]
    case.others_were_untouched()
    seen = case.grew("bridge", "kvb_engine_restarts_total")
    case.expect_that(seen == 2, f"{seen:.0f} restarts were seen, of 2 (kvb_engine_restarts_total)")
    asked = liar.requests[case.asked:]
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
    wait_for("each stream has begun an epoch", lambda: case.new_epochs(case.touched) == case.touched)
    case.figures = f"{case.grew('bridge', 'kvb_engine_restarts_total'):.0f} restarts were counted, of {len(case.touched)}"


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
    Row("F2", "nats-server back at once, with nothing remembered", restart_nats_at_once, "as F1", check_nats_killed),
    Row("F3", "nats-server SIGSTOP until all lists are STALE", freeze_nats, "STALE, not DOWN", check_stale_not_down),
    Row("F4", "bridge reconnects before the aggregator does", flush_into_the_void,
        "found by heartbeat, without a new event", check_nats_repaired, prepare=link_aggregator),
    Row("F5", "nats-server flaps 20 x 300 ms", flap_nats, "one snapshot per stream and connection at most", check_flap,
        shows=False),
    Row("F6", "bridge SIGKILL, restart", kill_bridge, "same epochs, hardly anything fetched as a whole",
        check_killed_bridge, prepare=keep_checkpoints, is_first=True, load={**SMALL, "blocks": 1024}),
    Row("F7", "the same with 16 kinds of torn, old or corrupt checkpoint", kill_bridges_and_spoil,
        "15 are refused, the old one is used", check_spoilt, prepare=keep_checkpoints),
    Row("F8", "bridge SIGSTOP", freeze_bridge, "tail probe recovers", check_frozen_bridge),
    Row("F9", "two bridges for one worker, then one", add_second_bridge,
        "said, the one with the older epoch is fenced off", check_second_bridge, most_full_replays=2),
    Row("F10", "aggregator SIGKILL, restart", crowd.kill_aggregator, "EXACT by snapshots",
        crowd.check_given_all, prepare=crowd.add_shelves, shows=False, is_first=True, load={**SMALL, "ranks": 1}),
    Row("F11", "new aggregator, engines far past their replay buffer", new_aggregator, "EXACT from the bridges",
        check_by_snapshot, shows=False, load={"replay_buffer": 50}),
    Row("F12", "one aggregator SIGSTOP 8 s", crowd.freeze_aggregator, "only it resyncs",
        crowd.check_frozen_aggregator, shows=False),
    Row("F13", "engine restart, seq from 0, other content", restart_engine, "old blocks gone", check_restarted),
    Row("F14", "engine restart, then silence", restart_engine_then_silence, "probe clears, UNVERIFIED(no_base)",
        check_restarted),
    Row("F15", "engine restart that overtook our seq unseen; one that fills our gap exactly", restart_unseen,
        "fingerprint mismatch, no phantom", check_restarted_unseen, prepare=link_one, load={**FAST, "ranks": 1}),
    Row("F16", "gap smaller than the replay buffer", small_gap, "EXACT, same epoch", check_small_gap, load=FAST),
    Row("F17", "gap larger than the replay buffer", large_gap, "PARTIAL(gone), no phantom", check_large_gap,
        load={**FAST, "replay_buffer": 50}, prepare=know_totals),
    Row("F18", "the last 100 batches lost, then silence", lost_tail, "EXACT by a probe", check_lost_tail, load=FAST),
    Row("F19", "replay cut inside, END still comes", cut_replays, "asked again from the first hole",
        check_cut_replays, prepare=add_liar, shows=False),
    Row("F20", "replay never answers, answers garbage, answers another engine", lying_replays,
        "PARTIAL or UNVERIFIED with its reason, back-off; others unaffected", check_lying_replays,
        prepare=add_three_liars, judges_exact=False),
    Row("F21", "a batch the engine never numbered into its buffer", unnumbered_batch, "PARTIAL(hole), no loop",
        check_unnumbered_batch, prepare=add_liar),
    Row("F22", "cache reset under load; an engine asleep for 4 s (vLLM's sleep mode, no event)", reset_and_sleep,
        "nothing listed of the one asleep, others untouched", check_reset_and_sleep, prepare=read_pages),
    Row("F23", "1 payload in 100 malformed", malformed, "that stream rebuilt; others untouched", check_malformed,
        prepare=add_liar),
    Row("F24", "20 % duplicates, reordering, an old epoch said again, second copies", repeat_and_reorder, "no effect",
        check_repeated, prepare=add_liar, shows=False),
    Row("F25", "events lost before they are numbered", lose_unnumbered, "UNVERIFIED(occupancy), cleared by a reset",
        check_unnumbered_loss, prepare=read_pages, judges_exact=False),
    Row("F26", "200 workers restart at once", crowd.restart_all, "all EXACT, 8 replays in flight at most",
        crowd.check_all_restarted, shows=False,
        load={"workers": 200, "ranks": 1, "blocks": 32, "rate": 150.0, "scale": 64, "processes": 2}),
    Row("F27", "1,000 workers join and leave, 50 a second", crowd.visit, "memory back within 5 %",
        crowd.check_visited, prepare=crowd.expect_visitors),
    Row("F28", "links between bridge and engines fall silent, both ways and one way", hush_links,
        "found by heartbeat; probe on heal", check_hushed, prepare=link_three, is_first=True, load=SMALL),
    Row("F29", "5 % of all packets lost between engines, bridges, NATS and aggregators, 30 s", conditions.lose_packets,
        "nothing is lost for ever", conditions.check_lost_packets, site=conditions.OwnNetwork, shows=False),
    Row("F30", "100 ms +- 50 ms and 1 Mbit/s on every hop, flipped bytes on those of NATS", conditions.spoil_lines,
        "flips are found", conditions.check_spoilt_lines, prepare=conditions.lay_lines, shows=False,
        judges_exact=False, load={"workers": 4, "ranks": 1, "rate": 40.0}),
    Row("F31", "JetStream's disk full, then freed", conditions.fill_disk_of_jetstream,
        "no list stays EXACT that grows old, and all is EXACT afterwards", conditions.check_full_disk,
        site=conditions.JetStream, shows=False, load=FAST),
    Row("F32", "the realtime clock jumps by 3 days, on and back", conditions.jump, "nothing changes",
        conditions.check_jumped, prepare=conditions.shift_clocks, shows=False, load=FAST),
    Row("F33", "keys replaced under load; then a server with a certificate of another authority, an expired one, one of "
        "another host, and a revoked key", identity.refuse_and_rotate,
        "all is EXACT afterwards; nobody is believed who should not", identity.check_refused,
        site=identity.SecureServer),
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
