"""Is a password in a URL shown nowhere, and does the log say why NATS does not let a
daemon in?"""

import http.client
import os
import subprocess

import engine
import programs
from authority import Authority
from conftest import worker
from programs import wait_for

SECRET = "hunter2SECRET"


def bridge_at(scene, nats, *workers, more=""):
    port = programs.free_port()
    rows = ",\n".join("{ " + row + " }" for row in workers)
    return scene.daemon(
        "kvbridge",
        f"nats = {{ {nats} }};\n"
        'publish = { namespace = "dynamo"; component = "w"; };\n'
        f'workers = (\n{rows}\n);\nhttp = "127.0.0.1:{port}";\n{more}',
        port,
    )


def test_a_password_in_a_url_is_shown_nowhere(scene):
    scene.start_nats()
    vllm, bus = scene.engine(), scene.bus()
    seen = bus.watch("namespace.>")
    bridge = bridge_at(
        scene, f'url = "nats://kvb:{SECRET}@127.0.0.1:{scene.nats_port}";',
        worker(vllm, 7, more=f'load = {{ prometheus = "http://scrape:{SECRET}@127.0.0.1:1/metrics"; }};'),
        f'id = 8; model = "m"; block_size = 16; discover = "http://find:{SECRET}@127.0.0.1:1";',
    )
    wait_for("kvbridge is ready", bridge.is_ready, 15)
    wait_for("the log names the page", lambda: "http://127.0.0.1:1/metrics" in bridge.text())
    wait_for("the log names the engine", lambda: "discover=http://127.0.0.1:1 " in bridge.text())
    wait_for("the status names the page", lambda: any(b"127.0.0.1:1/metrics" in m.data for m in seen))
    pages = [bridge.http("GET", path)[1] for path in ("/state", "/metrics", "/readyz")]
    assert "127.0.0.1:1/metrics" in pages[0]
    assert not any(SECRET in text for text in [bridge.text(), *pages])
    assert not any(SECRET.encode() in m.data for m in seen)


def test_readiness_shows_no_password_while_nats_is_away(scene):
    url = f"nats://kvb:{SECRET}@127.0.0.1:{programs.free_port()}"
    bridge = bridge_at(scene, f'url = "{url}";', worker(scene.engine(), 7))
    text = wait_for("an answer that names NATS", lambda: named(bridge))
    assert SECRET not in text and SECRET not in bridge.text()


def named(bridge):
    try:
        text = bridge.http("GET", "/readyz")[1]
    except OSError:
        return None
    return text if "127.0.0.1" in str(text) else None


# ---- TLS ----


def test_the_log_says_that_a_client_certificate_is_required(scene):
    """Other reasons: test_nats_logins.py."""
    ca = Authority(scene.folder / "pki")
    shown, key = ca.sign("server")
    config = scene.folder / "nats.conf"
    config.write_text(f'tls {{ cert_file: "{shown}", key_file: "{key}", verify: true, ca_file: "{ca.path}" }}\n')
    scene.start_nats(config=config)
    bridge = bridge_at(
        scene, f'url = "tls://127.0.0.1:{scene.nats_port}"; ca_file = "{ca.path}";', worker(scene.engine(), 7))
    wait_for("the log says it", lambda: "requires a client certificate" in bridge.text())


def test_a_server_with_a_certificate_that_is_trusted_is_spoken_to(scene):
    ca = Authority(scene.folder / "pki")
    shown, key = ca.sign("server")
    config = scene.folder / "nats.conf"
    config.write_text(
        f'tls {{ cert_file: "{shown}", key_file: "{key}" }}\n'
        'authorization { user: u, password: "p@:/" }\n'
    )
    scene.start_nats(config=config)
    vllm = scene.engine()
    vllm.publish(engine.batch(engine.stored([1], list(range(16)), 16)))
    bridge = bridge_at(
        scene, f'url = "tls://u:p%40%3A%2F@127.0.0.1:{scene.nats_port}"; ca_file = "{ca.path}";',
        worker(vllm, 7),
    )
    wait_for("kvbridge is ready", bridge.is_ready, 15)


# ---- stderr ----


def test_a_log_that_nobody_reads_does_not_hold_up_the_end(scene):
    """A pipe that is full from the first line on."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    scene.start_nats()
    port = programs.free_port()
    path = scene.folder / "full.cfg"
    path.write_text(
        f'nats = {{ url = "{scene.nats_url}"; }};\npublish = {{ namespace = "dynamo"; component = "w"; }};\n'
        f"workers = ( {{ {worker(scene.engine(), 7)} }} );\n" f'http = "127.0.0.1:{port}";\n'
    )
    process = subprocess.Popen([programs.BIN / "kvbridge", "--config", path], stderr=writer)
    os.close(writer)
    try:
        wait_for("kvbridge is ready", lambda: is_ready(port), 15)
        process.terminate()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)


def is_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
