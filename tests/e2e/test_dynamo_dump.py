"""Does Dynamo's own indexer understand a dump?  It recovers from the dump of a peer: the types of
its crate read ours, with blocks in all tiers."""

import json
import os
import shutil
import subprocess

import pytest

from conftest import PUBLISH
from programs import TREE, wait_for

PROJECT = TREE / "tests" / "bench" / "peers"
TARGET = TREE / "build" / "dynamo_dump"

# By the name of each tier here: its name in messages, and in Dynamo's crate.
TIERS = {
    "device": ("device", "Device"),
    "host": ("host_pinned", "HostPinned"),
    "disk": ("disk", "Disk"),
    "external": ("external", "External"),
}


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def message(*rows):
    """(number, value): bytes as they are, numbers as varints, ("fixed", number) as such."""
    out = b""
    for number, value in rows:
        if isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        elif isinstance(value, tuple):
            out += varint(number << 3 | 1) + value[1].to_bytes(8, "little")
        else:
            out += varint(number << 3) + varint(value)
    return out


def cargo(*arguments):
    """The first build takes a minute of processor time."""
    return subprocess.run(
        ["cargo", *arguments, "--locked", "--manifest-path", PROJECT / "Cargo.toml"],
        env=os.environ | {"CARGO_TARGET_DIR": str(TARGET)}, capture_output=True, text=True, timeout=900, check=False,
    )


@pytest.fixture(scope="module")
def reader():
    """The program that reads a dump with dynamo-kv-router."""
    if not shutil.which("cargo"):
        pytest.skip("cargo is not installed")
    if cargo("fetch").returncode != 0:
        pytest.skip("the crates registry cannot be reached")
    built = cargo("build", "--bin", "dynamo_dump")
    assert built.returncode == 0, built.stderr
    return TARGET / "debug" / "dynamo_dump"


def read(reader, dump):
    return subprocess.run([reader], input=dump, capture_output=True, text=True, timeout=60, check=False)


def publish(bus, event_id, data, tier=None, dp_rank=0, subject="kv_events"):
    event = {"worker_id": 7, "event": {"event_id": event_id, "data": data, "dp_rank": dp_rank}}
    if tier:
        event["storage_tier"] = tier
    bus.publish(f"{PUBLISH}.{subject}", json.dumps(event).encode())


def vouch(bus, dp_rank, last_id, tiers, engine_names=False):
    """A heartbeat of a stream that is EXACT, with two blocks in each of these tiers."""
    bus.publish(f"{PUBLISH}.kv_heartbeat", message(
        (1, bytes([dp_rank + 1] * 16)), (2, ("fixed", 7)), (3, dp_rank), (4, ("fixed", 1)), (5, ("fixed", last_id)),
        (6, 2), (8, 1), (9, 2 if engine_names else 1), (10, b"org/m"), (11, 16),
        (16, bytes(tiers)), (17, varint(2) * len(tiers)), (18, bytes(16 * len(tiers))),
    ))


def states(aggregator):
    return sorted((s["dp_rank"], s["state"]) for s in aggregator.get("/streams")["streams"])


def stored(parent, *blocks):
    return {"stored": {"parent_hash": parent, "blocks": [{"block_hash": b, "tokens_hash": t} for b, t in blocks]}}


def test_dynamos_crate_reads_a_dump_of_all_tiers(scene, reader):
    bus, aggregator = scene.bus(), scene.aggregator()
    top = 2**64 - 1
    expected = []
    for rank in 0, 1:
        publish(bus, 1, "cleared", dp_rank=rank)
    for number, (tier, (wire, _)) in enumerate(TIERS.items(), 1):
        first = 1000 * number
        event_id = 2 + (number - 1) // 2  # two events of each rank
        publish(bus, event_id, stored(None, (first, top - number), (first + 1, number)), wire, dp_rank=number % 2)
        expected += [("7", str(number % 2), tier, str(first)), ("7", str(number % 2), tier, str(first + 1))]
    wait_for("all is listed", lambda: sorted(map(tuple, aggregator.rows())) == sorted(expected))
    assert aggregator.http("GET", "/dump") == (200, "{}")  # no heartbeat has confirmed the list yet
    assert aggregator.metric("kvb_dump_streams_left_out_total", reason="state") == 2
    vouch(bus, 0, 3, [1, 3])
    vouch(bus, 1, 3, [0, 2])
    wait_for("EXACT", lambda: states(aggregator) == [(0, "EXACT"), (1, "EXACT")])

    status, dump = aggregator.http("GET", "/dump")
    assert status == 200
    assert aggregator.http("GET", "/dump?names=engine")[0] == 409
    assert aggregator.http("GET", "/dump?names=mine")[0] == 409
    vouch(bus, 0, 3, [1, 3], engine_names=True)
    vouch(bus, 1, 3, [0, 2], engine_names=True)
    wait_for("the names are the engine's", lambda: aggregator.http("GET", "/dump?names=engine") == (200, dump))
    understood = read(reader, dump)
    assert understood.returncode == 0, (understood.stderr, dump)
    lines = []
    for number, (_, theirs) in enumerate(TIERS.values(), 1):
        first = 1000 * number
        head = f"org/m:default 16 7 {number % 2} {theirs} Worker"
        lines.append(f"{head} {first} {top - number} -")
        lines.append(f"{head} {first + 1} {number} -")
    assert sorted(understood.stdout.splitlines()) == sorted(lines)


def test_that_reader_refuses_a_tier_that_dynamo_does_not_know(reader):
    """Otherwise the test above would prove nothing."""
    event = {"event_id": 0, "data": stored(None, (1, 1)), "dp_rank": 0}
    for tier, is_known in [("host_pinned", True), ("host", False), ("window", False)]:
        dump = {"m:default": {"block_size": 16, "events": [{"worker_id": 1, "storage_tier": tier, "event": event}]}}
        assert (read(reader, json.dumps(dump)).returncode == 0) == is_known, tier
