"""Is a request answered that names a second served name or a LoRA adapter, as the engine would answer
it? The names come from the engine's /v1/models, and from its events where it has no such page."""

import json

import pytest

import engine
from conftest import PUBLISH, ROUTER, worker
from programs import wait_for
from test_discover import StockApi, discovered, vllm_says
from test_silent import page
from web import Web

BLOCK = 16
PROMPT = list(range(7000, 7000 + 3 * BLOCK))


def chain(first, blocks, adapter=None):
    """The first blocks of the prompt, with hashes from `first` on."""
    return engine.BlockStored(
        list(range(first, first + blocks)), None, PROMPT[:blocks * BLOCK], BLOCK, None, "GPU", adapter)


class Api(Web):
    """The HTTP server of one vLLM."""

    def __init__(self, scene):
        super().__init__()
        self.pages["/metrics"] = page()
        scene.engines.append(self)

    def serves(self, *names, adapters=()):
        self.pages["/v1/models"] = json.dumps(engine.model_list("/models/m", ["m", *names], adapters))

    def load(self):
        return f'load = {{ prometheus = "{self.url("/metrics")}"; }};'


def served(aggregator):
    return {row["worker_id"]: row.get("served_names") for row in aggregator.get("/streams")["streams"]}


class Doors:
    """The same request over HTTP and NATS."""

    def __init__(self, aggregator, bus):
        self.aggregator, self.bus = aggregator, bus

    def held(self, model, **more):
        """{worker: tokens}, which both doors must say."""
        body = {"model": model, "token_ids": PROMPT, **more}
        code, text = self.aggregator.http("POST", "/query", body)
        match = json.loads(self.bus.request(f"{ROUTER}.kv_match", json.dumps(body).encode()))
        if code == 422:  # a sentence, as Dynamo's
            assert text.endswith(match["error"])
        elif code != 200:
            assert match == json.loads(text)
        if code != 200:
            return code, match["error"]
        by_query = {int(number): ranks["0"] for number, ranks in json.loads(text)["scores"].items()}
        assert {row["worker_id"]: row["tokens"]["device"] for row in match["workers"]} == by_query
        return by_query

    def routed(self, model, **more):
        """(chosen worker, all that could have been)."""
        body = {"model": model, "token_ids": PROMPT, "dry_run": True, **more}
        code, text = self.aggregator.http("POST", "/route", body)
        over_nats = json.loads(self.bus.request(f"{ROUTER}.kv_route", json.dumps(body).encode()))
        if code != 200:
            assert over_nats == json.loads(text)
            return code, over_nats["error"]
        answers = [(one["worker_id"], sorted(row["worker_id"] for row in one["scores"]))
                   for one in (json.loads(text), over_nats)]
        assert answers[0] == answers[1]
        return answers[0]


@pytest.mark.first
@pytest.mark.sanitize
def test_names_of_engines_are_resolved_over_http_and_nats(scene):
    one, two, three = scene.engine(), scene.engine(), scene.engine()
    api, other = Api(scene), Api(scene)
    api.serves("chat", adapters=["sql-lora"])
    other.serves(adapters=["sql-lora", "en-lora"])
    aggregator, bus = scene.aggregator(), scene.bus()
    beats = bus.watch(f"{PUBLISH}.kv_heartbeat_json")
    bridge = scene.bridge(
        worker(one, 1, more=api.load()), worker(two, 2, more=other.load()), worker(three, 3), heartbeat_ms=100)
    one.publish(engine.batch(chain(1, 3)))
    two.publish(engine.batch(chain(1, 1), chain(11, 2, "sql-lora")))
    three.publish(engine.batch(chain(1, 1), chain(11, 1, "only-in-events"), chain(21, 1, "sql-lora")))
    wait_for("all are EXACT", lambda: aggregator.is_exact(3))
    wait_for("the lists are known", lambda: [served(aggregator).get(n, {}).get("listed") for n in (1, 2)] == [True] * 2)
    assert served(aggregator) == {
        1: {"names": ["chat"], "adapters": ["sql-lora"], "listed": True, "left_out": 0},
        2: {"names": [], "adapters": ["sql-lora", "en-lora"], "listed": True, "left_out": 0},
        3: {"names": [], "adapters": ["only-in-events", "sql-lora"], "listed": False, "left_out": 0},
    }
    wait_for("a heartbeat in JSON says it too", lambda: [
        beat for beat in (json.loads(m.data) for m in list(beats))
        if beat["worker_id"] == 1 and beat.get("served_names", {}).get("names") == ["chat"]])

    doors = Doors(aggregator, bus)
    assert doors.held("m") == {1: 48, 2: 16, 3: 16}
    # Worker 2 does not list the name, and would answer 404; nothing is known of worker 3.
    assert doors.held("chat") == {1: 48, 3: 16}
    assert doors.routed("chat") == (1, [1, 3])
    assert doors.held("sql-lora") == {2: 32, 3: 16} == doors.held("m", lora_name="sql-lora")
    assert doors.held("sql-lora", lora_name="sql-lora") == {2: 32, 3: 16}
    assert doors.routed("sql-lora") == (2, [1, 2, 3])
    assert doors.held("only-in-events") == {3: 16}
    assert doors.routed("only-in-events") == (3, [3])
    assert doors.held("en-lora") == {}
    assert doors.routed("en-lora")[1] == [2, 3]
    assert doors.routed("en-lora", candidates=[1])[0] in (404, 503)
    assert doors.held("sql_lora") == (404, "no indexer for model=sql_lora routing_group=default; known are: sql-lora, "
                                           "en-lora, m, chat, only-in-events")
    assert doors.held("sql-lora", lora_name="en-lora") == (
        422, 'lora_name: "en-lora", but model names the adapter "sql-lora": give one')

    # An adapter is loaded and another unloaded while the engines run.
    api.serves("chat", adapters=["new-lora"])
    wait_for("the list is read again", lambda: served(aggregator)[1]["adapters"] == ["new-lora"])
    assert doors.routed("sql-lora") == (2, [2, 3])
    assert doors.routed("new-lora")[1] == [1, 3]

    # An answer that is no list: then only what events have named is known.
    other.pages["/v1/models"] = '{"object":"list","data":[{"id":"a"},{"id":"b"}]}'
    wait_for("the events' names are left", lambda: served(aggregator)[2] == {
        "names": [], "adapters": ["sql-lora"], "listed": False, "left_out": 0})
    assert bridge.metric("kvb_model_lists_total", outcome="refused") >= 1
    assert bridge.metric("kvb_model_lists_total", outcome="ok") >= 3
    bridge.wait_until_it_says("its list of models has several base models, and none of them is m")
    assert doors.held("en-lora")[0] == 404

    # More names than a heartbeat carries: counted and said, and a worker with such a list may serve any.
    other.serves(adapters=[f"lora-{i}" for i in range(70)])
    wait_for("the long list is read", lambda: served(aggregator)[2]["listed"])
    assert len(served(aggregator)[2]["adapters"]) == 64
    assert served(aggregator)[2]["left_out"] >= 6
    wait_for("they are counted", lambda: bridge.metric("kvb_served_names_left_out") == 6)
    bridge.wait_until_it_says("6 names are left out")
    assert doors.routed("chat")[1] == [1, 2, 3]


def test_a_discovered_engine_is_asked_with_its_key(scene, tmp_path):
    one, api = scene.engine(), StockApi()
    scene.engines.append(api)
    api.pages["/kv_event_sources"] = vllm_says("1 rank, endpoint tcp://*:0, no replay, no topic", one)
    api.pages["/v1/models"] = engine.model_list("m", ["m"], ["sql-lora"])
    api.key = "sk-7"
    key_file = tmp_path / "key"
    key_file.write_text("sk-7\n")
    key_file.chmod(0o600)
    api.start()
    aggregator = scene.aggregator()
    bridge = scene.bridge(discovered(api, more=f'discover_token_file = "{key_file}";'), formats=["protobuf"])
    wait_for("its names are known", lambda: (served(aggregator).get(7) or {}).get("adapters") == ["sql-lora"])
    key_file.write_text("sk-old\n")
    wait_for("the list cannot be read", lambda: bridge.metric("kvb_model_lists_total", outcome="code") > 0)
    wait_for("nothing is known", lambda: served(aggregator)[7] is None)
    assert "sk-" not in bridge.text()
