"""Do answers contain each worker's address, role and labels, whichever way these were given? Does a change of them reach
the answers without a new connection or epoch?"""

import json

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
