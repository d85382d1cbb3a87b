"""Does each request that goes through Envoy reach the engine that holds its prompt, and are the hits those that the pick
promised, whatever the form of the prompt and the kind of gateway?"""

import functools
import json
import re

import pytest

import envoys
import gateway
import programs
from conftest import shared_scene
from programs import wait_for

pytestmark = pytest.mark.sanitize

KINDS = ["plain", "ai_gateway", "istio"]


class Fleet:
    """Simulated engines with caches, behind one Envoy of each kind."""

    def __init__(self, scene, kinds, workers=3):
        config = scene.folder / "workers"
        scene.start("kvfleet", [
            programs.BIN / "kvfleet", "--workers", workers, "--ranks", 1, "--model", "m", "--blocks", 16384, "--step-ms", 1,
            "--serve", 0, "--config-out", config])
        text = wait_for("kvfleet serves", lambda: config.exists() and config.read_text())
        self.endpoints = [url.removeprefix("http://") for url in re.findall(r'address = "(.*?)"', text)]
        # Without load reports, so that only requests in flight decide: a load report may be 100 ms old.
        scene.bridge(*re.findall(r"^  \{ (.*?)^  \}", re.sub(r"load = .*", "", text), re.S | re.M))
        picker = programs.free_port()
        self.aggregator = scene.aggregator(extra=(
            f'gateway = ( {{ listen = "127.0.0.1:{picker}"; deadline_ms = 60000; }} );\n'
            'tokenize = { networks = ("127.0.0.0/8"); };\n'))
        wait_for("the picker knows the engines", lambda: self.metric("endpoints") == workers)
        self.ports = {}
        if "plain" in kinds:
            self.ports |= envoys.start_plain(scene, self.endpoints, picker).ports
        if len(kinds) > 1:
            self.ports |= envoys.start(
                scene, {"ai_gateway": {"engines": "original_dst"}, "istio": {"retries": True}},
                [envoys.picker_cluster("picker", picker), envoys.original_dst("original_dst"),
                 envoys.override_host("pool", self.endpoints)], "envoy-others").ports

    def metric(self, name, **labels):
        return self.aggregator.metric("kvb_gateway_" + name, **labels)

    def send(self, kind, body, path=gateway.CHAT):
        """The cached tokens that the engine reports."""
        answer = gateway.send(self.ports[kind], {"model": "m", "max_tokens": 2, **body}, path=path)
        assert answer.status == 200, answer
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def held(self, tokens):
        """How many of these tokens a worker holds at most, as far as the aggregator knows."""
        answer = json.loads(self.aggregator.http("POST", "/query", {"model": "m", "token_ids": tokens})[1])
        return max((count for ranks in answer["scores"].values() for count in ranks.values()), default=0)

    def wait_until_held(self, text):
        tokens = list(text.encode())
        full = len(tokens) // gateway.BLOCK * gateway.BLOCK
        wait_for("the prompt is listed", lambda: self.held(tokens) >= full)

    def in_flight(self):
        return self.aggregator.metric("kvb_requests_in_flight")

    def audited(self, name):
        return self.aggregator.metric(f"kvb_audit_{name}_total")


@pytest.fixture(scope="module")
def first_fleet(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield Fleet(scene, ["plain"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield Fleet(scene, KINDS)


def conversation(fleet, kind, name, turns=10, size=100, first=0):
    """Each turn's hits: the chat grows by an answer and a question. first: so much longer is the first question."""
    texts, hits = [], []
    for turn in range(turns):
        texts.append(f"{name} asks in turn {turn}: " + chr(97 + turn) * (size if turn else size + first))
        hits.append(fleet.send(kind, gateway.chat(*texts)))
        fleet.wait_until_held("".join(texts))
        if kind == "plain":  # Envoy does not wait for the filter that watches: its end may come after the answer
            wait_for("it has ended", lambda: fleet.in_flight() == 0)
        texts.append(f"{name} is answered in turn {turn}: " + chr(65 + turn) * size)
    return texts, hits


@pytest.mark.first
def test_a_conversation_stays_where_its_prefix_is(first_fleet):
    texts, hits = conversation(first_fleet, "plain", "first")
    assert hits[0] == 0
    before = 0
    for turn, hit in enumerate(hits):
        # All of the turn before that fills blocks is in the cache.
        assert hit >= before // gateway.BLOCK * gateway.BLOCK, (turn, hits)
        before = len("".join(texts[:2 * turn + 1]))
    wait_for("what was promised was delivered", lambda: first_fleet.audited("requests") > 0)
    assert first_fleet.audited("delivered_tokens") == first_fleet.audited("promised_tokens")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_gateway(fleet, kind):
    asked = {way: fleet.metric("requests_total", by=way) for way in ("tokenize", "text", "prefix", "load")}
    # At least 3/4 of each later turn is there in the first, as with a system prompt.
    _, hits = conversation(fleet, kind, kind, first=20_000)
    assert hits == sorted(hits) and hits[-1] > 0, hits
    ways = {way: fleet.metric("requests_total", by=way) - count for way, count in asked.items()}
    assert ways == {"tokenize": 1, "text": 0, "prefix": 9, "load": 0}, ways


@pytest.mark.parametrize("kind, prompt, way", [
    ("plain", list(range(7_000, 7_064)), "tokens"),
    ("istio", [list(range(8_000, 8_064))], "tokens"),
    ("ai_gateway", "a text whose tokens are its bytes: " + "x" * 64, "tokenize"),
    ("plain", ["a list of one text: " + "y" * 64], "tokenize")], ids=["tokens", "lists", "text", "texts"])
def test_every_form_of_a_prompt(fleet, kind, prompt, way):
    first = prompt[0] if isinstance(prompt[0], (list, str)) and not isinstance(prompt, str) else prompt
    tokens = list(first.encode()) if isinstance(first, str) else first
    before = fleet.metric("requests_total", by=way)
    assert fleet.send(kind, {"prompt": prompt}, gateway.TEXT) == 0
    assert fleet.metric("requests_total", by=way) == before + 1
    full = len(tokens) // gateway.BLOCK * gateway.BLOCK
    wait_for("the prompt is listed", lambda: fleet.held(tokens) >= full)
    # The last token is always computed.
    assert fleet.send(kind, {"prompt": prompt}, gateway.TEXT) >= full - gateway.BLOCK


def test_a_thousand_requests_get_what_was_promised(fleet):
    """Conversations of all lengths, eight at a time, each turn when the one before is listed."""
    def whole(number):
        return conversation(fleet, KINDS[number % 3], f"mixed {number}", turns=1 + number % 25, size=20 + 7 * number % 50)[1]

    done = gateway.in_parallel([functools.partial(whole, number) for number in range(84)], workers=8)
    failed = [one for one in done if isinstance(one, Exception)]
    assert failed == []
    assert sum(map(len, done)) >= 1000
    wait_for("nothing is in flight", lambda: fleet.in_flight() == 0)
    assert fleet.audited("requests") > 100
    assert 0 < fleet.metric("pick_seconds_sum") < fleet.metric("pick_seconds_count") == fleet.metric("requests_total")
    assert fleet.audited("delivered_tokens") == fleet.audited("promised_tokens") > 0
