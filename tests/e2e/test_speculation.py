"""Is it found, and said by whom, that an engine gives requests a block less than it holds? Where
nothing says so, is no answer EXACT?"""

import re

import pytest

from conftest import worker
from programs import wait_for
from test_faults import store
from test_load import page
from test_members import reload, rewrite, streams

DRAFTS = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0\n'
OPEN = "it is not known whether an engine gives requests a block less"


def state(bridge):
    return streams(bridge, "/state")[7, 0]


def is_in(bridge, wanted, reason=""):
    return lambda: (state(bridge)["state"], state(bridge)["reason"]) == (wanted, reason)


def lines(bridge, words):
    return [line for line in bridge.text().splitlines() if words in line]


@pytest.mark.first
@pytest.mark.sanitize
def test_drafts_of_an_unknown_method_are_no_exact_list(scene, web):
    web.pages["/metrics"] = page(0) + DRAFTS
    vllm = scene.engine()
    load = f'load = {{ prometheus = "{web.url("/metrics")}"; scrape_ms = 50; }};'
    bridge = scene.bridge(worker(vllm, more=load), formats=["protobuf"])
    aggregator = scene.aggregator()
    vllm.publish(store(1))
    wait_for("unverified", is_in(bridge, "UNVERIFIED", "speculation"))
    wait_for("so says the aggregator", lambda: streams(aggregator, "/streams")[7, 0].get("reason") == "speculation")
    shown = state(bridge)["speculative_drop"]
    assert shown["source"] == "page" and "blocks" not in shown and "set speculative_drop" in shown["why"], shown
    assert state(bridge)["why"] == shown["why"]
    wait_for("the log says it", lambda: lines(bridge, OPEN))
    asked = web.asked["/metrics"]
    wait_for("ten more pages", lambda: web.asked["/metrics"] > asked + 10)
    assert len(lines(bridge, OPEN)) == 1, "once, not with each page"

    web.pages["/metrics"] = page(0)  # the engine has started again without it
    wait_for("exact", is_in(bridge, "EXACT"))
    assert state(bridge)["speculative_drop"]["blocks"] == 0
    wait_for("the log says it", lambda: lines(bridge, "an engine gives requests all blocks that it holds"))

    web.pages["/metrics"] = page(0) + DRAFTS
    wait_for("unverified", is_in(bridge, "UNVERIFIED", "speculation"))
    for drop in (0, 1):  # an operator's word
        rewrite(bridge, worker(vllm, more=f"{load} speculative_drop = {drop};"))
        assert "failed=0" in reload(bridge)
        vllm.publish(store(2 + drop))
        wait_for("the key is taken", lambda: state(bridge)["speculative_drop"].get("source") == "config")
        assert state(bridge)["speculative_drop"]["blocks"] == drop
        assert state(bridge)["reason"] != "speculation"
    rewrite(bridge, worker(vllm, more=f"{load} speculative_drop = 65;"))
    assert re.search(r"\.cfg:\d+: workers\[0\]\.speculative_drop: 65 is out of range", reload(bridge))
