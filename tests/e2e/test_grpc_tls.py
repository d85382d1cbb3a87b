"""Where a certificate is configured, does gRPC refuse clients without TLS or without "h2"? Do handshakes that never end cost
nobody else an answer? Is a new certificate used at SIGHUP while open connections continue?"""

import contextlib
import signal
import socket
import ssl

import grpc
import pytest

import authority
import programs
from kv_indexer import Router, vector
from programs import wait_for
from slowloris import Slowloris, client_hello

HASHES = range(1048574)  # the longest prompt of a router: 8 MiB, in records of 16 KiB


class Served:
    """An aggregator with an empty index that answers over TLS, and its authority."""

    def __init__(self, scene, folder):
        self.scene, self.ca = scene, authority.Authority(folder)
        self.ca.sign("server")
        self.port = programs.free_port()
        self.aggregator = scene.aggregator(extra=(
            f'grpc = {{ listen = "127.0.0.1:{self.port}"; tls = {{ cert_file = "{folder}/server.pem"; '
            f'key_file = "{folder}/server.key"; }}; }};\n'))

    def router(self, ca=None):
        """A router that trusts the authority."""
        roots = (ca or self.ca).path.read_bytes()
        return contextlib.closing(Router(self.port, credentials=grpc.ssl_channel_credentials(roots)))

    def code(self, **shown):
        with self.router(**shown) as router:
            return router.code(vector("request_4"))

    def handshakes(self, result):
        return self.aggregator.metric("kvb_grpc_handshakes_total", result=result)

    def shake(self, protocols=("h2",), **context):
        """A handshake of OpenSSL; returns the connection."""
        mine = self.ca.context()
        if protocols:
            mine.set_alpn_protocols(list(protocols))
        for name, value in context.items():
            setattr(mine, name, value)
        plain = socket.create_connection(("127.0.0.1", self.port), 5)
        try:
            return mine.wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise

    def serial(self):
        with self.shake() as one:
            return int(one.getpeercert()["serialNumber"], 16)


@pytest.fixture
def served(scene, tmp_path):
    return Served(scene, tmp_path)


@pytest.mark.first
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_a_router_that_trusts_the_authority_is_answered(served, tmp_path):
    with served.router() as router:
        assert router.match([1]) == [] and router.match(HASHES) == []
    assert served.handshakes("ok") == 1
    wait_for("the router has disconnected", lambda: served.aggregator.metric("kvb_grpc_connections") == 0)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with served.shake(minimum_version=version, maximum_version=version) as one:
            assert one.selected_alpn_protocol() == "h2"

    # Clients that speak another protocol are refused.
    with contextlib.closing(Router(served.port)) as plain:
        assert plain.code(vector("request_4")) == "UNAVAILABLE", "a status with which sgl-router goes on"
    wait_for("the metric counts the handshake", lambda: served.handshakes("other") >= 1)
    assert served.code(ca=authority.Authority(tmp_path, "stranger")) == "UNAVAILABLE"
    with pytest.raises(OSError):
        served.shake(maximum_version=ssl.TLSVersion.TLSv1_1, minimum_version=ssl.TLSVersion.TLSv1_1)
    for protocols in ((), ("http/1.1",)):
        before = served.handshakes("alpn")
        with pytest.raises(ssl.SSLError, match="(?i)no.application.protocol"):
            served.shake(protocols)
        wait_for("the metric counts the handshake", lambda before=before: served.handshakes("alpn") == before + 1)
    assert served.handshakes("ok") == 3
    assert served.aggregator.text().count("TLS handshakes refused") >= 1
    assert served.code() == "OK"


def test_a_new_certificate_is_served_and_connections_live_on(served, tmp_path):
    with served.router() as router:
        assert router.match([1]) == []
        first = served.serial()
        served.ca.sign("server")
        served.aggregator.process.send_signal(signal.SIGHUP)
        wait_for("SIGHUP", lambda: served.serial() != first)
        second = served.serial()
        (tmp_path / "server.pem").write_text("no certificate")
        served.aggregator.process.send_signal(signal.SIGHUP)
        wait_for("the bad file is rejected", lambda: "key=grpc.tls.cert_file" in served.aggregator.text())
        assert served.serial() == second
        served.ca.sign("server")
        served.aggregator.process.send_signal(signal.SIGHUP)
        wait_for("a good one is taken", lambda: served.serial() not in (first, second))
        # Strangers have their certificate before the server has counted their handshakes.
        wait_for("only the router is connected", lambda: served.aggregator.metric("kvb_grpc_connections") == 1)
        before = served.handshakes("ok")
        assert router.match([1]) == [] and served.handshakes("ok") == before, "on its connection of before"


def test_handshakes_that_never_end_cost_nobody_else_an_answer(served):
    """500 unauthenticated clients for 256 places: each sends half of its first flight, or all of
    it, and then nothing."""
    hello = client_hello(["h2"])
    strangers = Slowloris(served.port, 500, (hello, hello[:200]), is_header=False)
    with served.router() as router, served.router() as other:
        assert router.match([1]) == []

        def have_come():
            strangers.work(False)
            assert router.match([1]) == []
            return strangers.opened >= 500 and strangers.closed > 0

        wait_for("all strangers have come, and some were closed", have_come)
        wait_for("a new router finds a place", lambda: other.code(vector("request_4")) == "OK")
        assert served.aggregator.metric("kvb_grpc_connections") <= 256
    strangers.leave()
    assert served.aggregator.metric("kvb_grpc_closed_total", reason="crowded") > 0
