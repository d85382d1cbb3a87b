"""Does Dynamo's KvMetricsAggregator (0.2 to 0.5) read the load of workers from our answers to $SRV.STATS?"""

import json

import pytest

import dynamo
from conftest import worker
from programs import wait_for

# One value of each figure, all different and none a default.
FIGURES = {
    "request_active_slots": 7, "request_total_slots": 256, "kv_active_blocks": 1000, "kv_total_blocks": 4096,
    "num_requests_waiting": 5, "gpu_cache_usage_perc": 0.25, "gpu_prefix_cache_hit_rate": 0.5,
}
LARGEST = (1 << 63) - 1


def loaded(scene, worker_id, feed):
    return worker(scene.engine(), worker_id, more=f'load = {{ zmq = "{feed.endpoint}"; }};')


@pytest.mark.first
def test_workers_of_several_bridges_answer_one_scrape_until_they_fall_silent(scene):
    feeds, bus = {number: scene.load_feed() for number in (1, 0x1A2B3C4D5E6F, LARGEST)}, scene.bus()
    first, second, third = (loaded(scene, *one) for one in feeds.items())
    scene.bridge(first, second, name="one")
    scene.bridge(third, name="two")
    expected = {number: {**FIGURES, "kv_active_blocks": number % 1000} for number in feeds}

    def are_read():
        for number, feed in feeds.items():
            feed.send(expected[number])
        return dynamo.scrape(bus.request_many(dynamo.STATS, enough=2)) == expected

    wait_for("all are in one scrape", are_read)
    for answer in map(json.loads, bus.request_many(dynamo.STATS, enough=2)):
        for endpoint in answer["endpoints"]:
            data = endpoint["data"]
            assert "spec_decode_stats" in data, "which Dynamo 0.3 to 0.5 requires"
            number = int(endpoint["subject"].rsplit("-", 1)[1], 16)
            assert {key: data[key] for key in FIGURES} == expected[number], "flat, as Dynamo 0.2 reads them"
            assert all(isinstance(data[key], float) for key in dynamo.SHARES), "with a point, also when it is whole"
    wait_for("nobody has load any more", lambda: dynamo.scrape(bus.request_many(dynamo.STATS, enough=2)) == {})
