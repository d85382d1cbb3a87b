"""Do readers of JSON and aggregators find the same blocks, whichever formats each bridge publishes?
JSON is on P.kv_events, protobuf on P.kv_events_pb, and an aggregator takes each stream from one."""

import signal

import pytest

import dynamo
import engine
from conftest import PUBLISH, worker
from programs import wait_for
from test_faults import BLOCK, Reader, name_of, store, tokens_of
from test_json_readers import listed

BOTH = ["json", "protobuf"]
SETTINGS = pytest.mark.parametrize("formats", [["json"], ["protobuf"], BOTH], ids=["json", "protobuf", "both"])


def taken(formats):
    """What an aggregator takes of a bridge that publishes these."""
    return "protobuf" if "protobuf" in formats else "json"


def formats_of(aggregator):
    """What the aggregator says that it takes, by worker."""
    return {row["worker_id"]: row["format"] for row in aggregator.get("/streams")["streams"]}


class Dynamo:
    """A model of the index of a Dynamo router, which stops for good at a message that is no RouterEvent."""

    def __init__(self, bus):
        self.messages, self.index, self.applied = bus.watch(f"{PUBLISH}.kv_events"), dynamo.Indexer(), 0

    def holds(self, worker_id, *numbers):
        while self.applied < len(self.messages):
            self.index.apply(dynamo.RouterEvent(self.messages[self.applied].data))
            self.applied += 1
        return set(self.index.lookup.get(worker_id, {})) == {name_of(number) for number in numbers}


@pytest.mark.first
@SETTINGS
@pytest.mark.both_servers
def test_each_subject_has_its_format_and_all_readers_the_same_blocks(scene, formats):
    bus, vllm = scene.bus(), scene.engine()
    router, binary = Dynamo(bus), bus.watch(f"{PUBLISH}.kv_events_pb")
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(vllm), formats=formats)
    for number in range(1, 20):
        vllm.publish(store(number))
    vllm.publish(engine.batch(engine.removed(*range(1, 15))))
    left = range(15, 20)
    wait_for("the aggregator has the blocks", lambda: listed(aggregator, *left) and aggregator.is_exact())
    if "json" in formats:
        wait_for("the router has them", lambda: router.holds(7, *left))
    if "protobuf" in formats:
        wait_for("they are published in protobuf too", lambda: binary)
    bus.flush()
    assert bool(router.messages) == ("json" in formats)
    assert bool(binary) == ("protobuf" in formats)
    assert all(message.data[:1] == b"\n" for message in list(binary))
    assert formats_of(aggregator) == {7: taken(formats)}
    assert bridge.get("/state")["formats"] == formats
    if "json" in formats:  # a message of JSON is one event
        wait_for("each event counts once", lambda: bridge.metric("kvb_events_published_total") == len(router.messages))
    if formats == BOTH:
        wait_for("the JSON is not used", lambda: aggregator.metric("kvb_events_unused_total") > 0)
    assert (aggregator.metric("kvb_events_unused_total") > 0) == (formats == BOTH)
    assert aggregator.metric("kvb_messages_refused_total") == 0


@SETTINGS
def test_a_late_aggregator_takes_one_format(scene, formats):
    vllm = scene.engine()
    bridge = scene.bridge(worker(vllm), formats=formats)
    for number in (1, 2, 3):
        vllm.publish(store(number))
    wait_for("the bridge's list is proven", lambda: bridge.metric("kvb_streams", state="exact") == 1)
    aggregator = scene.aggregator()
    wait_for("it has all", lambda: listed(aggregator, 1, 2, 3) and aggregator.is_exact())
    vllm.publish(store(4))
    wait_for("and what follows", lambda: listed(aggregator, 1, 2, 3, 4) and aggregator.is_exact())
    assert formats_of(aggregator) == {7: taken(formats)}


@pytest.mark.parametrize("before, after, sign", [
    (["json"], ["protobuf"], signal.SIGKILL), (["protobuf"], BOTH, signal.SIGTERM), (BOTH, ["json"], signal.SIGKILL)],
    ids=["protobuf", "both", "json"])
def test_a_bridge_restarts_with_other_formats(scene, before, after, sign):
    """With a checkpoint, which is of the formats that it was made with."""
    vllm, aggregator, reader = scene.engine(), scene.aggregator(), Reader(scene.bus())
    kept = scene.folder / "kept"
    kept.mkdir()
    limits = f'checkpoint = "{kept}"; checkpoint_s = 1;'
    first = scene.bridge(worker(vllm), formats=before, limits=limits)
    vllm.publish(store(1))
    vllm.publish(store(2))
    wait_for("before", lambda: listed(aggregator, 1, 2) and aggregator.is_exact())
    assert formats_of(aggregator) == {7: taken(before)}
    if sign == signal.SIGKILL:
        wait_for("a checkpoint", lambda: any(kept.iterdir()))
        first.kill()
    else:
        first.stop()
    vllm.publish(engine.batch(engine.removed(1)))
    second = scene.bridge(worker(vllm), name="second", formats=after, limits=limits)
    vllm.publish(store(3))
    wait_for("after", lambda: listed(aggregator, 2, 3) and aggregator.is_exact())
    wait_for("the other format", lambda: formats_of(aggregator) == {7: taken(after)})
    vllm.publish(store(4))
    wait_for("what follows", lambda: listed(aggregator, 2, 3, 4) and aggregator.is_exact())
    if "json" in after:
        wait_for("the reader of JSON has it, too", reader.holds(2, 3, 4))
    assert second.is_running()


def test_json_has_the_device_alone_beside_protobuf_with_all_tiers(scene):
    vllm, bus = scene.engine(), scene.bus()
    router, aggregator = Dynamo(bus), scene.aggregator()
    scene.bridge(worker(vllm), formats=BOTH)
    vllm.publish(engine.batch(engine.stored([1], tokens_of(1), BLOCK)))
    vllm.publish(engine.batch(engine.stored([1], tokens_of(1), BLOCK, medium="CPU")))
    wait_for("both tiers", lambda: {row[2] for row in aggregator.rows()} == {"device", "host"} and aggregator.is_exact())
    vllm.publish(engine.batch(engine.removed(1, medium="CPU")))
    vllm.publish(store(2))
    wait_for("the host's is gone", lambda: listed(aggregator, 1, 2) and aggregator.is_exact())
    wait_for("the router knows the device's alone", lambda: router.holds(7, 1, 2))
    assert not [message for message in router.messages if b"storage_tier" in message.data]
