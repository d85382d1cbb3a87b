"""Does each kind of login let a daemon in, and does the log say why when it does not?"""

import json
import os
import signal
import socket
import subprocess
import threading

import pytest

import programs
from conftest import worker
from logins import KINDS, Authority, Login, Operator, write_secret
from programs import wait_for

pytestmark = pytest.mark.no_nats


def bridge_at(scene, keys, name="kvbridge", url=None):
    port = programs.free_port()
    return scene.daemon(
        "kvbridge",
        f'nats = {{ url = "{url or scene.nats_url}"; {keys} }};\n'
        'publish = { namespace = "dynamo"; component = "w"; };\n'
        f"workers = ( {{ {worker(scene.engine(), 7)} }} );\n"
        f'http = "127.0.0.1:{port}";\n', port, name)


def aggregator_at(scene, keys):
    port = programs.free_port()
    return scene.daemon(
        "kvaggregator",
        f'nats = {{ url = "{scene.nats_url}"; {keys} }};\n'
        'subscribe = { namespace = "*"; component = "*"; default = { model = "m"; block_size = 16; }; };\n'
        f'router = {{ namespace = "dynamo"; component = "Router"; }};\nhttp = "127.0.0.1:{port}";\n', port)


def check(scene, keys):
    path = scene.folder / "checked.cfg"
    path.write_text(f'nats = {{ url = "{scene.nats_url}"; {keys} }};\n'
                    'publish = { namespace = "dynamo"; component = "w"; };\n'
                    f"workers = ( {{ {worker(scene.engine(), 7)} }} );\n")
    return programs.run("kvbridge", "--config", path, "--check")


def is_connected(daemon):
    return daemon.metric("kvb_nats_connected") == 1


@pytest.mark.first
@pytest.mark.both_servers
@pytest.mark.sanitize
@pytest.mark.parametrize("kind", KINDS)
def test_the_right_login_is_accepted_and_shown_nowhere(scene, kind):
    login = Login(kind, scene.folder)
    scene.start_nats(config=login.config)
    bridge = bridge_at(scene, login.keys())
    wait_for("kvbridge is ready", bridge.is_ready)
    process = f"/proc/{bridge.process.pid}"
    seen = [bridge.text(), *(bridge.http("GET", path)[1] for path in ("/state", "/metrics", "/readyz")),
            *(open(f"{process}/{file}", errors="replace").read() for file in ("cmdline", "environ"))]
    for secret in login.secrets:
        assert not any(secret in text for text in seen)


@pytest.mark.parametrize("kind, reason", [
    ("password", "Authorization Violation"), ("token", "Authorization Violation"),
    ("nkey", "Authorization Violation"), ("credentials", "Authorization Violation"),
    ("certificate", "does not accept the certificate"),
])
def test_a_wrong_login_is_refused_and_the_log_says_so(scene, kind, reason):
    login = Login(kind, scene.folder)
    scene.start_nats(config=login.config)
    if kind == "credentials":
        other = Operator().credentials()[0]
    elif kind == "certificate":
        shown, key = Authority(scene.folder / "others", "ca").sign("client", "email:bridge@example.org")
        write_secret(scene.folder / "client.pem", shown.read_text())
        other = key.read_text()
    else:
        other = None
        login.issue()
    if other:
        write_secret(login.file, other)
    for daemon in (bridge_at(scene, login.keys()), aggregator_at(scene, login.keys())):
        wait_for(f"the log says {reason}", lambda one=daemon: reason in one.text())
        wait_for("/readyz says so, too", lambda one=daemon: reason in one.http("GET", "/readyz")[1])
        status, why = daemon.http("GET", "/readyz")
        assert (status, scene.nats_url in why) == (503, True), why
        if kind != "certificate":
            assert "compare the login in `nats`" in why and "compare the login" in daemon.text()
        assert not any(secret in text for secret in login.secrets for text in (why, daemon.text()))


@pytest.mark.parametrize("kind", ["password", "nkey", "credentials"])
def test_a_login_that_is_revoked_ends_the_connection(scene, kind):
    login = Login(kind, scene.folder)
    server = scene.start_nats(config=login.config)
    bridge = bridge_at(scene, login.keys())
    wait_for("kvbridge is connected", lambda: is_connected(bridge))
    if kind == "credentials":
        login.operator.revoked["*"] = 1 << 40
        login.grant()
    else:
        login.grant("UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4" if kind == "nkey" else "other")
    server.process.send_signal(signal.SIGHUP)
    wait_for("the log says why", lambda: 'reason="Authorization Violation"' in bridge.text() or
             "User Authentication Revoked" in bridge.text())
    wait_for("kvbridge says that it is not connected", lambda: not is_connected(bridge))
    assert bridge.http("GET", "/readyz")[0] == 503


def test_a_login_that_expires_ends_the_connection(scene):
    login = Login("credentials", scene.folder)
    scene.start_nats(config=login.config)
    write_secret(login.file, login.operator.credentials(seconds=3)[0])
    bridge = bridge_at(scene, login.keys())
    wait_for("kvbridge was connected", lambda: is_connected(bridge))
    wait_for("kvbridge is not connected any more", lambda: not is_connected(bridge))
    wait_for("the log says why", lambda: "User Authentication Expired" in bridge.text())
    # the file is read at each dial
    write_secret(login.file, login.operator.credentials()[0])
    wait_for("new credentials are taken", lambda: is_connected(bridge))


# ---- The server's certificate ----

TLS = {
    "another authority": ("other", "", "IP:127.0.0.1", {}, "unable to get local issuer certificate"),
    "another name": ("ca", 'server_name = "nats.example.org";', "IP:127.0.0.1", {}, "hostname mismatch"),
    "expired": ("ca", "", "IP:127.0.0.1", {"days": -1}, "certificate has expired"),
    "right name": ("ca", 'server_name = "nats.example.org";', "DNS:nats.example.org", {}, None),
}


@pytest.mark.parametrize("case", TLS)
def test_the_server_must_show_a_certificate_that_is_trusted(scene, case):
    trusted, keys, hosts, more, reason = TLS[case]
    authority = Authority(scene.folder / "pki")
    Authority(scene.folder / "pki", "other")
    shown, key = authority.sign("server", hosts, **more)
    config = scene.folder / "nats.conf"
    config.write_text(f'tls {{ cert_file: "{shown}", key_file: "{key}" }}\n')
    scene.start_nats(config=config)
    bridge = bridge_at(scene, f'ca_file = "{scene.folder}/pki/{trusted}.pem"; {keys}')
    if reason:
        wait_for(f"the log says {reason}", lambda: reason in bridge.text())
        bridge.wait_until_it_says('remedy="nats.ca_file must have the authority')
        assert not is_connected(bridge)
    else:
        wait_for("kvbridge is connected", lambda: is_connected(bridge))


def test_a_server_may_require_tls_although_the_url_does_not_say_so(scene, monkeypatch):
    authority = Authority(scene.folder / "pki")
    shown, key = authority.sign("server", "IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))  # the authorities that the system trusts
    config = scene.folder / "nats.conf"
    config.write_text(f'tls {{ cert_file: "{shown}", key_file: "{key}" }}\n')
    scene.start_nats(config=config)
    bridge, aggregator = bridge_at(scene, ""), aggregator_at(scene, "")
    wait_for("kvbridge has changed to the way for TLS", lambda: bridge.metric("kvb_nats_connects_total") == 2)
    wait_for("its heartbeats arrive", lambda: len(aggregator.states()) == 1)
    assert is_connected(bridge)


def test_a_server_that_stops_in_the_handshake_is_named_and_keeps_nobody_from_stopping(scene):
    listener = socket.create_server(("127.0.0.1", 0))
    accepted = []

    def be_mute():
        while True:
            try:
                accepted.append(listener.accept()[0])
            except OSError:
                return
            accepted[-1].sendall(b'INFO {"server_id":"a","version":"2.9.10","proto":1,"tls_required":true}\r\n')

    threading.Thread(target=be_mute, daemon=True).start()
    bridge = bridge_at(scene, "", url=f"tls://127.0.0.1:{listener.getsockname()[1]}")
    wait_for("/readyz says why", lambda: "does not answer in the TLS handshake" in bridge.http("GET", "/readyz")[1])
    wait_for("the server is dialed again", lambda: len(accepted) > 1)
    assert bridge.stop() == 0
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


# ---- Bad files, and options that do not fit together ----


def encrypted(key):
    return subprocess.run(["openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:word"],
                          capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind, content, why", [
    ("nkey", "SUNOTASEED\n", "seed of an NKey"), ("credentials", "nothing like it\n", "JWT and the seed"),
    ("certificate", "no key\n", "contains no private key"), ("certificate", None, "is encrypted"),
])
def test_a_file_of_nonsense_is_refused_and_not_repeated(scene, kind, content, why):
    login = Login(kind, scene.folder)
    content = content or encrypted(login.file)
    write_secret(login.file, content)
    done = check(scene, login.keys())
    assert done.returncode == 78
    assert f"nats.{login.key()}: " in done.stderr and why in done.stderr, done
    bridge = bridge_at(scene, login.keys())
    wait_for("kvbridge ends", lambda: not bridge.is_running())
    assert bridge.process.wait() == 78
    assert "nats." in bridge.text() and content.strip() not in bridge.text(), bridge.text()


# ---- kvctl ----

OPTIONS = {
    "password": lambda login: {"user": "u0", "password_file": login.file},
    "token": lambda login: {"token_file": login.file},
    "nkey": lambda login: {"nkey_seed_file": login.file},
    "credentials": lambda login: {"credentials": login.file},
    "certificate": lambda login: {"ca_file": login.folder / "pki/ca.pem", "cert_file": login.folder / "client.pem",
                                  "key_file": login.file},
}
CONTEXTS = {
    "password": lambda login: {"user": "u0", "password": login.secrets[-1]},
    "token": lambda login: {"token": login.secrets[-1]},
    "nkey": lambda login: {"nkey": str(login.file)},
    "credentials": lambda login: {"creds": str(login.file)},
    "certificate": lambda login: {"ca": f"{login.folder}/pki/ca.pem", "cert": f"{login.folder}/client.pem",
                                  "key": str(login.file)},
}


def kvctl(scene, *words, **env):
    home = {"HOME": str(scene.folder), "XDG_CONFIG_HOME": ""}
    return programs.run("kvctl", *map(str, words), "--timeout", "3000", "state", env={**os.environ, **home, **env})


def write_context(scene, name, mode=0o600, **members):
    folder = scene.folder / ".config/nats/context"
    folder.mkdir(parents=True, exist_ok=True)
    return write_secret(folder / f"{name}.json", json.dumps({"url": scene.nats_url, **members}), mode)


def is_let_in(done):
    """Nobody answers: there is no aggregator."""
    return done.returncode == 1 and "nobody answers" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_kvctl_has_the_same_logins_as_options_environment_and_context(scene, kind):
    login = Login(kind, scene.folder)
    scene.start_nats(config=login.config)
    given = OPTIONS[kind](login)
    options = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", value)]
    write_context(scene, "here", **CONTEXTS[kind](login))
    runs = [
        kvctl(scene, "--nats", scene.nats_url, *options),
        kvctl(scene, KVB_NATS_URL=scene.nats_url, **{f"KVB_NATS_{k.upper()}": str(v) for k, v in given.items()}),
        kvctl(scene, "--context", "here", KVB_NATS_TOKEN_FILE="/nowhere"),
    ]
    for done in runs:
        assert is_let_in(done), done
        assert not any(secret in done.stderr for secret in login.secrets)
    done = kvctl(scene, "--nats", scene.nats_url)
    assert done.returncode == 1 and "does not answer" in done.stderr and "nobody" not in done.stderr, done


def test_kvctl_says_what_is_wrong_with_a_login(scene):
    login = Login("password", scene.folder)
    scene.start_nats(config=login.config)
    url = ("--nats", scene.nats_url)
    write_secret(scene.folder / "other", "wrong")
    write_context(scene, "shown", 0o644, user="u0", password="x")
    write_context(scene, "wrong", user="u0", password="x")
    (scene.folder / ".config/nats/context/bad.json").write_text("[1]")
    for words, status, why in [
        ((*url, "--user", "u0", "--password-file", scene.folder / "other"), 1, "Authorization Violation"),
        ((*url, "--user", "u0"), 64, "nats.password_file"),
        ((*url, "--user", "u0", "--password-file", login.file, "--token-file", login.file), 64, "nats.user"),
        (("--context", "nobody"), 64, "nobody.json: No such file"),
        (("--context", "../x"), 64, "name of a context"),
        (("--context", "bad"), 64, "is not a JSON object"),
        (("--context", "shown"), 64, "chmod o-rw"),
        (("--context", "wrong"), 1, "Authorization Violation"),
    ]:
        done = kvctl(scene, *words)
        assert (done.returncode, why in done.stderr) == (status, True), (words, done)
