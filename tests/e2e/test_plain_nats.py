"""Is everything that the daemons publish on NATS readable with only the plain NATS protocol, or
with kvctl? The commands for operators are taken from etc/monitoring.md."""

import json
import pathlib
import shlex
import socket
import subprocess
import threading

import pytest

import engine
import programs
from conftest import ROUTER, shared_scene, worker
from programs import wait_for

BLOCK = 16
PROMPT = list(range(3 * BLOCK))
PAGE = pathlib.Path(__file__).parents[2] / "etc" / "monitoring.md"
LOAD = {
    "request_active_slots": 7, "request_total_slots": 256, "kv_active_blocks": 1000, "kv_total_blocks": 4096,
    "num_requests_waiting": 5, "gpu_cache_usage_perc": 0.25, "gpu_prefix_cache_hit_rate": 0.5,
}


def documented_lines():
    block = PAGE.read_text().split("## Watching NATS")[1].split("```")[1]
    return [line.split("   # ")[0].rsplit("    # ")[0].rstrip() for line in block.strip().splitlines()]


class Plain:
    """A socket with the text protocol of NATS: what nc or telnet show."""

    def __init__(self, port, said):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=programs.DEADLINE_S)
        self.messages = []  # (subject, payload)
        self.trouble = []
        self.socket.sendall(said)
        self.thread = threading.Thread(target=self.read, args=(self.socket.makefile("rb"),), daemon=True)
        self.thread.start()

    def read(self, stream):
        while line := stream.readline():
            verb, *words = line.decode().split()
            if verb == "MSG":
                payload = stream.read(int(words[-1]) + 2)[:-2]
                self.messages.append((words[0], payload))
            elif verb == "PING":
                self.socket.sendall(b"PONG\r\n")
            elif verb == "-ERR":
                self.trouble.append(line)

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()


@pytest.fixture(scope="module", params=[["json"], ["json", "protobuf"]], ids=["json", "both"])
def fleet(request, tmp_path_factory):
    """A bridge of one worker, an aggregator, and continuous activity."""
    with shared_scene(tmp_path_factory) as scene:
        scene.one, scene.feed = scene.engine(), scene.load_feed()
        scene.bridge(
            worker(scene.one, 7, more=f'load = {{ zmq = "{scene.feed.endpoint}"; }};'), formats=request.param)
        scene.router = scene.aggregator()
        scene.one.publish(engine.batch(engine.stored([1, 2, 3], PROMPT, BLOCK)))
        wait_for("the stream is EXACT", scene.router.is_exact)
        yield scene


def play(scene):
    """Causes a message on every subject that does not have messages regularly."""
    scene.one.publish(engine.batch(engine.stored([9], [9] * BLOCK, BLOCK), engine.removed(9)))
    scene.feed.send(LOAD)
    scene.router.http("POST", "/route", {"token_ids": PROMPT, "model": "m"})


def until(scene, what, condition):
    def look():
        play(scene)
        return condition()

    return wait_for(what, look)


# What the text of each subject must contain, by its last token.
KEYS = {
    "kv_events": {"worker_id", "event"},
    "kv_heartbeat_json": {"worker_id", "dp_rank", "state", "reason", "blocks", "last_event_id", "model"},
    "load_metrics": {"worker_id", "dp_rank", "metrics"},
    "bridge_status": {"bridge_id", "formats", "streams"},
    "load_stats": {"endpoints", "load_avg", "load_std", "stale"},
    "kv-hit-rate": {"worker_id", "isl_blocks", "overlap_blocks"},
    "kv_routed": {"version", "aggregator", "request_id", "worker_id", "dp_rank", "isl_blocks", "overlap_blocks"},
    "aggregator_status": {"version", "aggregator", "ready", "bye", "requests_in_flight"},
}
# The same of a subject on which minutes may pass without a message.
RARE = {"bridge_streams": {"bridge_id", "streams"}}
ANSWERS = {
    "$SRV.PING": {"name", "id", "version"},
    "$SRV.STATS.dynamo_vllmworker": {"name", "endpoints"},
    f"{ROUTER}.kv_get.streams": {"streams"},
}
NO_TEXT = {"kv_heartbeat"}


def tail(subject):
    return subject.rsplit(".", 1)[1]


def is_text(scene, subject):
    return tail(subject) not in NO_TEXT | {"kv_events_pb"}


def check_text(scene, messages):
    """Every message is one JSON object on one line, except those known to be protobuf."""
    for subject, payload in messages:
        if is_text(scene, subject) and ".kv_get." not in subject:
            assert b"\n" not in payload
            assert (KEYS | RARE)[tail(subject)] <= set(json.loads(payload)), (subject, payload)


def run_nats_sub(scene, subject):
    plain = Plain(scene.nats_port, f'CONNECT {{"verbose":false}}\r\nSUB {subject} 1\r\n'.encode())
    wanted = set(KEYS) if subject.endswith(">") else {tail(subject)}
    try:
        until(scene, f"messages of {wanted}", lambda: {tail(s) for s, _ in list(plain.messages)} >= wanted)
    finally:
        plain.close()
    assert not plain.trouble
    check_text(scene, plain.messages)


def run_nats_req(scene, subject, body):
    said = f'CONNECT {{"verbose":false}}\r\nSUB answer 1\r\nPUB {subject} answer {len(body)}\r\n{body}\r\n'
    plain = Plain(scene.nats_port, said.encode())
    names = {"dynamo_vllmworker", "kvaggregator"} if subject == "$SRV.PING" else set()

    def look():
        answers = [json.loads(payload) for _, payload in list(plain.messages)]
        return answers and {a.get("name") for a in answers} >= names and answers

    try:
        answers = until(scene, f"an answer on {subject}", look)
    finally:
        plain.close()
    assert all(ANSWERS[subject] <= set(answer) for answer in answers), answers


def run_kvctl(scene, words):
    words[words.index("--nats") + 1] = scene.nats_url
    kvctl = subprocess.Popen(
        [programs.BIN / "kvctl", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(kvctl.stdout), daemon=True)
    reader.start()
    try:
        if "--all" in words:
            until(scene, "every subject", lambda: {tail(json.loads(line)["subject"]) for line in list(lines)}
                  >= set(KEYS) | NO_TEXT)
        else:
            until(scene, "an event", lambda: any(" worker 7 " in line and " removed " in line for line in list(lines)))
    finally:
        kvctl.terminate()
        kvctl.wait(programs.DEADLINE_S)
        reader.join()
    return lines


def run_nc(scene, line):
    """The bytes that this command line passes to nc."""
    said = subprocess.run(
        ["bash", "-c", line.partition("|")[0]], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    plain = Plain(scene.nats_port, said)
    try:
        until(scene, "every subject", lambda: {tail(s) for s, _ in list(plain.messages)} >= set(KEYS))
    finally:
        plain.close()
    assert not plain.trouble
    check_text(scene, plain.messages)


@pytest.mark.parametrize("line", documented_lines())
def test_a_documented_command_works(fleet, line):
    words = shlex.split(line.partition("|")[0] if "| nc" in line else line)
    if words[:2] == ["nats", "sub"]:
        run_nats_sub(fleet, *words[2:])
    elif words[:2] == ["nats", "req"]:
        run_nats_req(fleet, *[word for word in words[2:] if not word.startswith("--")])
    elif words[0] == "kvctl":
        run_kvctl(fleet, words[1:])
    else:
        assert line.endswith("| nc 127.0.0.1 4222"), line
        run_nc(fleet, line)


def test_the_documented_commands_are_the_tested_ones():
    lines = documented_lines()
    assert len(lines) == 13 and len(set(lines)) == 13, lines
    assert not any("#" in line for line in lines), lines


@pytest.mark.first
def test_watch_all_decodes_every_message(fleet):
    lines = [json.loads(line) for line in run_kvctl(fleet, ["--nats", "x", "watch", "--all"])]
    assert not [line for line in lines if "data" not in line], "everything can be read"
    events = [line["data"] for line in lines if tail(line["subject"]).startswith("kv_events")]
    assert {event["kind"] for event in events} == {"stored", "removed"}
    assert all(event["worker_id"] == 7 and event["blocks"] for event in events)
    loads = [line["data"] for line in lines if tail(line["subject"]) == "load_metrics"]
    assert loads[-1]["metrics"] == LOAD
