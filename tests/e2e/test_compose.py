"""Do the stacks of containers start, answer, and recover from faults?  docker-compose.yml, with protobuf, and with three
nats-servers and a second site; a reader outside, which reads NATS as a Dynamo router does, must have the same lists.

Not part of a plain run: `-m compose`. It builds the image from this checkout, and keeps it and the base images
(compose/images.sh)."""

import contextlib
import http.client
import json
import subprocess
import zlib

import pytest

from compose import ask
from compose.outside import Outside
from compose.stack import TREE, Stack, compose_command
from programs import wait_for

pytestmark = [pytest.mark.compose, pytest.mark.no_nats]


@pytest.fixture(scope="module")
def image():
    if not compose_command():
        pytest.skip("no Docker engine with compose answers")
    # The tag differs between checkouts, so that two of them can be tested at once.
    name = f"kvbridge:test-{zlib.crc32(str(TREE).encode())}"
    images = subprocess.run([TREE / "tests/e2e/compose/images.sh"], capture_output=True, text=True, timeout=1800)
    assert images.returncode == 0, images.stderr
    stack = Stack(name)
    stack.compose("build", "kvaggregator", seconds=1800)
    return name


@contextlib.contextmanager
def stack_of(image, *files, **options):
    stack = Stack(image, *files, **options)
    try:
        yield stack
    except BaseException:
        print(stack.logs())
        raise
    finally:
        stack.close()


def ranks_of(stack, own_ids):
    """What the engines hold, from now on until resume()."""
    rows = [row for fleet in ("engines", "engines2") for row in stack.truth(fleet, "drain", "truth")]
    return [ask.Rank(row, own_ids) for row in rows if "blocks" in row]


def resume(stack):
    for fleet in ("engines", "engines2"):
        stack.truth(fleet, "resume")


def compare_lists(stack, *aggregators, own_ids=False, outside=None):
    """All lists become EXACT and what the engines hold; returns the prompt that was asked for."""
    ranks = ranks_of(stack, own_ids)
    prompt = ask.best_prompt(ranks)
    for aggregator in aggregators or ["kvaggregator"]:
        address = f"127.0.0.1:{stack.port(aggregator, 9402)}"
        wait_for(f"{aggregator} lists what the engines hold", lambda: ask.check_exact(address, ranks, prompt))
    if outside:
        outside.check(ranks)
    resume(stack)
    return prompt, len(ranks)


def is_ready(stack, bridge):
    done = subprocess.run(
        ["docker", "exec", stack.ids[bridge], "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:9401/readyz"],
        capture_output=True, timeout=60)
    return done.returncode == 0


def test_a_stack_survives_its_faults(image):
    with stack_of(image) as stack:
        stack.up("nats")
        outside = Outside(f"nats://127.0.0.1:{stack.port('nats', 4222)}")
        try:
            stack.up()
            stack.check_locks()
            compare_lists(stack, own_ids=True, outside=outside)

            pid = stack.kill("kvbridge")
            stack.wait_until_restarted("kvbridge", pid)
            prompt, streams = compare_lists(stack, own_ids=True, outside=outside)

            subprocess.run(["docker", "pause", stack.ids["nats"]], check=True, capture_output=True)
            # A bridge that has not noticed would publish nothing again afterwards.
            wait_for("the bridges miss NATS", lambda: not is_ready(stack, "kvbridge") and not is_ready(stack, "kvbridge2"))
            address = f"127.0.0.1:{stack.port('kvaggregator', 9402)}"
            wait_for("the answers say STALE", lambda: ask.check_stale(address, streams, prompt))
            subprocess.run(["docker", "unpause", stack.ids["nats"]], check=True, capture_output=True)
            stack.wait_for_health()
            compare_lists(stack, own_ids=True, outside=outside)
        finally:
            outside.close()


def test_the_same_with_protobuf(image):
    with stack_of(image, "etc/compose/protobuf.yml") as stack:
        stack.up()
        compare_lists(stack)


def test_one_of_three_servers_is_killed(image):
    """A server that clients and the leaf node may use."""
    more = ["nats2", "nats3", "leaf", "kvaggregator2"]
    with stack_of(image, "etc/compose/cluster.yml", services=more) as stack:
        stack.up()
        compare_lists(stack, "kvaggregator", "kvaggregator2")
        pid = stack.kill("nats2")
        compare_lists(stack, "kvaggregator", "kvaggregator2")
        stack.wait_until_restarted("nats2", pid)


def chat(prompt):
    return {"model": "fleet", "messages": [{"role": "user", "content": prompt}]}


def complete(port, prompt):
    """(tokens that were cached, of all) of a chat through Envoy."""
    body = {**chat(prompt), "max_tokens": 4}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, (answer.status, text)
    usage = json.loads(text)["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def test_a_gateway_sends_a_chat_where_it_is_held(image):
    """Envoy asks kvaggregator, which asks an engine for the tokens.  Without the picker, Envoy goes on."""
    with stack_of(image, "etc/compose/gateway.yml", services=["envoy"]) as stack:
        stack.up()
        port, address = stack.port("envoy", 8080), f"127.0.0.1:{stack.port('kvaggregator', 9402)}"

        def is_listed(prompt):
            return max(ask.listed_of(ask.call(address, "/query", chat(prompt))).values(), default=0) >= 384

        def wait_for_loads():
            """Three of each rank: a report that was taken while the chat ran weighs as much as the hit that it left."""
            loads = lambda: ask.metric(address, 'kvb_messages_received_total{kind="load_metrics"}')
            enough = loads() + 3 * 16
            wait_for("all engines have said that they are idle", lambda: loads() >= enough)

        by = lambda how: ask.metric(address, f'kvb_gateway_requests_total{{by="{how}"}}')
        hits = []
        for letter in "abcdefgh":  # eight prompts for eight engines
            prompt = letter * 400
            complete(port, prompt)
            wait_for("the chat's blocks are listed", lambda: is_listed(prompt))
            wait_for("it has ended", lambda: ask.metric(address, "kvb_requests_in_flight") == 0)
            wait_for_loads()
            cached, tokens = complete(port, prompt)
            hits.append(cached == (tokens - 1) // 16 * 16)
        assert all(hits), hits
        assert by("tokenize") + by("text") + by("prefix") >= 16 and by("none") == 0

        stack.compose("stop", "kvaggregator")
        wait_for("Envoy goes on without a picker", lambda: complete(port, "z" * 400)[1] > 0)
