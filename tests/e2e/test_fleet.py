"""Does kvctl verify work? It compares the blocks of simulated engines with those that the
aggregator lists, and must find a deliberate error."""

import json
import signal
import struct

import pytest

import programs
from conftest import PUBLISH
from programs import TRACE, wait_for


def start_fleet(scene, *options):
    truth, workers = scene.folder / "truth", scene.folder / "workers"
    fleet = scene.start("kvfleet", [
        programs.BIN / "kvfleet", "--workers", 3, "--ranks", 2, "--blocks", 512, "--rate", 40,
        "--trace", TRACE, "--truth", truth, "--config-out", workers, *options,
    ])

    def has_bound():
        assert fleet.is_running(), "kvfleet has ended"
        return workers.exists() and workers.read_text()

    return truth, wait_for("kvfleet has bound its sockets", has_bound)


def verify(scene, truth, wait_ms=10_000):
    done = scene.kvctl("--json", "verify", "--truth", truth, "--wait", str(wait_ms))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def start_bridge(scene, workers, format, publish=""):
    port = programs.free_port()
    bridge = scene.daemon(
        "kvbridge",
        f'nats = {{ url = "{scene.nats_url}"; }};\n'
        f'publish = {{ namespace = "dynamo"; component = "VllmWorker"; formats = ["{format}"]; {publish} }};\n'
        f'{workers}http = "127.0.0.1:{port}";\n', port,
    )
    wait_for("kvbridge is ready", bridge.is_ready)
    return bridge


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize(
    "scene,format", [("debian", "json"), ("current", "protobuf")], indirect=["scene"]
)
def test_index_and_engines_agree_under_load_and_verify_detects_a_forgery(scene, format):
    truth, workers = start_fleet(scene)
    aggregator = scene.aggregator(block_size=16)
    bridge = start_bridge(scene, workers, format)
    wait_for("all caches have begun to evict",
             lambda: aggregator.metric("kvb_index_blocks") > 6 * 400)

    status, verdict = verify(scene, truth)
    assert status == 0, verdict
    assert (verdict["streams"], verdict["exact"]) == (6, 6)
    assert (verdict["phantom"], verdict["missing"], verdict["wrong"]) == (0, 0, 0)
    assert verdict["held_blocks"] > 6 * 400 and verdict["asked"] > 0 and verdict["requests"] > 0

    # A forger announces two blocks for a worker of the fleet. The bridge, which would correct that
    # within milliseconds, does not answer.
    epoch = epoch_of(scene, 2, 0)
    bridge.process.send_signal(signal.SIGSTOP)
    wait_for("the lie is listed", lambda: tell_a_lie(scene, aggregator, format, epoch))
    status, verdict = verify(scene, truth, wait_ms=0)
    bridge.process.send_signal(signal.SIGCONT)
    assert status == 1, verdict
    assert verdict["phantom"] >= 2, verdict


def test_verify_does_not_wait_for_what_a_paused_fleet_cannot_prove(scene):
    """The bridge reads what was sent before it began, in replays, and gets no batch afterwards."""
    truth, workers = start_fleet(scene)
    wait_for("each engine has published", lambda: all(row["batches"] > 0 for row in say(truth, "stats")))
    say(truth, "drain")
    aggregator = scene.aggregator(block_size=16)
    start_bridge(scene, workers, "protobuf")
    wait_for("all is listed, and not proven", lambda: aggregator.states() == [("UNVERIFIED", "no_base")] * 6)
    done = scene.kvctl("--json", "verify", "--truth", truth, "--wait", "300000")
    assert done.returncode == 1, done
    verdict = json.loads(done.stdout)
    assert (verdict["exact"], verdict["no_base"], verdict["phantom"], verdict["missing"]) == (0, 6, 0, 0), verdict
    assert "6 streams are UNVERIFIED(no_base): the fleet was paused before" in done.stderr
    wait_for("a fleet that goes on proves its lists", lambda: aggregator.is_exact(6))
    status, verdict = verify(scene, truth)
    assert status == 0 and verdict["no_base"] == 0, verdict


def epoch_of(scene, worker_id, dp_rank):
    seen = scene.bus().watch(f"{PUBLISH}.kv_heartbeat_json")

    def newest():
        beats = [json.loads(message.data) for message in seen]
        return [beat["epoch"] for beat in beats if (beat["worker_id"], beat["dp_rank"]) == (worker_id, dp_rank)]

    return bytes.fromhex(wait_for("a heartbeat of the stream", newest)[-1])


def tell_a_lie(scene, aggregator, format, epoch):
    """Two blocks that no engine holds, as the next event of a stream; True when they are listed."""
    before = row_of(aggregator, 2, 0)
    event_id = before["last_event_id"] + 1
    if format == "json":
        blocks = [{"block_hash": number, "tokens_hash": number} for number in (1, 2)]
        stored = {"stored": {"parent_hash": None, "blocks": blocks}}
        lie = json.dumps({"worker_id": 2, "event": {"event_id": event_id, "data": stored}}).encode()
        scene.bus().publish(f"{PUBLISH}.kv_events", lie)
    else:
        hashes = struct.pack("<QQ", 1, 2)
        head = b"\x0a\x10" + epoch + b"\x11" + struct.pack("<Q", 2) + b"\x21" + struct.pack("<Q", event_id)
        lie = head + b"\x2a\x01\x01\x32\x01\x02\x42\x10" + hashes + b"\x4a\x10" + hashes
        scene.bus().publish(f"{PUBLISH}.kv_events_pb", lie)
    after = wait_for("the next event", lambda: row_of(aggregator, 2, 0, since=event_id))
    return after["blocks"]["device"] == before["blocks"]["device"] + 2


def row_of(aggregator, worker_id, dp_rank, since=0):
    """A stream in /streams, once it has at least this event."""
    rows = aggregator.get("/streams")["streams"]
    row = next(r for r in rows if (r["worker_id"], r["dp_rank"]) == (worker_id, dp_rank))
    return row if row["last_event_id"] >= since else None


def say(truth, command):
    import socket

    lines = []
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(programs.DEADLINE_S)
        door.connect(str(truth))
        door.sendall(command.encode() + b"\n")
        for line in door.makefile():
            answer = json.loads(line)
            assert "error" not in answer, answer
            if "end" in answer:
                return lines
            lines.append(answer)
    raise AssertionError("the fleet hung up")
