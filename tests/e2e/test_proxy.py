"""Does etc/examples/proxy.py send each completion to the worker that holds its prompt, pass the answer
on as it comes, and report when it begins and ends?"""

import dataclasses
import http.client
import json
import pathlib
import re
import signal
import sys
import urllib.request

import pytest

import programs
from conftest import shared_scene
from programs import wait_for
from test_fleet import say, verify

PROXY = pathlib.Path(__file__).resolve().parents[2] / "etc" / "examples" / "proxy.py"
DEAD = "http://127.0.0.1:1"  # nobody listens on it


class Fleet:
    """Simulated engines that serve completions; each step of 1 ms makes one token."""

    def __init__(self, scene, model, first_id, count, dead=()):
        """dead: workers, counted from 0, with a wrong address in the configuration."""
        self.truth, config = scene.folder / f"truth-{model}", scene.folder / f"workers-{model}"
        self.program = scene.start(f"kvfleet-{model}", [
            programs.BIN / "kvfleet", "--workers", count, "--ranks", 2, "--first-id", first_id, "--model", model,
            "--blocks", 512, "--step-ms", 1, "--serve", 0, "--truth", self.truth, "--config-out", config])
        self.model, text = model, wait_for("kvfleet serves", lambda: config.exists() and config.read_text())
        self.addresses = re.findall(r'address = "(.*?)"', text)
        for at in dead:
            text = text.replace(self.addresses[at], DEAD)
        # Rows of `workers`, without load reports, so that only requests in flight decide: a load
        # report may be 100 ms old.
        self.rows = re.findall(r"^  \{ (.*?)^  \}", re.sub(r"load = .*", "", text), re.S | re.M)

    def stop(self):
        """Stops all its threads; nothing is answered before SIGCONT."""
        pid = self.program.process.pid
        self.program.process.send_signal(signal.SIGSTOP)
        wait_for("the proxy has stopped", lambda: {
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir()} == {"T"})

    def total(self, figure):
        """By worker and rank."""
        return [row[figure] for row in say(self.truth, "stats") if "worker_id" in row]


@dataclasses.dataclass
class Stage:
    scene: object
    aggregator: object
    proxy: object
    fleet: Fleet  # two workers of two ranks
    routed: int = 0  # number of requests so far

    def is_listed(self, prompt, tokens, model="m"):
        return f":{tokens}" in self.aggregator.http("POST", "/query", {"model": model, "token_ids": prompt})[1]

    def is_exact(self, prompt):
        """Of the ranks that hold it."""
        answer = self.aggregator.http("POST", "/query", {"model": "m", "token_ids": prompt})[1]
        return "states" not in json.loads(answer)

    def request(self, path, body):
        answer = request(self.proxy, "POST", path, body)
        self.wait_for_the_end()
        return answer

    def complete(self, prompt, model="m"):
        return self.request("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 2})

    def wait_for_the_end(self):
        """Waits for the end of one more request. Counts ends, because the gauge of requests in
        flight may be out of date."""
        self.routed += 1
        wait_for("the end of the request is reported", lambda: self.aggregator.metric(
            "kvb_requests_finished_total", end="reported") == self.routed)

    def expect_the_truth(self):
        status, verdict = verify(self.scene, self.fleet.truth)
        assert (status, verdict["exact"]) == (0, 4), verdict
        assert (verdict["phantom"], verdict["missing"], verdict["wrong"]) == (0, 0, 0), verdict
        return verdict


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        fleet, aggregator = Fleet(scene, "m", 1, 2), scene.aggregator()
        scene.bridge(*fleet.rows)
        proxy = start_proxy(scene, aggregator)
        wait_for("all workers are known", lambda: len(aggregator.states()) == 4)
        yield Stage(scene, aggregator, proxy, fleet)


@pytest.fixture(scope="module")
def unreachable(stage):
    """For the last tests, since kvctl verify compares all listed blocks with one fleet: an
    unreachable worker next to a reachable one, with model n, and a single one, with model o."""
    fleets = Fleet(stage.scene, "n", 11, 2, dead=[0]), Fleet(stage.scene, "o", 21, 1, dead=[0])
    stage.scene.bridge(*fleets[0].rows, *fleets[1].rows, name="kvbridge2")
    wait_for("all workers are known", lambda: len(stage.aggregator.states()) == 10)
    return fleets[0].addresses


def start_proxy(scene, aggregator):
    port = programs.free_port()
    proxy = scene.start("proxy", [
        sys.executable, PROXY, "--listen", f"127.0.0.1:{port}", "--aggregator", f"http://127.0.0.1:{aggregator.port}"])
    proxy.port = port
    wait_for("the proxy listens", lambda: models(proxy) is not None)
    return proxy


def models(proxy):
    return json.loads(request(proxy, "GET", "/v1/models")[2])["data"]


def send(proxy, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10 * programs.PATIENCE)
    connection.request(method, path, body=json.dumps(body) if body is not None else None,
                       headers={"Content-Type": "application/json"})
    return connection


def request(proxy, method, path, body=None):
    connection = send(proxy, method, path, body)
    answer = connection.getresponse()
    done = answer.status, dict(answer.headers), answer.read().decode()
    connection.close()
    return done


def tokenized(answer):
    """None: no engine has answered /tokenize within the proxy's time limit."""
    return None if answer[1].get("x-kvbridge-tokens") == "none" else answer


def cached(answer):
    assert answer[0] == 200, answer
    return json.loads(answer[2])["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.first
def test_a_prompt_goes_where_it_is_held(stage):
    # A hit follows each new prompt, and all ranks still get new prompts in turn.
    for first in range(1_000, 9_000, 1_000):
        prompt = list(range(first, first + 64))
        assert cached(stage.complete(prompt)) == 0
        wait_for("the prompt is listed", lambda: stage.is_listed(prompt, 64))
        # else nothing is promised: the first batch of a rank is looked for in its replay
        wait_for("its rank is EXACT", lambda: stage.is_exact(prompt))
        assert cached(stage.complete(prompt + [7])) == 64
    assert stage.fleet.total("requests_finished") == [4] * 4
    assert stage.fleet.total("hit_tokens") == [128] * 4
    assert stage.expect_the_truth()["held_blocks"] >= 8 * 4
    audited = lambda name: stage.aggregator.metric(f"kvb_audit_{name}_total")
    wait_for("what was promised was delivered", lambda: audited("requests") >= 8)
    assert audited("delivered_tokens") == audited("promised_tokens") >= 8 * 64


def test_a_prompt_is_computed_again_where_its_blocks_were_evicted(stage):
    prompt = list(range(20_000, 20_064))
    stage.complete(prompt)
    wait_for("the prompt is listed", lambda: stage.is_listed(prompt, 64))
    for first in range(30_000, 90_000, 4_000):  # each of the four ranks has room for 511 blocks
        stage.complete(list(range(first, first + 3_999)))
    wait_for("the prompt is not listed any more", lambda: not stage.is_listed(prompt, 64))
    assert cached(stage.complete(prompt + [7])) == 0
    stage.expect_the_truth()


@pytest.mark.parametrize("path, prompt", [
    ("/v1/completions", {"prompt": "x" * 48}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "y" * 48}]})])
def test_a_text_is_routed_by_its_tokens(stage, path, prompt):
    body = {"model": "m", "max_tokens": 2, **prompt}
    letter = "x" if "prompt" in prompt else "y"
    assert cached(stage.request(path, body)) == 0
    wait_for("the prompt is listed", lambda: stage.is_listed([ord(letter)] * 48, 48))
    answer = wait_for("the text is tokenized in time", lambda: tokenized(stage.request(path, body)))
    assert cached(answer) == 32  # the last block is always computed again


def test_a_text_that_no_engine_tokenizes_in_time_is_routed_by_load(stage):
    stage.fleet.stop()
    connection = send(stage.proxy, "POST", "/v1/completions", {"model": "m", "prompt": "z" * 48})
    wait_for("the request is routed", lambda: stage.aggregator.metric("kvb_requests_in_flight") == 1)
    stage.fleet.program.process.send_signal(signal.SIGCONT)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["x-kvbridge-tokens"]) == (200, "none")
    answer.read()
    connection.close()
    stage.wait_for_the_end()


def test_an_answer_is_passed_on_as_it_comes(stage):
    asked = stage.aggregator.metric("kvb_questions_total", kind="http")
    connection = send(stage.proxy, "POST", "/v1/completions", {
        "model": "m", "prompt": list(range(32)), "max_tokens": 500, "stream": True,
        "stream_options": {"include_usage": True}})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["x-kvbridge-worker"] in stage.fleet.addresses
    first = json.loads(answer.readline()[6:])
    say(stage.fleet.truth, "pause")  # so that the end of the answer is not there yet
    assert first["choices"][0]["finish_reason"] is None
    wait_for("the request is in flight", lambda: stage.aggregator.metric("kvb_requests_in_flight") == 1)
    say(stage.fleet.truth, "resume")
    *_, last, usage, done, _ = answer.read().decode().split("\n\n")
    connection.close()
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "length"
    assert json.loads(usage[6:])["usage"]["completion_tokens"] == 500
    assert done == "data: [DONE]"
    stage.wait_for_the_end()
    # /route, /first_token and /finished
    wait_for("the requests to the aggregator are counted", lambda: stage.aggregator.metric("kvb_questions_total", kind="http") == asked + 3)
    assert stage.aggregator.metric("kvb_request_reports_unknown_total") == 0


def test_a_client_that_leaves_ends_its_request(stage):
    connection = send(stage.proxy, "POST", "/v1/completions", {
        "model": "m", "prompt": [1, 2, 3], "max_tokens": 4_096, "stream": True})
    connection.getresponse().readline()
    wait_for("the request is in flight", lambda: stage.aggregator.metric("kvb_requests_in_flight") == 1)
    connection.sock.close()
    connection.close()
    stage.wait_for_the_end()
    wait_for("the engine has aborted the request", lambda: sum(stage.fleet.total("running")) == 0)


def test_an_unreachable_worker_is_skipped(stage, unreachable):
    prompt = list(range(64))
    send_to(unreachable[0], {"prompt": prompt})
    wait_for("the prompt is listed", lambda: stage.is_listed(prompt, 64, "n"))
    status, headers, _ = stage.complete(prompt, "n")
    assert (status, headers["x-kvbridge-worker"]) == (200, unreachable[1])


def send_to(address, body):
    with urllib.request.urlopen(address + "/v1/completions", json.dumps(body).encode(), timeout=10) as answer:
        return json.load(answer)


def test_failures_are_reported_with_their_reason(stage, unreachable):
    for body, status, words in [
        (b"{", 400, "not JSON"), (b"[]", 400, "not JSON"),
        (b'{"model":"other","prompt":[1]}', 404, "kvaggregator routes to no worker"),
        (b'{"model":"o","prompt":[1]}', 502, "no worker can be reached"),
    ]:
        connection = http.client.HTTPConnection("127.0.0.1", stage.proxy.port, timeout=10 * programs.PATIENCE)
        connection.request("POST", "/v1/completions", body=body)
        answer = connection.getresponse()
        assert (answer.status, words in json.loads(answer.read())["error"]["message"]) == (status, True)
        connection.close()
    assert [one["id"] for one in models(stage.proxy)] == ["m", "n", "o"]
    stage.wait_for_the_end()
    stage.aggregator.stop()  # this is the last test
    status, _, text = request(stage.proxy, "POST", "/v1/completions", {"model": "m", "prompt": [1]})
    assert status == 503 and "does not answer" in text
