"""Several aggregators on one nats-server: is each request answered by one of them that is ready,
while others crash, stop or start?"""

import json
import os
import re
import signal
import subprocess
import time
import urllib.request

import nats.errors
import pytest

import engine
import programs
from conftest import ROUTER, worker
from programs import wait_for
from requester import Requester

BLOCK, BLOCKS, WORKERS = 16, 8, 4
TURNS = int(os.environ.get("KVB_GROUP_TURNS", "3"))
RATE = int(os.environ.get("KVB_GROUP_RATE", "600"))
SECONDS = float(os.environ.get("KVB_GROUP_SECONDS", "0"))  # each step of the test lasts at least this long
SAMPLE = 2000  # number of answers of each set of aggregators: shares then deviate by 3 to 4 %
HELD = 20  # a killed aggregator must have at least this many requests
NOTICE_S = 0.05  # time until nats-server notices that a process has ended


def prompt(number):
    return [10000 * number + token for token in range(BLOCK * BLOCKS)]


@pytest.fixture
def fleet(scene):
    """Workers 1 to 4, each of which holds a prompt of its own."""
    engines = [scene.engine() for _ in range(WORKERS)]
    scene.bridge(*(worker(one, number + 1) for number, one in enumerate(engines)))
    for number, one in enumerate(engines):
        hashes = [1000 * (number + 1) + block for block in range(BLOCKS)]
        one.publish(engine.batch(engine.stored(hashes, prompt(number + 1), BLOCK)))
    return scene


def is_complete(aggregator):
    streams = aggregator.get("/streams")["streams"]
    return [(s["state"], s["blocks"]["device"]) for s in streams] == [("EXACT", BLOCKS)] * WORKERS


def id_of(aggregator):
    return wait_for("the log names its id", lambda: re.search(r"answers requests id=(\w{32})", aggregator.text()))[1]


def is_member(aggregator):
    return aggregator.metric("kvb_queue_group_member") == 1


def ask(number):
    """Whole prompts of one worker, and prefixes of them: (subject, body, the right answer)."""
    holder, held = number % WORKERS + 1, number // WORKERS % BLOCKS + 1
    kind = "kv_route" if number % 2 else "kv_match"
    body = json.dumps({"token_ids": prompt(holder)[:held * BLOCK]}).encode()
    return f"{ROUTER}.{kind}", body, (kind, holder, held)


def judge(truth, answer):
    kind, holder, held = truth
    if kind == "kv_match":
        said = [(one["worker_id"], one["blocks"]) for one in answer.get("workers", [])]
        return None if said == [(holder, held)] else f"expected worker {holder} with {held} blocks"
    said = {one["worker_id"]: one["overlap_blocks"] for one in answer.get("scores", [])}
    true = {one: held if one == holder else 0 for one in range(1, WORKERS + 1)}
    if said != true:
        return f"expected the overlaps {true}"
    return None if answer["overlap_blocks"] == true[answer["worker_id"]] else "another overlap than in its scores"


def end(requester, victim, number):
    """Kills it; returns the requests that it may have had."""
    if number == signal.SIGKILL:  # an answer takes less than a millisecond, so it is frozen first
        victim.process.send_signal(signal.SIGSTOP)
        wait_for("the frozen aggregator has requests", lambda: len(requester.waiting()) >= HELD)
    before, begin = requester.waiting(), time.monotonic()
    victim.process.send_signal(number)
    victim.process.wait(10 * programs.PATIENCE)
    noticed = time.monotonic() + NOTICE_S
    wait_for("a request was sent after that", lambda: requester.sent_after(noticed))
    return before | requester.sent_after(begin) - requester.sent_after(noticed)


def is_spread(shares, members):
    mean = sum(shares.values()) / len(members)
    return set(shares) == set(members) and all(abs(count - mean) <= 0.2 * mean for count in shares.values())


def test_requests_survive_aggregators(fleet):
    group = [fleet.aggregator(f"kvaggregator{number}") for number in range(3)]
    for one in group:
        wait_for("the new aggregator has all lists", lambda a=one: is_complete(a))
    requester = Requester(fleet.nats_port, RATE, ask, judge)
    in_flight, rows, known = set(), [], {id_of(one) for one in group}
    try:
        for turn in range(TURNS):
            begin, members = requester.count(), [id_of(one) for one in group]
            until = time.monotonic() + SECONDS
            wait_for("a sample of answers",
                     lambda b=begin, u=until: requester.count() >= b + SAMPLE and time.monotonic() >= u,
                     SECONDS + 60)
            shares = requester.shares(begin)
            assert is_spread(shares, members), (shares, members)
            victim, sign = group.pop(0), (signal.SIGKILL, signal.SIGTERM)[turn % 2]
            repeated = len(requester.repeated)
            taken = end(requester, victim, sign)
            in_flight |= taken
            new = fleet.aggregator(f"kvaggregator{turn + 3}")
            known.add(id_of(new))
            group.append(new)
            wait_for("the requests that were lost with it are answered", lambda t=taken: not t & requester.waiting())
            again = len(requester.repeated) - repeated
            rows.append((sign.name, len(taken), again, sorted(shares.values())))
            if sign == signal.SIGTERM:
                assert again == 0, (rows, "one that stops answers what it was given")
            else:
                assert 0 < again <= len(taken), rows
        requester.stop()
        wait_for("all are answered", lambda: not requester.waiting() or requester.lost)
    finally:
        requester.close()
    delays = sorted(requester.delays)
    print(f"{len(requester.done)} requests at {RATE}/s, p50 {delays[len(delays) // 2] * 1e3:.2f} ms, "
          f"p99 {delays[len(delays) * 99 // 100] * 1e3:.2f} ms")
    for row in rows:
        print("%s: %d in flight, %d repeated; answers by aggregator before: %s" % row)
    assert not requester.wrong, requester.wrong[:3]
    assert not requester.lost, requester.lost[:3]
    strange = [(one.number, why) for one, why in requester.repeated if one.number not in in_flight]
    assert not strange, strange
    assert set(requester.shares(0)) <= known


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


def test_a_restarted_server_has_the_group_again(scene):
    aggregators = [scene.aggregator(f"kvaggregator{number}") for number in range(2)]
    nats = scene.started[0]
    nats.kill()
    wait_for("both have left", lambda: not any(is_member(one) for one in aggregators))
    scene.start_nats(port=scene.nats_port)
    wait_for("both are back", lambda: all(is_member(one) for one in aggregators))
    bus = scene.bus()
    names = {json.loads(bus.request(f"{ROUTER}.kv_get.streams", b""))["aggregator"] for _ in range(50)}
    assert names == {id_of(one) for one in aggregators}
    assert all(one.metric("kvb_queue_group_joins_total") == 2 for one in aggregators)


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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz", timeout=5) as page:
            return json.load(page)["in_msgs"]

    def kvctl():
        before = received()
        done = subprocess.run(
            [programs.BIN / "kvctl", "--nats", scene.nats_url, "--timeout", "1000", "load"],
            capture_output=True, text=True, timeout=60, check=False)
        return done, received() - before

    done, requests = kvctl()
    assert done.returncode == 1 and "asked twice" in done.stderr and requests == 2
    silent = scene.bus()
    silent.watch(f"{ROUTER}.kv_get.load")
    done, requests = kvctl()
    assert done.returncode == 1 and "no answer" in done.stderr and requests == 1
