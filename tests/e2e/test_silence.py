"""Does a stream from whose engine nothing comes say why: in /state, /streams and `kvctl workers`, with one line in the log
that names the address at fault?"""

import json


import engine
import pytest
from conftest import worker
from programs import free_port, run, wait_for
from web import Web

TOKENS = 16 * 16  # fill 16 blocks


def block(number):
    return engine.batch(engine.stored([number], range(number * 16, number * 16 + 16), 16))


class Seen:
    """What the bridge and the aggregator say of the workers, by id."""

    def __init__(self, scene, *workers):
        self.bridge = scene.bridge(*workers)
        self.aggregator = scene.aggregator()
        self.url = scene.nats_url

    def row(self, worker_id):
        return next(s for s in self.bridge.get("/state")["streams"] if s["worker_id"] == worker_id)

    def is_said(self, worker_id, state, reason, *words):
        """By all, with these words."""
        row = self.row(worker_id)
        followed = next((s for s in self.aggregator.get("/streams")["streams"] if s["worker_id"] == worker_id), {})
        return ((row["state"], row["reason"]) == (state, reason) and all(word in row.get("why", "") for word in words) and
                (followed.get("state"), followed.get("reason")) == (state, reason))

    def lines(self, *words):
        return [line for line in self.bridge.text().splitlines()
                if "do not arrive" in line and all(word in line for word in words)]


def page(caching, queries, hits):
    return (f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{caching}",engine="0",num_gpu_blocks="1001"}} 1.0\n'
            'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0\n'
            f'vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}\n'
            f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}\n')


@pytest.mark.first
def test_each_cause_of_silence_has_its_own_reason(scene):
    idle, off, unfed, topic = (scene.engine(repeats=False) for _ in range(4))
    dumb = scene.engine(repeats=False)
    web = Web()
    web.pages = {"/off": page("False", 5000, 0), "/unfed": page("True", 5000, 0)}

    def with_page(path):
        return f'load = {{ prometheus = "{web.url(path)}"; scrape_ms = 200; }};'

    nobody = f"tcp://127.0.0.1:{free_port()}"
    seen = Seen(
        scene, worker(idle, 1), worker(off, 2, more=with_page("/off")), worker(unfed, 3, more=with_page("/unfed")),
        worker(topic, 4, more='topic = "kv_events";'), worker(dumb, 5, replay=False),
        f'id = 6; model = "m"; block_size = 16; events = "{nobody}";',
        f'id = 7; model = "m"; block_size = 16; events = "tcp://127.0.0.1:{free_port()}"; bind = true;')

    def work():
        """The engines that work and are not read."""
        web.pages["/unfed"] = page("True", 5000 + (seen.rounds + 1) * TOKENS, seen.rounds)
        seen.rounds += 1
        topic.publish(block(seen.rounds), buffered=False)
        dumb.send_raw(dumb.topic, block(seen.rounds))
        return True

    seen.rounds = 0
    expected = [
        (1, "UNVERIFIED", "no_base", idle.events, "idle"),
        (2, "UNVERIFIED", "caching_off", off.events, "prefix caching off"),
        (3, "UNVERIFIED", "not_fed", unfed.events),
        (4, "UNVERIFIED", "other_topic", topic.events, '"kv-events"', '"kv_events"'),
        (5, "UNVERIFIED", "no_number", dumb.events, "2 frames"),
        (6, "DOWN", "connecting", nobody, "without a * in its endpoint the engine connects"),
        (7, "DOWN", "connecting", "bind must be false"),
    ]
    for row in expected:
        wait_for(f"worker {row[0]} is {row[2]}", lambda r=row: work() and seen.is_said(*r))
    for row in expected[1:]:
        words = [word.replace('"', '\\"') for word in row[3:]]
        assert len(seen.lines(f"worker={row[0]}", *words)) == 1, seen.lines()
    assert not seen.lines("worker=1"), "idle is no fault"
    answer = run("kvctl", "--nats", seen.url, "--json", "workers")
    said = {row["worker_id"]: row.get("why", "") for row in json.loads(answer.stdout)["workers"]}
    assert all(row[3] in said[row[0]] for row in expected), said

    for one, number in ((idle, 900), (off, 901), (unfed, 902)):  # whatever was wrong: a live batch ends it
        one.publish(block(number))
    topic.topic = b"kv_events"
    topic.publish(block(903))
    dumb.publish(block(904))
    wait_for("of the other topic batches are missing", lambda: seen.is_said(4, "PARTIAL", "gone"))
    for number in (1, 2, 3):
        wait_for(f"worker {number} is EXACT", lambda n=number: seen.is_said(n, "EXACT", ""))
        assert "why" not in seen.row(number)
    wait_for("numbered batches are read", lambda: seen.is_said(5, "UNVERIFIED", "no_replay"))
