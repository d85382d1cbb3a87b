"""Is a request answered in time, and whole, when engines tokenize slowly, wrongly, or not at all?"""

import pytest

import gateway
from programs import wait_for


@pytest.fixture
def world(scene, request):
    """A pick waits for 200 ms where engines give no tokens, and else as long as a busy machine takes."""
    deadline_ms = 200 if "manner" in request.fixturenames else 60000
    one = gateway.World(scene, {"istio": {}}, gateway=f"deadline_ms = {deadline_ms};")
    yield one
    one.expect_whole_bodies()


@pytest.mark.parametrize("manner", ["silent", "wrong", "refuses"])
def test_goes_by_load_with_a_reason(world, manner):
    for one in world.engines:
        one.tokenize_manner = manner
    assert world.send("istio", gateway.chat("a prompt that is long enough for some blocks " * 4)).status == 200
    assert world.by("load") == 1 and world.by("tokenize") == 0
    assert world.metric("reasons_total") >= 1
    # The next one is not worse off, and an engine that works again is used again.
    for one in world.engines:
        one.tokenize_manner = "good"
    wait_for("an engine tokenizes again", lambda: world.send(
        "istio", gateway.chat(f"another prompt, {world.by('load')} " * 6)).status == 200 and world.by("tokenize") >= 1)


def test_a_chat_of_ten_turns_asks_once(world):
    """Its first message is long, as with a system prompt: at least 3/4 of each later text."""
    texts = ["the rules " * 2400, "understood"]
    for turn in range(10):
        texts.append(f"turn {turn} " + chr(97 + turn) * 300)
        assert world.send("istio", gateway.chat(*texts)).status == 200
        texts.append("yes")
    assert (world.by("tokenize"), world.by("prefix")) == (1, 9)
    # Beside the first, the samples: one in 16 is tokenized too, later.
    assert 1 <= sum(len(one.tokenized) for one in world.engines) <= 3


def test_responses_are_read_as_messages(world):
    body = {"model": "m", "input": "the question " * 20, "instructions": "be brief"}
    assert world.send("istio", body, path=gateway.RESPONSES).status == 200
    (asked,) = [ask for one in world.engines for ask in one.tokenized]
    assert [one["content"] for one in asked["messages"]] == ["be brief", body["input"]]
    assert world.send("istio", {**body, "previous_response_id": "r1"}, path=gateway.RESPONSES).status == 200
    assert world.by("load") == 1
