"""Which engine gets the request: are the gateway's subset hints obeyed, lists walked down past a dead engine, the client's own
choice replaced, and is 503 said when there is nobody?"""

import itertools
import json

import grpc
import pytest

import envoys
import gateway
from conftest import shared_scene
from programs import wait_for

NOBODY = "127.0.0.1:1"


def hints(endpoints):
    first, second = endpoints
    return {
        "list": {"subset": [second]},
        "text": {"subset": f"{NOBODY}, {second}"},
        "address": {"subset": ["127.0.0.1"]},
        "unknown_and_known": {"subset": [NOBODY, second, "nonsense", "[::1]:80"]},
        "unknown": {"subset": [NOBODY]},
        "empty": {"subset": []},
        "no_hint": {},
        "ai_gateway": {"engines": "original_dst"},
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield gateway.World(scene, hints)


@pytest.fixture
def tokens(world):
    """A prompt that engine 1 holds, and no other test has."""
    prompt = new_prompt()
    world.publish(1, prompt)
    return prompt


def new_prompt(counter=itertools.count(1_000, 100)):
    first = next(counter)
    return list(range(first, first + 64))


@pytest.mark.parametrize("listener", ["list", "text", "unknown_and_known"])
def test_a_hint_is_obeyed(world, tokens, listener):
    """Although the other engine holds the prompt."""
    assert world.send("no_hint", {"model": "m", "prompt": tokens}, path=gateway.TEXT).engine() == "1"
    for _ in range(4):
        assert world.send(listener, {"model": "m", "prompt": tokens}, path=gateway.TEXT).engine() == "2"


def test_an_address_without_a_port_means_all_its_engines(world, tokens):
    assert world.send("address", {"model": "m", "prompt": tokens}, path=gateway.TEXT).engine() == "1"


@pytest.mark.parametrize("listener", ["unknown", "empty"])
def test_a_hint_that_leaves_nobody_is_a_503(world, listener):
    answer = world.send(listener, gateway.chat("hello"))
    assert (answer.status, answer.headers["content-type"]) == (503, "application/json")
    error = answer.json()["error"]
    assert error["code"] == 503 and error["message"]


@pytest.mark.parametrize("listener", ["no_hint", "ai_gateway"])
def test_a_client_cannot_choose(world, tokens, listener):
    answer = world.send(listener, {"model": "m", "prompt": tokens}, path=gateway.TEXT,
                        headers={envoys.DESTINATION: world.engines[1].endpoint})
    assert answer.engine() == "1"
    assert world.engines[0].seen[-1].headers[envoys.DESTINATION] == world.engines[0].endpoint


def test_a_client_cannot_choose_while_the_picker_is_away(scene):
    """etc/envoy.yaml, which goes on without a picker: to one of its own engines."""
    world = gateway.World(scene, {}, engines=3)
    plain = envoys.start_plain(scene, [one.endpoint for one in world.engines[:2]], world.picker_port, "envoy-plain")
    wait_for("envoy asks it", lambda: plain.picker_is_up("kvaggregator"))
    world.aggregator.kill()
    wait_for("envoy does without", lambda: not plain.picker_is_up("kvaggregator"))
    for chosen in world.engines * 2:
        answer = gateway.send(plain.ports["plain"], gateway.chat("hello"), headers={envoys.DESTINATION: chosen.endpoint})
        assert answer.status == 200 and answer.engine() in ("1", "2"), answer
    assert len(world.seen()) == 6 and not any(envoys.DESTINATION in one.headers for one in world.seen())


def test_a_dead_engine_is_skipped_and_the_books_follow(scene):
    world = gateway.World(scene, {"istio": {"retries": True}}, gateway="endpoints = 2;")
    tokens = new_prompt()
    world.publish(1, tokens)
    assert world.send("istio", {"model": "m", "prompt": tokens}, path=gateway.TEXT).engine() == "1"
    world.engines[0].close()
    assert world.send("istio", {"model": "m", "prompt": tokens}, path=gateway.TEXT).engine() == "2"
    wait_for("it is counted", lambda: world.metric("served_other_total") == 1)
    wait_for("the books are empty", lambda: world.in_flight() == 0)


def test_images_go_by_load(world):
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    before = world.metric("reasons_total", reason="media")
    answer = world.send("no_hint", {"model": "m", "messages": [{"role": "user", "content": parts}]})
    assert answer.status == 200
    assert world.metric("reasons_total", reason="media") == before + 1


@pytest.mark.parametrize("body, path, reason", [
    (b"{", gateway.CHAT, "not_json"), (b"[]", gateway.CHAT, "not_json"), (b"", gateway.CHAT, "no_body"),
    (json.dumps({"model": "m", "prompt": [1, 2]}).encode(), "/v1/embeddings", "other_path"),
    (json.dumps({"model": "other", "prompt": [1, 2]}).encode(), gateway.TEXT, "unknown_model"),
])
def test_what_cannot_be_read_goes_by_load(world, body, path, reason):
    before = world.metric("reasons_total", reason=reason)
    assert world.send("no_hint", body, path=path).status == 200
    assert world.metric("reasons_total", reason=reason) == before + 1
    world.expect_whole_bodies()


def test_health(world):
    """As Envoy, gateways and kubelet ask for it."""
    with grpc.insecure_channel(f"127.0.0.1:{world.picker_port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
        for service in (b"", b"readiness", b"liveness", b"envoy.service.ext_proc.v3.ExternalProcessor"):
            ask = b"\x0a" + bytes([len(service)]) + service if service else b""
            assert check(ask, timeout=60) == b"\x08\x01", service
        with pytest.raises(grpc.RpcError) as refused:
            check(b"\x0a\x04none", timeout=60)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
