"""Does each body reach the engine byte for byte, however Envoy sends it to the picker, and however the client sends it to
Envoy?"""

import hashlib
import json
import socket

import pytest

import gateway
from conftest import shared_scene
from programs import wait_for

LISTENERS = {
    "ai_gateway": {"engines": "original_dst"},
    "istio": {"fail_open": True, "retries": True},
    "duplex_none": {"response": "NONE"},
    "duplex_streamed": {"response": "STREAMED"},
    "buffered": {"request": "BUFFERED", "response": "NONE"},
    "buffered_both": {"request": "BUFFERED", "response": "BUFFERED"},
    "buffered_partial": {"request": "BUFFERED_PARTIAL", "response": "NONE"},
    "streamed": {"request": "STREAMED", "response": "STREAMED"},
    "none": {"request": "NONE", "response": "NONE"},
}
SIZES = [0, 1, 61_999, 62_000, 62_001, 1 << 20, 3_000_000]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield gateway.World(scene, LISTENERS)


@pytest.fixture(autouse=True)
def bodies_are_whole(world):
    yield
    world.expect_whole_bodies()


def body_of(size):
    """A chat of so many bytes; too short for one: other bytes."""
    empty = json.dumps(gateway.chat("")).encode()
    return b"\x00" * size if size < len(empty) else json.dumps(gateway.chat("z" * (size - len(empty)))).encode()


@pytest.mark.parametrize("listener", LISTENERS)
def test_bodies_of_all_sizes(world, listener):
    for size in SIZES:
        for chunked in (False, True):
            before = [one.body_bytes for one in world.seen()]
            answer = world.send(listener, body_of(size), chunked=chunked)
            assert (answer.status, answer.engine() in ("1", "2")) == (200, True), (size, chunked, answer)
            assert sorted(one.body_bytes for one in world.seen()) == sorted([*before, size])


@pytest.mark.parametrize("listener", ["ai_gateway", "duplex_none", "buffered", "streamed"])
@pytest.mark.parametrize("options", [("--http2-prior-knowledge",), ("-H", "Expect: 100-continue"), ("--http2-prior-knowledge", "-H", "Expect: 100-continue")],
                         ids=["http2", "expect", "http2-expect"])
def test_other_ways_to_send_one(world, tmp_path, listener, options):
    for size in (0, 5_000, 2 << 20):
        answer = gateway.send_by_curl(tmp_path, world.port(listener), body_of(size), *options)
        assert answer.status == 200, answer


@pytest.mark.parametrize("listener", ["ai_gateway", "istio", "duplex_none"])
def test_a_body_above_the_limit_is_passed_on(world, listener):
    before = world.metric("passed_on_total")
    answer = world.send(listener, body_of(40 << 20))
    assert answer.status == 200, answer
    assert world.metric("passed_on_total") == before + 1
    assert max(one.body_bytes for one in world.seen()) == 40 << 20
    wait_for("nothing of it is held", lambda: world.metric("held_bytes") == 0)


@pytest.mark.parametrize("listener", LISTENERS)
def test_requests_without_a_body(world, listener):
    def models():
        return sum(one.path == "/v1/models" for one in world.seen())

    before = models()
    assert world.send(listener, method="GET", path="/v1/models").status == 200
    assert models() == before + 1


# Not with retries: there Envoy 1.40 sends a body that has trailers twice, whatever the picker answers.
@pytest.mark.parametrize("listener", ["ai_gateway", "duplex_none"])
def test_trailers_end_a_body(world, listener):
    body = body_of(100_000)
    with socket.create_connection(("127.0.0.1", world.port(listener)), timeout=60) as client:
        client.sendall(f"POST {gateway.CHAT} HTTP/1.1\r\nHost: x\r\nx-sha: {hashlib.sha256(body).hexdigest()}\r\n"
                       "Transfer-Encoding: chunked\r\nTrailer: x-sum\r\nConnection: close\r\n\r\n".encode()
                       + b"%x\r\n%s\r\n0\r\nx-sum: 1\r\n\r\n" % (len(body), body))
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]


@pytest.mark.parametrize("listener", ["ai_gateway", "buffered"])
def test_a_client_that_writes_slowly(world, listener):
    """Between two parts of its body another request comes and is answered."""
    body = body_of(1 << 20)
    slow = gateway.Stream(world.port(listener), body, sent=1)
    while slow.rest:
        slow.send_more(150_000)
        assert world.send(listener, body_of(1000)).status == 200
    assert slow.begin().read()
    slow.close()


@pytest.mark.parametrize("listener", ["ai_gateway", "duplex_streamed", "duplex_none"])
def test_a_client_that_reads_slowly(world, listener):
    """Its answer is larger than what Envoy keeps for it.  Others are answered meanwhile, and the picker does not keep it."""
    count, size = 100, 1 << 20
    slow = gateway.Stream(world.port(listener), {
        "model": "m", "prompt": [1, 2, 3], "stream": True, "max_tokens": count, "answer_bytes": size})
    wait_for("the engine answers", lambda: any(one.running() for one in world.engines))
    for _ in range(20):
        assert world.send(listener, body_of(1000)).status == 200
    assert any(one.running() for one in world.engines), "it waits for its reader"
    events = slow.events()
    for number in range(count):
        (choice,) = json.loads(next(events))["choices"]
        assert choice["delta"]["content"] == f"t{number}" + "x" * size
    assert list(events) == ["[DONE]"]
    slow.close()
    wait_for("nothing of it is held", lambda: world.metric("held_bytes") == 0)


def test_many_at_once(world):
    """500 requests at once, first of all on a new connection to the picker."""
    bodies = [body_of(200 + 37 * number) for number in range(500)]
    answers = gateway.in_parallel([
        lambda body=body, number=number: world.send(["ai_gateway", "istio", "buffered", "streamed"][number % 4], body)
        for number, body in enumerate(bodies)], workers=100)
    assert [getattr(answer, "status", answer) for answer in answers] == [200] * 500
