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
    vllm.publish(store(51), buffered=False)
    wait_for("the live block is listed", lambda: seen.is_at(NO_BASE, 51))
    asked = len(vllm.requests)
    wait_for("the live batch was looked for", lambda: seen.is_at(NO_BASE, 51) and len(vllm.requests) > asked + 1)
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
    bridge_reading(scene, one, replay=other.replay)
    wait_for("the list from the other engine is unverified", lambda: seen.is_at(NO_BASE, *range(101, 121 + ahead)))
    for number in range(21, 24):
        one.publish(store(number))

    def has_no_phantom():
        return seen.state() == NO_BASE and seen.listed() <= {name_of(number) for number in range(1, 60)}

    wait_for("and is no more listed", has_no_phantom)
    one.publish(store(24))
    wait_for("what comes live is", lambda: has_no_phantom() and name_of(24) in seen.listed())
    asked = len(other.requests)
    wait_for("the replay is requested again", lambda: has_no_phantom() and len(other.requests) > asked + 1)
    assert other.requests.count(0) <= 2, "never for its whole buffer once it was found out"
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
