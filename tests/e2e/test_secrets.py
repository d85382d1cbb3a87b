"""Is a password in a URL shown nowhere, and does the log say why NATS does not let a
daemon in?"""

import http.client
import os
import subprocess
import time

import pytest

import engine
import programs
from conftest import worker
from programs import wait_for

SECRET = "hunter2SECRET"

AUTHORITY = """[ca]
default_ca = one
[one]
database = index.txt
new_certs_dir = .
serial = serial
default_md = sha256
policy = policy
x509_extensions = extensions
[policy]
commonName = supplied
[extensions]
subjectAltName = IP:127.0.0.1
basicConstraints = CA:true
"""


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


def certificate(folder, name, start, end):
    """A certificate of its own authority for 127.0.0.1, valid from start to end: YYYY."""
    place = folder / name
    place.mkdir()
    (place / "ca.cnf").write_text(AUTHORITY)
    (place / "index.txt").write_text("")
    (place / "serial").write_text("01")
    for command in (
        f"req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN={name}",
        f"ca -batch -notext -selfsign -config ca.cnf -keyfile key.pem -in request.pem -out cert.pem"
        f" -startdate {start}0101000000Z -enddate {end}0101000000Z",
    ):
        subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
    return place


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    year = time.gmtime().tm_year
    return {
        "good": certificate(folder, "good", year - 1, year + 2),
        "other": certificate(folder, "other", year - 1, year + 2),
        "expired": certificate(folder, "expired", year - 3, year - 1),
    }


# What the server shows, what the daemon trusts, more of the server's configuration, what the log says.
REFUSALS = {
    "another authority": ("good", "other", "", "self-signed certificate"),
    "expired": ("expired", "expired", "", "certificate has expired"),
    "client certificate": ("good", "good", "verify: true, ca_file: ", "requires a client certificate"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_the_log_says_what_is_wrong_with_tls(scene, certificates, case):
    shown, trusted, more, reason = REFUSALS[case]
    place = certificates[shown]
    config = scene.folder / "nats.conf"
    authority = f'{more}"{place}/cert.pem"' if more else ""
    config.write_text(f'tls {{ cert_file: "{place}/cert.pem", key_file: "{place}/key.pem", {authority} }}\n')
    scene.start_nats(config=config)
    bridge = bridge_at(
        scene, f'url = "tls://127.0.0.1:{scene.nats_port}"; ca_file = "{certificates[trusted]}/cert.pem";',
        worker(scene.engine(), 7),
    )
    wait_for(f"the log says {reason}", lambda: reason in bridge.text())
    others = [row[3] for row in REFUSALS.values() if row[3] != reason]
    assert not any(other in bridge.text() for other in others), bridge.text()


def test_a_server_with_a_certificate_that_is_trusted_is_spoken_to(scene, certificates):
    place = certificates["good"]
    config = scene.folder / "nats.conf"
    config.write_text(
        f'tls {{ cert_file: "{place}/cert.pem", key_file: "{place}/key.pem" }}\n'
        'authorization { user: u, password: "p@:/" }\n'
    )
    scene.start_nats(config=config)
    vllm = scene.engine()
    vllm.publish(engine.batch(engine.stored([1], list(range(16)), 16)))
    bridge = bridge_at(
        scene, f'url = "tls://u:p%40%3A%2F@127.0.0.1:{scene.nats_port}"; ca_file = "{place}/cert.pem";',
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
