"""A daemon is stopped by SIGSTOP while an engine clears its cache, and goes on (a paused container does the same).  Is what it
says at first what it knew before, and called EXACT?"""

import json
import signal
import socket
import threading
import time

import grpc
import pytest

import engine
import programs
from conftest import PUBLISH, ROUTER, worker
from kv_indexer import Router, chain
from programs import wait_for

BLOCK = 2
TOKENS = list(range(10, 90, 10))
HASHES = chain(TOKENS, BLOCK)
ASKED = 5  # requests at each door
QUERY = json.dumps({"model": "m", "token_ids": TOKENS}).encode()


class World:
    def __init__(self, scene):
        self.scene, self.grpc_port, self.bus = scene, programs.free_port(), scene.bus()
        self.events, self.beats = self.bus.watch(f"{PUBLISH}.kv_events_pb"), self.bus.watch(f"{PUBLISH}.kv_heartbeat_json")
        self.engine = scene.engine()
        self.bridge = scene.bridge(worker(self.engine, block_size=BLOCK, more='address = "http://10.0.0.1:30000";'),
                                   hashes="engine", heartbeat_ms=500, formats=["protobuf"])
        self.aggregator = scene.aggregator(block_size=BLOCK, extra=f'grpc = {{ listen = "127.0.0.1:{self.grpc_port}"; }};\n')
        self.router = Router(self.grpc_port, timeout=60)
        self.engine.publish(engine.batch(engine.stored(HASHES, TOKENS, BLOCK)))
        wait_for("all doors say EXACT", lambda: self.aggregator.is_exact() and self.match() == ("EXACT", len(HASHES))
                 and len(self.router.match(HASHES)) == 1)

    def match(self):
        """(state, blocks) of the stream, as an answer over NATS has them."""
        return said_over_nats(self.bus.request(f"{ROUTER}.kv_match", QUERY, timeout=60))

    def stop_while_it_clears(self, daemon, seconds):
        """Stops the daemon, clears the engine's cache, and returns when the stop has lasted for as long."""
        daemon.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        self.engine.publish(engine.batch(engine.cleared()))
        wait_for("the pause", lambda: time.monotonic() > began + seconds)


@pytest.fixture
def world(scene):
    one = World(scene)
    yield one
    one.router.close()


def said_over_nats(payload):
    rows = json.loads(payload).get("workers")  # none in an answer that was given up after 2 s
    return (rows[0]["state"], rows[0]["blocks"]) if rows else None


def said_over_http(text):
    answer = json.loads(text)
    if "scores" not in answer:
        assert "no answer within 2 s" in answer["error"], answer
        return None
    held = answer["scores"].get("7", {}).get("0", 0)
    return answer.get("states", {}).get("7", {}).get("0", "EXACT"), held


class HttpRequest:
    """Sent at once; answer() waits."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.sendall(b"POST /query HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
                            b"Content-Length: %d\r\n\r\n%s" % (len(QUERY), QUERY))

    def answer(self):
        with self.socket, self.socket.makefile("rb") as lines:
            return lines.read().split(b"\r\n\r\n", 1)[1]


def test_requests_that_waited_for_a_stopped_aggregator(world):
    before = len(world.events)
    world.stop_while_it_clears(world.aggregator, 1.2)
    wait_for("the bridge has published it", lambda: len(world.events) > before)
    http = [HttpRequest(world.aggregator.port) for _ in range(ASKED)]
    replies = world.bus.watch("answers.*")
    for number in range(ASKED):
        world.bus.publish(f"{ROUTER}.kv_match", QUERY, reply=f"answers.{number}")
    calls = []

    def call():
        try:
            calls.append(world.router.match(HASHES))
        except grpc.RpcError as error:
            calls.append(error.code().name)

    threads = [threading.Thread(target=call) for _ in range(ASKED)]
    for thread in threads:
        thread.start()
    world.aggregator.process.send_signal(signal.SIGCONT)
    said = [said_over_http(one.answer()) for one in http]
    wait_for("all answers over NATS", lambda: len(replies) == ASKED)
    said += [said_over_nats(reply.data) for reply in replies]
    for thread in threads:
        thread.join()
    assert [one for one in said if one and one[0] == "EXACT" and one[1] > 0] == [], said
    assert all(one in ([], "UNAVAILABLE") for one in calls), calls
    wait_for("it is EXACT again", world.aggregator.is_exact)


def test_a_stopped_bridge_asks_the_engine_before_it_calls_its_list_exact(world):
    def says_all(beat):
        return (beat["state"], beat["blocks"]["device"]) == ("EXACT", len(HASHES))

    wait_for("a heartbeat of all blocks", lambda: world.beats and says_all(json.loads(world.beats[-1].data)))
    world.stop_while_it_clears(world.bridge, 1.2)
    before = len(world.beats)
    world.bridge.process.send_signal(signal.SIGCONT)
    wait_for("the empty list is EXACT", lambda: world.match() is None and world.aggregator.is_exact())
    wait_for("a heartbeat after the stop", lambda: len(world.beats) > before)
    beats = [json.loads(beat.data) for beat in world.beats[before:]]
    assert [beat for beat in beats if beat["state"] == "EXACT" and beat["blocks"]["device"] > 0] == [], beats
    assert beats[0]["state"] in ("SYNCING", "DOWN"), beats
