"""Do answers contain each worker's address, role and labels, whichever way these were given? Does a change of them reach
the answers without a new connection or epoch? Do older readers still read all messages?"""

import json
import typing

import msgspec
import pytest

import engine
from conftest import PUBLISH, ROUTER, worker
from programs import wait_for
from test_members import post, registering, reload, rewrite

BLOCK = 16
PROMPT = list(range(7000, 7000 + 2 * BLOCK))
ADDRESS = "http://10.0.0.7:8000"
KEYED = f'address = "{ADDRESS}"; tokenize = "{ADDRESS}"; role = "prefill"; labels = {{ zone = "b"; team = "x"; }};'


def streams(daemon, path="/streams"):
    return {s["worker_id"]: s for s in daemon.get(path)["streams"]}


def known(row):
    keys = ("address", "tokenize", "role", "pod", "namespace_k8s", "node", "labels", "ready", "draining")
    return {key: row[key] for key in keys if key in row}


def fill(*engines):
    for one in engines:
        one.publish(engine.batch(engine.stored([1], PROMPT[:BLOCK], BLOCK)))


@pytest.mark.first
def test_address_role_and_labels_are_in_every_answer(scene):
    one, other, third = scene.engine(), scene.engine(), scene.engine()
    aggregator, bus = scene.aggregator(), scene.bus()
    statuses, beats = bus.watch(f"{PUBLISH}.bridge_status"), bus.watch(f"{PUBLISH}.kv_heartbeat_json")
    bridge = registering(scene, worker(one, 1, more=KEYED), worker(other, 2), heartbeat_ms=100)
    assert post(bridge, "/register", {
        "instance_id": 3, "endpoint": third.events, "model_name": "m", "block_size": BLOCK,
        "address": "http://[fd00::3]:8000", "tokenize": "https://[fd00::3]", "role": "both", "labels": {"zone": "c"},
    })[0] == 201
    wait_for("nothing of the third, which cannot be replayed, is lost", lambda: [
        s for s in streams(bridge, "/state").values() if s["worker_id"] == 3 and s["state"] != "DOWN"])
    fill(one, other, third)
    wait_for("all three are EXACT or PARTIAL", lambda: len([s for s in streams(aggregator).values() if s["blocks"]["device"]]) == 3)

    wanted = {
        1: {"address": ADDRESS, "tokenize": ADDRESS, "role": "prefill", "labels": {"zone": "b", "team": "x"}},
        2: {},
        3: {"address": "http://[fd00::3]:8000", "tokenize": "https://[fd00::3]", "role": "both", "labels": {"zone": "c"}},
    }
    body = {"token_ids": PROMPT, "model": "m"}
    match = json.loads(bus.request(f"{ROUTER}.kv_match", json.dumps(body).encode()))
    assert {row["worker_id"]: known(row) for row in match["workers"]} == wanted
    assert {row["instance_id"]: known(row) for row in aggregator.get("/workers")} == wanted
    assert {number: known(row) for number, row in streams(aggregator).items()} == wanted
    assert {s["worker_id"]: known(s) for s in bridge.get("/state")["streams"]} == wanted
    answer = json.loads(aggregator.http("POST", "/query", body)[1])
    assert {int(number): row for number, row in answer["workers"].items()} == {n: wanted[n] for n in (1, 3)}
    wait_for("a status with all", lambda: len(json.loads(statuses[-1].data)["streams"]) == 3)
    assert {s["worker_id"]: known(s) for s in json.loads(statuses[-1].data)["streams"]} == wanted
    newest = {beat["worker_id"]: beat for beat in (json.loads(m.data) for m in list(beats))}
    assert {number: known(beat) for number, beat in newest.items()} == {
        number: {"draining": False, "labels": {}, **row} for number, row in wanted.items()}

    for number in (1, 3):
        for chosen in (json.loads(aggregator.http("POST", "/route", {**body, "candidates": [wanted[number]["address"]]})[1]),
                       json.loads(bus.request(f"{ROUTER}.kv_route", json.dumps({**body, "candidates": [number]}).encode()))):
            assert chosen["worker_id"] == number and known(chosen) == wanted[number]
            assert [row["address"] for row in chosen["scores"]] == [wanted[number]["address"]]
    listed = json.loads(aggregator.http("POST", "/query", {**body, "role": "decode"})[1])
    assert set(listed["scores"]) == {"3"}, "a worker of role both decodes, too"


def test_a_changed_fact_is_published_at_once_and_leaves_the_worker_open(scene):
    one = scene.engine()
    aggregator = scene.aggregator()
    bridge = registering(scene, worker(one, 1, more=KEYED), heartbeat_ms=60000)
    fill(one)
    wait_for("EXACT", lambda: streams(aggregator).get(1, {}).get("state") == "EXACT")
    assert post(bridge, "/drain", {"worker_id": 1})[0] == 200
    wait_for("the worker drains", lambda: streams(aggregator)[1].get("draining"))
    before = {s["worker_id"]: s for s in bridge.get("/state")["streams"]}[1]
    row = streams(aggregator)[1]

    rewrite(bridge, worker(one, 1, more='address = "http://10.0.0.9:8000"; tokenize = "http://10.0.0.9:1"; role = "decode"; labels = { zone = "c"; };'))
    assert "changed=0 unchanged=1 failed=0 updated=1" in reload(bridge)
    changed = {"address": "http://10.0.0.9:8000", "tokenize": "http://10.0.0.9:1", "role": "decode", "labels": {"zone": "c"}, "draining": True}
    wait_for("the change is published long before the next heartbeat", lambda: known(streams(aggregator)[1]) == changed)
    after = {s["worker_id"]: s for s in bridge.get("/state")["streams"]}[1]
    assert streams(aggregator)[1]["last_event_id"] == row["last_event_id"], "the same epoch"
    assert (after["reconnects"], after["replays"], after["batches"]) == (before["reconnects"], before["replays"], before["batches"])

    # A changed key that makes it another worker opens a new stream; the worker is still draining.
    rewrite(bridge, worker(one, 1, more='topic = "kv";'))
    assert "changed=1 unchanged=0" in reload(bridge)
    wait_for("the stream is opened anew", lambda: "role" not in streams(aggregator)[1])
    assert streams(aggregator)[1]["draining"] is True
    assert post(bridge, "/undrain", {"worker_id": 1})[0] == 200
    wait_for("the worker takes requests again", lambda: "draining" not in streams(aggregator)[1])


def test_publish_labels_selects_the_published_ones(scene):
    one, other = scene.engine(), scene.engine()
    aggregator = scene.aggregator()
    bridge = registering(scene, worker(one, 1, more=KEYED), heartbeat_ms=100, labels=["zone", "rack"])
    row = {"endpoint": other.events, "model_name": "m", "block_size": BLOCK, "labels": {"rack": "9", "team": "y", "role": "both"}}
    assert post(bridge, "/register", {"instance_id": 2, **row})[0] == 201
    wait_for("both are there", lambda: set(streams(aggregator)) == {1, 2})
    assert known(streams(aggregator)[1]) == {"address": ADDRESS, "tokenize": ADDRESS, "role": "prefill", "labels": {"zone": "b"}}
    assert known(streams(aggregator)[2]) == {"role": "both", "labels": {"rack": "9"}}


# ---- Older readers: they check types, and skip keys that they do not know ----


class Beat(msgspec.Struct):
    worker_id: int
    dp_rank: int
    model: str
    block_size: int
    state: str
    reason: str
    bye: bool
    draining: bool
    labels: dict[str, str]
    blocks: dict[str, int]
    missing_at_most: typing.Optional[int]
    last_event_id: int
    epoch: str


class Stream(msgspec.Struct):
    worker_id: int
    dp_rank: int
    namespace: str
    component: str
    model: str
    state: str
    blocks: dict[str, int]
    load: typing.Optional[float]
    draining: bool = False
    labels: dict[str, str] = {}


class Streams(msgspec.Struct):
    streams: list[Stream]


class Score(msgspec.Struct):
    worker_id: int
    dp_rank: int
    cost: float
    overlap_blocks: int


class Route(msgspec.Struct):
    worker_id: int
    dp_rank: int
    policy: str
    overlap_blocks: int
    scores: list[Score]


class Instance(msgspec.Struct):
    longest_matched: int
    gpu: int
    dp: dict[str, int]


class Query(msgspec.Struct):
    scores: dict[str, dict[str, int]]
    instances: dict[str, Instance]


class Worker(msgspec.Struct):
    instance_id: int
    status: str
    model_name: str
    endpoints: dict[str, str]


class Status(msgspec.Struct):
    bridge_id: str
    formats: list[str]
    streams: list[dict]


def test_older_readers_read_the_same_of_a_worker_with_more_facts(scene):
    """With the labels that older readers select by, which the file may still contain."""
    one, other = scene.engine(), scene.engine()
    aggregator, bus = scene.aggregator(), scene.bus()
    statuses, beats = bus.watch(f"{PUBLISH}.bridge_status"), bus.watch(f"{PUBLISH}.kv_heartbeat_json")
    labels = f'labels = {{ role = "prefill"; address = "{ADDRESS}"; }};'
    bridge = scene.bridge(worker(one, 1, more=labels), worker(other, 2), heartbeat_ms=100)
    fill(one, other)
    wait_for("EXACT", lambda: [s["state"] for s in streams(aggregator).values()] == ["EXACT"] * 2)
    body = {"token_ids": PROMPT, "model": "m"}

    def both(model, read):
        return msgspec.json.decode(read, type=model)

    listed = both(Streams, aggregator.http("GET", "/streams")[1])
    assert [row.labels for row in listed.streams] == [{"role": "prefill", "address": ADDRESS}, {}]
    assert both(Route, bus.request(f"{ROUTER}.kv_route", json.dumps({**body, "role": "prefill"}).encode())).worker_id == 1
    assert both(Query, aggregator.http("POST", "/query", body)[1]).scores == {"1": {"0": BLOCK}, "2": {"0": BLOCK}}
    assert [row.instance_id for row in both(list[Worker], aggregator.http("GET", "/workers")[1])] == [1, 2]
    assert len(both(Status, bridge.http("GET", "/state")[1]).streams) == 2
    assert both(Status, statuses[-1].data).formats == ["json"]
    read = {beat.worker_id: beat for beat in (both(Beat, m.data) for m in list(beats))}
    assert read[1].labels == {"role": "prefill", "address": ADDRESS} and read[2].labels == {}
    assert streams(aggregator)[1]["role"] == "prefill" and streams(aggregator)[1]["address"] == ADDRESS
