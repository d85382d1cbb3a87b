"""Does Dynamo's KvMetricsAggregator (0.2 to 0.5) read the load of workers from our
answers to $SRV.STATS?"""

import copy
import json
import pathlib

import pytest

import programs
import scrape
from conftest import shared_scene, worker
from programs import wait_for

SERVICE = "dynamo_vllmworker"
SUBJECT = f"$SRV.STATS.{SERVICE}"
READERS = {"flat-0.2": scrape.read_flat, "nested-0.3": scrape.read_nested}

# One value of each figure, all different and none a default.
FIGURES = {
    "request_active_slots": 7, "request_total_slots": 256, "kv_active_blocks": 1000, "kv_total_blocks": 4096,
    "num_requests_waiting": 5, "gpu_cache_usage_perc": 0.25, "gpu_prefix_cache_hit_rate": 0.5,
}


def loaded(scene, worker_id, feed, more=""):
    return worker(scene.engine(), worker_id, more=f'load = {{ zmq = "{feed.endpoint}"; }}; {more}')


def wait_for_figures(bus, feeds, expected, read=scrape.read_nested, answers=1):
    """Sends each (feed, figures, rank) until the scrape shows `expected`."""

    def look():
        for feed, figures, rank in feeds:
            feed.send(figures, rank)
        got = scrape.scrape(bus.request_many(SUBJECT, enough=answers), SERVICE, read)
        return got == expected

    return wait_for(f"the scrape shows {expected}", look)


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """A bridge's answer about one worker with load, as JSON."""
    with shared_scene(tmp_path_factory) as scene:
        feed, bus = scene.load_feed(), scene.bus()
        scene.bridge(loaded(scene, 0x1A2B3C4D5E6F, feed))
        wait_for_figures(bus, [(feed, FIGURES, None)], {0x1A2B3C4D5E6F: FIGURES})
        yield json.loads(bus.request(SUBJECT, b""))


PLACES = {
    (): scrape.SERVICE,
    ("endpoints", 0): scrape.ENDPOINT,
    ("endpoints", 0, "data"): scrape.FLAT,
    ("endpoints", 0, "data", "worker_stats"): scrape.WORKER_STATS,
    ("endpoints", 0, "data", "kv_stats"): scrape.KV_STATS,
}
KEYS = [(place, key, kind) for place, keys in PLACES.items() for key, kind in keys.items()]


def at(answer, place):
    for step in place:
        answer = answer[step]
    return answer


@pytest.mark.first
@pytest.mark.parametrize("place,key,kind", KEYS, ids=[".".join(map(str, (*p, k))) for p, k, _ in KEYS])
def test_every_key_is_there_with_its_type(answer, place, key, kind):
    value = at(answer, place)[key]
    assert scrape.is_a(value, kind), value
    if kind == scrape.FLOAT:
        assert isinstance(value, float), "a share has a point, also when it is whole"
    if key in FIGURES:
        assert value == FIGURES[key]


@pytest.mark.parametrize("place,key,kind", KEYS, ids=[".".join(map(str, (*p, k))) for p, k, _ in KEYS])
def test_the_strict_reader_misses_each_of_them(answer, place, key, kind):
    """Otherwise the tests above would prove nothing: the result of such a reader must depend on
    each key."""
    for damage in ("gone", "null", "text or fraction"):
        hurt = copy.deepcopy(answer)
        inside = at(hurt, place)
        if damage == "gone":
            del inside[key]
        else:
            inside[key] = None if damage == "null" else (7.5 if kind != scrape.FLOAT else "x")
        shown = [scrape.scrape([json.dumps(hurt)], SERVICE, read) for read in READERS.values()]
        assert {} in shown, (damage, shown)


def test_names_are_those_that_dynamo_looks_for(answer):
    (endpoint,) = answer["endpoints"]
    assert answer["name"] == SERVICE
    assert endpoint["name"] == f"{SERVICE}-load_metrics-1a2b3c4d5e6f"
    assert endpoint["subject"] == f"{SERVICE}.load_metrics-1a2b3c4d5e6f"
    assert endpoint["queue_group"] == "q"


def test_spec_decode_stats_and_rank_are_there(answer):
    data = answer["endpoints"][0]["data"]
    assert data["spec_decode_stats"] is None
    assert data["worker_stats"]["data_parallel_rank"] == 0


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_the_example_in_the_documentation_is_read(answer, read):
    contract = pathlib.Path(__file__).parents[2] / "proto" / "services.md"
    (line,) = [row for row in contract.read_text().splitlines() if row.startswith('{') and "stats_response" in row]
    whole = {**FIGURES, "gpu_prefix_cache_hit_rate": 1.0}
    assert scrape.scrape([line], SERVICE, read) == {0x1A2B3C: whole}
    assert list(json.loads(line)) == list(answer), "the same keys in the same order"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_several_workers_of_several_bridges_answer_one_scrape(scene, read):
    feeds = {number: scene.load_feed() for number in (1, 2, (1 << 63) - 1)}
    bus = scene.bus()
    scene.bridge(loaded(scene, 1, feeds[1]), loaded(scene, 2, feeds[2]), name="one")
    scene.bridge(loaded(scene, (1 << 63) - 1, feeds[(1 << 63) - 1]), name="two")
    expected = {number: {**FIGURES, "kv_active_blocks": number % 1000} for number in feeds}
    wait_for_figures(
        bus, [(feeds[number], expected[number], None) for number in feeds], expected, read, answers=2
    )


def test_a_worker_without_figures_does_not_look_idle(scene):
    feed, bus = scene.load_feed(), scene.bus()
    scene.bridge(loaded(scene, 1, feed), worker(scene.engine(), 2))
    wait_for_figures(bus, [(feed, FIGURES, None)], {1: FIGURES})
    silent = [e for e in json.loads(bus.request(SUBJECT, b""))["endpoints"] if e["name"].endswith("-2")]
    assert [e["data"] for e in silent] == [None]


def test_a_worker_that_falls_silent_leaves_the_scrape(scene):
    feed, bus = scene.load_feed(), scene.bus()
    scene.bridge(loaded(scene, 1, feed))
    wait_for_figures(bus, [(feed, FIGURES, None)], {1: FIGURES})
    wait_for_figures(bus, [], {})


def two_ranks(feed, ids):
    """A row of `workers` only for its load: no engine listens on the address of its events."""
    events = f"tcp://127.0.0.1:{programs.free_port()}"
    return (
        f'{ids} model = "m"; block_size = 16; events = "{events}"; ranks = 2;'
        f' load = {{ zmq = "{feed.endpoint}"; }};'
    )


def test_ranks_of_a_worker_are_summed(scene):
    feed, bus = scene.load_feed(), scene.bus()
    scene.bridge(two_ranks(feed, "id = 3;"))
    other = {**FIGURES, "kv_active_blocks": 24, "gpu_cache_usage_perc": 0.75, "gpu_prefix_cache_hit_rate": 0.0}
    both = {key: FIGURES[key] + other[key] for key in FIGURES}
    both.update(gpu_cache_usage_perc=0.5, gpu_prefix_cache_hit_rate=0.25)
    wait_for_figures(bus, [(feed, FIGURES, 0), (feed, other, 1)], {3: both})
    (endpoint,) = json.loads(bus.request(SUBJECT, b""))["endpoints"]
    assert endpoint["data"]["worker_stats"]["data_parallel_rank"] is None


def test_ranks_with_ids_of_their_own_are_workers_of_their_own(scene):
    feed, bus = scene.load_feed(), scene.bus()
    scene.bridge(two_ranks(feed, "ids = (40, 41);"))
    other = {**FIGURES, "kv_active_blocks": 24}
    wait_for_figures(bus, [(feed, FIGURES, 0), (feed, other, 1)], {40: FIGURES, 41: other})
    endpoints = json.loads(bus.request(SUBJECT, b""))["endpoints"]
    assert [one["data"]["worker_stats"]["data_parallel_rank"] for one in endpoints] == [0, 1]
