"""A client that may publish on NATS can forge messages of bridges: is that detected, and are other streams unaffected?"""

import json

import pytest

from conftest import PUBLISH, worker
from programs import wait_for
from test_faults import store
from test_json_readers import listed

FORMATS = pytest.mark.parametrize("format", ["json", "protobuf"])


def row(aggregator, worker_id=7):
    """The stream's row; None when there is no such stream, or the aggregator is too busy to answer."""
    status, text = aggregator.http("GET", "/streams")
    streams = json.loads(text)["streams"] if status == 200 else []
    return next((s for s in streams if s["worker_id"] == worker_id), None)


def start(scene, format, **publish):
    vllm = scene.engine()
    bridge = scene.bridge(worker(vllm), formats=[format], **publish)
    aggregator = scene.aggregator()
    for number in (1, 2):
        vllm.publish(store(number))
    wait_for("the list", lambda: listed(aggregator, 1, 2) and aggregator.is_exact())
    return vllm, bridge, aggregator


def forge_cleared(scene, format, event_id):
    """Publishes a `cleared` of worker 7, as its bridge would."""
    bus = scene.bus()
    if format == "json":
        bus.publish(f"{PUBLISH}.kv_events", event(7, event_id, "cleared"))
        return
    beats = bus.watch(f"{PUBLISH}.kv_heartbeat")
    epoch = wait_for("a heartbeat", lambda: beats and beats[0].data)[:18]
    head = b"\x11" + (7).to_bytes(8, "little") + b"\x21" + event_id.to_bytes(8, "little")
    bus.publish(f"{PUBLISH}.kv_events_pb", epoch + head + b"\x2a\x01\x03\x32\x01\x00")


def event(worker_id, event_id, data):
    return json.dumps({"worker_id": worker_id, "event": {"event_id": event_id, "data": data, "dp_rank": 0}}).encode()


# ---- Events that no bridge has published ----


@pytest.mark.first
@pytest.mark.sanitize
@FORMATS
def test_a_forged_cleared_is_repaired(scene, format):
    vllm, _, aggregator = start(scene, format)
    forge_cleared(scene, format, row(aggregator)["last_event_id"] + 1000)
    wait_for("the forged event has emptied the list", lambda: row(aggregator)["blocks"]["device"] == 0)
    vllm.publish(store(3))
    wait_for("the list is repaired", lambda: listed(aggregator, 1, 2, 3) and aggregator.is_exact())
    wait_for("the metric counts the contradiction", lambda: aggregator.metric("kvb_streams_contradicted_total") == 1)
    vllm.publish(store(4))
    wait_for("later events of the bridge are applied", lambda: listed(aggregator, 1, 2, 3, 4))


@pytest.mark.sanitize
@FORMATS
def test_a_heartbeat_of_a_forged_epoch_is_repaired(scene, format):
    vllm, _, aggregator = start(scene, format)
    bus = scene.bus()
    beats = bus.watch(f"{PUBLISH}.kv_heartbeat")
    beat = wait_for("a heartbeat", lambda: beats and beats[0].data)
    assert beat[:2] == b"\x0a\x10"  # the epoch, 16 bytes
    bus.publish(f"{PUBLISH}.kv_heartbeat", beat[:2] + bytes(16) + beat[18:] + b"\xd8\x01\xff\xff\xff\xff\x0f")
    wait_for("the forged heartbeat has an effect", lambda: aggregator.metric("kvb_events_old_total") + aggregator.metric("kvb_epochs_missed_total") > 0)
    vllm.publish(store(3))
    wait_for("the list is repaired", lambda: listed(aggregator, 1, 2, 3) and aggregator.is_exact())


# ---- Streams without heartbeats ----


def test_workers_without_heartbeats_are_forgotten_and_not_chosen(scene):
    vllm = scene.engine()
    aggregator = scene.aggregator(extra="forget_ms = 10000;")
    scene.bridge(worker(vllm), formats=["protobuf"])
    vllm.publish(store(1))
    wait_for("the worker", aggregator.is_exact)
    bus = scene.bus()
    block = {"block_hash": 77, "tokens_hash": 5}
    # All at once: before the first of them is forgotten.
    bus.send_all(*(
        (f"{PUBLISH}.kv_events", event(1000 + number, 1, {"stored": {"parent_hash": None, "blocks": [block]}}), "")
        for number in range(9000)))
    wait_for("all messages are received", lambda: aggregator.metric("kvb_messages_received_total", kind="kv_events") >= 9000)
    # The gauge is updated a few times a second.
    wait_for("no more than an eighth has room", lambda: aggregator.metric("kvb_streams") == 65536 // 8 + 1)
    status, answer = aggregator.http("POST", "/route", {"token_ids": list(range(64)), "model_name": "m"})
    assert status == 200 and [score["worker_id"] for score in json.loads(answer)["scores"]] == [7]
    wait_for("the streams are forgotten", lambda: aggregator.metric("kvb_streams") == 1)
    wait_for("the worker is still there", aggregator.is_exact)
