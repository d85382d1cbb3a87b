"""Does a killed or stopped bridge continue where it was, without phantoms, and without a new
announcement to readers that can request missed events?"""

import signal
import stat

import pytest

import engine
from conftest import PUBLISH, worker
from programs import wait_for
from test_faults import Reader, store
from test_sync import check


def kept(scene):
    folder = scene.folder / "checkpoints"
    folder.mkdir(exist_ok=True)
    return folder


def files(scene):
    return [path for path in kept(scene).iterdir() if path.suffix == ""]


def start(scene, vllm, format="protobuf", every_s=1, name="kvbridge", wait=True, **publish):
    return scene.bridge(
        worker(vllm), formats=[format], name=name, wait=wait, **publish,
        limits=f'checkpoint = "{kept(scene)}"; checkpoint_s = {every_s};',
    )


def written(bridge):
    return bridge.metric("kvb_checkpoints_written_total")


def begin(scene, format="protobuf", numbers=(1, 2, 3), every_s=1, **publish):
    """An EXACT stream whose checkpoint holds these blocks."""
    vllm = scene.engine()
    aggregator = scene.aggregator()
    bridge = start(scene, vllm, format, every_s, **publish)
    for number in numbers:
        vllm.publish(store(number))
    check(aggregator, *numbers)
    wait_for("a checkpoint of all batches is written", lambda: saved_seq_is(scene, len(numbers) - 1))
    return vllm, aggregator, bridge


def saved_seq_is(scene, seq):
    """The newest batch in the file, which is the first number of its last section. Waits until the
    file also says that a live batch was found in a replay: only then may the next process say
    EXACT."""
    (path,) = files(scene)
    data, at, last = path.read_bytes(), 0, 0
    while at < len(data):
        last = at
        at += 32 + int.from_bytes(data[at + 12 : at + 16], "little")
    state = data[last + 16 :]
    return int.from_bytes(state[:8], "little") == seq and state[48] & 32


@pytest.mark.first
@pytest.mark.sanitize
def test_a_killed_bridge_continues_in_its_epoch(scene):
    vllm, aggregator, bridge = begin(scene)
    vllm.forget(keep=len(vllm.buffer) - 1)  # the engine cannot replay the earlier batches
    vllm.publish(store(4))  # published, and possibly not in the checkpoint
    check(aggregator, 1, 2, 3, 4)
    asked = len(vllm.requests)
    missed = aggregator.metric("kvb_epochs_missed_total")
    bridge.kill()
    vllm.publish(store(5))
    vllm.publish(engine.batch(engine.removed(1)))
    again = start(scene, vllm, name="again")
    check(aggregator, 2, 3, 4, 5)
    assert again.metric("kvb_checkpoints_restored_total") == 1
    assert again.metric("kvb_announcements_total") == 0, "nobody was told anew"
    assert again.metric("kvb_streams_cleared_total") == 0
    assert aggregator.metric("kvb_sync_requests_total", kind="snapshot") == 0
    assert aggregator.metric("kvb_epochs_missed_total") == missed, "the same epoch"
    assert aggregator.metric("kvb_streams_differ_total") == 0
    assert vllm.requests[asked] in (1, 2), "asked from the two newest batches of the checkpoint"


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_an_engine_that_restarted_meanwhile_leaves_no_phantom(scene, format):
    vllm, aggregator, bridge = begin(scene, format)
    bridge.kill()
    vllm.restart()
    for number in (11, 12, 13, 14):
        vllm.publish(store(number))  # beyond the last batch of the checkpoint
    again = start(scene, vllm, format, name="again")
    check(aggregator, 11, 12, 13, 14)
    assert again.metric("kvb_checkpoints_restored_total") == 1
    wait_for("the restart is counted", lambda: again.metric("kvb_engine_restarts_total") == 1)


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


SPOILT = {
    "cut": (lambda data: data[: len(data) // 2], "torn"),
    "flipped": (lambda data: flip(data, len(data) // 2), "corrupt"),
    "older": (lambda data: data[:4] + b"\0" + data[5:], "format"),
}


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize("how", SPOILT)
def test_a_corrupt_checkpoint_is_refused_and_the_list_fetched_again(scene, how):
    spoil, reason = SPOILT[how]
    vllm, aggregator, bridge = begin(scene)
    bridge.kill()
    (path,) = files(scene)
    path.write_bytes(spoil(path.read_bytes()))
    vllm.publish(engine.batch(engine.removed(2)))
    again = start(scene, vllm, name="again")
    check(aggregator, 1, 3)
    assert again.metric("kvb_checkpoints_refused_total", reason=reason) == 1
    assert again.metric("kvb_checkpoints_restored_total") == 0
    assert again.text().count("checkpoint refused") == 1


def test_a_checkpoint_of_another_configuration_is_refused(scene):
    vllm, aggregator, bridge = begin(scene)
    bridge.kill()
    again = start(scene, vllm, name="again", hashes="engine")
    wait_for("the list", lambda: again.metric("kvb_blocks_held") == 3)
    assert again.metric("kvb_checkpoints_refused_total", reason="foreign") == 1
    (line,) = [line for line in again.text().splitlines() if "checkpoint refused" in line]
    assert line.endswith("why=foreign changed=hashes")


@pytest.mark.sanitize
def test_a_stopped_bridge_continues_from_its_last_state(scene):
    vllm = scene.engine()
    aggregator = scene.aggregator()
    bridge = start(scene, vllm, every_s=3600)  # no checkpoint but the one at the stop
    for number in (1, 2, 3):
        vllm.publish(store(number))
    check(aggregator, 1, 2, 3)
    assert written(bridge) == 0
    assert bridge.stop() == 0
    wait_for("the bridge has said goodbye", lambda: aggregator.states() == [("DOWN", "bridge_stopped")])
    missed = aggregator.metric("kvb_epochs_missed_total")
    vllm.publish(store(4))
    again = start(scene, vllm, name="again")
    check(aggregator, 1, 2, 3, 4)
    assert again.metric("kvb_announcements_total") == 0
    assert aggregator.metric("kvb_epochs_missed_total") == missed
    assert vllm.requests[-2:] != [0, 0], "asked from the checkpoint"


def test_plain_json_is_announced_again(scene):
    reader = Reader(scene.bus())
    vllm, aggregator, bridge = begin(scene, "json")
    bridge.kill()
    vllm.publish(engine.batch(engine.removed(1)))
    before = len(reader.log)
    again = start(scene, vllm, "json", name="again")
    wait_for("the reader holds blocks 2 and 3", reader.holds(2, 3))
    assert reader.log[before] == "cleared"
    wait_for("one announcement", lambda: again.metric("kvb_announcements_total") == 1)
    assert again.stop() == 0
    wait_for("taken back", reader.holds())
    start(scene, vllm, "json", name="third")
    wait_for("the reader holds blocks 2 and 3 again", reader.holds(2, 3))
    check(aggregator, 2, 3)


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_an_unproven_list_is_not_published(scene, format):
    messages = scene.bus().watch(f"{PUBLISH}.{'kv_events' if format == 'json' else 'kv_events_pb'}")
    vllm, aggregator, bridge = begin(scene, format)
    bridge.kill()
    vllm.go_away()
    wait_for("the aggregator misses the bridge", lambda: aggregator.states() == [("DOWN", "silent")])
    told = len(messages)
    again = start(scene, vllm, format, name="again", down_clear_ms=3000)
    wait_for("taken back", lambda: again.metric("kvb_announcements_total") == 1)
    wait_for("the aggregator has received a message", lambda: len(messages) > told)
    if format == "json":
        assert '"cleared"' in messages[told].data.decode()
    assert len(messages) == told + 1, "nothing else"
    vllm.come_back()
    check(aggregator, 1, 2, 3)


def test_a_checkpoint_is_void_before_another_epoch_is_published(scene):
    """The bridge is killed between the restart of an engine and the next checkpoint."""
    vllm, aggregator, bridge = begin(scene, every_s=5)
    vllm.restart()
    vllm.publish(store(4))
    check(aggregator, 4)
    assert files(scene) == [], "what was told since cannot be told again in the same words"
    assert bridge.metric("kvb_checkpoints_void_total") == 1
    bridge.kill()
    again = start(scene, vllm, name="again")
    check(aggregator, 4)
    assert again.metric("kvb_checkpoints_restored_total") == 0
    wait_for("of the old epoch nothing goes on", lambda: again.metric("kvb_announcements_total") == 1)


def waits(bridge):
    return bridge.text().count("waiting 5 s for the directory of checkpoints")


def test_a_bridge_waits_for_its_predecessor_to_release_the_directory(scene):
    vllm, aggregator, bridge = begin(scene)
    bridge.process.send_signal(signal.SIGSTOP)
    other = start(scene, vllm, name="other", wait=False)
    wait_for("the second bridge waits", lambda: waits(other) == 1)
    bridge.process.send_signal(signal.SIGCONT)
    assert bridge.stop() == 0
    wait_for("the second bridge is ready", other.is_ready)
    assert other.metric("kvb_checkpoints_restored_total") == 1
    assert waits(other) == 1
    vllm.publish(store(4))
    check(aggregator, 1, 2, 3, 4)


def test_files_are_private_and_inside_the_directory(scene):
    begin(scene)
    (path,) = files(scene)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(scene.folder.iterdir()) >= {kept(scene)}
    assert [p.name for p in kept(scene).iterdir()] == [path.name], "nothing is left beside it"


def test_two_bridges_do_not_share_a_directory(scene):
    vllm, _, bridge = begin(scene)
    other = start(scene, vllm, name="other", wait=False)
    wait_for("the second bridge ends", lambda: not other.is_running())
    assert other.process.returncode == 70
    other.wait_until_it_says("another process uses it")
    assert waits(other) == 1
    assert bridge.is_ready()
