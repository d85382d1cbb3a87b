"""Do the daemons stay within the limits of their systemd units? No systemd runs here: their system
calls are compared with etc/systemd/sandbox.conf."""

import json
import pathlib
import re
import subprocess

import engine
import programs
from conftest import worker

SANDBOX = pathlib.Path(__file__).resolve().parents[2] / "etc" / "systemd" / "sandbox.conf"


def settings(key):
    """All values of a key, in order."""
    return re.findall(rf"^{key}=(.*)$", SANDBOX.read_text(), re.MULTILINE)


def expand(name):
    """The system calls of a group, including those of nested groups."""
    if not name.startswith("@"):
        return {name}
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", name], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done
    words = re.findall(r"^    (@?[a-z0-9_-]+)$", done.stdout, re.MULTILINE)
    return set().union(*map(expand, words))


def allowed_calls():
    allowed = set()
    for line in settings("SystemCallFilter"):
        calls = set().union(*(expand(name) for name in line.lstrip("~").split()))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


class Traced:
    """A daemon under strace, which runs as its grandchild (-D), so that signals go to the daemon."""

    def __init__(self, scene, daemon, config):
        self.port = programs.free_port()
        self.trace = scene.folder / f"{daemon}.trace"
        path = scene.folder / f"{daemon}.cfg"
        path.write_text(config + f'http = "127.0.0.1:{self.port}";\n')
        self.program = scene.start(
            daemon,
            ["strace", "-D", "-f", "-q", "-s", "256", "-o", self.trace, programs.BIN / daemon, "--config", path],
            env={"NOTIFY_SOCKET": "@kvbridge-nobody-listens"},
        )

    def http(self, method, path, body=None):
        return programs.Daemon._ask(self, method, path, body, None)

    def is_ready(self):
        return self.http("GET", "/readyz")[0] == 200

    def finish(self):
        """Ends it; returns its system calls, one a line, without thread ids."""
        assert self.program.stop() == 0
        pid = self.program.process.pid
        programs.wait_for(
            "strace has written all", lambda: re.search(rf"^{pid} +\+\+\+ exited", self.trace.read_text(), re.MULTILINE)
        )
        return [line.split(maxsplit=1)[1] for line in self.trace.read_text().splitlines()]


def assert_kept_within(calls):
    used = {found[1] for line in calls if (found := re.match(r"([a-z0-9_]+)\(", line))}
    assert {"socket", "execve"} <= used, used
    assert used <= allowed_calls(), f"SystemCallFilter forbids {used - allowed_calls()}"

    families = {found[1] for line in calls if (found := re.match(r"socket\((AF_[A-Z0-9]+)", line))}
    assert families <= set(settings("RestrictAddressFamilies")[0].split()), families

    if settings("MemoryDenyWriteExecute") == ["yes"]:
        bad = [line for line in calls if re.match(r"mmap\(.*PROT_WRITE\|PROT_EXEC|mprotect\(.*PROT_EXEC", line)]
        assert not bad, bad
    if settings("ProtectSystem") == ["strict"]:
        bad = [line for line in calls if re.match(r'open(at)?\(.*O_(WRONLY|RDWR|CREAT)', line)]
        bad = [line for line in bad if '"/dev/' not in line]
        # checkpoints are next to their directory, which systemd creates
        assert all(re.match(r'openat\(\d+, "[0-9a-f]{16}-\d+-\d+\.new", ', line) for line in bad), bad


def test_both_daemons_keep_within_their_sandbox(scene):
    vllm = scene.engine()
    nats = f'nats = {{ url = "{scene.nats_url}"; }};\n'
    aggregator = Traced(scene, "kvaggregator", nats + 'subscribe = { namespace = "dynamo"; component = "w"; };\n')
    bridge = Traced(
        scene, "kvbridge",
        nats + f'publish = {{ namespace = "dynamo"; component = "w"; }};\nworkers = ( {{ {worker(vllm)} }} );\n'
        f'checkpoint = "{scene.folder}";\n',
    )
    for daemon in (bridge, aggregator):
        programs.wait_for("ready", daemon.is_ready)
    vllm.publish(engine.batch(engine.stored([1], range(16), 16)))
    question = {"model": "m", "token_ids": list(range(16))}

    def is_found():
        status, text = aggregator.http("POST", "/query", question)
        return status == 200 and json.loads(text)["scores"] == {"7": {"0": 16}}

    programs.wait_for("the aggregator finds the block", is_found)
    assert "StateDirectory=kvbridge" in (SANDBOX.parent / "kvbridge.service.in").read_text()
    for daemon in (bridge, aggregator):
        assert daemon.http("GET", "/metrics")[0] == 200
        assert_kept_within(daemon.finish())
