"""Do the daemons send a service manager what systemd needs? The service manager is a socket in this
file."""

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import socket
import time

import pytest

import engine
import programs
from conftest import worker

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207

# For each daemon: its working thread, and its configuration.
DAEMONS = {
    "kvbridge": (
        "kvb-ingest",
        'publish = {{ namespace = "dynamo"; component = "w"; }};\n'
        'workers = ( {{ id = 1; model = "m"; block_size = 16; events = "tcp://127.0.0.1:{engine}"; }} );\n',
    ),
    "kvaggregator": ("kvb-index", 'subscribe = {{ namespace = "dynamo"; component = "w"; }};\n'),
}


class Manager:
    """Listens on NOTIFY_SOCKET: a path, or an abstract name that begins with @."""

    def __init__(self, address):
        self.address = str(address)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address.replace("@", "\0", 1))
        self.heard = []

    def listen(self, seconds):
        """The next message, split into lines; None when none arrives in time."""
        self.socket.settimeout(seconds)
        try:
            lines = self.socket.recv(4096).decode().splitlines()
        except TimeoutError:
            return None
        self.heard.append(lines)
        return lines

    def wait_for(self, line):
        """Waits for a message with a matching line; returns the messages up to it."""
        deadline = time.monotonic() + programs.DEADLINE_S
        on_the_way = []
        while time.monotonic() < deadline:
            lines = self.listen(0.1)
            on_the_way += lines or []
            if any(re.fullmatch(line, one) for one in lines or []):
                return on_the_way
        raise AssertionError(f"not in time: {line}; heard {self.heard}")

    def count(self, line, seconds):
        """How often it is said in this time."""
        deadline, found = time.monotonic() + seconds, 0
        while (left := deadline - time.monotonic()) > 0:
            found += line in (self.listen(left) or [])
        return found


@pytest.fixture
def manager(tmp_path):
    return Manager(tmp_path / "notify")


def start(scene, program, manager, **env):
    port = programs.free_port()
    path = scene.folder / f"{program}.cfg"
    path.write_text(
        f'nats = {{ url = "{scene.nats_url}"; }};\nhttp = "127.0.0.1:{port}";\n'
        + DAEMONS[program][1].format(engine=programs.free_port())
    )
    return scene.start(
        program, [programs.BIN / program, "--config", path],
        env={"NOTIFY_SOCKET": manager.address, **env},
    ), port


@contextlib.contextmanager
def hung_thread(process, name):
    """Stops one thread of a child process, as an endless loop or a deadlock would; other threads
    continue."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    tasks = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
    (thread,) = [int(task.name) for task in tasks if (task / "comm").read_text().strip() == name]

    def ptrace(request):
        assert libc.ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())

    ptrace(PTRACE_SEIZE)
    ptrace(PTRACE_INTERRUPT)
    os.waitpid(thread, 0x40000000)  # __WALL: because it is a thread
    try:
        yield
    finally:
        ptrace(PTRACE_DETACH)


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize("program", DAEMONS)
def test_a_daemon_reports_ready_then_keep_alives_then_stopping(scene, program, manager):
    began = time.monotonic()
    daemon, port = start(scene, program, manager, WATCHDOG_USEC="400000")
    first = manager.wait_for("READY=1")
    assert re.search(r"STATUS=\d+ streams?, \d+ EXACT, NATS (not )?connected", "\n".join(first)), first
    # After READY the HTTP server answers at once, without another attempt.
    with socket.create_connection(("127.0.0.1", port), timeout=programs.DEADLINE_S) as probe:
        probe.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert b" 200 " in probe.recv(4096)
    for _ in range(20):
        manager.wait_for("WATCHDOG=1")
    # From the start on: how late each was read does not count.
    assert time.monotonic() - began > 20 * 0.15, "much more often than every half of it"
    daemon.process.send_signal(signal.SIGTERM)
    manager.wait_for("STOPPING=1")
    assert daemon.process.wait(programs.DEADLINE_S) == 0
    said = [line for lines in manager.heard for line in lines]
    assert said.count("READY=1") == 1 and said.count("STOPPING=1") == 1, said


@pytest.mark.parametrize("program", DAEMONS)
def test_a_hung_working_thread_sends_no_keep_alives(scene, program, manager):
    daemon, port = start(scene, program, manager, WATCHDOG_USEC="400000")
    manager.wait_for("WATCHDOG=1")
    with hung_thread(daemon.process, DAEMONS[program][0]):
        manager.count("", 0.2)  # those that were already under way
        # One more may be owed to what the thread did before.
        assert manager.count("WATCHDOG=1", 1.4) <= 1, manager.heard
        # The main thread runs, so it could have sent it.
        assert daemon.is_running() and socket.create_connection(("127.0.0.1", port), timeout=programs.DEADLINE_S)
    manager.wait_for("WATCHDOG=1")


def test_status_follows_the_streams(scene, manager):
    vllm = scene.engine()
    port = programs.free_port()
    path = scene.folder / "kvbridge.cfg"
    path.write_text(
        f'nats = {{ url = "{scene.nats_url}"; }};\nhttp = "127.0.0.1:{port}";\n'
        f'publish = {{ namespace = "dynamo"; component = "w"; }};\nworkers = ( {{ {worker(vllm)} }} );\n'
    )
    scene.start(
        "kvbridge", [programs.BIN / "kvbridge", "--config", path], env={"NOTIFY_SOCKET": manager.address}
    )
    manager.wait_for("READY=1")
    vllm.publish(engine.batch(engine.stored([1], range(16), 16)))
    manager.wait_for("STATUS=1 stream, 1 EXACT, NATS connected")
