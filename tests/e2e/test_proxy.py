"""Does etc/examples/proxy.py send each completion to the worker that holds its prompt, pass the answer
on as it comes, and report when it begins and ends?"""

import http.client
import json
import pathlib
import sys

import pytest

import programs
import serving
from conftest import worker
from programs import wait_for

PROXY = pathlib.Path(__file__).resolve().parents[2] / "etc" / "examples" / "proxy.py"


def start(scene, count=2, more=""):
    """Engines that serve, a bridge, an aggregator and the proxy."""
    engines = [scene.engine_of(serving.ServingEngine) for _ in range(count)]
    aggregator = scene.aggregator(extra=more)
    scene.bridge(*(
        worker(one, at, more=f'address = "{one.address}";') for at, one in enumerate(engines, 1)), heartbeat_ms=100)
    port = programs.free_port()
    proxy = scene.start("proxy", [
        sys.executable, PROXY, "--listen", f"127.0.0.1:{port}", "--aggregator", f"http://127.0.0.1:{aggregator.port}"])
    proxy.port = port
    wait_for("the proxy listens", lambda: models(proxy) is not None)
    wait_for("the bridge has connected", lambda: all(one.requests for one in engines))
    wait_for("all workers are known", lambda: len(json.loads(aggregator.http("GET", "/streams")[1])["streams"]) == count)
    return engines, aggregator, proxy


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


def complete(proxy, prompt, **more):
    return request(proxy, "POST", "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 2, **more})


def cached(answer):
    assert answer[0] == 200, answer
    return json.loads(answer[2])["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_goes_where_it_is_held(scene):
    engines, aggregator, proxy = start(scene)
    prompts = [list(range(first, first + 64)) for first in range(0, 8000, 1000)]
    for prompt in prompts:
        assert cached(complete(proxy, prompt)) == 0
    assert all(one.served for one in engines), "new prompts are spread"
    for prompt in prompts:
        wait_for("it is listed", lambda: aggregator.http(
            "POST", "/query", {"model": "m", "token_ids": prompt})[1].count(":64"))
        assert cached(complete(proxy, prompt + [7])) == 64
    wait_for("none is in flight", lambda: aggregator.metric("kvb_requests_in_flight") == 0)
    assert aggregator.metric("kvb_requests_finished_total", end="reported") == 16


@pytest.mark.parametrize("path, prompt", [
    ("/v1/completions", {"prompt": "x" * 48}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 48}]})])
def test_a_text_is_routed_by_its_tokens(scene, path, prompt):
    engines, aggregator, proxy = start(scene)
    body = {"model": "m", **prompt}
    assert cached(request(proxy, "POST", path, body)) == 0
    wait_for("it is listed", lambda: aggregator.http(
        "POST", "/query", {"model": "m", "token_ids": [ord("x")] * 48})[1].count(":48"))
    assert cached(request(proxy, "POST", path, body)) == 48
    for one in engines:
        one.has_tokenizer = False
    status, headers, _ = request(proxy, "POST", path, body)
    assert status == 200 and headers["x-kvbridge-tokens"] == "none"


def test_an_answer_is_passed_on_as_it_comes(scene):
    (one,), aggregator, proxy = start(scene, count=1)
    asked = aggregator.metric("kvb_questions_total", kind="http")
    one.end.clear()
    connection = send(proxy, "POST", "/v1/completions", {
        "model": "m", "prompt": list(range(32)), "max_tokens": 2, "stream": True})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["x-kvbridge-worker"] == one.address
    assert json.loads(answer.readline()[6:])["choices"][0]["text"] == "a"  # its end is not there yet
    wait_for("it is in flight", lambda: aggregator.metric("kvb_requests_in_flight") == 1)
    one.end.set()
    assert answer.read().decode().endswith("data: [DONE]\n\n")
    connection.close()
    wait_for("its end is reported", lambda: aggregator.metric("kvb_requests_in_flight") == 0)
    # /route, /first_token and /finished
    wait_for("all is counted", lambda: aggregator.metric("kvb_questions_total", kind="http") == asked + 3)
    assert aggregator.metric("kvb_request_reports_unknown_total") == 0


def test_a_client_that_leaves_ends_its_request(scene):
    (one,), aggregator, proxy = start(scene, count=1)
    one.end.clear()
    connection = send(proxy, "POST", "/v1/completions", {"model": "m", "prompt": [1, 2, 3], "stream": True})
    connection.getresponse().readline()
    wait_for("it is in flight", lambda: aggregator.metric("kvb_requests_in_flight") == 1)
    connection.sock.close()
    connection.close()
    one.end.set()
    wait_for("its end is reported", lambda: aggregator.metric("kvb_requests_in_flight") == 0)


def test_a_worker_that_cannot_be_reached_is_passed_over(scene):
    (one, other), aggregator, proxy = start(scene)
    prompt = list(range(64))
    complete(proxy, prompt)
    holder, second = (one, other) if one.served else (other, one)
    wait_for("it is listed", lambda: aggregator.http("POST", "/query", {"model": "m", "token_ids": prompt})[1].count(":64"))
    holder.go_silent()
    status, headers, _ = complete(proxy, prompt)
    assert (status, headers["x-kvbridge-worker"]) == (200, second.address)
    second.go_silent()
    status, _, body = complete(proxy, prompt)
    assert status == 502 and "no worker can be reached" in body
    wait_for("none is in flight", lambda: aggregator.metric("kvb_requests_in_flight") == 0)


def test_what_is_wrong_is_said(scene):
    (one,), aggregator, proxy = start(scene, count=1)
    for body, status, words in [
        (b"{", 400, "not JSON"), (b"[]", 400, "not JSON"),
        (b'{"model":"other","prompt":[1]}', 404, "kvaggregator routes to no worker"),
    ]:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10 * programs.PATIENCE)
        connection.request("POST", "/v1/completions", body=body)
        answer = connection.getresponse()
        assert (answer.status, words in json.loads(answer.read())["error"]["message"]) == (status, True)
        connection.close()
    assert [one["id"] for one in models(proxy)] == ["m"]
    aggregator.stop()
    status, _, text = complete(proxy, [1])
    assert status == 503 and "does not answer" in text
