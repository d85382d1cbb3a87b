"""Starts, queries and stops real programs."""

import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import threading
import time

BIN = pathlib.Path(os.environ.get("KVB_BIN", "build/release")).resolve()
# Sanitized programs are slower; KVB_PATIENCE multiplies all deadlines.
PATIENCE = float(os.environ.get("KVB_PATIENCE", "1"))
# For whatever a test waits: reached only when something is broken. A machine with forty busy processes makes in it what
# an idle one makes in ten seconds.
DEADLINE_S = 180 * PATIENCE
TREE = pathlib.Path(__file__).resolve().parents[2]
DATA = TREE / "tests/data"
TRACE = DATA / "conversation_trace.jsonl"


def wait_for(what, condition, seconds=DEADLINE_S):
    """Waits until condition() is true and returns it; fails when it never is."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            value, trouble = condition(), None
        except (OSError, http.client.HTTPException, KeyError, ValueError) as error:
            value, trouble = None, error
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what} (last: {trouble or value!r})"
        time.sleep(0.02)


ports_given = set()


PORTS_A_WORKER = 2500
# pytest's workers run in parallel, each with its own range of ports.
first_port = 10000 + PORTS_A_WORKER * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8)


def free_port():
    """Ports below the kernel's ephemeral range, so that no other socket gets one by chance before
    its use."""
    while True:
        port = random.randrange(first_port, first_port + PORTS_A_WORKER)
        if port in ports_given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports_given.add(port)
        return port


def free_ports(count):
    """The first of so many in a row."""
    while True:
        base = free_port()
        rest = range(base + 1, base + count)
        try:
            for port in rest:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        if ports_given.isdisjoint(rest):
            ports_given.update(rest)
            return base


def run(program, *words, **options):
    """One of this project's programs, to its end."""
    return subprocess.run([BIN / program, *map(str, words)], **{
        "capture_output": True, "text": True, "timeout": DEADLINE_S, **options})


class Machine:
    """How long this machine has kept processes from running: what a deadline inside a program may be excused by."""

    def __init__(self):
        self.stood_still_s = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            began = time.monotonic()
            time.sleep(0.05)
            late_s = time.monotonic() - began - 0.05
            self.stood_still_s += late_s if late_s > 0.2 else 0

    def withheld_s(self, *pids):
        """All of it stood still, or threads of these processes were ready and had no processor."""
        waited_ns = 0
        for file in (file for pid in pids for file in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")):
            with contextlib.suppress(OSError):  # the thread has ended
                waited_ns += int(file.read_text().split()[1])
        return self.stood_still_s + waited_ns / 1e9


machine = Machine()


def port_of(address):
    return int(address.rsplit(":", 1)[1])


class Program:
    """One running process; its output goes to a file that is shown on failure.  stderr: where
    else its log goes."""

    def __init__(self, folder, name, argv, env=None, stderr=None):
        self.name = name
        self.is_ours = pathlib.Path(argv[0]).parent == BIN
        self.log = folder / f"{name}.log"
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                [str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=stderr or out,
                env={**os.environ, **(env or {})},
            )

    def is_running(self):
        return self.process.poll() is None

    def bytes_of(self, line):
        """A line of /proc/PID/status, such as VmRSS."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{line}:")[1].split()[0]) << 10

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_until_it_says(self, words):
        """In its log, whose line may come a moment after what it tells of."""
        wait_for(f"{self.name} says: {words}", lambda: words in self.text())

    def stop(self):
        """SIGTERM; returns the exit status.  A program that does not stop is a failure."""
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop within {DEADLINE_S:.0f} s") from None

    def kill(self):
        if self.is_running():
            self.process.kill()
        self.process.wait()


class Daemon(Program):
    """kvbridge or kvaggregator, with its HTTP server. prefix: the command that runs it."""

    def __init__(self, folder, name, program, config, port, prefix=(), env=None, stderr=None):
        path = folder / f"{name}.cfg"
        path.write_text(config)
        self.port = port
        self.withheld_at_start_s = machine.withheld_s(os.getpid())
        env = {"STATE_DIRECTORY": str(folder), **(env or {})}  # what it keeps is the test's own
        super().__init__(folder, name, [*prefix, BIN / program, "--config", path], env, stderr)
        self.is_ours = True

    def was_kept_waiting(self):
        """Since the start of the daemon the machine has withheld a second from it or from this test, so that what one of
        them waits for may have come too late."""
        return machine.withheld_s(self.process.pid, os.getpid()) - self.withheld_at_start_s > 1

    def is_connected_once(self, **labels):
        """The connection to an engine was not opened anew, unless it was lost: only where the machine has withheld a
        second from one of its ends, the bridge or this test."""
        lost = self.metric("kvcache_zmq_disconnections_total", **labels)
        assert lost == 0 or self.was_kept_waiting(), f"{lost:.0f} connections were lost; the machine was not busy"
        return self.metric("kvcache_zmq_connections_total", **labels) == 1 + lost

    def http(self, method, path, body=None, headers=None):
        """(status, text). A daemon gives up an answer after 2 s, and says so. It is asked again, but has no excuse unless the
        machine has withheld half of this time, for each answer that was late, from it or from the engines of this test."""
        pids = (self.process.pid, os.getpid())
        before, late, deadline = machine.withheld_s(*pids), 0, time.monotonic() + DEADLINE_S
        while True:
            status, text = self._ask(method, path, body, headers)
            if status != 503 or "no answer within 2 s" not in text or time.monotonic() > deadline:
                break
            late += 1
        # Looked at now, because a thread's wait counts from its end on.
        withheld_s = machine.withheld_s(*pids) - before
        assert withheld_s > late or not late or PATIENCE > 1, (
            f"{path}: {late} answers were late; the machine withheld {withheld_s:.2f} s")
        return status, text

    def _ask(self, method, path, body, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            if body is not None and headers is None:
                headers = {"Content-Type": "application/json"}
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def text_of(self, path):
        """Asked again where a connection breaks off, as that of a large answer whose next part is late."""
        status, text = wait_for(f"{path} is answered", lambda: self.http("GET", path))
        assert status == 200, (path, status, text)
        return text

    def get(self, path):
        return json.loads(self.text_of(path))

    def states(self):
        """[(state, reason)] of the streams that a kvaggregator follows."""
        return [(row["state"], row["reason"]) for row in self.get("/streams")["streams"]]

    def is_exact(self, streams=1):
        return self.states() == [("EXACT", "")] * streams

    def rows(self):
        """What a kvaggregator lists: [worker, rank, tier, block], as texts."""
        return [line.split() for line in self.text_of("/dump?format=rows").splitlines()]

    def is_ready(self):
        return self.http("GET", "/readyz")[0] == 200

    def metric(self, name, **labels):
        """The sum of a metric over all label sets that contain these labels."""
        total = 0.0
        for line in self.http("GET", "/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            base, _, rest = head.partition("{")
            if base == name and all(f'{key}="{word}"' in rest for key, word in labels.items()):
                total += float(value)
        return total
