"""Do several aggregators of one router component keep one set of books: each decision entered by
all, hit rates and load_stats published once, a burst of one prompt distributed as by one
aggregator?"""

import json

import engine
import pytest
from conftest import ROUTER, worker
from programs import wait_for

BLOCK = 16
WORKERS = 4
QUIET_S = 3  # time until another one replaces a silent leader


class Fleet:
    """Engines with empty caches, and aggregators."""

    def __init__(self, scene, aggregators, workers=WORKERS, router="", **publish):
        self.scene = scene
        self.router = router
        self.bus = scene.bus()
        self.engines = [scene.engine() for _ in range(workers)]
        self.aggregators = [self.aggregator(number) for number in range(aggregators)]
        self.bridge = scene.bridge(
            *(worker(one, number + 1) for number, one in enumerate(self.engines)), heartbeat_ms=200, **publish
        )
        for one in self.engines:
            one.publish(engine.batch(engine.AllBlocksCleared()))
        for aggregator in self.aggregators:
            wait_for("all workers are known", lambda: len(aggregator.get("/streams")["streams"]) == workers)
            wait_for("all workers have heartbeats", lambda: self.scores(aggregator) == workers)
        self.settled()

    def aggregator(self, number):
        return self.scene.aggregator(name=f"kvaggregator{number}", router=self.router)

    def settled(self):
        """All have received messages of all others, and one leads."""
        wait_for("all have received messages of each other", lambda: all(
            a.metric("kvb_other_aggregators") == len(self.aggregators) - 1 for a in self.aggregators))
        wait_for("one leads", lambda: self.leaders() == 1)

    def leaders(self):
        return sum(a.metric("kvb_aggregator_leads") for a in self.aggregators)

    def scores(self, aggregator):
        status, text = aggregator.http("POST", "/route", {"token_ids": [9] * BLOCK, "model": "m", "ttl_ms": 1})
        return len(json.loads(text).get("scores", [])) if status == 200 else 0

    def empty(self):
        wait_for("no request is in flight", lambda: [
            a.metric("kvb_requests_in_flight") for a in self.aggregators] == [0] * len(self.aggregators))

    def route(self, aggregator, tokens, **more):
        status, text = aggregator.http("POST", "/route", {"token_ids": tokens, "model": "m", **more})
        assert status == 200, text
        return json.loads(text)


def prompt(number, blocks):
    return list(range(number * 100000, number * 100000 + blocks * BLOCK))


def books_of(fleet, tokens):
    """The answer of each aggregator about a prompt; the decision is not recorded."""
    rows = []
    for aggregator in fleet.aggregators:
        match = json.loads(aggregator.http("POST", "/query", {"token_ids": tokens, "model": "m"})[1])
        rows.append((
            aggregator.metric("kvb_requests_in_flight"),
            sorted((p["worker_id"], p["blocks"]) for p in match.get("predicted", [])),
        ))
    return rows


@pytest.mark.first
def test_each_decision_is_entered_by_all_and_published_once(scene):
    fleet = Fleet(scene, 3, router="predict_ms = 60000;")
    fleet.empty()
    hits, loads = fleet.bus.watch(f"{ROUTER}.kv-hit-rate"), fleet.bus.watch(f"{ROUTER}.load_stats")
    count = 60
    for number in range(count):
        answer = fleet.route(fleet.aggregators[number % 3], prompt(number + 1, 4))
        assert answer["request_id"]
    wait_for("all have all requests", lambda: [a.metric("kvb_requests_in_flight") for a in fleet.aggregators] == [count] * 3)
    last = prompt(count, 4)
    wait_for("the predictions are the same", lambda: len({json.dumps(row) for row in books_of(fleet, last)}) == 1)
    assert books_of(fleet, last)[0][1], "a prediction"
    assert sum(a.metric("kvb_decisions_shared_total") for a in fleet.aggregators) >= 2 * count
    assert [a.metric("kvb_decisions_missing_total") for a in fleet.aggregators] == [0] * 3
    wait_for("the hit rates came", lambda: len(hits) >= count)
    before = len(loads)
    wait_for("load_stats goes on", lambda: len(loads) >= before + 3)
    fleet.bus.flush()
    assert len(hits) == count
    wait_for("one leads", lambda: fleet.leaders() == 1)
    one, *others = costs_of(fleet, last)
    assert others == [one] * 2, "the next decision of each would be the same"


def costs_of(fleet, tokens):
    """The books of each aggregator, as the scores of a dry run show them."""
    return [sorted(
        (row["worker_id"], row["decode_blocks"], row["pending_prefill_blocks"], row["predicted_blocks"])
        for row in fleet.route(aggregator, tokens, dry_run=True)["scores"]
    ) for aggregator in fleet.aggregators]


def test_another_one_publishes_load_stats_when_the_leader_is_killed(scene):
    fleet = Fleet(scene, 3)
    leader = next(a for a in fleet.aggregators if a.metric("kvb_aggregator_leads") == 1)
    fleet.aggregators.remove(leader)
    loads = fleet.bus.watch(f"{ROUTER}.load_stats")
    wait_for("load_stats is published", lambda: len(loads) > 0)
    leader.kill()
    leader.is_ours = False  # a process that was killed ends with this status
    wait_for("another one leads", lambda: fleet.leaders() == 1, QUIET_S + 20)
    published = [a.metric("kvb_load_stats_published_total") for a in fleet.aggregators]
    wait_for("the new leader publishes", lambda: sum(
        a.metric("kvb_load_stats_published_total") for a in fleet.aggregators) > sum(published))
    # A stopping aggregator says goodbye, so the last one leads at once.
    leader = next(a for a in fleet.aggregators if a.metric("kvb_aggregator_leads") == 1)
    fleet.aggregators.remove(leader)
    assert leader.stop() == 0
    wait_for("the last one leads", lambda: fleet.leaders() == 1, QUIET_S + 20)


def test_a_burst_of_one_new_prompt_lands_on_few_workers(scene):
    fleet = Fleet(scene, 1, workers=8, router="predict_ms = 60000;")
    fleet.empty()
    aggregator = fleet.aggregators[0]
    # A `cleared` that arrives during the burst would end the predictions for its worker.
    wait_for("all lists are exact", lambda: aggregator.is_exact(8))
    chosen = [fleet.route(aggregator, prompt(1, 128))["worker_id"] for _ in range(200)]
    assert len(set(chosen)) <= 2, chosen
    # When the worker stores the prompt, its blocks are no longer predicted there.
    match = json.loads(aggregator.http("POST", "/query", {"token_ids": prompt(1, 128), "model": "m"})[1])
    assert match["scores"] == {} and {p["blocks"] for p in match["predicted"]} == {128}, match
    first = chosen[0]
    tokens = prompt(1, 128)
    fleet.engines[first - 1].publish(engine.batch(engine.stored(list(range(1, 129)), tokens, BLOCK)))

    def is_stored():
        answer = json.loads(aggregator.http("POST", "/query", {"token_ids": tokens, "model": "m"})[1])
        return answer["scores"].get(str(first)) == {"0": len(tokens)} and first not in [
            p["worker_id"] for p in answer["predicted"]]

    wait_for("the prompt is held, and no longer predicted", is_stored)


def test_a_report_to_any_aggregator_reaches_all(scene):
    fleet = Fleet(scene, 2)
    fleet.empty()
    one, two = fleet.aggregators

    def in_flight(count):
        wait_for(f"{count} in flight", lambda: [a.metric("kvb_requests_in_flight") for a in (one, two)] == [count] * 2)

    assert fleet.route(one, prompt(1, 4), request_id="r1")["request_id"] == "r1"
    fleet.route(one, prompt(2, 4), request_id="r2")
    in_flight(2)
    fleet.route(two, prompt(1, 4), request_id="r1")  # the same decision again, to another aggregator
    wait_for("the decision was replaced", lambda: [a.metric("kvb_requests_repeated_total") for a in (one, two)] == [1, 1])
    in_flight(2)
    assert two.http("POST", "/first_token", {"request_id": "r1"})[0] == 200
    wait_for("the first token is counted", lambda: [
        a.metric("kvb_request_first_tokens_total") for a in (one, two)] == [1, 1])
    assert two.http("POST", "/finished", {"request_id": "r1"})[0] == 200
    in_flight(1)
    fleet.bus.publish(f"{ROUTER}.kv_finished", b'{"request_id":"r2"}')
    in_flight(0)
    status, text = one.http("POST", "/finished", {"request_id": "r1"})
    assert status == 404 and "request_id" in text
    wait_for("the metric counts the report", lambda: one.metric("kvb_request_reports_unknown_total", kind="finished") >= 1)
    for body, status in (({}, 422), ({"request_id": ""}, 422), ({"request_id": "x" * 65}, 422), (b"{", 400)):
        assert one.http("POST", "/finished", body)[0] == status, body
    assert one.http("POST", "/route", {"token_ids": prompt(1, 1), "model": "m", "ttl_ms": 0})[0] == 422
    fleet.route(one, prompt(3, 4), ttl_ms=1)
    in_flight(0)
