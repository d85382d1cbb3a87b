"""Does kvctl watch print events as they pass, one a line, only the selected ones, in both formats,
and also across an absence of NATS?"""

import json
import re

import pytest

import engine
import programs
from conftest import PUBLISH, worker
from programs import wait_for
from test_faults import BLOCK, name_of, tokens_of

LINE = re.compile(
    r"^\d\d:\d\d:\d\d\.\d{3} dynamo/VllmWorker worker (\d+) rank (\d+) event (\d+) "
    r"(stored|removed|cleared)(?: device (\d+) blocks?((?: [0-9a-f]{16})+(?: \.\.\.)?)(?: after [0-9a-f]{16})?)?$")


def port_before(endpoint):
    """The configuration contains the port of rank 0."""
    base, port = endpoint.rsplit(":", 1)
    return f"{base}:{int(port) - 1}"


@pytest.fixture(params=["json", "protobuf"])
def engines(request, scene):
    """Rank 0 of workers 7 and 8, rank 1 of worker 9, on one bridge."""
    scene.at = {place: scene.engine() for place in [(7, 0), (8, 0), (9, 1)]}
    rank1 = scene.at[9, 1]
    scene.bridge(
        worker(scene.at[7, 0], 7), worker(scene.at[8, 0], 8),
        f'id = 9L; model = "m"; block_size = {BLOCK}; first_rank = 1; '
        f'events = "{port_before(rank1.events)}"; replay = "{port_before(rank1.replay)}";',
        formats=[request.param])
    return scene


def start(scene, *options, place=(7, 0)):
    """Returns when it watches, that is when it has shown an event of a block that is stored and
    removed."""
    watch = scene.start("watch", [programs.BIN / "kvctl", "--nats", scene.nats_url, "watch", *options])
    watch.is_ours = False  # a signal ends it, as with tail -f

    def has_shown():
        come_and_go(scene, place, 1)
        return '"kind":"stored"' in watch.text() if "--all" in options else "\n" in watch.text()

    wait_for("kvctl watch shows the first event", has_shown)
    return watch


def come_and_go(scene, place, number):
    scene.at[place].publish(engine.batch(
        engine.stored([number], tokens_of(number), BLOCK), engine.removed(number), rank=place[1]))


def play(scene, watch, place=(7, 0)):
    """Causes every kind of event on every stream; then waits for the last one that the watcher must
    show."""
    for rank in scene.at:
        come_and_go(scene, rank, 10)
        scene.at[rank].publish(engine.batch(engine.cleared(), rank=rank[1]))
    come_and_go(scene, place, 99)
    wait_for("the last event", lambda: f"{name_of(99):016x}" in watch.text() or str(name_of(99)) in watch.text())


def events(watch):
    """(worker, rank, kind) of each line; every line is one event."""
    lines = watch.text().splitlines()
    matches = [LINE.match(line) for line in lines]
    assert lines and all(matches), [line for line, match in zip(lines, matches) if not match]
    return {(int(m[1]), int(m[2]), m[4]) for m in matches}


@pytest.mark.first
@pytest.mark.sanitize
def test_every_event_is_a_line(engines):
    watch = start(engines)
    play(engines, watch)
    wait_for("all streams and kinds", lambda: events(watch) >= {
        (*place, kind) for place in engines.at for kind in ("stored", "removed", "cleared")})


def test_filters_combine(engines):
    watch = start(engines, "--worker", 7, "--worker", 9, "--rank", 1, "--kind", "removed", place=(9, 1))
    play(engines, watch, place=(9, 1))
    assert events(watch) == {(9, 1, "removed")}


def test_json_lines_contain_the_same(engines):
    watch = start(engines, "--json", "--worker", 7, "--rank", 0)
    play(engines, watch)
    said = [json.loads(line) for line in watch.text().splitlines()]
    assert {event["worker_id"] for event in said} == {7} and {event["dp_rank"] for event in said} == {0}
    assert {event["kind"] for event in said} == {"stored", "removed", "cleared"}
    ids = [event["event_id"] for event in said]
    assert ids == list(range(ids[0], ids[0] + len(ids))), "none is missing, none comes twice"
    last = next(event for event in said if event["kind"] == "stored" and
                event["blocks"][0]["block_hash"] == name_of(99))
    assert last["tier"] == "device" and "tokens_hash" in last["blocks"][0]


def play_hybrid(scene):
    """Blocks 20 and 21 of a hybrid model in both groups; then 20 is in neither."""
    hybrid, tokens = engine.MapForm, tokens_of(20) + tokens_of(21)
    scene.at[7, 0].publish(engine.batch(
        hybrid.stored([20, 21], tokens, BLOCK), hybrid.window_stored([20, 21], tokens, BLOCK, 2 * BLOCK)))
    scene.at[7, 0].publish(engine.batch(hybrid.window_removed(20), hybrid.removed(20)))


def of_hybrid(event):
    return any(block["block_hash"] == name_of(20) for block in event["blocks"])


def test_all_subjects_show_windows_and_requests(engines, request):
    format = request.node.callspec.params["engines"]
    watch = start(engines, "--all")
    play_hybrid(engines)

    def lines():
        return [json.loads(line) for line in watch.text().split("\n")[:-1]]  # the last line may be incomplete

    def hybrid_lines():
        return [line for line in lines() if "blocks" in line["data"] and "kind" in line["data"] and of_hybrid(line["data"])]

    wait_for("the four events", lambda: len(hybrid_lines()) == 4)
    engines.bus().request(f"{PUBLISH}.kv_refresh", b'{"worker_id" : 7}')
    wait_for("the request", lambda: any(line["subject"].endswith(".kv_refresh") for line in lines()))
    (asked,) = [line for line in lines() if line["subject"].endswith(".kv_refresh")]
    assert asked["data"] == {"worker_id": 7} and asked["reply"]
    windows = [line for line in hybrid_lines() if line["data"]["tier"] == "window"]
    assert [line["data"]["kind"] for line in windows] == ["stored", "removed"]
    subject = "kv_window_events" if format == "json" else "kv_events_pb"
    assert {line["subject"] for line in windows} == {f"{PUBLISH}.{subject}"}
    assert not [line for line in lines() if "error" in line]


def test_texts_of_a_peer_do_not_control_the_terminal(scene):
    watch = scene.start("watch", [programs.BIN / "kvctl", "--nats", scene.nats_url, "watch", "--all"])
    watch.is_ours = False
    evil = "\u009b2J \u202e \u2066 \x7f"
    client = scene.bus()

    def has_shown():
        client.publish(f"{PUBLISH}.kv_heartbeat_json", json.dumps({"model": evil}, ensure_ascii=False).encode())
        return "2J" in watch.text()

    wait_for("the message is shown", has_shown)
    line = watch.text().splitlines()[0]
    assert line.isascii() and line.isprintable(), line
    assert evil in json.dumps(json.loads(line), ensure_ascii=False).replace("\\u007f", "\x7f")


def test_loss_and_return_of_nats_are_a_line_each(engines):
    watch = start(engines)
    engines.started[0].stop()
    wait_for("the loss is reported", lambda: "NATS is away" in watch.text())
    engines.start_nats(engines.nats_port)
    wait_for("the return is reported", lambda: "NATS is back" in watch.text())

    def shown_again():
        come_and_go(engines, (8, 0), 3)
        return f"{name_of(3):016x}" in watch.text()

    wait_for("events are shown again", shown_again)
    assert watch.is_running()
    said = [line for line in watch.text().splitlines() if not LINE.match(line)]
    assert said == ["kvctl: NATS is away, waiting for it: what is published meanwhile is missed",
                    "kvctl: NATS is back"], said
