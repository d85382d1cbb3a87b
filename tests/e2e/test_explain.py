"""Does `kvctl explain` say of each block of a prompt what the worker holds, why not more, since when and by which
event, and whether bridge and aggregator agree?"""

import json
import subprocess
import time

import pytest

import engine
import programs
from conftest import NAMESPACE, PUBLISH, worker
from programs import wait_for

PROMPT = list(range(100, 164))  # four blocks of 16
HASHES = [11, 12, 13, 14]


def kvctl(scene, *words, given=None):
    return subprocess.run(
        [programs.BIN / "kvctl", "--nats", scene.nats_url, *map(str, words)], capture_output=True, text=True,
        timeout=30 * programs.PATIENCE, check=False, input=given)


def prompt_file(scene, tokens=PROMPT):
    path = scene.folder / "prompt.txt"
    path.write_text(" ".join(map(str, tokens)))
    return path


def explain(scene, *words, tokens=PROMPT):
    """The answer with --json."""
    done = kvctl(scene, "--json", "explain", "--tokens-file", prompt_file(scene, tokens), "--worker", 7, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def table(scene, *words):
    """What people see."""
    done = kvctl(scene, "explain", "--tokens-file", prompt_file(scene), "--worker", 7, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reasons(answer):
    return [row["reason"] for row in answer["bridge"]["rows"]]


def device(answer, block):
    return answer["bridge"]["rows"][block]["lists"]["device"]


def stored(first, last, form=engine.ArrayForm, **more):
    parent = HASHES[first - 1] if first > 0 else None
    return form.stored(HASHES[first:last], PROMPT[16 * first:16 * last], 16, parent=parent, **more)


class Fleet:
    """An engine of one rank, its bridge, an aggregator, and all events of the bridge."""

    def __init__(self, scene, profile="protobuf", limits="", aggregator=True):
        self.scene, self.engine = scene, scene.engine()
        self.bridge = scene.bridge(worker(self.engine), profile=profile, limits=limits)
        self.aggregator = scene.aggregator() if aggregator else None
        self.sent = 0

    def publish(self, *events):
        self.engine.publish(engine.batch(*events))
        self.sent += 1
        wait_for("the bridge has it", lambda: self.stream()["batches"] >= self.sent)

    def stream(self):
        return self.bridge.get("/state")["streams"][0]

    def is_exact(self):
        wait_for("EXACT", lambda: self.stream()["state"] == "EXACT")
        if self.aggregator:
            wait_for("EXACT at the aggregator", self.aggregator.is_exact)


@pytest.fixture(name="fleet")
def one_fleet(scene):
    return Fleet(scene)


def test_held_removed_and_never_stored(scene, fleet):
    fleet.publish(stored(0, 3))
    fleet.is_exact()
    answer = explain(scene)
    assert reasons(answer) == ["held", "held", "held", "never_stored"]
    assert (answer["bridge"]["held_blocks"], answer["router"]["blocks"], answer["differences"]) == (3, 3, [])
    since = device(answer, 1)["trace"]
    assert since["what"] == "held" and since["event_id"] <= answer["bridge"]["last_event_id"]

    fleet.publish(engine.removed(12))
    fleet.publish(engine.removed(13))
    wait_for("both removals", lambda: reasons(explain(scene))[1:3] == ["removed", "removed"])
    answer = explain(scene)
    one, other = (device(answer, block)["trace"] for block in (1, 2))
    assert other["event_id"] == one["event_id"] + 1 == answer["bridge"]["last_event_id"]
    assert since["time_ms"] <= one["time_ms"] <= other["time_ms"] and one["origin"] == "live"
    assert answer["bridge"]["held_blocks"] == answer["router"]["blocks"] == 1

    seen = table(scene)
    assert f"The prefix ends before block 1: removed by event {one['event_id']}, 20" in seen
    assert "The aggregator says the same." in seen
    assert seen.splitlines()[-4].split()[:4] == ["0", "0-15", "device", "listed"], seen


def test_cleared_by_the_engine(scene, fleet):
    fleet.publish(stored(0, 2))
    fleet.is_exact()
    fleet.publish(engine.cleared())
    wait_for("nothing is held", lambda: fleet.stream()["blocks"]["device"] == 0)
    answer = explain(scene)
    assert reasons(answer) == ["cleared", "cleared", "never_stored", "never_stored"]
    assert device(answer, 0)["trace"]["event_id"] == device(answer, 2)["trace"]["event_id"]
    assert device(answer, 2)["trace"]["what"] == "absent"
    assert "cleared by event" in table(scene) and "never stored since all was cleared by event" in table(scene)


def test_replayed_after_a_gap_is_told_from_live(scene, fleet):
    fleet.publish(stored(0, 1))
    fleet.is_exact()
    fleet.engine.publish(engine.batch(stored(1, 2)), live=False)  # only in the replay
    fleet.engine.publish(engine.batch(stored(2, 3)))
    wait_for("the gap is filled", lambda: fleet.stream()["blocks"]["device"] == 3)
    fleet.is_exact()
    answer = explain(scene)
    assert reasons(answer)[:3] == ["held"] * 3
    assert device(answer, 0)["trace"]["origin"] in ("live", "replayed")
    assert device(answer, 1)["trace"]["origin"] == "replayed"


def test_an_unknown_parent(scene, fleet):
    fleet.publish(stored(0, 1))
    fleet.is_exact()
    fleet.publish(stored(2, 4))  # behind 12, which never came
    answer = explain(scene)
    assert reasons(answer) == ["held", "never_stored", "parent_unknown", "parent_unknown"]
    assert answer["bridge"]["state"] == "PARTIAL" and answer["bridge"]["reason"] == "unrooted"
    fleet.publish(stored(1, 2))
    wait_for("all are held", lambda: reasons(explain(scene)) == ["held"] * 4)


def test_another_lora_name(scene, fleet):
    event = stored(0, 4, engine.MapForm)
    event.lora_name = "adapter"
    fleet.publish(event)
    fleet.is_exact()
    answer = explain(scene)
    assert reasons(answer) == ["other_lora_or_salt"] * 4 and answer["bridge"]["held_blocks"] == 0
    assert "held with another LoRA name or salt: give --lora, --salt" in table(scene)
    answer = explain(scene, "--lora", "adapter")
    assert reasons(answer) == ["held"] * 4 and answer["router"]["blocks"] == 4
    assert reasons(explain(scene, "--lora", "adapter", "--salt", "s")) == ["other_lora_or_salt"] * 4


def test_in_another_tier_alone(scene, fleet):
    fleet.publish(stored(0, 1), stored(1, 2, medium="CPU"))
    fleet.is_exact()
    answer = explain(scene)
    assert reasons(answer)[:2] == ["held", "other_tier"]
    host = answer["bridge"]["rows"][1]["lists"]["host"]
    assert host["listed"] and host["trace"]["what"] == "held"
    assert "in another tier alone" in table(scene)


def test_a_restart_of_the_bridge_without_a_trace_is_admitted(scene):
    """A list from a checkpoint is older than the trace of the new process."""
    vllm = scene.engine()
    folder = scene.folder / "checkpoints"
    folder.mkdir()
    more = {"profile": "protobuf", "limits": f'checkpoint = "{folder}";\n'}
    bridge = scene.bridge(worker(vllm), **more)
    vllm.publish(engine.batch(stored(0, 2)))
    wait_for("EXACT", lambda: bridge.get("/state")["streams"][0]["state"] == "EXACT")
    bridge.stop()
    bridge = scene.bridge(worker(vllm), name="again", **more)
    wait_for("EXACT", lambda: bridge.get("/state")["streams"][0]["state"] == "EXACT")
    assert bridge.get("/state")["streams"][0]["replays"] >= 1
    done = kvctl(scene, "--json", "explain", "--tokens-file", prompt_file(scene), "--worker", 7)
    answer = json.loads(done.stdout)
    assert reasons(answer) == ["held", "held", "older_than_trace", "older_than_trace"]
    assert "trace" not in device(answer, 0) and not answer["bridge"]["trace"]["whole"]


def test_a_refresh_is_no_new_store(scene):
    fleet = Fleet(scene, profile="json")
    fleet.publish(stored(0, 2))
    fleet.is_exact()
    before = device(explain(scene), 1)["trace"]
    bus = scene.bus()
    bus.request(f"{PUBLISH}.kv_refresh", b"{}")
    wait_for("the refresh", lambda: explain(scene)["bridge"]["last_event_id"] > before["event_id"])
    assert device(explain(scene), 1)["trace"] == before


def test_an_aggregator_that_does_not_read_the_worker_is_a_difference(scene):
    fleet = Fleet(scene, aggregator=False)
    port = programs.free_port()
    aggregator = scene.daemon(
        "kvaggregator",
        f'nats = {{ url = "{scene.nats_url}"; }};\n'
        'subscribe = { namespace = "elsewhere"; component = "VllmWorker"; };\n'
        f'router = {{ namespace = "{NAMESPACE}"; component = "Router"; }};\nhttp = "127.0.0.1:{port}";\n', port)
    wait_for("it is ready", aggregator.is_ready, 15)
    fleet.publish(stored(0, 4))
    fleet.is_exact()
    answer = explain(scene)
    assert reasons(answer) == ["held"] * 4
    assert answer["router_answered"] and answer["router"] is None
    assert answer["differences"] == ["the aggregator lists nothing of this prompt there"]
    seen = table(scene)
    assert "DIFFERENT: the aggregator lists nothing of this prompt there" in seen
    assert seen.splitlines()[-2].split()[:5] == ["0", "0-15", "device", "not", "listed"], seen


def test_without_an_aggregator_the_bridge_answers(scene):
    fleet = Fleet(scene, aggregator=False)
    fleet.publish(stored(0, 1))
    fleet.is_exact()
    done = kvctl(scene, "--json", "--timeout", 500, "explain", "--tokens-file", "-", "--worker", 7,
                 given=json.dumps(PROMPT))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["router_answered"] and answer["router"] is None
    assert reasons(answer) == ["held", "never_stored", "never_stored", "never_stored"]


def test_a_long_prompt_comes_in_parts(scene, fleet):
    tokens = list(range(16 * 5000))
    fleet.publish(engine.stored(list(range(1, 5001)), tokens, 16))
    fleet.is_exact()
    answer = explain(scene, tokens=tokens)
    rows = answer["bridge"]["rows"]
    assert [row["block"] for row in rows] == list(range(5000))
    assert {row["reason"] for row in rows} == {"held"} and "next" not in answer["bridge"]
    assert answer["router"]["blocks"] == 5000
    done = kvctl(scene, "explain", "--tokens-file", prompt_file(scene, tokens), "--worker", 7)
    lines = done.stdout.splitlines()  # one for each event, and a batch of this size makes several
    assert len(lines) < 20 and lines[-1].split()[0].endswith("-4999"), done.stdout


#: Words, exit status, and what is said.
WRONG = [
    (["--tokens-file", "/nowhere", "--worker", "7"], 64, "--tokens-file: cannot read /nowhere: No such file"),
    (["--tokens", "1,x,3", "--worker", "7"], 64, 'token 2: expected a number from 0 to 4294967295, got "x"'),
    (["--tokens", "1,2"], 64, "explain: give one --worker ID"),
    (["--tokens", "1,2", "--worker", "7", "--worker", "8"], 64, "explain: give one --worker ID"),
    (["--worker", "7"], 64, "explain: give either --tokens or --tokens-file"),
    (["--tokens", "1,2", "--worker", "10"], 1,
     "no bridge or aggregator knows worker 10; known are, nearest first: 9, 7"),
    (["--tokens", "1,2", "--worker", "7", "--dp-rank", "3"], 1, "--rank: worker 7 has no rank 3, but 0"),
    (["--tokens", "1,2", "--worker", "9"], 64, "worker 9 has the ranks 0, 1: give --rank"),
]


def test_wrong_input_is_refused_by_name(scene):
    vllm = scene.engine()
    bridge = scene.bridge(
        worker(vllm), worker(scene.engine(), worker_id=9, more="ranks = 2;"), profile="protobuf")
    aggregator = scene.aggregator()
    wait_for("all ranks are known", lambda: len(aggregator.get("/streams")["streams"]) == 3)
    for words, status, says in WRONG:
        done = kvctl(scene, "explain", *words)
        assert done.returncode == status and says in done.stderr and done.stdout == "", (words, done)
    bridge.kill()
    done = kvctl(scene, "--timeout", 500, "explain", "--tokens", "1,2", "--worker", 7)
    assert done.returncode == 1 and "no bridge answers namespace.dynamo.component.VllmWorker.kv_explain.7.0" in done.stderr


def test_requests_that_are_none_are_refused_and_counted(scene, fleet):
    fleet.publish(stored(0, 1))
    fleet.is_exact()
    bus = scene.bus()
    subject = f"{PUBLISH}.kv_explain.7.0"
    for body, says in ((b"", "body"), (b"{}", "token_ids"), (b'{"token_ids":[-1]}', "token_ids[0]"),
                       (b'{"token_ids":[1],"from":-1}', "from"), (b'{"text":"hello"}', "token_ids")):
        assert says in json.loads(bus.request(subject, body))["error"]
    answer = json.loads(bus.request(subject, b'{"seq_hashes":[1,2]}'))
    assert [row["reason"] for row in answer["rows"]] == ["never_stored"] * 2
    for outcome, count in (("answered", 1), ("refused", 5)):
        wait_for(outcome, lambda name=outcome, all_of_them=count: fleet.bridge.metric(
            "kvb_explain_requests_total", outcome=name) == all_of_them)


def test_a_request_that_waits_does_not_keep_the_bridge_turning(scene):
    """After an answer the bridge answers nobody for nine times as long as that took."""
    fleet = Fleet(scene, aggregator=False)
    fleet.publish(stored(0, 1))
    fleet.is_exact()
    bus = scene.bus()
    answers, body = bus.watch("explained"), json.dumps({"seq_hashes": list(range(1, 1 << 16))}).encode()
    turns, begin = fleet.bridge.metric("kvb_turns_total"), time.monotonic()
    for _ in range(8):
        bus.send(f"{PUBLISH}.kv_explain.7.0", body, reply="explained")
    wait_for("all are answered", lambda: len(answers) == 8, 30)
    turns, took_s = fleet.bridge.metric("kvb_turns_total") - turns, time.monotonic() - begin
    print(f"{turns:.0f} turns in {took_s:.3f} s")
    assert all("error" not in json.loads(answer.data) for answer in answers)
    assert turns < 100 + 50 * took_s  # an idle bridge turns 50 times a second
