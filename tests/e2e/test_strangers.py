"""Do many clients without a token, which never finish a header, keep out or slow down those with one?"""

import statistics
import time

import pytest

import authority
from conftest import worker
from programs import wait_for
from slowloris import Slowloris
from test_http_access import TOKEN, put_token, start

CROWD = 2000
SECONDS = 4
QUERY = '{"token_ids":[1,2,3],"model":"m"}'

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def served(scene, tmp_path):
    scene.start_nats()
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, "kvaggregator", f'token_file = "{tmp_path}/token";')
    wait_for("the daemon is ready", daemon.is_ready)
    scene.bridge(worker(scene.engine(), 1))

    def is_known():
        return daemon.http("POST", "/query", QUERY, {**JSON, "Authorization": f"Bearer {TOKEN}"})[0] == 200

    wait_for("the model is known", is_known)
    return daemon


def measure(connection, seconds, between=lambda at: None):
    """Duration of each request in milliseconds; between() runs before each."""
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
    connection = authority.http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    alone = measure(connection, 1)
    its_socket = connection.sock
    crowd = Slowloris(served.port, CROWD)
    try:
        for _ in range(CROWD // 100):
            crowd.work(False)
        with_crowd = measure(connection, SECONDS, lambda at: crowd.work(at % 10 == 0) if at % 20 == 0 else None)
        assert connection.sock is its_socket, "the connection that has shown the token is kept"
        assert served.http("GET", "/livez")[0] == 200

        for _ in range(20):
            crowd.work(False)  # all places for unauthenticated connections are taken by young ones
            fresh = authority.http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            assert authority.request(fresh, "/query", TOKEN, "POST", QUERY)[0] == 200, "a new connection with the token"
            fresh.close()
    finally:
        crowd.leave()
    print(
        f"{crowd.opened} connections without a token, {crowd.closed} of them closed; requests with it: p99 "
        f"{p99(alone):.2f} ms alone ({len(alone)}), {p99(with_crowd):.2f} ms with them ({len(with_crowd)})"
    )
    assert crowd.opened >= CROWD and crowd.closed > CROWD // 2
    assert p99(with_crowd) < 100, "lenient: the machine is shared; the goal is 5 ms"
