"""Whatever happens to the picker, and whenever: does no engine ever get an empty or shortened body, and are requests answered
again as soon as the picker is back?"""

import concurrent.futures
import contextlib
import functools
import http.client
import random
import signal

import pytest

import gateway
from programs import wait_for

CONFIGURATIONS = {
    "ai_gateway": {"engines": "original_dst"},
    "istio": {"fail_open": True, "retries": True},
    "open_checked": {"picker": "checked", "response": "NONE", "fail_open": True, "watch": "checked", "retries": True},
}
FAULTS = ["kill", "stop", "freeze"]
CLIENTS = 8


@pytest.fixture
def world(scene):
    one = gateway.World(scene, CONFIGURATIONS, gateway="deadline_ms = 60000; withdraw_s = 0; drain_s = 60;")
    yield one
    for each in one.engines:
        each.go_on()
    one.expect_whole_bodies()


def body(number, size=300_000):
    return gateway.chat(f"{number} " + "z" * size)


def ready(world, listener):
    def try_one():
        answer = world.send(listener, body(0, 10))
        return answer.status == 200

    return try_one


def break_it(world, fault):
    process = world.aggregator.process
    if fault == "kill":
        world.aggregator.kill()
    elif fault == "freeze":
        process.send_signal(signal.SIGSTOP)
    else:
        process.send_signal(signal.SIGTERM)


def mend_it(world, fault):
    if fault == "freeze":
        world.aggregator.process.send_signal(signal.SIGCONT)
    else:
        if fault == "stop":
            assert world.aggregator.stop() == 0
        world.start_picker()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("listener", CONFIGURATIONS)
def test_in_each_phase(world, listener, fault):
    wait_for("envoy asks the picker", lambda: world.envoy.picker_is_up(CONFIGURATIONS[listener].get("picker", "picker")))
    wait_for("a request is answered", ready(world, listener))
    for one in world.engines:
        one.hold()
        one.tokenize_manner = "silent"
    half = gateway.Stream(world.port(listener), body("half"), sent=100_000)
    waits = gateway.Stream(world.port(listener), body("waits"))
    wait_for("its pick waits for an engine", lambda: sum(len(one.tokenized) for one in world.engines) >= 1)
    runs = gateway.Stream(world.port(listener), {"model": "m", "prompt": [1, 2, 3], "stream": True, "max_tokens": 3})
    wait_for("an answer runs", lambda: sum(len(one.running()) for one in world.engines) >= 1)

    break_it(world, fault)
    with contextlib.suppress(OSError):  # it has been answered already, and the connection ended
        half.send_more()
    for one in world.engines:
        one.tokenize_manner = "good"
        one.go_on()
    mend_it(world, fault)
    for stream in (half, waits, runs):
        outcome(stream)
    wait_for("requests are answered again", ready(world, listener))
    wait_for("nothing runs any more", lambda: not any(one.running() for one in world.engines))


def outcome(stream):
    """Any is right but another body at the engine: an answer, an error, or the end of the connection."""
    try:
        return list(stream.events())
    except (AssertionError, OSError, http.client.HTTPException):
        return None
    finally:
        stream.close()


@pytest.mark.parametrize("listener", CONFIGURATIONS)
def test_at_random_moments(world, listener):
    """Eight clients send requests of all sizes while the picker is killed, stopped, frozen, and started again."""
    chance = random.Random(20261129)
    wait_for("envoy asks the picker", lambda: world.envoy.picker_is_up(CONFIGURATIONS[listener].get("picker", "picker")))
    wait_for("a request is answered", ready(world, listener))
    for fault in FAULTS * 2:
        started, ended, before = [], [], []  # before: those that had ended before the picker was broken
        at_fault = []  # how many had started then
        moment = chance.randrange(2, 50)
        sizes = [chance.choice((0, 10, 70_000, 700_000)) for _ in range(60)]

        def request(number):
            started.append(number)
            if number == moment:
                before.extend(ended)
                break_it(world, fault)
                at_fault.append(len(started))
            try:
                return world.send(listener, body(number, sizes[number]), chunked=bool(number % 2))
            finally:
                ended.append(number)

        def is_felt():
            """Requests came after the fault, or all clients wait for the picker."""
            return at_fault and (
                len(started) >= min(at_fault[0] + 4, len(sizes)) or len(started) - len(ended) == CLIENTS)

        with concurrent.futures.ThreadPoolExecutor(1) as mender:
            def mend():
                wait_for("the fault is felt", is_felt)
                mend_it(world, fault)

            mended = mender.submit(mend)
            answers = gateway.in_parallel([functools.partial(request, number) for number in range(60)], workers=CLIENTS)
            mended.result()
        bad = {number: answers[number] for number in before if getattr(answers[number], "status", 0) != 200}
        assert not bad, bad
        wait_for("requests are answered again", ready(world, listener))
        world.expect_whole_bodies()
