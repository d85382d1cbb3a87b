"""Does the path from engine to aggregator keep a correct list of what a real vLLM 0.32 held?  Its
captured messages are sent again, and at each of the 14 points where its block pool was read, the
aggregator's dump is compared with it."""

import pytest

import capture
from conftest import worker
from programs import wait_for

LABELS = [row[0] for row in capture.labels()]


def dump(aggregator):
    """The names of all blocks that the aggregator lists."""
    rows = aggregator.rows()
    assert all(row[0] == "7" and row[1] == "0" and row[2] == "device" for row in rows), rows[:3]
    return {int(row[3]) for row in rows}


def only_stream(aggregator):
    streams = aggregator.get("/streams")["streams"]
    return streams[0] if len(streams) == 1 else None


def check_label(label, unsent, held, listed, doubtful):
    if unsent:
        # The idle engine has not sent its reset, so no message shows it.
        return
    assert not listed - held, f"{label}: blocks are listed that the engine does not hold"
    missing = held - listed
    assert len(missing) <= doubtful, f"{label}: {len(missing)} missing, {doubtful} doubtful"


@pytest.mark.first
@pytest.mark.parametrize(
    "scene,format", [("debian", "json"), ("current", "protobuf")], indirect=["scene"]
)
def test_live_messages_give_what_the_engine_held_at_each_label(scene, format):
    rows = capture.frames()
    names = capture.canonical_names(rows)
    vllm = scene.engine(topic=rows[0][0])
    aggregator = scene.aggregator(block_size=capture.BLOCK_SIZE)
    scene.bridge(worker(vllm, block_size=capture.BLOCK_SIZE), formats=[format])
    wait_for("the empty stream waits for a first batch", lambda: is_waiting(aggregator))

    sent = 0
    for label, last_seq, unsent, held in capture.labels():
        while sent <= last_seq:
            vllm.publish(rows[sent][2])
            sent += 1
        settle(scene, aggregator, last_seq)
        check_label(label, unsent, {names[block] for block in held}, dump(aggregator),
                    only_stream(aggregator)["doubtful"])


@pytest.mark.first
@pytest.mark.parametrize("label", LABELS[1::3])
def test_a_replay_gives_what_the_engine_held(scene, label):
    """The same when the bridge starts late and has only the replay."""
    rows = capture.frames()
    names = capture.canonical_names(rows)
    label, last_seq, unsent, held = next(row for row in capture.labels() if row[0] == label)
    vllm = scene.engine(topic=rows[0][0])
    for _, _, payload in rows[: last_seq + 1]:
        vllm.publish(payload, live=False)
    aggregator = scene.aggregator(block_size=capture.BLOCK_SIZE)
    scene.bridge(worker(vllm, block_size=capture.BLOCK_SIZE))
    wait_for("the stream is in sync", aggregator.is_exact)
    settle(scene, aggregator, last_seq)
    check_label(label, unsent, {names[block] for block in held}, dump(aggregator),
                only_stream(aggregator)["doubtful"])


def is_waiting(aggregator):
    stream = only_stream(aggregator)
    return stream and (stream["state"], stream["reason"]) == ("UNVERIFIED", "no_base")


def settle(scene, aggregator, last_seq):
    """Waits until the bridge has read last_seq, and the aggregator all that the bridge published."""
    bridge = next(p for p in scene.started if p.name == "kvbridge")

    def caught_up():
        of_bridge = bridge.get("/state")["streams"][0]
        of_aggregator = only_stream(aggregator)
        return (
            (last_seq < 0 or of_bridge["last_seq"] == last_seq)
            and (is_waiting(aggregator) if last_seq < 0 else of_aggregator["state"] == "EXACT")
            and of_aggregator["last_event_id"] == of_bridge["event_id"]
            and of_aggregator["doubtful"] == of_bridge.get("doubtful", 0)
        )

    wait_for(f"bridge and aggregator have applied seq {last_seq}", caught_up)
