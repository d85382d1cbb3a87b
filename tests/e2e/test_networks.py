"""Is no link-local address and no metadata service connected to that a registration or an engine
gives? Is a redirect not followed?"""

import http.server
import threading

import pytest

import engine
from conftest import worker
from programs import wait_for
from test_http_access import REGISTER, put_token


def registration(events, number):
    return {
        "instance_id": number, "dp_rank": 0, "model_name": "m", "block_size": 16, "endpoint": events,
    }


def start_bridge(scene, *workers):
    put_token(scene.folder / "register-token", REGISTER)
    return scene.bridge(*workers, wait=False, limits=f'register = {{ token_file = "{scene.folder}/register-token"; }};\n')


def register(bridge, events, number=5):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {REGISTER}"}
    status, text = bridge.http("POST", "/register", registration(events, number), headers)
    assert status == 201, text


def is_refused(bridge, address):
    return (
        bridge.metric("kvb_addresses_refused_total") > 0
        and f"the address {address} is not allowed: it is link-local or a metadata service" in bridge.text()
    )


@pytest.mark.first
def test_link_local_and_metadata_are_refused(scene):
    scene.start_nats()
    bridge = start_bridge(scene, worker(scene.engine(), 1))
    wait_for("kvbridge is ready", bridge.is_ready)
    hosts = ("169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "192.0.0.192", "[64:ff9b::a9fe:a9fe]")
    for number, host in enumerate(hosts, 5):
        register(bridge, f"tcp://{host}:5557", number)
        wait_for("the address is refused and counted", lambda: is_refused(bridge, host))
        wait_for("/state says why", lambda: f"{host} is not allowed" in bridge.http("GET", "/state")[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_any_other_address_is_connected_to(scene, host):
    scene.start_nats()
    vllm = scene.engine()
    bridge = start_bridge(scene, worker(scene.engine(), 1))
    wait_for("kvbridge is ready", bridge.is_ready)
    register(bridge, f"tcp://{host}:{vllm.events.rsplit(':', 1)[1]}")

    def is_read():
        vllm.publish(engine.batch(engine.stored([1], list(range(16)), 16)))
        return bridge.metric("kvb_batches_received_total") > 0

    wait_for("the engine's events are read", is_read)
    assert bridge.metric("kvb_addresses_refused_total") == 0


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.paths.append(self.path)
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def api():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.paths = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def discovered(api):
    return f'id = 7; model = "m"; block_size = 16; discover = "http://localhost:{api.server_port}";'


@pytest.mark.parametrize("host", ["169.254.169.254", "[64:ff9b::a9fe:a9fe]"])
def test_an_engine_at_a_metadata_address_is_not_asked(scene, host):
    scene.start_nats()
    bridge = start_bridge(scene, f'id = 7; model = "m"; block_size = 16; discover = "http://{host}";')
    wait_for("the log says so", lambda: "is not allowed: it is link-local or a metadata service" in bridge.text())


def test_a_redirect_is_not_followed(scene, api):
    scene.start_nats()
    bridge = start_bridge(scene, discovered(api))
    wait_for("the log says so", lambda: "answered HTTP 302" in bridge.text())
    wait_for("the engine is requested again", lambda: len(api.paths) >= 2)
    assert "/elsewhere" not in api.paths
