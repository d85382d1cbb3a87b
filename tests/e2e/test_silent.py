"""Does the bridge notice on an engine's metrics page what the engine publishes no event about? Does
a stock engine never cause a false alarm?"""

import json

import pytest

import engine
from conftest import worker
from programs import wait_for

BLOCK = 16
TOTAL = 64
SLACK = TOTAL // 8 + 8


def page(sleep="awake", started=1.7e9, running=0, usage=0.0, dropped=()):
    """A metrics page as vLLM 0.32 writes it."""
    label = 'engine="0",model_name="m"'
    lines = [
        f"process_start_time_seconds {started}",
        f"vllm:num_requests_running{{{label}}} {running}",
        f"vllm:num_requests_waiting{{{label}}} 0",
        f"vllm:kv_cache_usage_perc{{{label}}} {usage}",
        f'vllm:cache_config_info{{{label},block_size="{BLOCK}",enable_prefix_caching="True",num_gpu_blocks="{TOTAL}"}} 1.0',
        *(
            f'vllm:engine_sleep_state{{{label},sleep_state="{state}"}} {float(state == sleep)}'
            for state in ("awake", "weights_offloaded", "discard_all")
        ),
    ]
    return "\n".join(lines) + "\n"


def tokens_of(block):
    return list(range(block * 100, block * 100 + BLOCK))


def stored(*blocks):
    return [engine.stored([block], tokens_of(block), BLOCK) for block in blocks]


def paged(web, worker_id):
    return f'load = {{ prometheus = "{web.url(f"/{worker_id}")}"; scrape_ms = 100; }};'


def state_of(aggregator, worker_id=7):
    rows = [row for row in aggregator.get("/streams")["streams"] if row["worker_id"] == worker_id]
    return (rows[0]["state"], rows[0]["reason"], rows[0]["blocks"]["device"]) if rows else None


def wait_state(aggregator, *state, worker_id=7):
    wait_for(f"{worker_id} is {state}", lambda: state_of(aggregator, worker_id) == state)


def query(aggregator, block):
    code, text = aggregator.http("POST", "/query", {"token_ids": tokens_of(block), "model_name": "m"})
    assert code == 200, text
    return json.loads(text)


def readings(web, path, count):
    """Waits until this many more pages have been read completely."""
    before = web.asked.get(path, 0)
    wait_for("pages are read", lambda: web.asked.get(path, 0) > before + count)


@pytest.mark.first
def test_an_engine_that_sleeps_lists_nothing_until_it_has_cleared(scene, web):
    vllm, aggregator = scene.engine(), scene.aggregator()
    web.pages["/7"] = page()
    bridge = scene.bridge(worker(vllm, more=paged(web, 7)))
    vllm.publish(engine.batch(*stored(1, 2)))
    wait_state(aggregator, "EXACT", "", 2)
    web.pages["/7"] = page(running=1, usage=0.1)
    readings(web, "/7", 2)
    web.pages["/7"] = page()  # idle: usage falls to 0, but the cache is as full as before
    readings(web, "/7", 3)
    web.pages["/7"] = page(sleep="")  # level 0: paused
    readings(web, "/7", 3)
    wait_state(aggregator, "EXACT", "", 2)

    web.pages["/7"] = page(sleep="weights_offloaded")
    wait_state(aggregator, "UNVERIFIED", "asleep", 0)
    assert not query(aggregator, 1)["scores"]
    assert bridge.metric("kvb_engine_silent_changes_total", sign="asleep") == 1
    web.pages["/7"] = page()  # awake and still idle: AllBlocksCleared waits in the engine
    readings(web, "/7", 3)
    wait_state(aggregator, "UNVERIFIED", "asleep", 0)
    vllm.publish(engine.batch(engine.cleared(), *stored(3)))
    wait_state(aggregator, "EXACT", "", 1)
    readings(web, "/7", 3)
    wait_state(aggregator, "EXACT", "", 1)
    assert bridge.metric("kvb_engine_silent_changes_total") == 1


def test_another_process_and_lost_events_are_found(scene, web):
    """All three at once, because a contradiction must last 6 s."""
    unproven, leaking, deaf = scene.engine(), scene.engine(), scene.engine()
    aggregator = scene.aggregator()
    for path in ("/1", "/2", "/3"):
        web.pages[path] = page()
    bridge = scene.bridge(
        worker(unproven, 1, replay=False, more=paged(web, 1)), worker(leaking, 2, more=paged(web, 2)),
        worker(deaf, 3, more=paged(web, 3)),
    )
    for one in (unproven, leaking, deaf):
        one.publish(engine.batch(*stored(1, 2)))
    wait_state(aggregator, "UNVERIFIED", "no_replay", 2, worker_id=1)
    for number in (2, 3):
        wait_state(aggregator, "EXACT", "", 2, worker_id=number)

    # running requests of engine 3 use most of its memory, but it has published two blocks
    web.pages["/3"] = page(running=1, usage=0.8)

    # engine 2 fills its cache and evicts; then it loses removals
    leaking.publish(engine.batch(*stored(*range(3, TOTAL + 1))))
    for block in range(1, 5):
        leaking.publish(engine.batch(engine.removed(block), *stored(200 + block)))
        readings(web, "/2", 1)
    wait_state(aggregator, "EXACT", "", TOTAL, worker_id=2)
    leaking.publish(engine.batch(*stored(*range(300, 300 + SLACK + 1))))
    wait_state(aggregator, "EXACT", "", TOTAL + SLACK + 1, worker_id=2)

    # engine 1 has another process behind its page, and no replay buffer that could prove its list
    web.pages["/1"] = page(started=1.8e9)
    wait_state(aggregator, "UNVERIFIED", "no_replay", 0, worker_id=1)
    wait_state(aggregator, "UNVERIFIED", "occupancy", TOTAL + SLACK + 1, worker_id=2)
    wait_state(aggregator, "UNVERIFIED", "occupancy", 2, worker_id=3)
    assert bridge.metric("kvb_engine_silent_changes_total", sign="occupancy") == 2
    assert bridge.metric("kvb_engine_silent_changes_total", sign="restart") == 1
    leaking.publish(engine.batch(engine.cleared(), *stored(9)))
    wait_state(aggregator, "EXACT", "", 1, worker_id=2)
