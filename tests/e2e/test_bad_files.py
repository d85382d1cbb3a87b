"""Is each bad file of HTTP refused by --check with its key and its path, and does a
running program keep its old files when one becomes bad, log that, and use the valid one afterwards?"""

import os
import signal

import pytest

import authority
import programs
from programs import wait_for
from test_http_access import GUARDED, REGISTER, TOKEN, put_token, register_part, start

pytestmark = pytest.mark.no_nats

NONSENSE = bytes(range(1, 256))


def replace(path, content, mode=0o600):
    """Replaces the old file, which may be a folder, by a new one."""
    remove(path)
    path.touch(mode)
    path.write_bytes(content)


def remove(path):
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def another_kind(path):
    """A key where a certificate is expected, a certificate in any other place."""
    pki = path.parent
    replace(path, (pki / ("other.key" if path.suffix == ".pem" else "other.pem")).read_bytes())


# how the file is made bad, and what the log says about it; SECRET: only for files that must be
# private
SECRET = "readable by all"
BAD = {
    "missing": (remove, "cannot read"),
    "empty": (lambda path: replace(path, b""), "is empty"),
    "blank lines": (lambda path: replace(path, b"\n\n\n"), None),
    "a folder": (lambda path: (remove(path), path.mkdir()), "no regular file"),
    "a pipe": (lambda path: (remove(path), os.mkfifo(path, 0o600)), "no regular file"),
    "another kind": (another_kind, None),
    "nonsense": (lambda path: replace(path, NONSENSE), None),
    "with a NUL byte": (lambda path: replace(path, b"0123456789abcdef0123456789\0abcdef0123456789\n"), None),
    "too long": (lambda path: replace(path, b"x" * 300_000), "too long"),
    SECRET: (lambda path: path.chmod(0o644), "chmod o-rw"),
}
# a file, and what the log says when its content is of another kind
HTTP_FILES = {
    "cert_file": ("server.pem", "holds no certificate chain"),
    "key_file": ("server.key", "holds no private key"),
    "token_file": ("token", "is no token"),
}
SECRETS = {"key_file", "token_file"}
CASES = [(key, bad) for key in HTTP_FILES for bad in BAD if bad != SECRET or key in SECRETS]


def is_said(text, key, path, why):
    """The key, the path and the reason, in one line."""
    return any(key in line and str(path) in line and why in line for line in text.splitlines())


def reason(key, bad):
    """What the log says about this file when it is bad in this way."""
    return BAD[bad][1] or HTTP_FILES[key][1]


def check(program, config):
    """Searched by its short name, because the text is truncated to 255 bytes."""
    return programs.run(program, "--check", "--config", config.name, cwd=config.parent)


@pytest.fixture
def http_files(tmp_path):
    """All three; clients show the token."""
    ca = authority.Authority(tmp_path)
    ca.sign("server")
    ca.sign("other")
    put_token(tmp_path / "token", TOKEN)
    ca.security = " ".join(f'{key} = "{tmp_path / name}";' for key, (name, _) in HTTP_FILES.items())
    return ca


@pytest.mark.parametrize("key, bad", CASES)
def test_check_names_the_bad_file_of_http(tmp_path, http_files, key, bad):
    config = tmp_path / "a.cfg"
    config.write_text(f"http_security = {{ {http_files.security} }};\n")
    assert check("kvaggregator", config).returncode == 0
    path = tmp_path / HTTP_FILES[key][0]
    BAD[bad][0](path)
    done = check("kvaggregator", config)
    assert done.returncode == 78
    assert is_said(done.stderr, f"http_security.{key}: ", path, reason(key, bad)), done.stderr


def status_of(daemon, ca, token=TOKEN):
    connection = authority.open_connection(daemon.port, ca.context())
    try:
        return authority.request(connection, "/metrics", token)[0]
    finally:
        connection.close()


@pytest.mark.parametrize("key", HTTP_FILES)
@pytest.mark.parametrize("program", GUARDED)
def test_a_running_server_keeps_its_files_when_one_becomes_bad(scene, tmp_path, http_files, program, key):
    scene.start_nats()
    daemon = start(scene, program, http_files.security)
    wait_for("the daemon is ready", lambda: status_of(daemon, http_files) == 200)
    path = tmp_path / HTTP_FILES[key][0]
    good = path.read_bytes()
    for bad in [bad for one, bad in CASES if one == key]:
        seen = len(daemon.text())
        BAD[bad][0](path)
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(f"{bad}: the log says so", lambda: is_said(
            daemon.text()[seen:], f"key=http_security.{key}", path, reason(key, bad)))
        assert status_of(daemon, http_files) == 200, bad
        assert status_of(daemon, http_files, "wrong-token-0123456789") == 401, bad
        replace(path, good)
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(f"{bad}: the valid file is used",
                 lambda: "certificates and token read again" in daemon.text()[seen:])


def test_a_register_token_that_becomes_bad_is_logged_and_nobody_registers(scene, tmp_path):
    scene.start_nats()
    bridge = start(scene, "kvbridge", "")
    wait_for("kvbridge is ready", bridge.is_ready)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {REGISTER}"}
    path = tmp_path / "register"
    for bad, (spoil, why) in BAD.items():
        if bad == "another kind":
            continue
        register_part(tmp_path)
        wait_for(bad, lambda: bridge.http("POST", "/drain", "{}", headers)[0] in (400, 422))
        seen = len(bridge.text())
        spoil(path)
        status, text = bridge.http("POST", "/drain", "{}", headers)
        assert status == 503 and "register.token_file" in text, (bad, text)
        wait_for(f"{bad}: the log says so", lambda: is_said(
            bridge.text()[seen:], "register.token_file", path, why or "is no token"))
        remove(path)
