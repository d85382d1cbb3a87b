"""Do many HTTP clients that never finish keep others from an answer, or exhaust the daemon's
memory? Do the open files suffice, or does the log say that they do not?"""

import resource
import socket
import subprocess
import threading

import pytest

import engine
import programs
from conftest import worker
from programs import wait_for
from test_faults import store
from test_json_readers import listed

MIB = 1 << 20
QUERY = {"token_ids": list(range(16)), "model_name": "m"}


def closed(daemon, reason):
    return daemon.metric("kvb_http_closed_total", reason=reason)


class Crowd:
    """Connections that all send the same bytes, and then a little more a few times a second."""

    def __init__(self, port, count, first, more=b"", buffer_bytes=0):
        self.sockets = []
        for _ in range(count):
            one = socket.socket()
            if buffer_bytes:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            one.settimeout(programs.DEADLINE_S)
            one.connect(("127.0.0.1", port))
            self.sockets.append(one)
            self.say(one, first)
        self.more, self.is_over = more, threading.Event()
        self.thread = threading.Thread(target=self.drip)
        self.thread.start()

    @staticmethod
    def say(one, text):
        try:
            one.sendall(text)
        except OSError:
            pass  # the server has closed the connection

    def drip(self):
        while not self.is_over.wait(0.5):
            for one in self.sockets:
                self.say(one, self.more)

    def leave(self):
        self.is_over.set()
        self.thread.join()
        for one in self.sockets:
            one.close()


@pytest.fixture
def served(scene):
    vllm = scene.engine()
    scene.bridge(worker(vllm))
    aggregator = scene.aggregator()
    vllm.publish(store(1))
    wait_for("a block", lambda: listed(aggregator, 1) and aggregator.is_exact())
    return aggregator


def assert_health(daemon):
    """A probe that arrives while the crowd is still connecting may have to be repeated."""
    for path in ("/livez", "/readyz"):
        wait_for(f"an answer to {path}", lambda path=path: daemon.http("GET", path)[0] == 200)


@pytest.mark.first
def test_slow_headers_keep_nobody_out(served):
    crowd = Crowd(served.port, 600, b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n")
    try:
        assert_health(served)
        wait_for("a question is answered", lambda: served.http("POST", "/query", QUERY)[0] == 200)
        for _ in range(50):
            assert_health(served)
            wait_for("a question is answered", lambda: served.http("POST", "/query", QUERY)[0] == 200)
        wait_for("the others are hung up on", lambda: closed(served, "late") > 200)
        assert closed(served, "crowded") > 0
    finally:
        crowd.leave()
    wait_for("all are gone", lambda: served.metric("kvb_http_connections") <= 2)


def test_slow_readers_of_a_dump_take_bounded_memory(scene):
    blocks = 200_000
    aggregator = hold(scene, blocks)
    before = aggregator.bytes_of("VmRSS")
    request = b"GET /dump HTTP/1.1\r\nHost: x\r\n\r\n"
    crowd = Crowd(aggregator.port, 100, request, buffer_bytes=4096)
    try:
        wait_for("all are being answered", lambda: aggregator.metric("kvb_http_connections") > 100)
        assert_health(aggregator)
        assert len(aggregator.rows()) == blocks
        assert aggregator.bytes_of("VmRSS") - before < 128 * MIB  # the answer has 20 MiB, or 2 GiB in all
        assert aggregator.metric("kvb_http_held_bytes") <= 64 * MIB
    finally:
        crowd.leave()


def hold(scene, blocks):
    """An aggregator with this many blocks of one stream."""
    vllm = scene.engine()
    scene.bridge(worker(vllm, block_size=1))
    aggregator = scene.aggregator(block_size=1)
    for first in range(1, blocks, 50_000):
        numbers = range(first, min(first + 50_000, blocks + 1))
        vllm.publish(engine.batch(engine.stored(numbers, numbers, 1)))
    wait_for("all blocks", lambda: aggregator.metric("kvb_index_blocks") == blocks)
    return aggregator


def test_an_aggregator_with_few_open_files_has_fewer_connections(scene):
    config, log = scene.folder / "few.cfg", scene.folder / "few.log"
    config.write_text(
        f'nats = {{ url = "{scene.nats_url}"; }};\nhttp = "127.0.0.1:0";\n'
        'subscribe = { namespace = "*"; component = "*"; };\n'
        'router = { namespace = "n"; component = "r"; };\n')

    def start(files):
        with open(log, "w") as out:
            return subprocess.Popen(
                [programs.BIN / "kvaggregator", "--config", config], stderr=out,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))

    process = start(300)
    try:
        wait_for("the log says so", lambda: "fewer connections" in log.read_text())
        wait_for("the daemon listens", lambda: "listening" in log.read_text())
    finally:
        process.terminate()
        process.wait(programs.DEADLINE_S)
    assert start(150).wait(programs.DEADLINE_S) == 78
    assert "the limit is 150" in log.read_text()
