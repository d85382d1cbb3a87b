"""Do bridge and aggregator recover by themselves from a gap, an engine's restart, invalid frames,
and an absent server?"""

import json
import threading

import pytest

import contract
import engine
from conftest import PUBLISH, worker
from programs import DEADLINE_S, wait_for

BLOCK = 16


def tokens_of(number, blocks=1):
    return [number * 1000 + i for i in range(blocks * BLOCK)]


def name_of(number):
    return contract.prompt_hashes(tokens_of(number), BLOCK)[0][0]


def store(number):
    """A batch that stores one block, a prompt of its own."""
    return engine.batch(engine.stored([number], tokens_of(number), BLOCK))


class Reader(contract.HeldBlocks):
    """Blocks held according to events, updated by a subscription."""

    def __init__(self, bus, subject=f"{PUBLISH}.kv_events"):
        super().__init__()
        self.messages = bus.watch(subject)
        self.log = []

    def names(self, worker_id=7):
        while self.messages:
            self.log.append(json.loads(self.messages[0].data)["event"]["data"])
            self.apply(self.messages.pop(0).data)
        return set(self.of(worker_id))

    def holds(self, *numbers):
        return lambda: self.names() == {name_of(n) for n in numbers}


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize("form", ["old", "new"])
def test_a_gap_is_repaired_by_an_inclusive_replay_in_order(scene, form):
    reader = Reader(scene.bus())
    vllm = scene.engine(form=form)
    bridge = scene.bridge(worker(vllm))
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    # a gap noticed during a replay would not count
    wait_for("the first batch was looked for", lambda: bridge.get("/state")["streams"][0]["state"] == "EXACT")

    asked = len(vllm.requests)
    vllm.publish(store(2), live=False)
    vllm.publish(engine.batch(engine.removed(1), engine.removed(2)), live=False)
    vllm.publish(store(3))
    wait_for("the gap is filled", reader.holds(3))
    wait_for("the replay began at the last batch known", lambda: 0 in vllm.requests[asked:])
    assert "cleared" not in reader.log[1:], "a repaired gap needs no clear"
    stored = [e["stored"]["blocks"][0]["block_hash"] for e in reader.log if "stored" in e]
    assert stored == [name_of(1), name_of(2), name_of(3)], "in the order of the sequence"
    wait_for("both are counted", lambda: bridge.metric("kvb_batches_missed_total") == 2)


@pytest.mark.first
def test_a_lost_tail_on_an_idle_engine_is_found(scene):
    reader = Reader(scene.bus())
    vllm = scene.engine()
    scene.bridge(worker(vllm))
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    vllm.publish(store(2), live=False)  # then the engine is silent
    wait_for("the tail probe finds block 2", reader.holds(1, 2))


def three_blocks(scene):
    reader = Reader(scene.bus())
    vllm = scene.engine()
    scene.bridge(worker(vllm))
    for number in (1, 2, 3):
        vllm.publish(store(number))
    wait_for("three blocks", reader.holds(1, 2, 3))
    return reader, vllm


@pytest.mark.first
@pytest.mark.sanitize
def test_a_restarted_engine_is_cleared_first(scene):
    reader, vllm = three_blocks(scene)
    before = len(reader.log)
    vllm.restart()
    vllm.publish(store(4))
    wait_for("only the new block", reader.holds(4))
    assert reader.log[before] == "cleared"


@pytest.mark.first
def test_a_restarted_engine_that_stays_silent_is_cleared(scene):
    reader, vllm = three_blocks(scene)
    vllm.restart()
    wait_for("nothing is held", reader.holds())


class SlowAnswers:
    """Replays of this engine wait until the test permits them, so the incarnation that connects
    next stays unproven meanwhile."""

    def __init__(self, vllm):
        self.gate = threading.Event()
        self.answer, vllm.answer = vllm.answer, self.answer_later

    def answer_later(self, start):
        self.gate.wait(DEADLINE_S)
        return self.answer(start)


def test_a_list_is_not_matched_until_its_engine_has_proven_its_incarnation(scene):
    aggregator, vllm = scene.aggregator(), scene.engine()
    scene.bridge(worker(vllm))
    vllm.publish(store(1))

    def found():
        body = {"token_ids": tokens_of(1), "model_name": "m"}
        return json.loads(aggregator.http("POST", "/query", body)[1])["scores"]

    wait_for("the prompt is matched", lambda: aggregator.states() == [("EXACT", "")] and found() == {"7": {"0": BLOCK}})
    vllm.go_away()
    slow = SlowAnswers(vllm)
    vllm.come_back()
    wait_for("connected again, and listed", lambda: aggregator.states() == [("DOWN", "connecting")])
    seen = found()
    assert seen == {} or aggregator.states() != [("DOWN", "connecting")], "matched before it was proven"
    slow.gate.set()
    wait_for("the prompt is matched again", lambda: found() == {"7": {"0": BLOCK}})


def test_a_withdrawn_list_is_announced_again_when_its_incarnation_is_proven(scene):
    """For readers of events only: the engine was away for long, and another incarnation came back."""
    bus, vllm = scene.bus(), scene.engine()
    reader, beats = Reader(bus), bus.watch(f"{PUBLISH}.kv_heartbeat_json")
    scene.bridge(worker(vllm), down_clear_ms=100)
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    vllm.go_away()
    wait_for("the list is withdrawn", reader.holds())
    vllm.forget()
    vllm.next_seq = 0
    slow, asked, told = SlowAnswers(vllm), len(vllm.requests), len(reader.log)
    vllm.come_back()
    wait_for("the proof is requested", lambda: len(vllm.requests) > asked)
    beats.clear()
    wait_for("an announcement is due", lambda: len(beats) >= 2)  # at least a second is between two announcements
    slow.gate.set()
    vllm.publish(store(2))
    wait_for("what the next life holds", reader.holds(2))
    again = [event for event in reader.log[told:] if "stored" in event]
    assert len(again) == 1, "blocks of the life that was over were told again"


@pytest.mark.first
@pytest.mark.parametrize("unseen", [1, 3, 4], ids=["behind-us", "at-our-seq", "past-our-seq"])
def test_a_restart_is_detected_by_fingerprints_not_by_numbers(scene, unseen):
    """Before the bridge reconnects, the new process publishes fewer batches than the old one, as
    many, or more."""
    reader, vllm = three_blocks(scene)
    vllm.restart()
    for number in range(4, 4 + unseen):
        vllm.publish(store(number), live=False)
    vllm.publish(store(9))
    wait_for("what the new process holds", reader.holds(*range(4, 4 + unseen), 9))


BAD_PAYLOADS = {
    "not-msgpack": b"\xc1\xc1\xc1",
    "empty": b"",
    "lying-array": bytes.fromhex("dd05f5e100"),
    "lying-array-inside": bytes.fromhex("93cb41d954fc40200000dd05f5e10000"),
    "lying-string": bytes.fromhex("93cb41d954fc40200000db7fffffff"),
    "lying-map": bytes.fromhex("df7fffffff"),
    "depth-bomb": b"\x91" * 100_000,
    "depth-bomb-of-maps": b"\x81\xa1a" * 50_000,
    "truncated": store(9)[:-3],
    "trailing": store(9) + b"\x00",
    "bad-hash-in-removed": bytes.fromhex("93cb41d954fc402000009192ac426c6f636b52656d6f76656491a17800"),
}


def refused(bridge):
    return bridge.metric("kvb_batches_refused_total", reason="payload") + bridge.metric(
        "kvb_events_skipped_total", reason="bad_removed"
    )


@pytest.mark.first
@pytest.mark.sanitize
def test_an_undecodable_batch_is_counted_and_the_next_is_applied(scene):
    reader = Reader(scene.bus())
    vllm = scene.engine()
    bridge = scene.bridge(worker(vllm))
    for number, (name, payload) in enumerate(BAD_PAYLOADS.items()):
        vllm.publish(engine.batch(engine.cleared()))
        vllm.publish(store(2 * number))
        wait_for("a block", reader.holds(2 * number))
        before = refused(bridge)
        # In a replay an empty payload would be the END mark.
        vllm.publish(payload, buffered=payload != b"")
        vllm.publish(store(2 * number + 1))
        # The batch may have contained a removal, so earlier blocks are not listed any more.
        wait_for(f"after {name} the next batch is applied, and nothing doubtful stays", reader.holds(2 * number + 1))
        wait_for("the metric counts the batch", lambda: refused(bridge) > before)
        # The bridge requests the batch again, and the engine sends the same bytes; or it continues
        # without, if the next batch arrived before the request.
        reasons = ("poison",) if payload else ("poison", "hole")

        def says_why():
            stream = bridge.get("/state")["streams"][0]
            return stream["state"] == "PARTIAL" and stream["reason"] in reasons

        wait_for("the state says why", says_why)


def says_nats(daemon):
    status, text = daemon.http("GET", "/readyz")
    return status == 503 and "NATS" in text


@pytest.mark.first
@pytest.mark.no_nats
@pytest.mark.both_servers
def test_daemons_start_without_nats_and_connect_when_it_comes(scene):
    port = int(scene.nats_url.rsplit(":", 1)[1])
    vllm = scene.engine()
    vllm.publish(store(1), live=False)
    aggregator = scene.aggregator(wait=False)
    bridge = scene.bridge(worker(vllm), wait=False)
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} serves", lambda: daemon.http("GET", "/livez")[0] == 200)
        wait_for("/readyz says that NATS is missing", lambda: says_nats(daemon))

    scene.start_nats(port)
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} is ready", daemon.is_ready)
    wait_for(
        "the block is listed",
        lambda: aggregator.http("GET", "/dump?format=rows")[1].split()[-1:] == [str(name_of(1))],
    )


@pytest.mark.sanitize
@pytest.mark.both_servers
def test_invalid_router_events_are_counted_and_have_no_effect(scene):
    bus = scene.bus()
    aggregator = scene.aggregator()
    good = {"worker_id": 5, "event": {"event_id": 1, "data": {"stored": {"parent_hash": None,
            "blocks": [{"block_hash": 11, "tokens_hash": 12}]}}}}
    subject = "namespace.dynamo.component.Foreign.kv_events"
    bus.publish(subject, json.dumps(good).encode())
    wait_for("a foreign bridge's block is listed", lambda: len(aggregator.rows()) == 1)
    name = "kvb_messages_refused_total"
    before = aggregator.metric(name)

    bad = [
        b"", b"x", b"{", b"[]", b"null", b'{"worker_id":5}', b"\x0a\xff\xff\xff\xff\x0f", b"\x85\xa1a",
        b"\xef\xbb\xbf" + json.dumps(good).encode(),
        json.dumps([good]).encode(),
        json.dumps({**good, "worker_id": -1}).encode(),
        json.dumps({**good, "worker_id": 1 << 63}).encode(),
        json.dumps({**good, "worker_id": 1.5}).encode(),
        json.dumps(good).encode() * 2,
        b"[" * 100_000,
    ]
    for payload in bad:
        bus.publish(subject, payload)
    wait_for("each is counted", lambda: aggregator.metric(name) - before == len(bad))
    assert len(aggregator.rows()) == 1
    assert [s["worker_id"] for s in aggregator.get("/streams")["streams"]] == [5]

    good["event"] = {"event_id": 2, "data": {"removed": {"block_hashes": [11]}}}
    bus.publish(subject, json.dumps(good).encode())
    wait_for("the next message is applied", lambda: aggregator.rows() == [])


@pytest.mark.parametrize("format, tiers", [("protobuf", {"device", "host"}), ("json", {"device"})])
def test_a_copy_on_the_host_outlives_the_one_on_the_device(scene, format, tiers):
    """Readers of JSON may ignore tiers, so they receive only the device tier."""
    vllm = scene.engine()
    aggregator = scene.aggregator()
    scene.bridge(worker(vllm), formats=[format])
    tokens = tokens_of(1)

    def listed():
        return {row[2] for row in aggregator.rows()}

    def shown(key):
        rows = aggregator.get("/streams")["streams"]
        return {key: rows[0][key]} if rows and key in rows[0] else {}

    vllm.publish(engine.batch(engine.stored([1], tokens, BLOCK)))
    vllm.publish(engine.batch(engine.stored([1], tokens, BLOCK, medium="CPU")))
    wait_for("the tiers of the format", lambda: listed() == tiers)
    # Only the device tier is proven: nothing shows yet that the engine publishes removals from host
    # memory.
    unverified = {"unverified_tiers": {"host": "no_removals"}} if "host" in tiers else {}
    wait_for("the host's list is unverified", lambda: shown("unverified_tiers") == unverified)
    wait_for("the device's is exact", aggregator.is_exact)
    query = json.loads(aggregator.http("POST", "/query", {"token_ids": tokens, "model_name": "m"})[1])
    assert query.get("tier_states", {}) == ({"7": {"0": unverified}} if unverified else {})
    assert "states" not in query
    vllm.publish(engine.batch(engine.removed(1)))
    wait_for("what is left", lambda: listed() == tiers - {"device"})
    vllm.publish(engine.batch(engine.removed(1, medium="CPU")))
    wait_for("nothing is left", lambda: listed() == set())
    vllm.publish(engine.batch(engine.stored([2], tokens_of(2), BLOCK, medium="CPU")))
    wait_for("a removal has been seen", lambda: listed() == tiers - {"device"} and not shown("unverified_tiers"))
    wait_for("in sync", aggregator.is_exact)


def test_a_publisher_that_counts_from_1_and_writes_parent_0_for_none_is_exact(scene):
    """As publishers of the llm-d family do."""
    simulator = scene.engine(form="old")
    simulator.next_seq = 1
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(simulator))
    # It was empty: then batch 1 is the first, and not the oldest that a buffer has left.
    wait_for("an empty replay", lambda: bridge.metric("kvcache_zmq_replay_success_total") > 0)
    simulator.publish(engine.batch(engine.stored([11, 12], tokens_of(1, 2), BLOCK, parent=0)))
    simulator.publish(engine.batch(engine.stored([13], tokens_of(2), BLOCK, parent=12)))
    wait_for("the list is exact", aggregator.is_exact)
    assert bridge.get("/state")["streams"][0]["unrooted"] == 0
    tokens = [*tokens_of(1, 2), *tokens_of(2), 1]
    answer = json.loads(aggregator.http("POST", "/query", {"token_ids": tokens, "model_name": "m"})[1])
    assert answer["hits"] == {"7": {"0": 3 * BLOCK}}


def test_a_route_does_not_count_what_a_host_stored_and_may_have_dropped(scene):
    vllm = scene.engine()
    aggregator = scene.aggregator()
    scene.bridge(worker(vllm), formats=["protobuf"])
    tokens = tokens_of(1)
    vllm.publish(engine.batch(engine.stored([1], tokens, BLOCK)))
    vllm.publish(engine.batch(engine.stored([1], tokens, BLOCK, medium="CPU")))
    wait_for("both tiers", lambda: {row[2] for row in aggregator.rows()} == {"device", "host"})

    def overlap():
        answer = aggregator.http("POST", "/route", {"token_ids": [*tokens, 1], "model_name": "m", "dry_run": True})
        return json.loads(answer[1])["overlap_blocks"]

    assert overlap() == 1
    vllm.publish(engine.batch(engine.removed(1)))
    wait_for("the host alone", lambda: {row[2] for row in aggregator.rows()} == {"host"})
    assert overlap() == 0
