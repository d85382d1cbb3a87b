"""Does a router that asks POST /route send each prompt to the rank that holds it, does the engine's hit equal
what was promised, and is a prompt computed again where its blocks were evicted?"""

import json
import re
import urllib.request

import pytest

import programs
from conftest import shared_scene
from programs import wait_for
from test_fleet import say, verify


def post(url, body, headers):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=programs.DEADLINE_S) as answer:
        return json.load(answer)


class Stage:
    """Two simulated engines of two ranks, and a router of the test's own."""

    def __init__(self, scene):
        self.scene, self.truth, config = scene, scene.folder / "truth", scene.folder / "workers"
        scene.start("kvfleet", [
            programs.BIN / "kvfleet", "--workers", 2, "--ranks", 2, "--model", "m", "--blocks", 512, "--step-ms", 1,
            "--serve", 0, "--truth", self.truth, "--config-out", config])
        text = wait_for("kvfleet serves", lambda: config.exists() and config.read_text())
        self.aggregator = scene.aggregator()
        # Without load reports, so that only requests in flight decide: a report may be 100 ms old.
        scene.bridge(*re.findall(r"^  \{ (.*?)^  \}", re.sub(r"load = .*", "", text), re.S | re.M))
        wait_for("all workers are known", lambda: len(self.aggregator.states()) == 4)

    def ask(self, path, body):
        status, text = self.aggregator.http("POST", path, body)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def complete(self, prompt):
        """Returns how many tokens came from the cache."""
        routed = self.ask("/route", {"model": "m", "token_ids": prompt})
        usage = post(routed["address"] + "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 2},
                     {"X-data-parallel-rank": str(routed["dp_rank"])})["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.ask("/first_token", {"request_id": routed["request_id"]})
        self.ask("/finished", {"request_id": routed["request_id"], "cached_tokens": cached})
        return cached

    def wait_until_listed(self, prompt, tokens=64):
        query = {"model": "m", "token_ids": prompt}
        wait_for("the prompt is listed", lambda: tokens in [
            of for one in self.ask("/query", query)["instances"].values() for of in one["dp"].values()])
        # else nothing is promised: the first batch of a rank is looked for in its replay
        wait_for("its rank is EXACT", lambda: "states" not in self.ask("/query", query))

    def total(self, figure):
        """By worker and rank."""
        return [row[figure] for row in say(self.truth, "stats") if "worker_id" in row]

    def expect_the_truth(self):
        status, verdict = verify(self.scene, self.truth)
        assert (status, verdict["exact"]) == (0, 4), verdict
        assert (verdict["phantom"], verdict["missing"], verdict["wrong"]) == (0, 0, 0), verdict
        return verdict


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield Stage(scene)


@pytest.mark.first
def test_a_prompt_goes_where_it_is_held(stage):
    # A hit follows each new prompt, and all ranks still get new prompts in turn.
    for first in range(1_000, 9_000, 1_000):
        prompt = list(range(first, first + 64))
        assert stage.complete(prompt) == 0
        stage.wait_until_listed(prompt)
        assert stage.complete(prompt + [7]) == 64
    assert stage.total("requests_finished") == [4] * 4
    assert stage.total("hit_tokens") == [128] * 4
    assert stage.expect_the_truth()["held_blocks"] >= 8 * 4
    audited = lambda name: stage.aggregator.metric(f"kvb_audit_{name}_total")
    wait_for("what was promised was delivered", lambda: audited("requests") >= 8)
    assert audited("delivered_tokens") == audited("promised_tokens") >= 8 * 64
    assert stage.aggregator.metric("kvb_requests_finished_total", end="reported") == 16
    assert stage.aggregator.metric("kvb_request_reports_unknown_total") == 0


def test_a_prompt_is_computed_again_where_its_blocks_were_evicted(stage):
    prompt = list(range(20_000, 20_064))
    stage.complete(prompt)
    stage.wait_until_listed(prompt)
    for first in range(30_000, 90_000, 4_000):  # each of the four ranks has room for 511 blocks
        stage.complete(list(range(first, first + 3_999)))
    wait_for("the prompt is not listed any more", lambda: not any(
        one["longest_matched"] for one in stage.ask("/query", {"model": "m", "token_ids": prompt})["instances"].values()))
    assert stage.complete(prompt + [7]) == 0
    stage.expect_the_truth()
