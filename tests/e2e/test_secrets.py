"""Is a password in a URL shown nowhere, and do the scenes find a secret wherever a program shows it?"""

import http.client
import json
import os
import subprocess
import sys
import urllib.parse

import pytest

import marked
import programs
from authority import Authority
from conftest import worker
from programs import wait_for
from test_http_access import TOKEN, put_token, start, tls_keys
from test_http_access import is_ready as is_ready_over_tls

SECRET = "hunter2SECRET"


def bridge_at(scene, nats, *workers, more=""):
    marked.mark(SECRET)
    port = programs.free_port()
    rows = ",\n".join("{ " + row + " }" for row in workers)
    return scene.daemon(
        "kvbridge",
        f"nats = {{ {nats} }};\n"
        'publish = { namespace = "dynamo"; component = "w"; };\n'
        f'workers = (\n{rows}\n);\nhttp = "127.0.0.1:{port}";\n{more}',
        port,
    )


@pytest.mark.first
def test_a_password_in_a_url_is_shown_nowhere(scene):
    scene.start_nats()
    vllm, bus = scene.engine(), scene.bus()
    seen = bus.watch("namespace.>")
    bridge = bridge_at(
        scene, f'url = "nats://kvb:{SECRET}@127.0.0.1:{scene.nats_port}";',
        worker(vllm, 7, more=f'load = {{ prometheus = "http://scrape:{SECRET}@127.0.0.1:1/metrics"; }};'),
        f'id = 8; model = "m"; block_size = 16; discover = "http://find:{SECRET}@127.0.0.1:1";',
    )
    wait_for("kvbridge is ready", bridge.is_ready)
    wait_for("the log names the page", lambda: "http://127.0.0.1:1/metrics" in bridge.text())
    wait_for("the log names the engine", lambda: "discover=http://127.0.0.1:1 " in bridge.text())
    wait_for("the status names the page", lambda: any(b"127.0.0.1:1/metrics" in m.data for m in seen))
    assert "127.0.0.1:1/metrics" in bridge.http("GET", "/state")[1]
    assert not any(SECRET.encode() in m.data for m in seen)


# ---- What looks for them at the end of each scene ----


@pytest.mark.parametrize("place, argv, env", [
    ("the log", ["/bin/sh", "-c", "cat secret; exec tail -f /dev/null"], {}),
    ("the command line", [sys.executable, "-c", "import signal; signal.pause()", "{}"], {}),
    ("the environment", ["/usr/bin/tail", "-f", "/dev/null"], {"SECRET": "{}"}),
])
@pytest.mark.parametrize("write", [str, lambda secret: json.dumps(secret)[1:-1], urllib.parse.quote])
def test_a_marked_secret_is_found_wherever_a_program_shows_it(tmp_path, monkeypatch, place, argv, env, write):
    written = write(marked.mark('quoted" and\\escaped'))
    (tmp_path / "secret").write_text(written)
    monkeypatch.chdir(tmp_path)
    program = programs.Program(tmp_path, "loud", [word.format(written) for word in argv],
                               env={name: value.format(written) for name, value in env.items()})
    program.is_ours = True
    try:
        wait_for("the secret is found", lambda: marked.shown(program) == [place])
        marked.secrets = {"another secret"}
        assert marked.shown(program) == []
    finally:
        program.kill()


@pytest.mark.no_nats
def test_a_marked_secret_is_found_on_each_page(scene, tmp_path):
    """Pages that show texts in place of secrets, with a token and TLS."""
    scene.start_nats()
    ca = Authority(tmp_path)
    ca.sign("server")
    put_token(tmp_path / "token", TOKEN)
    aggregator = start(scene, "kvaggregator", tls_keys(tmp_path, f'token_file = "{tmp_path}/token";'))
    wait_for("the aggregator is ready", lambda: is_ready_over_tls(aggregator, ca.context()))
    assert marked.shown(aggregator) == []
    for words, page in (("process_start_time_seconds", "/metrics"), ('"streams":', "/streams")):
        marked.secrets = {TOKEN, words}
        assert page in marked.shown(aggregator), page
    marked.secrets = {TOKEN}


# ---- stderr ----


def test_a_log_that_nobody_reads_does_not_delay_the_stop(scene):
    """stderr is a pipe that is full from the first line on."""
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
        wait_for("kvbridge is ready", lambda: is_ready(port))
        process.terminate()
        assert process.wait(programs.DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)


def is_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
