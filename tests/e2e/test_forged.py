"""A client that may publish on NATS can forge messages of bridges, and flood the aggregators: is
that detected within seconds, and are other streams unaffected?"""

import json
import signal
import socket
import threading
import time

import pytest

import engine
import programs
from conftest import PUBLISH, worker
from programs import wait_for
from test_faults import store
from test_json_readers import listed

FORMATS = pytest.mark.parametrize("format", ["json", "protobuf"])
HEALED_S = 3


def row(aggregator, worker_id=7):
    """The stream's row; None when there is no such stream, or the aggregator is too busy to answer."""
    status, text = aggregator.http("GET", "/streams")
    streams = json.loads(text)["streams"] if status == 200 else []
    return next((s for s in streams if s["worker_id"] == worker_id), None)


def is_in_state(aggregator, state, reason="", worker_id=7):
    found = row(aggregator, worker_id)
    return found and (found["state"], found["reason"]) == (state, reason)


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
    wait_for("the list is repaired", lambda: listed(aggregator, 1, 2, 3) and aggregator.is_exact(), HEALED_S)
    wait_for("the metric counts the contradiction", lambda: aggregator.metric("kvb_streams_contradicted_total") == 1)
    vllm.publish(store(4))
    wait_for("later events of the bridge are applied", lambda: listed(aggregator, 1, 2, 3, 4), HEALED_S)


@FORMATS
def test_an_impossible_id_is_refused(scene, format):
    vllm, _, aggregator = start(scene, format)
    forge_cleared(scene, format, 2**64 - 1)
    wait_for("the metric counts the event", lambda: aggregator.metric("kvb_events_ahead_total") == 1)
    assert listed(aggregator, 1, 2) and aggregator.is_exact()
    vllm.publish(store(3))
    wait_for("the bridge's events are applied", lambda: listed(aggregator, 1, 2, 3))


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
    # repaired within HEALED_S after the bridge's next heartbeat, which comes within a second
    wait_for("the list is repaired", lambda: listed(aggregator, 1, 2, 3) and aggregator.is_exact(), HEALED_S + 1)


# ---- Streams without heartbeats ----


def test_workers_without_heartbeats_are_forgotten_and_not_chosen(scene):
    vllm = scene.engine()
    aggregator = scene.aggregator(extra="forget_ms = 10000;")
    scene.bridge(worker(vllm), formats=["protobuf"])
    vllm.publish(store(1))
    wait_for("the worker", aggregator.is_exact)
    bus = scene.bus()
    block = {"block_hash": 77, "tokens_hash": 5}
    for number in range(9000):
        bus.send(
            f"{PUBLISH}.kv_events",
            event(1000 + number, 1, {"stored": {"parent_hash": None, "blocks": [block]}}),
        )
    bus.flush()
    wait_for("all messages are received", lambda: aggregator.metric("kvb_messages_received_total", kind="kv_events") >= 9000)
    # The gauge is updated a few times a second.
    wait_for("no more than an eighth has room", lambda: aggregator.metric("kvb_streams") == 65536 // 8 + 1)
    status, answer = aggregator.http("POST", "/route", {"token_ids": list(range(64)), "model_name": "m"})
    assert status == 200 and [score["worker_id"] for score in json.loads(answer)["scores"]] == [7]
    wait_for("the streams are forgotten", lambda: aggregator.metric("kvb_streams") == 1)
    assert aggregator.is_exact()


# ---- Room ----


def test_a_list_that_found_no_room_is_fetched_when_there_is_some(scene):
    first, second = scene.engine(), scene.engine()
    for one, base in ((first, 0), (second, 10000)):
        for number in range(600):
            one.publish(store(base + number + 1))
    aggregator = scene.aggregator(extra="forget_ms = 3000; limits = { max_index_blocks = 1024; };")
    gone = scene.bridge(worker(first, worker_id=1), name="first", formats=["protobuf"])
    wait_for("the first", lambda: is_in_state(aggregator, "EXACT", worker_id=1))
    scene.bridge(worker(second, worker_id=2), name="second", formats=["protobuf"])
    wait_for("no room", lambda: is_in_state(aggregator, "PARTIAL", "memory", worker_id=2))
    gone.stop()
    wait_for("the second is whole", lambda: is_in_state(aggregator, "EXACT", worker_id=2))
    assert row(aggregator, 2)["blocks"]["device"] == 600


# ---- Time ----


def test_a_bridge_of_fast_heartbeats_is_missed_sooner(scene):
    _, bridge, aggregator = start(scene, "protobuf", heartbeat_ms=100)
    bridge.process.send_signal(signal.SIGSTOP)
    try:
        wait_for("the bridge is missed", lambda: is_in_state(aggregator, "DOWN", "silent"))
    finally:
        bridge.process.send_signal(signal.SIGCONT)
    wait_for("the stream is EXACT again", aggregator.is_exact)


def flood(port, messages):
    """Events that take long to apply: prompts of 400,000 tokens."""
    body = '{"worker_id":5000,"data":{"Stored":{"token_ids":[%s],"block_hashes":[1]}}}' % ",".join(["1"] * 400000)
    message = b"PUB namespace.x.component.Y.kv_events %d\r\n%s\r\n" % (len(body), body.encode())
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.recv(4096)
        link.sendall(b'CONNECT {"verbose":false,"lang":"x","version":"1"}\r\n')
        for _ in range(messages):
            link.sendall(message)
        link.sendall(b"PING\r\n")
        while b"PONG" not in link.recv(4096):
            pass


def test_a_list_that_is_seconds_old_is_not_exact(scene):
    """300 messages of 0.8 MB wait at once; later messages of the engine wait after them."""
    vllm, _, aggregator = start(scene, "protobuf")
    flooding = threading.Thread(target=flood, args=(scene.nats_port, 300))
    flooding.start()
    wait_for("the aggregator lags", lambda: is_in_state(aggregator, "STALE", "lagging"))
    vllm.publish(engine.batch(engine.removed(2)))
    exact_at = removed = time.monotonic()
    found = None
    while not found or found["blocks"]["device"] == 2:
        asked = time.monotonic()
        found = row(aggregator)
        if found and found["state"] == "EXACT" and found["blocks"]["device"] == 2:
            exact_at = asked
    flooding.join()
    assert exact_at - removed < 2 * programs.PATIENCE
    wait_for("the aggregator has caught up", lambda: is_in_state(aggregator, "EXACT"))
    assert row(aggregator)["blocks"]["device"] == 1
