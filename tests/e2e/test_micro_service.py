"""Do both daemons speak the NATS micro-service protocol, as nats-py defines it, and as a service
made with nats-py does?"""

import json

import nats.micro
import pytest
from nats.micro.service import NAME_REGEX, SEMVER_REGEX, ServiceInfo, ServicePing, ServiceStats

import engine
from conftest import ROUTER, shared_scene, worker
from programs import wait_for

BRIDGE, AGGREGATOR = "dynamo_vllmworker", "kvaggregator"
READ = {"PING": ServicePing, "INFO": ServiceInfo, "STATS": ServiceStats}
TYPES = {verb: f"io.nats.micro.v1.{verb.lower()}_response" for verb in READ}
QUESTIONS = ["kv_match", "kv_route", "kv_get_state", "kv_get_load", "kv_get_streams", "kv_get_dump"]
PROMPT = list(range(48))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A bridge, an aggregator, and a service of nats-py on one server."""
    with shared_scene(tmp_path_factory) as scene:
        scene.one = scene.engine()
        scene.the_bridge = scene.bridge(worker(scene.one, 10))
        scene.the_aggregator = scene.aggregator()
        scene.the_bus = scene.bus()
        scene.foreign = scene.the_bus._wait(
            nats.micro.add_service(scene.the_bus.client, name="foreign", version="1.2.3", description="d")
        )

        async def say_yes(request):
            await request.respond(b"yes")

        scene.the_bus._wait(scene.foreign.add_endpoint(name="ask", handler=say_yes))
        scene.the_bus.request("ask", b"")
        yield scene


def ask(scene, subject, enough=1, payload=b""):
    return [json.loads(text) for text in scene.the_bus.request_many(subject, payload, enough)]


# ---- who answers -------------------------------------------------------------


@pytest.mark.parametrize("verb", READ)
def test_all_services_answer_requests_to_all(asked, verb):
    answers = ask(asked, f"$SRV.{verb}", enough=3)
    assert sorted(answer["name"] for answer in answers) == sorted([BRIDGE, AGGREGATOR, "foreign"])
    assert {answer["type"] for answer in answers} == {TYPES[verb]}


# ---- what they answer ----------------------------------------------------------


def shape(value):
    """The types of all values, recursively; of a list what its items have in common."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        assert all(one == shapes[0] for one in shapes), shapes
        return shapes[:1]
    return type(value).__name__


@pytest.mark.parametrize("verb", READ)
def test_keys_and_types_are_those_of_a_service_of_nats_py(asked, verb):
    """Compared on one server. Our answers have more in `metadata`; an endpoint of nats-py without
    metadata has null, where the protocol requires an object."""
    answers = {answer["name"]: answer for answer in ask(asked, f"$SRV.{verb}", enough=3)}
    foreign = answers.pop("foreign")
    for answer in answers.values():
        for one in (answer, foreign):
            one.pop("metadata")
            for endpoint in one.get("endpoints", []):
                assert (endpoint.pop("metadata", None) or {}) == {}
        assert shape(answer) == shape(foreign)
        foreign["metadata"] = answer["metadata"] = {}


@pytest.mark.first
@pytest.mark.parametrize("verb", READ)
def test_nats_py_reads_the_answers(asked, verb):
    for answer in ask(asked, f"$SRV.{verb}", enough=3):
        read = READ[verb].from_dict(answer)
        assert NAME_REGEX.match(read.name) and SEMVER_REGEX.match(read.version)
        assert read.id == answer["id"] and read.type == TYPES[verb]
        assert all(isinstance(value, str) for value in read.metadata.values())
        assert read.to_dict() == answer


def test_info_lists_the_requests_of_the_aggregator(asked):
    (info,) = ask(asked, f"$SRV.INFO.{AGGREGATOR}")
    assert [endpoint["name"] for endpoint in info["endpoints"]] == QUESTIONS
    assert info["description"] and info["metadata"]["namespace"] == "dynamo"
    # every listed subject is answered
    for endpoint in info["endpoints"]:
        assert endpoint["subject"].startswith(ROUTER)
        assert json.loads(asked.the_bus.request(endpoint["subject"], b""))


def test_stats_count_requests_errors_and_time(asked):
    def stats(name):
        (answer,) = ask(asked, f"$SRV.STATS.{AGGREGATOR}")
        return next(endpoint for endpoint in answer["endpoints"] if endpoint["name"] == name)

    before = stats("kv_match")
    asked.one.publish(engine.batch(engine.stored([1, 2], PROMPT[:32], 16)))
    wait_for(
        "the question is answered",
        lambda: "workers" in json.loads(
            asked.the_bus.request(f"{ROUTER}.kv_match", json.dumps({"token_ids": PROMPT}).encode())
        ),
    )
    asked.the_bus.request(f"{ROUTER}.kv_match", b'{"token_ids":[-1]}')
    after = stats("kv_match")
    assert after["num_requests"] - before["num_requests"] >= 2
    assert after["num_errors"] > before["num_errors"]
    assert after["num_errors"] < after["num_requests"]
    assert "token_ids[0]" in after["last_error"]
    assert after["processing_time"] > before["processing_time"]
    assert after["average_processing_time"] == after["processing_time"] // after["num_requests"]
    dump = stats("kv_get_dump")
    asked.the_bus.request(f"{ROUTER}.kv_get.dump", b"")
    assert stats("kv_get_dump")["num_requests"] == dump["num_requests"] + 1
    assert stats("kv_get_dump")["num_errors"] == dump["num_errors"]


# ---- R.kv-hit-rate ------------------------------------------------------------------

FIVE = {"worker_id", "isl_tokens", "hit_tokens", "isl_blocks", "overlap_blocks"}


@pytest.mark.parametrize("alias", [False, True], ids=["own-subject", "alias"])
def test_each_route_decision_is_one_event(scene, alias):
    one = scene.engine()
    aggregator = scene.aggregator(router="hit_rate_alias = true;" if alias else "")
    scene.bridge(worker(one, 7))
    one.publish(engine.batch(engine.stored([1, 2], PROMPT[:32], 16)))
    bus = scene.bus()
    own, other = bus.watch(f"{ROUTER}.kv-hit-rate"), bus.watch("namespace.dynamo.kv-hit-rate")
    body = json.dumps({"token_ids": PROMPT}).encode()
    wait_for("the blocks are listed", lambda: len(aggregator.rows()) == 2)
    for number in range(1, 4):
        bus.request(f"{ROUTER}.kv_route", body)
        status, text = aggregator.http("POST", "/route", body)
        assert status == 200, text
        wait_for("both subjects have the events", lambda: len(own) >= 2 * number)
    bus.request(f"{ROUTER}.kv_route", b'{"token_ids":[-1]}')  # no decision, so no event
    assert aggregator.http("POST", "/route", b"{")[0] == 400
    bus.request(f"{ROUTER}.kv_match", body)
    bus.flush()
    assert [json.loads(message.data) for message in own] == 6 * [
        {"worker_id": 7, "isl_tokens": 48, "hit_tokens": 32, "isl_blocks": 3, "overlap_blocks": 2}
    ]
    assert set(json.loads(own[0].data)) == FIVE
    assert [message.data for message in other] == ([message.data for message in own] if alias else [])


@pytest.mark.parametrize("daemon", ["the_bridge", "the_aggregator"])
def test_requests_that_cannot_be_answered_are_counted(asked, daemon):
    daemon = getattr(asked, daemon)

    def refused(reason):
        return daemon.metric("kvb_service_refused_total", reason=reason)

    before = {reason: refused(reason) for reason in ("no_reply", "unknown_verb")}
    asked.the_bus.publish("$SRV.STATS", b"")
    asked.the_bus._wait(asked.the_bus.client.publish("$SRV.SCHEMA", b"", reply="nobody.waits"))
    wait_for("both are counted", lambda: all(refused(reason) == before[reason] + 1 for reason in before))
    answered = daemon.metric("kvb_service_requests_total", verb="ping")
    ask(asked, "$SRV.PING", enough=3)
    wait_for("the answer is counted", lambda: daemon.metric("kvb_service_requests_total", verb="ping") > answered)


def test_a_flood_is_dropped_above_its_budget(scene):
    """30,000 requests at once; the answers end at 16 MiB a second of 4 KiB each, and
    the daemon still answers when it is over."""
    bridge = scene.bridge(worker(scene.engine(), 1))
    bus = scene.bus()

    async def flood():
        for _ in range(30_000):
            await bus.client.publish("$SRV.PING", b"", reply="nobody.waits")
        await bus.client.flush()

    bus._wait(flood())

    def all_heard():
        answered = bridge.metric("kvb_service_requests_total")
        return answered + bridge.metric("kvb_service_refused_total") == 30_000 and answered

    answered = wait_for("all are answered or dropped", all_heard)
    assert bridge.metric("kvb_service_refused_total", reason="busy") > 0, answered
    assert len(bus.request_many(f"$SRV.PING.{BRIDGE}", enough=1)) == 1
    assert bridge.is_ready()
