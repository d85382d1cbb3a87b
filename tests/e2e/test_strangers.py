"""Does a crowd that shows no token, and never finishes a header, keep out or slow down who does?"""

import selectors
import socket
import statistics
import time

import pytest

import authority
from conftest import worker
from programs import wait_for
from test_http_access import TOKEN, put_token, start

CROWD = 2000
SECONDS = 4
QUERY = '{"token_ids":[1,2,3],"model":"m"}'

JSON = {"Content-Type": "application/json"}


class Slowloris:
    """Connections that each send the beginning of a header, and a byte now and then; one that is
    closed is opened again.  They come from an address of their own."""

    HEADER = b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nX: "

    def __init__(self, port, count):
        self.port, self.count = port, count
        self.waiting = selectors.DefaultSelector()
        self.opened = self.closed = 0

    def _open(self):
        one = socket.socket()
        one.bind(("127.0.0.2", 0))
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", self.port))
        self.waiting.register(one, selectors.EVENT_READ)
        self.opened += 1
        try:
            one.send(self.HEADER)
        except OSError:
            pass  # not connected yet; a byte follows

    def work(self, drip):
        """Takes leave of the closed ones, opens up to 100 new ones, and lets some send a byte."""
        for key, _ in self.waiting.select(0):
            self.waiting.unregister(key.fileobj)
            key.fileobj.close()
            self.closed += 1
        for _ in range(min(100, self.count - len(self.waiting.get_map()))):
            self._open()
        if drip:
            for key in list(self.waiting.get_map().values())[:: max(1, self.count // 50)]:
                try:
                    key.fileobj.send(b"x")
                except OSError:
                    pass

    def leave(self):
        for key in list(self.waiting.get_map().values()):
            key.fileobj.close()
        self.waiting.close()


@pytest.fixture
def served(scene, tmp_path):
    scene.start_nats()
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, "kvaggregator", f'token_file = "{tmp_path}/token";')
    wait_for("it is ready", daemon.is_ready, 15)
    scene.bridge(worker(scene.engine(), 1))

    def is_known():
        return daemon.http("POST", "/query", QUERY, {**JSON, "Authorization": f"Bearer {TOKEN}"})[0] == 200

    wait_for("the model is known", is_known, 15)
    return daemon


def measure(connection, seconds, between=lambda at: None):
    """Milliseconds of each request; between() runs before each."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        between(len(took))
        began = time.perf_counter()
        status, text = authority.request(connection, "/query", TOKEN, "POST", QUERY)
        took.append(1000 * (time.perf_counter() - began))
        assert status == 200, text
    return took


def p99(values):
    return statistics.quantiles(values, n=100)[98]


def test_a_crowd_without_a_token_does_not_keep_out_who_has_one(served):
    connection = authority.http.client.HTTPConnection("127.0.0.1", served.port, timeout=5)
    alone = measure(connection, 1)
    its_socket = connection.sock
    crowd = Slowloris(served.port, CROWD)
    try:
        for _ in range(CROWD // 100):
            crowd.work(False)
        with_crowd = measure(connection, SECONDS, lambda at: crowd.work(at % 10 == 0) if at % 20 == 0 else None)
        assert connection.sock is its_socket, "the connection that has shown the token is kept"
        assert served.http("GET", "/livez")[0] == 200

        def is_new_one_served():
            fresh = authority.http.client.HTTPConnection("127.0.0.1", served.port, timeout=5)
            return authority.request(fresh, "/query", TOKEN, "POST", QUERY)[0] == 200

        wait_for("a new connection with the token is served", is_new_one_served, 5)
    finally:
        crowd.leave()
    print(
        f"{crowd.opened} connections without a token, {crowd.closed} of them closed; requests with it: p99 "
        f"{p99(alone):.2f} ms alone ({len(alone)}), {p99(with_crowd):.2f} ms with them ({len(with_crowd)})"
    )
    assert crowd.opened >= CROWD and crowd.closed > CROWD // 2
    assert p99(with_crowd) < 100, "lenient: the machine is shared; the goal is 5 ms"
