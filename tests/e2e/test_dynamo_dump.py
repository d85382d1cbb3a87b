"""Does Dynamo's own indexer understand a dump?  It recovers from the dump of a peer: the types of
its crate read ours, with blocks in all tiers."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import PUBLISH
from programs import wait_for

TREE = pathlib.Path(__file__).resolve().parents[2]
PROJECT = TREE / "tests" / "dynamo_dump"
TARGET = TREE / "build" / "dynamo_dump"

# In our words, on the wire, and as that crate calls them.
TIERS = {
    "device": ("device", "Device"),
    "host": ("host_pinned", "HostPinned"),
    "disk": ("disk", "Disk"),
    "external": ("external", "External"),
}


def cargo(*arguments):
    """A build takes a minute of processor time, the first time."""
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
    built = cargo("build")
    assert built.returncode == 0, built.stderr
    return TARGET / "debug" / "dynamo_dump"


def read(reader, dump):
    return subprocess.run([reader], input=dump, capture_output=True, text=True, timeout=60, check=False)


def publish(bus, event_id, data, tier=None, dp_rank=0, subject="kv_events"):
    message = {"worker_id": 7, "event": {"event_id": event_id, "data": data, "dp_rank": dp_rank}}
    if tier:
        message["storage_tier"] = tier
    bus.publish(f"{PUBLISH}.{subject}", json.dumps(message).encode())


def stored(parent, *blocks):
    return {"stored": {"parent_hash": parent, "blocks": [{"block_hash": b, "tokens_hash": t} for b, t in blocks]}}


def rows(aggregator):
    return sorted(tuple(row.split()) for row in aggregator.http("GET", "/dump?format=rows")[1].splitlines())


def test_dynamos_crate_reads_a_dump_of_all_tiers(scene, reader):
    bus, aggregator = scene.bus(), scene.aggregator(model="org/m", block_size=16)
    top = 2**64 - 1
    expected = []
    for number, (tier, (wire, _)) in enumerate(TIERS.items(), 1):
        first = 1000 * number
        publish(bus, number, stored(None, (first, top - number), (first + 1, number)), wire, dp_rank=number % 2)
        expected += [("7", str(number % 2), tier, str(first)), ("7", str(number % 2), tier, str(first + 1))]
    publish(bus, 9, stored(None, (5, 5)), "window", subject="kv_window_events")
    expected.append(("7", "0", "window", "5"))
    wait_for("all is listed", lambda: rows(aggregator) == sorted(expected))

    status, dump = aggregator.http("GET", "/dump")
    assert status == 200
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
    """Or else the test above would prove nothing."""
    event = {"event_id": 0, "data": stored(None, (1, 1)), "dp_rank": 0}
    for tier, is_known in [("host_pinned", True), ("host", False), ("window", False)]:
        dump = {"m:default": {"block_size": 16, "events": [{"worker_id": 1, "storage_tier": tier, "event": event}]}}
        assert (read(reader, json.dumps(dump)).returncode == 0) == is_known, tier
