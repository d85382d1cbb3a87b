"""Is a list called EXACT only when the engine that publishes has proven it?  Engines without a
replay buffer, replay ports of another engine, and incarnations that look like the one before."""

import pytest
from conftest import worker
from programs import wait_for
from test_faults import name_of, store

NO_BASE = ("UNVERIFIED", "no_base")


class Seen:
    """The state of a worker in the aggregator, and all states that its bridge had."""

    def __init__(self, scene, worker_id=7):
        self.aggregator, self.worker_id, self.states = scene.aggregator(), worker_id, set()

    def state(self):
        for stream in self.aggregator.get("/streams")["streams"]:
            if stream["worker_id"] == self.worker_id:
                self.states.add((stream["state"], stream["reason"]))
                return stream["state"], stream["reason"]
        return None

    def listed(self):
        return {int(row[3]) for row in self.aggregator.rows()}

    def is_at(self, state, *numbers):
        return self.state() == state and self.listed() == {name_of(number) for number in numbers}

    def was_exact(self):
        return any(state == "EXACT" for state, _ in self.states)


class Live:
    """Blocks from `first` on, each published live alone.  A busy machine may cost the bridge its connection: it forgets then
    what it had, and does not receive what is published meanwhile."""

    def __init__(self, seen, one, asked, first):
        """asked: the engine that gets the requests for replays."""
        self.seen, self.one, self.asked, self.next, self.names = seen, one, asked, first, []

    def publish(self):
        self.one.publish(store(self.next), buffered=False)
        self.names.append(name_of(self.next))
        self.next += 1
        self.requests = len(self.asked.requests)

    def is_listed(self):
        """The newest is, and nothing that did not come live.  Otherwise each new request brings one block more."""
        listed = self.seen.listed()
        if self.seen.state() == NO_BASE and self.names[-1] in listed and listed <= set(self.names):
            return True
        if len(self.asked.requests) > self.requests:
            self.publish()
        return False


def bridge_reading(scene, one, replay=None):
    row = worker(one, 7, replay=False, more=f'replay = "{replay or one.replay}";')
    return scene.bridge(row, formats=["protobuf"], heartbeat_ms=100)


@pytest.mark.first
@pytest.mark.sanitize
def test_an_engine_that_keeps_nothing_is_never_exact(scene):
    """vLLM's buffer_steps = 0: the END of its replays means nothing."""
    vllm, seen = scene.engine(repeats=False), Seen(scene)
    for number in range(1, 51):
        vllm.publish(store(number), buffered=False)
    bridge = bridge_reading(scene, vllm)
    wait_for("the bridge was answered", lambda: bridge.metric("kvb_replays_total", step="completed") >= 3)
    wait_for("nothing is known", lambda: seen.is_at(NO_BASE))
    live = Live(seen, vllm, vllm, 51)
    live.publish()
    wait_for("the live block is listed", live.is_listed)
    asked = len(vllm.requests)
    wait_for("the live batch was looked for", lambda: live.is_listed() and len(vllm.requests) > asked + 1)
    assert not seen.was_exact()


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize("ahead", [0, 30])
def test_a_replay_port_of_another_engine_proves_nothing(scene, ahead):
    """Two ranks whose ports were swapped: the replay of one does not match the list of the other."""
    one, other, seen = scene.engine(repeats=False), scene.engine(repeats=False), Seen(scene)
    for number in range(1, 21):
        one.publish(store(number))
    for number in range(101, 121 + ahead):
        other.publish(store(number))
    bridge = bridge_reading(scene, one, replay=other.replay)
    wait_for("the list from the other engine is unverified", lambda: seen.is_at(NO_BASE, *range(101, 121 + ahead)))
    live = Live(seen, one, other, 21)
    for _ in range(3):
        live.publish()
    wait_for("and is no more listed, but what comes live is", live.is_listed)
    lost, asked_for_all = bridge.metric("kvcache_zmq_disconnections_total"), other.requests.count(0)
    live.publish()
    wait_for("so is what comes now", live.is_listed)
    asked = len(other.requests)
    wait_for("the replay is requested again", lambda: live.is_listed() and len(other.requests) > asked + 1)
    # On another connection it would have to be found out again.
    assert other.requests.count(0) == asked_for_all or bridge.metric("kvcache_zmq_disconnections_total") > lost, (
        "asked for its whole buffer though it was found out")
    assert not seen.was_exact()


def test_a_batch_with_other_bytes_than_the_replay_is_detected(scene):
    """Bytes flipped in transit, undetected by TCP's checksum, and followed by silence."""
    vllm, seen = scene.engine(), Seen(scene)
    vllm.publish(store(1))
    bridge_reading(scene, vllm)
    wait_for("the stream is EXACT", lambda: seen.is_at(("EXACT", ""), 1))
    vllm.publish(store(2), live=False)
    vllm.send_raw(vllm.topic, (1).to_bytes(8, "big"), store(99))
    wait_for("the replay's is believed", lambda: seen.is_at(("EXACT", ""), 1, 2))
