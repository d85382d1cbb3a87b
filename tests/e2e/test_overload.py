"""One engine whose batches are much work: are the streams of other engines served in the middle of
such a batch, live and in a replay? Is it reported when the working thread hangs?"""

import threading
import time

import pytest

import engine
from conftest import PUBLISH, worker
from programs import wait_for
from test_notify import hung_thread

LARGE = 60_000  # events


def natural():
    return [engine.stored([number + 1], [number], 1) for number in range(LARGE)]


class Feed(threading.Thread):
    """Publishes a block of a well-behaved engine every two milliseconds, until it is stopped."""

    def __init__(self, one):
        super().__init__(daemon=True)
        self.one, self.stopping, self.count = one, threading.Event(), 0
        self.start()

    def run(self):
        while not self.stopping.wait(0.002):
            self.count += 1
            self.one.publish(engine.batch(engine.stored([self.count], [self.count] * 4, 4)))

    def stop(self):
        self.stopping.set()
        self.join()


def workers_of(messages):
    return [7 if b'"worker_id":7,' in message.data else 8 for message in messages]


def stream_of(bridge, worker_id):
    return next(s for s in bridge.get("/state")["streams"] if s["worker_id"] == worker_id)


def state_of(bridge, worker_id):
    return stream_of(bridge, worker_id)["state"]


def why_of(bridge, worker_id):
    return stream_of(bridge, worker_id).get("why", "")


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize("is_live", [True, False], ids=["live", "replayed"])
def test_others_are_served_within_a_large_batch(scene, is_live):
    seen = scene.bus().watch(f"{PUBLISH}.kv_events")
    good, bad = scene.engine(), scene.engine()
    payload = engine.batch(*natural())
    feed = Feed(good)
    bridge = scene.bridge(worker(good, 7, block_size=4), worker(bad, 8, block_size=1))
    bad.publish(engine.batch(engine.cleared()))
    wait_for("both are EXACT", lambda: {state_of(bridge, one) for one in (7, 8)} == {"EXACT"})
    wait_for("both are announced", lambda: set(workers_of(list(seen))) == {7, 8})
    seen.clear()
    bad.publish(payload, live=is_live)
    if not is_live:
        bad.publish(engine.batch(engine.stored([LARGE + 1], [LARGE], 1)))  # shows the gap
    wait_for("the batch is applied", lambda: workers_of(list(seen)).count(8) >= LARGE)
    feed.stop()
    workers = workers_of(list(seen))
    first = workers.index(8)
    last = len(workers) - 1 - workers[::-1].index(8)
    assert 7 in workers[first:last], "nobody else was served within the batch"
    wait_for("EXACT", lambda: state_of(bridge, 8) == "EXACT")


# ---- A thread that hangs ----

@pytest.mark.parametrize("program", ["kvbridge", "kvaggregator"])
def test_a_working_thread_that_hangs_is_reported(scene, program):
    daemon = scene.aggregator() if program == "kvaggregator" else scene.bridge(worker(scene.engine()))
    thread = "kvb-index" if program == "kvaggregator" else "kvb-ingest"
    assert daemon.http("GET", "/livez") == (200, "ok\n")
    with hung_thread(daemon.process, thread):
        began = time.monotonic()
        wait_for("/livez fails", lambda: daemon.http("GET", "/livez")[0] == 503)
        assert time.monotonic() - began > 5, "a thread may take a while"
        assert "no turn for 10 s" in daemon.http("GET", "/livez")[1]
        assert daemon.http("GET", "/readyz")[0] == 503
    wait_for("the thread works again", lambda: daemon.http("GET", "/livez")[0] == 200)
    wait_for("and ready", daemon.is_ready)


# ---- More than its share ----


class Flood(threading.Thread):
    """Publishes large batches one after the other, a few more than the bridge has applied or
    dropped in a quarantine, so that quarantines continue. The engine's buffer keeps none of them."""

    AHEAD = 8  # more than the bridge applies between two looks at its metrics

    def __init__(self, one, bridge):
        super().__init__(daemon=True)
        self.one, self.bridge, self.stopping = one, bridge, threading.Event()
        self.payload = engine.batch(*natural())
        self.start()

    def run(self):
        sent = 0
        while not self.stopping.wait(0.01):
            applied = self.bridge.metric("kvb_events_applied_total") // LARGE
            until = applied + self.bridge.metric("kvb_batches_unread_total") + self.AHEAD
            while sent < until and not self.stopping.is_set():
                self.one.publish(self.payload, buffered=False)
                sent += 1

    def stop(self):
        self.stopping.set()
        self.join()


def test_a_stream_above_its_share_is_quarantined_and_comes_back(scene):
    good, bad = scene.engine(), scene.engine()
    feed = Feed(good)
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(good, 7, block_size=4), worker(bad, 8, block_size=1))
    bad.publish(engine.batch(engine.stored([1], [1], 1)))
    rows = lambda: {s["worker_id"]: s for s in aggregator.get("/streams")["streams"]}
    wait_for("both are EXACT", lambda: [s["state"] for s in rows().values()] == ["EXACT"] * 2)

    flood = Flood(bad, bridge)

    def is_quarantined():
        return (rows()[8]["state"], rows()[8]["reason"]) == ("DOWN", "engine_away")

    wait_for("the stream is quarantined, and DOWN", is_quarantined)
    assert bridge.metric("kvb_quarantines_total") >= 1
    wait_for("the reason is said", lambda: "quarantined" in why_of(bridge, 8))
    wait_for("the other goes on", lambda: rows()[7]["state"] == "EXACT")
    held = rows()[7]["blocks"]["device"]
    wait_for("and grows", lambda: rows()[7]["blocks"]["device"] > held)
    flood.stop()
    wait_for("the quarantine is over", lambda: bridge.metric("kvb_streams_quarantined") == 0)
    bad.publish(engine.batch(engine.cleared(), engine.stored([2], [2], 1)))

    def is_served_again():
        bad.publish(engine.batch())  # EXACT needs a batch that arrived live and by replay
        return (rows()[8]["state"], rows()[8]["blocks"]["device"]) == ("EXACT", 1)

    wait_for("the stream is served again", is_served_again)
    feed.stop()
