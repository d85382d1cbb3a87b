"""Does a router of plain JSON that connects late get all blocks?  It has received no earlier
events, sends no requests, and the fleet is idle."""

import json

import pytest

import engine
from conftest import PUBLISH, worker
from programs import wait_for
from test_faults import name_of, store
from test_json_readers import PlainReader

BLOCK = 16
STREAMS, BLOCKS, CHAIN = 16, 4096, 256


def fill(one, number):
    """Prompts of 256 blocks that form a tree: every second one continues from the middle of the one
    before."""
    for at in range(0, BLOCKS, CHAIN):
        hashes = range(number * 100_000 + at + 1, number * 100_000 + at + CHAIN + 1)
        goes_on = at // CHAIN % 2 == 1
        parent = number * 100_000 + at - CHAIN // 2 if goes_on else None
        first = (number * BLOCKS + at) * BLOCK
        one.publish(engine.batch(
            engine.stored(hashes, range(first, first + CHAIN * BLOCK), BLOCK, parent=parent)
        ))


def listed(aggregator):
    """{worker: blocks} as listed by kvaggregator."""
    blocks = {}
    for row in aggregator.rows():
        blocks.setdefault(int(row[0]), set()).add(int(row[3]))
    return blocks


def digests(aggregator):
    """How many differences heartbeats have shown, and how many messages were refused."""
    return sum(
        aggregator.metric(name)
        for name in ("kvb_digest_buckets_differ_total", "kvb_messages_refused_total")
    )


def idle_fleet(scene, streams=STREAMS, **publish):
    """All blocks are listed, and no further event follows."""
    early = PlainReader(scene.bus())
    aggregator = scene.aggregator()
    engines = [scene.engine() for _ in range(streams)]
    bridge = scene.bridge(*(worker(one, 7 + i) for i, one in enumerate(engines)), **publish)
    for number, one in enumerate(engines):
        fill(one, number)
    wait_for("all blocks", lambda: early.count() == streams * BLOCKS)
    wait_for("kvaggregator has them, and is sure",
             lambda: aggregator.metric("kvb_index_blocks") == streams * BLOCKS and aggregator.is_exact(streams))
    return early, aggregator, engines, bridge


@pytest.mark.first
def test_a_late_reader_has_all_within_one_period(scene):
    period_s = 6
    early, aggregator, _, bridge = idle_fleet(scene, refresh_s=period_s)
    truth = listed(aggregator)
    clears, mismatches = early.clears, digests(aggregator)
    late = PlainReader(scene.bus())
    wait_for("the late reader has all blocks", lambda: late.read_until(STREAMS * BLOCKS))
    # It came in the middle of one round: only the stream whose turn it was then was told twice. A round leaves out a
    # stream whose engine a busy machine has disconnected.
    rounds = 1 + bridge.metric("kvcache_zmq_disconnections_total")
    assert late.told <= (rounds * STREAMS + 1) * BLOCKS
    assert late.blocks() == truth
    # the next round goes from the first stream to the last; other readers are not affected
    told = bridge.metric("kvb_refresh_streams_total")
    wait_for("a whole round more", lambda: bridge.metric("kvb_refresh_streams_total") > told + STREAMS)
    assert late.blocks() == truth and early.blocks() == truth
    assert late.clears == 0 and early.clears == clears and early.ignored == 0
    wait_for("kvaggregator is still sure", lambda: aggregator.is_exact(STREAMS))
    assert listed(aggregator) == truth
    assert digests(aggregator) == mismatches
    assert bridge.metric("kvb_refresh_given_up_total") == 0


def test_a_request_gets_all_blocks_at_once(scene):
    _, aggregator, _, bridge = idle_fleet(scene, refresh_s=0)
    truth = listed(aggregator)
    bus = scene.bus()
    late = PlainReader(bus)
    refused = digests(aggregator)
    answers = bus.watch("answers")
    # And not again within ten seconds: both requests arrive together, however long the blocks then take.
    bus.send_all(*((f"{PUBLISH}.kv_refresh", body, "answers") for body in (b"", b"{}")))
    wait_for("both are answered", lambda: len(answers) == 2)
    answer, again = (json.loads(one.data) for one in answers)
    assert answer.pop("bridge_id")
    assert answer == {"streams": STREAMS, "blocks": STREAMS * BLOCKS, "rationed": 0, "away": 0}
    assert (again["streams"], again["rationed"]) == (0, STREAMS)
    wait_for("the late reader has all blocks", lambda: late.count() == STREAMS * BLOCKS)
    assert late.blocks() == truth and late.clears == 0 and late.ignored == 0
    wait_for("counted", lambda: bridge.metric("kvb_refresh_requests_total", outcome="rationed") == STREAMS)
    assert bridge.metric("kvb_refresh_requests_total", outcome="granted") == STREAMS
    assert bridge.metric("kvb_refresh_streams_total") == STREAMS
    assert bridge.metric("kvb_refresh_blocks_total") == STREAMS * BLOCKS
    wait_for("kvaggregator is still sure", lambda: aggregator.is_exact(STREAMS))
    assert listed(aggregator) == truth
    assert digests(aggregator) == refused, "kv_refresh itself is no bad message either"


def small_fleet(scene, **publish):
    engines = [scene.engine() for _ in range(2)]
    early = PlainReader(scene.bus())
    bridge = scene.bridge(*(worker(one, 7 + i) for i, one in enumerate(engines)), **publish)
    for number, one in enumerate(engines):
        one.publish(store(1))
        one.publish(store(2 + number))
    wait_for("four blocks", lambda: early.count() == 4)
    return engines, bridge


@pytest.mark.sanitize
def test_one_stream_may_be_requested(scene):
    small_fleet(scene, refresh_s=0)
    bus = scene.bus()
    late = PlainReader(bus)
    answer = json.loads(bus.request(f"{PUBLISH}.kv_refresh", b'{"worker_id":8,"dp_rank":0}'))
    assert (answer["streams"], answer["blocks"]) == (1, 2)
    wait_for("the reader has the requested stream", lambda: late.blocks() == {8: {name_of(1), name_of(3)}})
    # a message without a reply subject is a request too, here for the other stream, because this
    # one had its turn
    bus.publish(f"{PUBLISH}.kv_refresh", b"")
    both = {7: {name_of(1), name_of(2)}, 8: {name_of(1), name_of(3)}}
    wait_for("the reader has both streams", lambda: late.blocks() == both)


@pytest.mark.sanitize
def test_a_late_reader_is_correct_while_blocks_come_and_go(scene):
    (first, _), bridge = small_fleet(scene, refresh_s=1)
    aggregator = scene.aggregator()
    late = PlainReader(scene.bus())
    for number in range(100, 400):
        first.publish(store(number))
        if number % 3 == 0:
            first.publish(engine.batch(engine.removed(number - 50)) if number >= 150 else store(number))
    told = bridge.metric("kvb_refresh_streams_total")
    wait_for("two rounds", lambda: bridge.metric("kvb_refresh_streams_total") >= told + 4)
    wait_for("kvaggregator is sure", lambda: aggregator.is_exact(2))
    wait_for("the late reader holds what is listed", lambda: late.blocks() == listed(aggregator))
