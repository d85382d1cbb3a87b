"""Does a request go only to workers with its labels, role and addresses, and to none that drains?
Is each wrong selection refused by name, over HTTP and NATS alike, and does a dry run change nothing?"""

import json

import pytest

import engine
from conftest import ROUTER, worker
from programs import wait_for
from test_members import post, registering, reload, rewrite

BLOCK = 16
PROMPT = list(range(5000, 5000 + 4 * BLOCK))
PREFILL, DECODE, REGISTERED = 1, 2, 3
POLICIES = ["kv", "least_requests", "ttft", "round_robin"]


class Stage:
    """Two workers with labels in the file, and one that registers with its own."""

    def __init__(self, scene):
        self.engines = [scene.engine() for _ in range(3)]
        self.rows = [
            worker(self.engines[0], PREFILL, more='labels = { role = "prefill"; zone = "a"; address = "10.0.0.1:8000"; };'),
            worker(self.engines[1], DECODE, more='labels = { role = "decode"; zone = "a"; };'),
        ]
        self.aggregator = scene.aggregator()
        self.bus = scene.bus()
        self.bridge = registering(scene, *self.rows, heartbeat_ms=100)
        status, answer = post(self.bridge, "/register", {
            "instance_id": REGISTERED, "endpoint": self.engines[2].events, "replay_endpoint": self.engines[2].replay,
            "model_name": "m", "block_size": BLOCK, "labels": {"role": "prefill", "address": "10.0.0.3:8000"},
        })
        assert status == 201, answer
        for one in self.engines:
            one.publish(engine.batch(engine.stored([1], PROMPT[:BLOCK], BLOCK)))
        wait_for("all three are EXACT", lambda: [s["state"] for s in self.streams().values()] == ["EXACT"] * 3)

    def streams(self):
        return {s["worker_id"]: s for s in self.aggregator.get("/streams")["streams"]}

    def http(self, **selection):
        status, text = self.aggregator.http("POST", "/route", {"token_ids": PROMPT, "model": "m", **selection})
        return status, json.loads(text) if status == 200 else text

    def nats(self, **selection):
        return json.loads(self.bus.request(f"{ROUTER}.kv_route", json.dumps({"token_ids": PROMPT, **selection}).encode()))

    def chosen(self, count=12, **selection):
        """The workers that this many requests go to, over HTTP and NATS in turn."""
        found = set()
        for _ in range(count // 2):
            status, answer = self.http(**selection)
            assert status == 200, answer
            found |= {answer["worker_id"], self.nats(**selection)["worker_id"]}
        return found

    def refused(self, status, why, **selection):
        got, text = self.http(**selection)
        assert got == status and why in text, (got, text)
        assert why in self.nats(**selection)["error"]


@pytest.mark.first
def test_a_request_goes_to_the_workers_that_it_selects(scene):
    stage = Stage(scene)
    shown = {worker_id: stream.get("labels") for worker_id, stream in stage.streams().items()}
    assert shown == {
        PREFILL: {"role": "prefill", "zone": "a", "address": "10.0.0.1:8000"},
        DECODE: {"role": "decode", "zone": "a"},
        REGISTERED: {"role": "prefill", "address": "10.0.0.3:8000"},
    }
    turns = {"policy": "round_robin"}
    assert stage.chosen(**turns) == {PREFILL, DECODE, REGISTERED}
    assert stage.chosen(role="prefill", **turns) == {PREFILL, REGISTERED}
    assert stage.chosen(labels={"zone": "a"}, **turns) == {PREFILL, DECODE}
    assert stage.chosen(role="prefill", labels={"zone": "a"}, **turns) == {PREFILL}
    assert stage.chosen(candidates=[DECODE, 77], **turns) == {DECODE}
    assert stage.chosen(candidates=["10.0.0.3:8000", DECODE], **turns) == {DECODE, REGISTERED}
    assert stage.chosen(role="prefill", candidates=["10.0.0.3:8000", DECODE]) == {REGISTERED}
    for policy in POLICIES:
        status, answer = stage.http(policy=policy)
        assert status == 200 and answer["policy"] == policy and answer["dp_rank"] == 0, answer
        assert stage.nats(policy=policy)["policy"] == policy
    assert stage.nats()["policy"] == "kv", "only that request had another one"


def test_each_wrong_selection_is_named(scene):
    stage = Stage(scene)
    stage.refused(422, "policy: \"best\" is unknown; there are kv, least_requests, ttft", policy="best")
    stage.refused(422, "policy: \"p2c\" is gone: \"least_requests\" serves in its place", policy="p2c")
    stage.refused(404, "no worker of the model has label role=both", role="both")
    stage.refused(404, "no worker of the model has label zone=b", labels={"zone": "b", "role": "prefill"})
    stage.refused(404, "among the 2 candidates, the first of which is 77", candidates=[77, "10.0.0.9:1"])
    stage.refused(503, "2 without the role or labels, 1 not among the candidates", role="decode", candidates=[PREFILL])
    stage.refused(422, "policy: expected a string", policy=7)
    stage.refused(422, "labels: expected an object", labels=["zone"])
    stage.refused(422, "labels: zone: expected a string", labels={"zone": 1})
    stage.refused(422, "role: differs from labels.role", role="a", labels={"role": "b"})
    stage.refused(422, "candidates: is empty", candidates=[])
    stage.refused(422, "candidates[1]: expected a worker id", candidates=[1, -1])
    stage.refused(422, "candidates: at most 1024", candidates=list(range(1025)))
    stage.refused(422, "dry_run: expected true or false", dry_run="yes")
    assert stage.chosen(2, role="decode") == {DECODE}
    assert stage.aggregator.metric("kvb_route_decisions_total") == 2


def test_a_dry_run_decides_nothing(scene):
    stage = Stage(scene)
    rates = stage.bus.watch(f"{ROUTER}.kv-hit-rate")
    first = stage.nats(policy="round_robin", dry_run=True)
    over_http = {name: value for name, value in first.items() if name != "aggregator"}
    for _ in range(5):
        assert stage.nats(policy="round_robin", dry_run=True) == first
        assert stage.http(policy="round_robin", dry_run=True) == (200, over_http)
    assert stage.aggregator.metric("kvb_route_decisions_total") == 0
    assert stage.nats(policy="round_robin")["worker_id"] == first["worker_id"]
    assert stage.nats(policy="round_robin", dry_run=True)["worker_id"] != first["worker_id"]
    wait_for("the decision is published", lambda: len(rates) > 0)
    assert len(rates) == 1


def test_a_draining_worker_is_listed_and_matched_and_gets_no_requests(scene):
    stage = Stage(scene)

    def drain(path, worker_id, **more):
        return post(stage.bridge, path, {"worker_id": worker_id, **more})

    def is_draining(worker_id):
        return stage.streams()[worker_id].get("draining", False)

    assert drain("/drain", PREFILL) == (200, {"status": "ok", "worker_id": PREFILL, "draining": True, "ranks": 1})
    assert drain("/drain", REGISTERED)[0] == 200
    wait_for("both drain", lambda: is_draining(PREFILL) and is_draining(REGISTERED))
    assert stage.chosen(policy="round_robin") == {DECODE}
    stage.refused(503, "1 without the role or labels, 2 draining", role="prefill")
    status, text = stage.aggregator.http("POST", "/query", {"token_ids": PROMPT, "model_name": "m"})
    assert status == 200 and set(json.loads(text)["scores"]) == {str(PREFILL), str(DECODE), str(REGISTERED)}

    # After a worker is added to the file, those that stay are still draining.
    other = scene.engine()
    rewrite(stage.bridge, *stage.rows, worker(other, 4))
    reload(stage.bridge)
    wait_for("the new one is there", lambda: 4 in stage.streams())
    assert is_draining(PREFILL) and is_draining(REGISTERED)

    assert drain("/undrain", PREFILL)[1]["draining"] is False
    wait_for("one takes requests again", lambda: not is_draining(PREFILL))
    assert PREFILL in stage.chosen(policy="round_robin")

    # A worker that registers again takes requests.
    registered = {"instance_id": REGISTERED, "endpoint": stage.engines[2].events, "model_name": "m", "block_size": BLOCK}
    assert post(stage.bridge, "/unregister", {"instance_id": REGISTERED})[0] == 200
    assert post(stage.bridge, "/register", registered)[0] == 201
    wait_for("the worker is back and takes requests", lambda: not is_draining(REGISTERED))

    assert drain("/drain", 77) == (404, {"error": "worker 77 not found"})
    assert drain("/drain", PREFILL, dp_rank=5)[0] == 404
    assert post(stage.bridge, "/drain", {})[0] == 422
    assert "missing field `worker_id`" in str(post(stage.bridge, "/drain", {})[1])
    assert post(stage.bridge, "/drain", {"worker_id": PREFILL}, token="wrong")[0] == 401
