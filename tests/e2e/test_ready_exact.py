"""Does /readyz?exact= wait for the lists of the workers, through a restart of the aggregator and of the bridge, without
waiting for engines that wait for requests?"""


import pytest

import engine
from conftest import worker
from programs import wait_for
from test_fleet import start_bridge, start_fleet


WAITS = ("UNVERIFIED", "no_base")
PROBE = 0.95  # etc/kubernetes/aggregator/deployment.yaml


def one_block(one, number):
    one.publish(engine.batch(engine.stored([number], range(number * 16, number * 16 + 16), 16)))


def ready(daemon, share):
    return daemon.http("GET", f"/readyz?exact={share}")


@pytest.mark.first
def test_an_aggregator_that_starts_again_is_ready_when_its_streams_are_exact(scene):
    _, workers = start_fleet(scene)
    aggregator = scene.aggregator()
    assert ready(aggregator, 0.95) == (200, "ready\n"), "an idle fleet has nothing to wait for"
    bridge = start_bridge(scene, workers, "protobuf")
    wait_for("all are EXACT", lambda: aggregator.metric("kvb_streams", state="exact") == 6)
    wait_for("the aggregator is ready with a share of 1, too", lambda: ready(aggregator, 1)[0] == 200)
    assert ready(bridge, 0.95)[0] == 200
    assert aggregator.stop() == 0

    again = scene.aggregator(name="kvaggregator-2", wait=False)
    seen = []

    def is_ready():
        before = again.metric("kvb_streams", state="exact")
        seen.append((before, *ready(again, 0.95)))
        return seen[-1][1] == 200

    wait_for("the new one is ready", is_ready)
    assert again.metric("kvb_streams", state="exact") == 6
    assert [status for _, status, _ in seen[:-1]] == [503] * (len(seen) - 1), seen
    assert again.http("GET", "/readyz") == (200, "ready\n")


def test_a_share_that_is_not_reached_is_reported(scene):
    one, other = scene.engine(), scene.engine()
    bridge = scene.bridge(worker(one, 1), worker(other, 2, replay=False), heartbeat_ms=100)
    one_block(one, 1)
    wait_for("one of two is EXACT", lambda: [s["state"] for s in bridge.get("/state")["streams"]] == ["EXACT", "UNVERIFIED"])
    aggregator = scene.aggregator()  # it is asked for a share only when it knows both
    wait_for("so it is here", lambda: sorted(aggregator.states()) == [("EXACT", ""), ("UNVERIFIED", "no_replay")])
    for daemon in (aggregator, bridge):
        wait_for("/readyz shows the share", lambda d=daemon: ready(d, 1) == (
            503, "1 of 2 streams are EXACT, a share of 0.500; 1 is asked for\n"))
        assert daemon.is_ready(), "without the question it is ready"
        assert ready(daemon, 0)[0] == 200
    other.go_away()
    wait_for("the stream is DOWN", lambda: "DOWN" in [s["state"] for s in aggregator.get("/streams")["streams"]])
    wait_for("an absent worker does not count", lambda: ready(aggregator, 1)[0] == 200)


def working_fleet(scene, count):
    """A bridge and its engines; each has published live what its replay contains."""
    engines = [scene.engine(repeats=False) for _ in range(count)]
    bridge = scene.bridge(*(worker(one, number) for number, one in enumerate(engines, 1)))
    wait_for("all are connected", lambda: all(s["state"] == "UNVERIFIED" for s in bridge.get("/state")["streams"]))
    for number, one in enumerate(engines, 1):
        one_block(one, number)
    wait_for("all are EXACT", lambda: all(s["state"] == "EXACT" for s in bridge.get("/state")["streams"]))
    return bridge, engines


def test_a_bridge_that_restarts_beside_idle_engines_takes_no_aggregator_out_of_service(scene):
    bridge, engines = working_fleet(scene, 3)
    aggregator = scene.aggregator()
    wait_for("ready", lambda: ready(aggregator, PROBE)[0] == 200 and aggregator.is_exact(3))
    seen = []

    def asked():
        seen.append(ready(aggregator, PROBE))
        return seen[-1]

    bridge.kill()
    again = scene.bridge(*(worker(one, number) for number, one in enumerate(engines, 1)), name="again", wait=False)
    wait_for("the lists wait for their engines", lambda: asked() and aggregator.states() == [WAITS] * 3)
    assert all(s["blocks"]["device"] == 1 for s in again.get("/state")["streams"]), "replayed, and not proven"
    assert {status for status, _ in seen} == {200}, seen
    late = scene.aggregator("late")
    wait_for("a new aggregator is ready, too", lambda: ready(late, PROBE)[0] == 200)


def test_an_aggregator_that_was_ready_stays_ready(scene):
    """What is wrong with an engine is wrong for all aggregators at the same time; a lost nats-server is not kept."""
    one = scene.engine()
    bridge = scene.bridge(worker(one, 1))
    one_block(one, 1)
    wait_for("EXACT", lambda: bridge.get("/state")["streams"][0]["state"] == "EXACT")
    aggregator = scene.aggregator()
    wait_for("ready", lambda: ready(aggregator, PROBE)[0] == 200 and aggregator.is_exact())
    one.publish(b"not msgpack")
    wait_for("PARTIAL is counted", lambda: ready(bridge, PROBE)[0] == 503 and
             aggregator.states() == [("PARTIAL", "poison")])
    wait_for("a larger share was never asked for", lambda: ready(aggregator, 1)[0] == 503)
    assert ready(aggregator, PROBE)[0] == 200
    scene.started[0].kill()
    wait_for("NATS is lost", lambda: ready(aggregator, PROBE)[0] == 503)


def test_an_invalid_share_is_refused(scene):
    for daemon in (scene.aggregator(), scene.bridge(worker(scene.engine(), 1))):
        for text in ("", "1.1", "-0.5", "half", "nan", "inf", "0x1", "0.5.5", "+1", "0." + "9" * 40, "95%25"):
            assert daemon.http("GET", f"/readyz?exact={text}") == (
                400, "exact: expected a share from 0 to 1, such as 0.95\n"), text
