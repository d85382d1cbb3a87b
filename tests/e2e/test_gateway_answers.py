"""Do answers pass event by event, does their usage reach the audit's counters, and are the books empty in the end, also when a
client goes away in any phase?"""

import json
import signal

import pytest

import envoys
import gateway
import programs
from conftest import shared_scene
from programs import wait_for

pytestmark = pytest.mark.sanitize

LISTENERS = {
    "duplex": {},
    "streamed": {"response": "STREAMED"},
    "watch": {"response": "NONE", "watch": "picker"},
    "ai_gateway": {"engines": "original_dst"},
}
STREAM = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield gateway.World(scene, LISTENERS, gateway="deadline_ms = 60000;")


@pytest.fixture(autouse=True)
def everything_ends(world):
    yield
    for one in world.engines:
        one.go_on()
        one.tokenize_manner, one.cached_tokens, one.status = "good", 0, 200
    world.wait_until_idle()
    world.expect_whole_bodies()


@pytest.mark.parametrize("listener", LISTENERS)
def test_event_by_event(world, listener):
    for one in world.engines:
        one.hold()
    stream = gateway.Stream(world.port(listener), gateway.chat(f"slow {listener}", **STREAM))
    events = stream.events()
    first = json.loads(next(events))  # the engine makes no other before it goes on
    assert first["choices"][0]["delta"]["content"] == "t0"
    wait_for("it is in the books", lambda: world.in_flight() == 1)
    for one in world.engines:
        one.go_on()
    rest = list(events)
    assert rest[-1] == "[DONE]" and len(rest) == 6
    stream.close()
    wait_for("it has left the books", lambda: world.in_flight() == 0)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("more", [{}, STREAM], ids=["whole", "stream"])
def test_cached_tokens_are_counted(world, listener, more):
    for one in world.engines:
        one.cached_tokens = 48
    before = world.metric("cached_tokens_total")
    stream = gateway.Stream(world.port(listener), gateway.chat(f"usage {listener} {len(more)}", **more))
    list(stream.events())
    stream.close()
    wait_for("they are counted", lambda: world.metric("cached_tokens_total") == before + 48)
    wait_for("the books are empty", lambda: world.in_flight() == 0)


@pytest.mark.parametrize("listener", LISTENERS)
def test_an_engine_that_fails_ends_the_request(world, listener):
    for one in world.engines:
        one.status = 500
    assert world.send(listener, gateway.chat(f"fails {listener}")).status == 500
    wait_for("the books are empty", lambda: world.in_flight() == 0)


def test_an_end_is_in_the_books_without_nats(world):
    """The next request may come within a millisecond, and would find the engine busy."""
    nats = world.scene.started[0].process
    for one in world.engines:
        one.hold()
    stream = gateway.Stream(world.port("duplex"), gateway.chat("seen at the door", **STREAM))
    events = stream.events()
    next(events)
    wait_for("it is in the books", lambda: world.in_flight() == 1)
    nats.send_signal(signal.SIGSTOP)
    try:
        for one in world.engines:
            one.go_on()
        assert list(events)[-1] == "[DONE]"
        stream.close()
        wait_for("it has left the books", lambda: world.in_flight() == 0)
    finally:
        nats.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("phase", ["before the body", "in the body", "pick", "answer"])
def test_a_client_goes_away(world, listener, phase):
    body = gateway.chat(f"{listener} {phase} " + "z" * 100_000, **STREAM)
    before = world.metric("ended_total", how="client")
    for one in world.engines:
        one.hold()
        one.tokenize_manner = "silent" if phase == "pick" else "good"
    asked = sum(len(one.tokenized) for one in world.engines)
    sent = {"before the body": 0, "in the body": 50_000}.get(phase)
    stream = gateway.Stream(world.port(listener), body, sent=sent)
    if phase == "pick":
        wait_for("the pick waits", lambda: sum(len(one.tokenized) for one in world.engines) > asked)
    elif phase == "answer":
        next(stream.events())
    else:
        wait_for("the picker has the request", lambda: world.metric("streams") >= 1)
    stream.close()
    world.wait_until_idle()
    wait_for("the books are empty", lambda: world.in_flight() == 0)
    wait_for("it is counted", lambda: world.metric("ended_total", how="client") > before)
    wait_for("no engine works for it", lambda: not any(one.running() for one in world.engines))


def test_answers_that_nobody_watches_pass_too(scene):
    """Nothing ends their entry in the books but its time."""
    world = gateway.World(scene, {"none": {"response": "NONE"}})
    stream = gateway.Stream(world.port("none"), gateway.chat("unseen", **STREAM))
    assert list(stream.events())[-1] == "[DONE]"
    stream.close()
    world.wait_until_idle()
    world.expect_whole_bodies()


def test_answers_that_another_aggregator_watches(scene):
    """As behind one Service: the request is picked here, and its answer is shown there."""
    port = programs.free_port()
    other = scene.aggregator(name="other", extra=f'gateway = ( {{ listen = "127.0.0.1:{port}"; }} );\n')
    here = gateway.World(scene, {"plain": {"response": "NONE", "watch": "other"}}, clusters=[envoys.picker_cluster("other", port)])
    for one in here.engines:
        one.hold()
    stream = gateway.Stream(here.port("plain"), gateway.chat("two of them", **STREAM))
    next(stream.events())
    wait_for("both know of the request", lambda: here.in_flight() == other.metric("kvb_requests_in_flight") == 1)
    for one in here.engines:
        one.go_on()
    assert list(stream.events())[-1] == "[DONE]"
    stream.close()
    wait_for("both know of its end", lambda: here.in_flight() == other.metric("kvb_requests_in_flight") == 0)
    here.expect_whole_bodies()
