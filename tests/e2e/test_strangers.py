"""Do many clients without a token, which never finish a header, keep out those with one?"""

import pytest

import authority
from conftest import worker
from programs import wait_for
from slowloris import Slowloris
from test_http_access import TOKEN, put_token, start

CROWD = 2000
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


def ask(connection):
    status, text = authority.request(connection, "/query", TOKEN, "POST", QUERY)
    assert status == 200, text


def test_a_crowd_without_a_token_does_not_keep_out_who_has_one(served):
    connection = authority.http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    ask(connection)
    its_socket = connection.sock
    crowd = Slowloris(served.port, CROWD)
    try:
        def has_come_and_gone():
            crowd.work(True)
            ask(connection)
            return crowd.opened >= CROWD and crowd.closed > CROWD // 2

        wait_for("the crowd has come, and most of it was closed", has_come_and_gone)
        assert connection.sock is its_socket, "the connection that has shown the token is kept"
        assert served.http("GET", "/livez")[0] == 200

        for _ in range(20):
            crowd.work(False)  # all places for unauthenticated connections are taken by young ones
            fresh = authority.http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            assert authority.request(fresh, "/query", TOKEN, "POST", QUERY)[0] == 200, "a new connection with the token"
            fresh.close()
    finally:
        crowd.leave()
