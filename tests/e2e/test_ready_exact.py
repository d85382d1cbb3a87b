"""Does /readyz?exact= wait for the lists of the workers, through a restart of the aggregator and of the bridge, and does
a bridge of many streams say goodbye for each of them long before a pod is killed?"""

import json
import time

import pytest

from conftest import PUBLISH, worker
from programs import wait_for
from test_fleet import start_bridge, start_fleet

GRACE_S = 30  # the default of terminationGracePeriodSeconds


def ready(daemon, share):
    return daemon.http("GET", f"/readyz?exact={share}")


def test_an_aggregator_that_starts_again_is_ready_when_its_streams_are_exact(scene):
    _, workers = start_fleet(scene)
    aggregator = scene.aggregator()
    assert ready(aggregator, 0.95) == (200, "ready\n"), "an idle fleet has nothing to wait for"
    bridge = start_bridge(scene, workers, "protobuf")
    wait_for("all are EXACT", lambda: aggregator.metric("kvb_streams", state="exact") == 6, 30)
    wait_for("the aggregator is ready with a share of 1, too", lambda: ready(aggregator, 1)[0] == 200)
    assert ready(bridge, 0.95)[0] == 200
    assert aggregator.stop() == 0

    again = scene.aggregator(name="kvaggregator-2", wait=False)
    seen = []

    def is_ready():
        before = again.metric("kvb_streams", state="exact")
        seen.append((before, *ready(again, 0.95)))
        return seen[-1][1] == 200

    wait_for("the new one is ready", is_ready, 30)
    assert again.metric("kvb_streams", state="exact") == 6
    assert [status for _, status, _ in seen[:-1]] == [503] * (len(seen) - 1), seen
    assert again.http("GET", "/readyz") == (200, "ready\n")


def test_a_share_that_is_not_reached_is_reported(scene):
    one, other = scene.engine(), scene.engine()
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(one, 1), worker(other, 2, replay=False), heartbeat_ms=100)
    wait_for("one of two is EXACT", lambda: sorted(s["state"] for s in aggregator.get("/streams")["streams"]) ==
             sorted(s["state"] for s in bridge.get("/state")["streams"]) and len(aggregator.get("/streams")["streams"]) == 2)
    states = [s["state"] for s in aggregator.get("/streams")["streams"]]
    exact = states.count("EXACT")
    for daemon in (aggregator, bridge):
        wait_for("/readyz shows the share", lambda d=daemon: ready(d, 1) == (
            503, f"{exact} of 2 streams are EXACT, a share of {exact / 2:.3f}; 1 is asked for\n"))
        assert daemon.is_ready(), "without the question it is ready"
        assert ready(daemon, 0)[0] == 200
    other.go_away()
    wait_for("the stream is DOWN", lambda: "DOWN" in [s["state"] for s in aggregator.get("/streams")["streams"]])
    if exact:
        wait_for("an absent worker does not count", lambda: ready(aggregator, 1)[0] == 200)


@pytest.mark.parametrize("text", ["", "1.1", "-0.5", "half", "nan", "inf", "0x1", "0.5.5", " 1", "0." + "9" * 40, "95%25"])
def test_an_invalid_share_is_refused(scene, text):
    aggregator = scene.aggregator()
    for daemon in (aggregator, scene.bridge(worker(scene.engine(), 1))):
        status, sentence = daemon.http("GET", f"/readyz?exact={text.replace(' ', '+')}")
        assert (status, sentence) == (400, "exact: expected a share from 0 to 1, such as 0.95\n")


def test_many_streams_say_goodbye_within_the_grace_period(scene):
    """SIGTERM alone, as a container gets it: no hook is needed."""
    _, workers = start_fleet(scene, "--workers", 64, "--ranks", 4, "--blocks", 256, "--rate", 20)
    aggregator = scene.aggregator()
    beats = scene.bus().watch(f"{PUBLISH}.kv_heartbeat_json")
    bridge = start_bridge(scene, workers, "protobuf")
    wait_for("all streams are known", lambda: aggregator.metric("kvb_streams") == 256, 30)
    began = time.monotonic()
    assert bridge.stop(GRACE_S) == 0
    took = time.monotonic() - began

    def said():
        return {(b["worker_id"], b["dp_rank"]) for b in (json.loads(m.data) for m in list(beats)) if b["bye"]}

    wait_for("each stream has said goodbye", lambda: len(said()) == 256, 2)
    wait_for("the aggregator has received all goodbyes", lambda: {
        (s["state"], s["reason"]) for s in aggregator.get("/streams")["streams"]} == {("DOWN", "bridge_stopped")}, 2)
    print(f"256 streams said goodbye in {took:.2f} s")
    assert took < GRACE_S / 3
