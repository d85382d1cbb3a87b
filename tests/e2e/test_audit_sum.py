"""Is a stream UNVERIFIED(audit) when its engine's counters show fewer cached tokens than were promised to
the requests that were routed there, without any report of a router?  Is an engine that also executes
requests of somebody else not taken for a liar?"""

import json
import subprocess

import pytest

import engine
import web
from conftest import worker
from programs import BIN, wait_for

BLOCK = 16
BLOCKS = 20
PROMISE = BLOCK * BLOCKS
LIAR, HONEST, SHARED = 1, 2, 3
ROUND = 4  # requests between two pages


def prompt(number):
    """One token more than its blocks: engines compute the last token."""
    return list(range(number * 100000, number * 100000 + PROMISE + 1))


def vllm_page(queried, cached):
    label = 'engine="0",model_name="m"'
    return (f"vllm:num_requests_running{{{label}}} 0\n"
            f"vllm:prefix_cache_queries_total{{{label}}} {float(queried)}\n"
            f"vllm:prefix_cache_hits_total{{{label}}} {float(cached)}\n")


def sglang_page(queried, cached):
    label = 'dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"'
    return (f"sglang:num_running_reqs{{{label}}} 0\n"
            f'sglang:realtime_tokens_total{{{label},mode="prefill_compute"}} {float(queried - cached)}\n'
            f'sglang:realtime_tokens_total{{{label},mode="prefill_cache"}} {float(cached)}\n')


class Fleet:
    def __init__(self, scene, page):
        self.page = page
        self.web = web.Web()
        scene.engines.append(self.web)
        self.engines = {number: scene.engine() for number in (LIAR, HONEST, SHARED)}
        self.counters = dict.fromkeys(self.engines, (0, 0))
        for number in self.engines:
            self.execute(number, 0, 0)
        self.aggregator = scene.aggregator()
        self.bridge = scene.bridge(*(
            worker(one, number, more=f'load = {{ prometheus = "{self.web.url(f"/{number}")}"; scrape_ms = 100; }};')
            for number, one in self.engines.items()))
        for number in self.engines:
            self.fill(number)
        self.read_pages()

    def fill(self, number):
        names = [number * 1000 + at for at in range(1, BLOCKS + 1)]
        last = self.row(number).get("last_event_id", 0)
        self.engines[number].publish(engine.batch(
            engine.AllBlocksCleared(), engine.stored(names, prompt(number)[:PROMISE], BLOCK)))
        wait_for("the prompt is held", lambda: self.row(number)["last_event_id"] > last
                 and self.row(number)["blocks"]["device"] == BLOCKS
                 and self.state(number) in ("EXACT()", "UNVERIFIED(audit)"), 20)

    def row(self, number):
        rows = [row for row in self.aggregator.get("/streams")["streams"] if row["worker_id"] == number]
        return rows[0] if rows else {}

    def state(self, number):
        row = self.row(number)
        return f'{row.get("state")}({row.get("reason")})'

    def execute(self, number, queried, cached):
        before = self.counters[number]
        self.counters[number] = (before[0] + queried, before[1] + cached)
        self.web.pages[f"/{number}"] = self.page(*self.counters[number])

    def read_pages(self):
        """Each page is read twice more, and its counters have reached the aggregator."""
        before = {number: self.web.asked.get(f"/{number}", 0) for number in self.engines}
        wait_for("pages are read", lambda: all(
            self.web.asked.get(f"/{number}", 0) > asked + 2 for number, asked in before.items()))

    def serve(self, number, cached):
        """Nobody reports the requests."""
        for _ in range(ROUND):
            status, text = self.aggregator.http(
                "POST", "/route", {"token_ids": prompt(number), "model": "m", "candidates": [number]})
            assert status == 200 and json.loads(text)["overlap_blocks"] == BLOCKS, text
            self.execute(number, len(prompt(number)), cached)


@pytest.mark.parametrize("page", [vllm_page, sglang_page])
def test_an_engine_whose_counters_show_less_is_unverified(scene, page):
    fleet = Fleet(scene, page)
    total = fleet.aggregator.metric

    def is_found():
        fleet.serve(LIAR, PROMISE * 9 // 10)
        fleet.serve(HONEST, PROMISE)
        fleet.serve(SHARED, PROMISE)
        fleet.execute(SHARED, len(prompt(SHARED)), 0)  # somebody else's request, as long as ours
        fleet.read_pages()
        return fleet.state(LIAR) == "UNVERIFIED(audit)"

    wait_for("the lie is found", is_found, 60)
    assert fleet.state(HONEST) == fleet.state(SHARED) == "EXACT()"
    audit = fleet.row(LIAR)["audit"]
    assert (audit["mode"], audit["verdict"], audit["short_requests"]) == ("sum", "broken", 0), audit
    assert audit["short_periods"] == audit["periods"] > 0
    assert audit["delivered_tokens"] * 10 == audit["promised_tokens"] * 9
    assert total("kvb_audit_sum_resets_total", reason="other_requests") > 0
    wait_for("the alarm is counted", lambda: total("kvb_audit_alarms_total") == 1)
    assert total("kvb_audit_sum_streams") >= 2
    for number in (HONEST, SHARED):
        assert fleet.row(number).get("audit", {}).get("short_periods", 0) == 0, fleet.row(number)
    assert total("kvb_audit_requests_total") == 0
    done = subprocess.run([BIN / "kvctl", "--nats", scene.nats_url, "audit"], capture_output=True, text=True, timeout=30)
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert "sum" in rows[str(LIAR)] and "sum" in rows[str(HONEST)], done.stdout

    fleet.fill(LIAR)  # cleared, and stored anew
    fleet.read_pages()
    assert fleet.row(LIAR)["audit"]["verdict"] == "probation"

    def is_back():
        fleet.serve(LIAR, PROMISE)
        fleet.read_pages()
        return fleet.state(LIAR) == "EXACT()"

    wait_for("it is trusted again", is_back, 60)
    assert total("kvb_audit_sum_requests_total") >= 90
