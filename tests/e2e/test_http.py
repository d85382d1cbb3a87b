"""Does the aggregator answer questions over HTTP and NATS alike, and refuse bad ones
with the status codes of Dynamo's stand-alone indexer and a sentence?"""

import json

import pytest

import contract
import engine
import programs
from conftest import ROUTER, shared_scene, worker
from programs import wait_for

BLOCK = 16
PROMPT = list(range(100, 100 + 6 * BLOCK))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """An aggregator that lists four blocks of PROMPT at worker 1, two at worker 2."""
    with shared_scene(tmp_path_factory) as scene:
        one, two = scene.engine(), scene.engine()
        aggregator = scene.aggregator()
        scene.bridge(worker(one, 1), worker(two, 2))
        one.publish(engine.batch(engine.stored([1, 2, 3, 4], PROMPT[: 4 * BLOCK], BLOCK)))
        two.publish(engine.batch(engine.stored([1, 2], PROMPT[: 2 * BLOCK], BLOCK)))
        wait_for("six blocks are listed", lambda: len(aggregator.rows()) == 6)
        wait_for("both are in sync", lambda: aggregator.is_exact(2))
        aggregator.scene = scene
        yield aggregator


def post(aggregator, path, body):
    status, text = aggregator.http("POST", path, body)
    return status, text


@pytest.mark.first
def test_query_has_the_shape_of_dynamos_indexer(asked):
    status, text = post(asked, "/query", {"token_ids": PROMPT, "model_name": "m"})
    assert status == 200, text
    answer = json.loads(text)
    assert answer["scores"] == {"1": {"0": 64}, "2": {"0": 32}}
    assert answer["instances"]["1"]["longest_matched"] == 64
    assert answer["instances"]["1"]["gpu"] == 64
    assert answer["instances"]["1"]["dp"] == {"0": 64}


def test_query_by_hash_takes_u64_i64_and_strings(asked):
    own = [row[1] for row in contract.prompt_hashes(PROMPT, BLOCK)]
    signed = [h - (1 << 64) if h >> 63 else h for h in own]
    for hashes in (own, signed, [str(h) for h in own]):
        status, text = post(asked, "/query_by_hash", {"block_hashes": hashes, "model_name": "m"})
        assert status == 200, text
        assert json.loads(text)["scores"] == {"1": {"0": 64}, "2": {"0": 32}}


@pytest.mark.first
def test_match_over_nats_is_best_first(asked):
    answer = json.loads(asked.scene.bus().request(f"{ROUTER}.kv_match", json.dumps({"token_ids": PROMPT}).encode()))
    assert answer["block_size"] == BLOCK and answer["blocks"] == 6
    assert [(w["worker_id"], w["dp_rank"], w["blocks"], w["state"]) for w in answer["workers"]] == [
        (1, 0, 4, "EXACT"), (2, 0, 2, "EXACT"),
    ]


def test_long_prompts_over_nats_are_answered_as_short_ones(asked):
    bus, long = asked.scene.bus(), PROMPT + list(range(50_000))
    for query, blocks in ((PROMPT, 6), (long, len(long) // BLOCK), (long[1:], len(long[1:]) // BLOCK)):
        answer = json.loads(bus.request(f"{ROUTER}.kv_match", json.dumps({"token_ids": query}).encode()))
        held = [] if query[0] != PROMPT[0] else [(1, 4), (2, 2)]
        assert answer["blocks"] == blocks and [(w["worker_id"], w["blocks"]) for w in answer["workers"]] == held
    answer = json.loads(bus.request(f"{ROUTER}.kv_match", json.dumps({"token_ids": [*long, -1]}).encode()))
    assert f"token_ids[{len(long)}]" in answer["error"]


@pytest.mark.first
def test_route_goes_to_the_worker_that_holds_most(asked):
    bus = asked.scene.bus()
    hits = bus.watch(f"{ROUTER}.kv-hit-rate")
    answer = json.loads(bus.request(f"{ROUTER}.kv_route", json.dumps({"token_ids": PROMPT}).encode()))
    assert (answer["worker_id"], answer["overlap_blocks"], answer["policy"]) == (1, 4, "kv")
    assert {s["worker_id"] for s in answer["scores"]} == {1, 2}
    wait_for("the decision is published", lambda: len(hits) == 1)
    event = json.loads(hits[0].data)
    assert (event["worker_id"], event["isl_tokens"], event["hit_tokens"]) == (1, 96, 64)
    assert (event["isl_blocks"], event["overlap_blocks"]) == (6, 4)
    status, text = post(asked, "/route", {"token_ids": PROMPT, "model": "m"})
    assert status == 200 and json.loads(text)["worker_id"] in (1, 2), text


BAD = {
    "not-json": ("/query", b"x", 400, ""),
    "open-object": ("/query", b"{", 400, ""),
    "unknown-model": ("/query", {"token_ids": [1], "model_name": "zz"}, 404, "zz"),
    "no-tokens": ("/query", {"model_name": "m"}, 422, "token_ids"),
    "negative-token": ("/query", {"token_ids": [1, -1], "model_name": "m"}, 422, "token_ids[1]"),
    "token-above-u32": ("/query", {"token_ids": [1 << 32], "model_name": "m"}, 422, "token_ids[0]"),
    "token-is-text": ("/query", {"token_ids": ["1"], "model_name": "m"}, 422, "token_ids[0]"),
    "token-is-a-fraction": ("/query", {"token_ids": [1.5], "model_name": "m"}, 422, "token_ids[0]"),
    "tokens-no-list": ("/query", {"token_ids": 3, "model_name": "m"}, 422, "token_ids"),
    "model-no-text": ("/query", {"token_ids": [1], "model_name": 3}, 422, "model"),
    "hash-is-a-fraction": ("/query_by_hash", {"block_hashes": [1.5], "model_name": "m"}, 422, "block_hashes[0]"),
    "no-hashes": ("/query_by_hash", {"block_hash": [1], "model_name": "m"}, 422, "block_hashes"),
    "route-not-json": ("/route", b"x", 400, ""),
    "deep": ("/query", b"[" * 100_000, 413, "levels"),
}


@pytest.mark.first
@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_a_bad_query_is_refused_with_a_reason(asked, case):
    path, body, expected, word = case
    status, text = post(asked, path, body)
    assert status == expected, text
    assert word in text and len(text.strip()) > 10 and text.count("\n") <= 1, text
    assert post(asked, "/query", {"token_ids": PROMPT, "model_name": "m"})[0] == 200


def test_status_codes_of_the_surface(asked):
    for path in ("/health", "/livez", "/readyz", "/workers", "/dump", "/load", "/metrics"):
        assert asked.http("GET", path)[0] == 200, path
    assert [asked.http("GET", "/query")[0], asked.http("GET", "/nope")[0], asked.http("POST", "/livez", b"{}")[0]] == [405, 404, 405]
    assert asked.http("POST", "/query", b"{}", {"Content-Type": "text/plain"})[0] == 415


@pytest.mark.first
def test_kvctl_shows_what_the_aggregator_knows(asked):
    kvctl = asked.scene.kvctl
    done = kvctl("--json", "match", "--tokens", ",".join(map(str, PROMPT)))
    assert done.returncode == 0, done.stderr
    assert [w["worker_id"] for w in json.loads(done.stdout)["workers"]] == [1, 2]
    for command in (["state"], ["load"], ["dump"], ["match", "--tokens", "1,2,3"]):
        done = kvctl(*command)
        assert done.returncode == 0 and done.stdout.strip(), (command, done)
    done = kvctl("match", "--blocks", "--tokens", ",".join(map(str, [*PROMPT, *range(16)])))
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.rsplit("\n\n", 1)[1].splitlines()]
    assert table[0][:2] == ["BLOCKS", "TOKENS"] and table[-1][2:] == ["nobody"], table
    held = [int(row[0].split("-")[1]) - int(row[0].split("-")[0]) + 1 for row in table[1:]]
    assert sum(held) == len(PROMPT) // 16 + 1 and table[1][2:] == ["1/0", "2/0"], table
    done = kvctl("explain")
    assert done.returncode == 64 and "explain is gone: use match --blocks" in done.stderr, done
    done = kvctl("match", "--tokens", "1,x")
    assert done.returncode != 0 and "x" in done.stderr and not done.stdout, done
    done = kvctl("match", "--tokens-file", "/")
    assert done.returncode == 64 and "directory" in done.stderr and not done.stdout, done


@pytest.mark.first
def test_a_worker_that_is_down_is_named_instead_of_an_empty_answer(scene):
    aggregator, vllm = scene.aggregator(), scene.engine()
    bridge = scene.bridge(worker(vllm))
    vllm.publish(engine.batch(engine.stored([1, 2], PROMPT[: 2 * BLOCK], BLOCK)))
    wait_for("it is in sync", lambda: aggregator.is_exact(1))
    body = {"token_ids": PROMPT, "model_name": "m"}
    assert "down" not in json.loads(post(aggregator, "/query", body)[1])
    bridge.stop()
    wait_for("it is down", lambda: [state for state, _ in aggregator.states()] == ["DOWN"])
    status, text = post(aggregator, "/query", body)
    (down,) = json.loads(text)["down"]
    assert (status, json.loads(text)["scores"]) == (200, {})
    assert (down["worker_id"], down["dp_rank"], down["state"], down["reason"]) == (7, 0, "DOWN", "bridge_stopped")
    status, text = post(aggregator, "/route", body)
    assert status == 503 and json.loads(text)["error"] == "no worker of the model is up", text
    done = scene.kvctl("match", "--tokens", ",".join(map(str, PROMPT)))
    assert done.returncode == 0 and "no worker is up" in done.stdout and "bridge_stopped" in done.stdout, done


def test_kvctl_names_the_remedy_without_a_server():
    done = programs.run("kvctl", "--nats", f"nats://127.0.0.1:{programs.free_port()}", "state")
    assert done.returncode != 0 and "nats" in done.stderr.lower() and not done.stdout, done


def test_tls_in_the_url_is_never_spoken_in_clear(scene):
    """The nats-server of the scene does not support TLS."""
    url = scene.nats_url.replace("nats://", "tls://me:secret@")
    done = programs.run("kvctl", "--nats", url, "state")
    assert done.returncode == 1 and "does not answer" in done.stderr, done
    assert "secret" not in done.stderr, done
