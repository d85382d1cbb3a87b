"""Several aggregators on one nats-server: which of them answers a request?  test_all_doors.py kills, stops and starts them."""

import json
import re
import urllib.request

import nats.errors
import pytest

import engine
import programs
from conftest import ROUTER, worker
from programs import wait_for

BLOCK, BLOCKS, WORKERS = 16, 8, 4


def prompt(number):
    return [10000 * number + token for token in range(BLOCK * BLOCKS)]


def id_of(aggregator):
    return wait_for("the log names its id", lambda: re.search(r"answers requests id=(\w{32})", aggregator.text()))[1]


def is_member(aggregator):
    return aggregator.metric("kvb_queue_group_member") == 1


def test_an_unready_aggregator_gets_no_group_requests_but_answers_direct_ones(scene):
    """A worker without a replay endpoint stays UNVERIFIED."""
    one = scene.engine()
    scene.bridge(worker(one, 1, replay=False))
    one.publish(engine.batch(engine.stored([1], prompt(1)[:BLOCK], BLOCK)))
    any_share = scene.aggregator("any")
    picky = scene.aggregator("picky", wait=False, router="ready_exact = 0.5;")
    why = "0 of 1 streams are EXACT; router.ready_exact requires a share of 0.5"
    wait_for("/readyz says why", lambda: why in picky.http("GET", "/readyz")[1])
    assert picky.http("GET", "/readyz")[0] == 503
    wait_for("it has the list", lambda: [row["blocks"]["device"] for row in picky.get("/streams")["streams"]] == [1])
    bus = scene.bus()
    body = json.dumps({"token_ids": prompt(1)[:BLOCK]}).encode()
    answers = [json.loads(bus.request(f"{ROUTER}.kv_match", body)) for _ in range(50)]
    assert {answer["aggregator"] for answer in answers} == {id_of(any_share)}
    own = id_of(picky)
    for subject, key in [("kv_match", "workers"), ("kv_route", "scores"), ("kv_get.streams", "streams")]:
        answer = json.loads(bus.request(f"{ROUTER}.{subject}.{own}", body if key != "streams" else b""))
        assert answer["aggregator"] == own and len(answer[key]) == 1
    assert picky.metric("kvb_questions_total", kind="kv_match") == 1
    assert picky.metric("kvb_queue_group_joins_total") == 0
    infos = [json.loads(text) for text in bus.request_many("$SRV.INFO.kvaggregator", enough=2)]
    assert {info["id"] for info in infos} == {own, id_of(any_share)}
    assert {point["queue_group"] for info in infos for point in info["endpoints"]} == {"q"}


def test_a_member_joins_with_the_share_of_exact_streams_and_stays(scene):
    one = scene.engine()
    bridge = scene.bridge(worker(one, 1))
    one.publish(engine.batch(engine.stored([1], prompt(1)[:BLOCK], BLOCK)))
    one.publish(b"not msgpack")  # POISON: PARTIAL
    wait_for("PARTIAL", lambda: bridge.get("/state")["streams"][0]["state"] == "PARTIAL")
    aggregator = scene.aggregator(router="ready_exact = 1.0;", wait=False)
    wait_for("too small a share", lambda: "0 of 1 streams" in aggregator.http("GET", "/readyz")[1])
    assert not is_member(aggregator)
    one.restart()
    one.publish(engine.batch(engine.stored([1], prompt(1)[:BLOCK], BLOCK)))
    wait_for("a member", lambda: is_member(aggregator))
    one.publish(b"not msgpack")
    wait_for("PARTIAL again", lambda: aggregator.states()[0][0] == "PARTIAL")
    turns = aggregator.metric("kvb_turns_total")
    wait_for("it has been counted", lambda: aggregator.metric("kvb_turns_total") > turns + 3)
    assert is_member(aggregator) and aggregator.is_ready()


def test_an_unknown_id_is_answered_by_nobody_at_once(scene):
    scene.aggregator()
    bus = scene.bus()
    with pytest.raises(nats.errors.NoRespondersError):  # not TimeoutError
        bus.request(f"{ROUTER}.kv_match.{'0' * 32}", b"{}", timeout=60)


@pytest.mark.first
def test_without_a_group_every_aggregator_answers(scene):
    aggregators = [scene.aggregator(f"kvaggregator{number}", router='queue_group = "";') for number in range(2)]
    bus = scene.bus()
    answers = bus.request_many(f"{ROUTER}.kv_get.streams", enough=2)
    assert {json.loads(text)["aggregator"] for text in answers} == {id_of(one) for one in aggregators}
    info = json.loads(bus.request_many("$SRV.INFO.kvaggregator", enough=2)[0])
    assert {point["queue_group"] for point in info["endpoints"]} == {""}


@pytest.mark.no_nats
def test_kvctl_asks_a_second_time_only_where_nobody_answers(scene):
    config = scene.folder / "nats.conf"
    port = programs.free_port()
    config.write_text(f'http: "127.0.0.1:{port}"\n')
    scene.start_nats(config=config)

    def received():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz", timeout=programs.DEADLINE_S) as page:
            return json.load(page)["in_msgs"]

    def kvctl():
        before = received()
        done = scene.kvctl("--timeout", "1000", "load")
        return done, received() - before

    done, requests = kvctl()
    assert done.returncode == 1 and "asked twice" in done.stderr and requests == 2
    silent = scene.bus()
    silent.watch(f"{ROUTER}.kv_get.load")
    done, requests = kvctl()
    assert done.returncode == 1 and "no answer" in done.stderr and requests == 1
