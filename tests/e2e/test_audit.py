"""Is a stream UNVERIFIED(audit) at all aggregators when its engine delivers fewer cached tokens
than its events promise, and no other stream?  Are blocks that the engine has published as removed
not counted? Is the stream EXACT again after a clear and enough clean requests?"""

import json

import engine
import pytest
from conftest import ROUTER, worker
from programs import wait_for

BLOCK = 16
BLOCKS = 20
PROMISE = BLOCK * BLOCKS
LIAR, HONEST = 1, 2


def prompt(number):
    """A prompt of these blocks and one token more, because engines compute the last token."""
    return list(range(number * 100000, number * 100000 + PROMISE + 1))


class Fleet:
    """Two engines with a prompt each, and aggregators."""

    def __init__(self, scene, aggregators):
        self.bus = scene.bus()
        self.engines = {number: scene.engine() for number in (LIAR, HONEST)}
        self.aggregators = [scene.aggregator(name=f"kvaggregator{number}") for number in range(aggregators)]
        scene.bridge(*(worker(one, number) for number, one in self.engines.items()), heartbeat_ms=200)
        for number in self.engines:
            self.fill(number)
        self.requests = 0

    def fill(self, number):
        names = [number * 1000 + at for at in range(1, BLOCKS + 1)]
        before = [self.row(a, number).get("last_event_id", 0) for a in self.aggregators]
        self.engines[number].publish(engine.batch(
            engine.AllBlocksCleared(), engine.stored(names, prompt(number)[:PROMISE], BLOCK)))
        wait_for("the prompt is held", lambda: all(
            row.get("last_event_id", 0) > last and row["blocks"]["device"] == BLOCKS
            for row, last in zip((self.row(a, number) for a in self.aggregators), before)))
        wait_for("the aggregators claim that the stream is broken", lambda: all(
            self.state(a, number) in ("EXACT()", "UNVERIFIED(audit)") for a in self.aggregators))

    def row(self, aggregator, number):
        rows = [row for row in aggregator.get("/streams")["streams"] if row["worker_id"] == number]
        return rows[0] if rows else {}

    def state(self, aggregator, number):
        row = self.row(aggregator, number)
        return f'{row.get("state")}({row.get("reason")})'

    def states(self, number):
        return [self.state(aggregator, number) for aggregator in self.aggregators]

    def route(self, number):
        self.requests += 1
        body = {"token_ids": prompt(number), "model": "m", "candidates": [number], "request_id": f"r{self.requests}"}
        status, text = self.aggregators[0].http("POST", "/route", body)
        assert status == 200 and json.loads(text)["overlap_blocks"] == BLOCKS, text
        return body["request_id"]

    def finish(self, request_id, cached):
        status, text = self.aggregators[0].http(
            "POST", "/finished", {"request_id": request_id, "cached_tokens": cached})
        assert status == 200, text

    def serve(self, number, cached, count):
        """Waits for the decisions, because a report that overtakes its decision is not compared."""
        request_ids = [self.route(number) for _ in range(count)]
        self.await_total(count, "kvb_requests_in_flight")
        for request_id in request_ids:
            self.finish(request_id, cached)

    def await_total(self, value, name, **labels):
        """Reads the value from each aggregator, after its next tick."""
        wait_for(f"{name} is {value}", lambda: all(a.metric(name, **labels) == value for a in self.aggregators))


@pytest.mark.first
def test_a_stream_whose_engine_delivers_less_is_unverified_until_it_is_cleared(scene):
    fleet = Fleet(scene, 2)
    for _ in range(4):
        fleet.serve(HONEST, PROMISE, 7)
        fleet.serve(LIAR, PROMISE * 9 // 10, 7)
    wait_for("all found the lie", lambda: fleet.states(LIAR) == ["UNVERIFIED(audit)"] * 2)
    wait_for("the honest one is EXACT", lambda: fleet.states(HONEST) == ["EXACT()"] * 2)
    fleet.await_total(56, "kvb_audit_requests_total")
    fleet.await_total(1, "kvb_audit_alarms_total")
    fleet.await_total(28 * (PROMISE + PROMISE * 9 // 10), "kvb_audit_delivered_tokens_total")
    row = fleet.row(fleet.aggregators[1], LIAR)["audit"]
    assert (row["verdict"], row["short_requests"], row["evidence"]) == ("broken", 28, 1), row
    states = json.loads(fleet.aggregators[0].http("POST", "/query", {"token_ids": prompt(LIAR), "model": "m"})[1])["states"]
    assert states == {str(LIAR): {"0": "UNVERIFIED(audit)"}}
    fleet.aggregators[0].wait_until_it_says("delivers fewer cached tokens")
    done = scene.kvctl("audit")
    table = done.stdout
    assert ["UNVERIFIED", "audit", "broken", "1", "90"] in [line.split()[2:7] for line in table.splitlines()], table
    wait_for("the history counts the stream", lambda: sum(
        sample[-2] - sample[-1] for sample in fleet.aggregators[0].get("/history")["samples"]) == 28 * PROMISE // 10)

    fleet.fill(LIAR)  # the engine clears its cache and stores the blocks again
    wait_for("the stream is EXACT again", lambda: fleet.states(LIAR) == ["EXACT()"] * 2)
    fleet.await_total(1, "kvb_audit_returns_total")


def test_an_engine_that_is_short_by_one_block_each_time_has_a_remedy(scene):
    """vLLM with EAGLE, of which neither a page nor a key says so."""
    fleet = Fleet(scene, 1)
    fleet.serve(HONEST, PROMISE, 4)
    fleet.serve(LIAR, PROMISE - 16, 4)
    wait_for("the answer names the key", lambda: "set speculative_drop = 1 of the worker" in
             fleet.row(fleet.aggregators[0], LIAR)["audit"].get("why", ""))
    assert "why" not in fleet.row(fleet.aggregators[0], HONEST)["audit"]

    def said():
        return [line for line in fleet.aggregators[0].text().splitlines() if "one block less than its events" in line]

    wait_for("the log names it", said)
    fleet.serve(LIAR, PROMISE - 16, 4)
    fleet.await_total(12, "kvb_audit_requests_total")
    assert len(said()) == 1 and f"worker_id={LIAR}" in said()[0] and "speculative_drop" in said()[0], said()


def test_blocks_that_the_stream_removed_do_not_count_as_a_loss(scene):
    fleet = Fleet(scene, 1)
    (aggregator,) = fleet.aggregators
    evicted = [fleet.route(HONEST) for _ in range(10)]
    fleet.engines[HONEST].publish(engine.batch(engine.removed(HONEST * 1000 + BLOCKS)))
    wait_for("the removal is there", lambda: fleet.row(aggregator, HONEST)["blocks"]["device"] == BLOCKS - 1)
    for request_id in evicted:
        fleet.finish(request_id, 0)
    fleet.await_total(10, "kvb_audit_left_out_total", reason="evicted")

    fleet.fill(HONEST)
    cleared = [fleet.route(HONEST) for _ in range(10)]
    fleet.fill(HONEST)
    for request_id in cleared:
        fleet.finish(request_id, 0)
    fleet.await_total(10, "kvb_audit_left_out_total", reason="list_changed")
    wait_for("it is EXACT", lambda: fleet.state(aggregator, HONEST) == "EXACT()")

    # A report over NATS with more than was promised, and one without cached tokens, which is not
    # compared.
    extra, silent = fleet.route(HONEST), fleet.route(HONEST)
    fleet.bus.publish(f"{ROUTER}.kv_finished", json.dumps({"request_id": extra, "cached_tokens": PROMISE + 16}).encode())
    fleet.bus.publish(f"{ROUTER}.kv_finished", json.dumps({"request_id": silent}).encode())
    wait_for("both are finished", lambda: aggregator.metric("kvb_requests_in_flight") == 0)
    fleet.await_total(1, "kvb_audit_requests_total")
    fleet.await_total(16, "kvb_audit_extra_tokens_total")
    bad = aggregator.http("POST", "/finished", {"request_id": extra, "cached_tokens": "many"})
    assert bad[0] == 422 and "cached_tokens" in bad[1], bad
