"""Is HTTP closed to clients without a token, and are new certificates and tokens taken over at
SIGHUP while connections live on?"""

import os
import signal
import socket
import ssl

import pytest

import authority
import marked
import programs
from conftest import NAMESPACE
from programs import wait_for

TOKEN = "query-token-0123456789"
OTHER = "other-token-0123456789"
REGISTER = "register-token-0123456789"
PROBES = ("/livez", "/readyz")
GUARDED = {"kvbridge": ("/state",), "kvaggregator": ("/streams", "/query", "/dump", "/history")}


def put_token(path, token):
    part = path.with_suffix(".part")
    part.touch(0o600)
    part.write_text(marked.mark(token) + "\n")
    os.replace(part, path)


def start(scene, program, security, listen="127.0.0.1"):
    port = programs.free_port()
    workers = f'publish = {{ namespace = "{NAMESPACE}"; component = "w"; }};\nworkers = ();\n'
    return scene.daemon(
        program,
        f'nats = {{ url = "{scene.nats_url}"; }};\n{workers if program == "kvbridge" else ""}'
        f'{register_part(scene.folder) if program == "kvbridge" else ""}'
        f'http = "{listen}:{port}";\nhttp_security = {{ {security} }};\n',
        port, name=f"{program}-{port}",
    )


def register_part(folder):
    put_token(folder / "register", REGISTER)
    return f'register = {{ token_file = "{folder}/register"; }};\n'


def tls_keys(folder, more=""):
    return f'cert_file = "{folder}/server.pem"; key_file = "{folder}/server.key"; {more}'


def get(daemon, path, token=None):
    return daemon.http("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})[0]


# ---- Tokens ------------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.parametrize("program", GUARDED)
def test_everything_but_probes_and_the_page_requires_the_token(scene, tmp_path, program):
    scene.start_nats()
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, program, f'token_file = "{tmp_path}/token";')
    wait_for("the daemon is ready without a token", daemon.is_ready)
    for path in (*GUARDED[program], "/metrics", "/nowhere"):
        for wrong in (None, OTHER, TOKEN + "x", TOKEN[:-1], REGISTER):
            assert get(daemon, path, wrong) == 401, (path, wrong)
        assert get(daemon, path, TOKEN) not in (401, 403), path
    assert [get(daemon, path) for path in PROBES] == [200, 200]
    if program == "kvaggregator":
        assert get(daemon, "/") == 200
    denied = 'kvb_http_refused_total{reason="denied"} '
    text = daemon.http("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})[1]
    assert f"{denied}{5 * (len(GUARDED[program]) + 2)}\n" in text
    assert TOKEN not in daemon.text() and TOKEN not in text


def test_registering_and_querying_have_a_token_each(scene, tmp_path):
    scene.start_nats()
    put_token(tmp_path / "token", TOKEN)
    bridge = start(scene, "kvbridge", f'token_file = "{tmp_path}/token";')
    wait_for("kvbridge is ready", bridge.is_ready)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    for path in ("/register", "/unregister", "/drain", "/undrain"):
        assert bridge.http("POST", path, "{}", headers)[0] == 401, path
        other = {**headers, "Authorization": f"Bearer {REGISTER}"}
        assert bridge.http("POST", path, "{}", other)[0] in (400, 422), path


def test_a_new_token_replaces_the_old_one_and_a_bad_file_does_not(scene, tmp_path):
    scene.start_nats()
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, "kvaggregator", f'token_file = "{tmp_path}/token"; open_metrics = true;')
    wait_for("the daemon is ready", daemon.is_ready)
    assert get(daemon, "/streams", TOKEN) == 200
    put_token(tmp_path / "token", OTHER)
    daemon.process.send_signal(signal.SIGHUP)
    wait_for("the new one is taken", lambda: get(daemon, "/streams", OTHER) == 200)
    assert get(daemon, "/streams", TOKEN) == 401
    put_token(tmp_path / "token", "short")
    daemon.process.send_signal(signal.SIGHUP)
    wait_for("the log says so", lambda: "keeping the running ones" in daemon.text())
    assert get(daemon, "/streams", OTHER) == 200 and get(daemon, "/streams", "short") == 401
    put_token(tmp_path / "token", TOKEN)
    daemon.process.send_signal(signal.SIGHUP)
    wait_for("a good one is taken", lambda: get(daemon, "/streams", TOKEN) == 200)


def test_no_body_is_read_before_the_token(scene, tmp_path):
    """The answer follows the header: no byte of the body was sent, and the server does not wait for
    it."""
    scene.start_nats()
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, "kvaggregator", f'token_file = "{tmp_path}/token";')
    wait_for("the daemon is ready", daemon.is_ready)
    for path, status in (("/query", b"401"), ("/livez", b"413")):
        for length in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
            with socket.create_connection(("127.0.0.1", daemon.port), 5) as client:
                client.sendall(f"POST {path} HTTP/1.1\r\nHost: h\r\n{length}\r\n\r\n".encode())
                answer = b"".join(iter(lambda c=client: c.recv(4096), b""))
            assert answer.split()[1] == status, (path, length, answer)


# ---- Addresses -----------------------------------------------------------------------


@pytest.mark.parametrize("program", GUARDED)
def test_another_address_than_loopback_requires_a_guard_or_the_word_insecure(scene, tmp_path, program):
    scene.start_nats()
    put_token(tmp_path / "token", TOKEN)
    done = start(scene, program, "", listen="0.0.0.0")
    done.process.wait(programs.DEADLINE_S)
    assert "http_security.insecure = true" in done.text() and "token_file" in done.text()
    scene.started.remove(done)
    for security in ("insecure = true;", f'token_file = "{tmp_path}/token";'):
        daemon = start(scene, program, security, listen="0.0.0.0")
        wait_for("the daemon is ready", daemon.is_ready)


# ---- TLS -------------------------------------------------------------------------------


@pytest.fixture
def tls(scene, tmp_path):
    scene.start_nats()
    ca = authority.Authority(tmp_path)
    ca.sign("server")
    return ca


def is_ready(daemon, context):
    return authority.request(authority.open_connection(daemon.port, context), "/readyz")[0] == 200


@pytest.mark.first
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
@pytest.mark.parametrize("program", GUARDED)
def test_https_speaks_tls_1_2_or_newer_alone(scene, tmp_path, tls, program):
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, program, tls_keys(tmp_path, f'token_file = "{tmp_path}/token";'))
    wait_for("the daemon is ready", lambda: is_ready(daemon, tls.context()))
    path = GUARDED[program][0]
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = tls.context()
        context.minimum_version = context.maximum_version = version
        connection = authority.open_connection(daemon.port, context)
        assert authority.request(connection, path, TOKEN)[0] == 200
        assert authority.request(connection, path)[0] == 401
    old = tls.context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        is_ready(daemon, old)
    with pytest.raises(ssl.SSLCertVerificationError):
        is_ready(daemon, authority.Authority(tmp_path, "stranger").context())
    with pytest.raises((OSError, programs.http.client.HTTPException)):
        daemon.is_ready()  # HTTP to the port of HTTPS


def serial(port, ca):
    with socket.create_connection(("127.0.0.1", port), 5) as plain:
        with ca.context().wrap_socket(plain, server_hostname="127.0.0.1") as client:
            return int(client.getpeercert()["serialNumber"], 16)


@pytest.mark.parametrize("program", GUARDED)
def test_a_new_certificate_is_served_and_connections_live_on(scene, tmp_path, tls, program):
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, program, tls_keys(tmp_path, f'token_file = "{tmp_path}/token";'))
    wait_for("the daemon is ready", lambda: is_ready(daemon, tls.context()))
    connection = authority.open_connection(daemon.port, tls.context())
    path = GUARDED[program][0]
    assert authority.request(connection, path, TOKEN)[0] == 200
    its_socket = connection.sock
    first = serial(daemon.port, tls)
    tls.sign("server")
    assert serial(daemon.port, tls) == first
    daemon.process.send_signal(signal.SIGHUP)
    wait_for("SIGHUP", lambda: serial(daemon.port, tls) != first)
    second = serial(daemon.port, tls)
    (tmp_path / "server.pem").write_text("no certificate")
    daemon.process.send_signal(signal.SIGHUP)
    wait_for("the log says so", lambda: "keeping the running ones" in daemon.text())
    assert serial(daemon.port, tls) == second
    assert authority.request(connection, path, TOKEN)[0] == 200 and connection.sock is its_socket


def test_check_names_a_key_that_is_not_the_certificates(scene, tmp_path):
    ca = authority.Authority(tmp_path)
    ca.sign("server")
    os.replace(tmp_path / "server.key", tmp_path / "old.key")
    ca.sign("other")
    path = tmp_path / "a.cfg"
    path.write_text(
        f'http_security = {{ cert_file = "{tmp_path}/server.pem"; key_file = "{tmp_path}/other.key"; }};\n'
    )
    done = programs.run("kvaggregator", "--check", "--config", path)
    assert done.returncode != 0
    assert "http_security.key_file: " in done.stderr and "is not the key of the certificate" in done.stderr
