"""Does Envoy ask the picker over TLS as gateways on Kubernetes do, who check no certificate; and where the picker wants to see
theirs, is only who shows one answered?"""

import socket
import ssl

import pytest

import authority
import envoys
import gateway
import programs

pytestmark = pytest.mark.sanitize

TOKENS = list(range(64))


def ask(world, listener):
    return world.send(listener, {"model": "m", "prompt": TOKENS}, path=gateway.TEXT).status


def certificate(port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), programs.DEADLINE_S)) as one:
        return one.getpeercert(binary_form=True)


def test_a_certificate_that_nobody_checks(scene):
    port = programs.free_port()
    world = gateway.World(
        scene, {"tls": {"engines": "original_dst"}, "plain": {"engines": "original_dst", "picker": "clear"}}, tls={},
        gateway="tls = { self_signed = true; };", port=port, clusters=[envoys.picker_cluster("clear", port)])
    assert (ask(world, "tls"), world.by("tokens")) == (200, 1)
    assert ask(world, "plain") == 500
    first = certificate(port)
    assert world.aggregator.stop() == 0
    world.start_picker()
    assert ask(world, "tls") == 200
    assert certificate(port) != first, "it is made at each start"


def test_only_who_shows_a_certificate_may_ask(scene, tmp_path):
    mine, other = authority.Authority(tmp_path / "mine"), authority.Authority(tmp_path / "other")
    server, server_key = mine.sign("server", purpose="serverAuth")
    shown = {name: one.sign(name, purpose=purpose) for name, one, purpose in (
        ("picker", mine, "clientAuth"), ("stranger", other, "clientAuth"), ("server", mine, "serverAuth"))}
    port = programs.free_port()

    def showing(name):
        return {"validation_context": {"trusted_ca": {"filename": str(mine.path)}}, **({"tls_certificates": [{
            "certificate_chain": {"filename": str(shown[name][0])}, "private_key": {"filename": str(shown[name][1])},
        }]} if name in shown else {})}

    world = gateway.World(
        scene, {name: {"picker": name} for name in (*shown, "nobody")}, port=port, tls=showing("picker"),
        gateway=f'tls = {{ cert_file = "{server}"; key_file = "{server_key}"; client_ca_file = "{mine.path}"; }};',
        clusters=[envoys.picker_cluster(name, port, showing(name)) for name in ("stranger", "server", "nobody")])
    assert {name: ask(world, name) for name in world.envoy.ports} == {"picker": 200, "stranger": 500, "server": 500, "nobody": 500}
