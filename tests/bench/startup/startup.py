"""A bridge of 1,000 ranks starts, with a checkpoint of each.

    startup.py --seconds N [--small] [NAME...]

kvfleet simulates the engines, which fill their caches and then pause; a first bridge writes the checkpoints. Then a
bridge is started on them several times. nats-server, kvfleet and kvbridge (in the folder KVB_BIN) are processes of
their own. Prints the rows startup.*, one JSON object a line; ../rows.py says what they are. --seconds has no
effect: the starts take as long as they take, and after the last one all engines are silent for SILENT_S."""

import argparse
import json
import pathlib
import re
import resource
import shutil
import statistics
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "e2e"))

import programs  # noqa: E402
from matrix.truth import Door  # noqa: E402

WORKERS = 125
RANKS = 8
BLOCKS = 4096
STARTS = 3
MEAN_REQUEST_BLOCKS = 750  # of the trace
DEADLINE_S = 120
SILENT_S = 240  # then the bridge's pauses between probes have reached their minute
IDLE_S = 60
ESTABLISHED = "01"


def progress(text):
    print(text, file=sys.stderr, flush=True)


def figure(name, value, unit):
    row = {"name": name, "value": round(value, 6), "unit": unit, "against": None, "against_value": None, "ratio": None}
    print(json.dumps(row), flush=True)


class Place:
    """Everything that runs."""

    def __init__(self, folder, workers, blocks):
        self.folder, self.streams, self.started = folder, workers * RANKS, []
        self.bridges = 0
        (folder / "checkpoints").mkdir()
        self.start(programs.Program, "nats", [
            shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin"), "-a", "127.0.0.1", "-p", -1,
            "--ports_file_dir", folder])
        ports = programs.wait_for("nats-server listens", lambda: list(folder.glob("*.ports")))
        self.nats_url = programs.wait_for("nats-server writes its ports", lambda: json.loads(ports[0].read_text())["nats"][0])
        workers_file = folder / "workers"
        self.start(programs.Program, "kvfleet", [
            programs.BIN / "kvfleet", "--workers", workers, "--ranks", RANKS, "--blocks", blocks,
            "--rate", 3 * self.streams, "--requests", self.streams * max(16, 3 * blocks // MEAN_REQUEST_BLOCKS),
            "--scale", 1 if blocks == BLOCKS else BLOCKS // blocks,
            "--trace", TESTS / "data/conversation_trace.jsonl", "--truth", folder / "truth", "--config-out", workers_file])
        self.workers = programs.wait_for(
            "kvfleet has bound its sockets", lambda: workers_file.exists() and workers_file.read_text(), 60)
        self.ports = {  # of the ranks' events
            int(first) + rank for first in re.findall(r'events = "tcp://[^"]*:(\d+)"', self.workers) for rank in range(RANKS)}
        self.door = programs.wait_for("kvfleet answers", lambda: Door(folder / "truth"))

    def start(self, kind, *arguments):
        self.started.append(kind(self.folder, *arguments))
        return self.started[-1]

    def start_bridge(self, workers=None):
        port = programs.free_port()
        self.bridges += 1
        return self.start(programs.Daemon, f"kvbridge{self.bridges}", "kvbridge", (
            f'nats = {{ url = "{self.nats_url}"; }};\n'
            'publish = { namespace = "bench"; component = "Worker"; formats = ["protobuf"]; };\n'
            f'http = "127.0.0.1:{port}";\n'
            f'checkpoint = "{self.folder}/checkpoints";\ncheckpoint_s = 5;\n{workers or self.workers}'), port)

    def start_aggregator(self):
        port = programs.free_port()
        return self.start(programs.Daemon, "kvaggregator", "kvaggregator", (
            f'nats = {{ url = "{self.nats_url}"; }};\n'
            'subscribe = { namespace = "bench"; component = "Worker"; };\n'
            f'http = "127.0.0.1:{port}";\n'), port)

    def ask(self, command):
        self.door.send([command])
        return self.door.answers()

    def connected(self):
        """Ranks that have a connection to their engine: the engines' ends of them."""
        rows = (line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])
        return len({row[1] for row in rows if row[3] == ESTABLISHED and int(row[1][-4:], 16) in self.ports})

    def wait_full(self):
        """Waits until a second brings hardly any further blocks."""
        held = -1
        while held < 0.99 * (now := self.ask("stats")[-1]["held_blocks"]) or now == 0:
            held = now
            time.sleep(1)

    def close(self):
        for program in reversed(self.started):
            program.kill()


def is_exact(bridge):
    return bridge.http("GET", "/readyz?exact=1")[0] == 200


def write_checkpoints(place):
    """Has a bridge write a checkpoint of every rank after its last batch."""
    bridge = place.start_bridge()
    place.wait_full()
    place.ask("pause")
    programs.wait_for("all streams are EXACT", lambda: is_exact(bridge), DEADLINE_S)
    written, before = 0, -1
    while written != before:
        time.sleep(2)
        written, before = bridge.metric("kvb_checkpoints_written_total"), written
    bridge.stop(60)
    files = list((place.folder / "checkpoints").iterdir())
    progress(f"startup: {len(files)} checkpoints, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB")


def measure_start(place):
    """(s until all are connected, s until all are EXACT); each checkpoint must have been used."""
    began = time.monotonic()
    bridge = place.start_bridge()
    programs.wait_for("all sockets are connected", lambda: place.connected() >= place.streams, DEADLINE_S)
    sockets_s = time.monotonic() - began
    programs.wait_for("all streams are EXACT", lambda: is_exact(bridge), DEADLINE_S)
    exact_s = time.monotonic() - began
    restored = bridge.metric("kvb_checkpoints_restored_total")
    bridge.stop(60)
    progress(f"startup: {sockets_s:.2f} s to the sockets, {exact_s:.2f} s to EXACT")
    if restored < place.streams:
        sys.exit(f"startup: only {restored:.0f} of {place.streams} checkpoints were used")
    return sockets_s, exact_s


def tasks_of(daemon):
    return list(pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir())


def cpu_ns(daemon):
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks_of(daemon))


def wakeups(daemon):
    """How often its threads have waited for something, and got it."""
    return sum(int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[1])
               for task in tasks_of(daemon))


def measure_idle(place, silent_s, idle_s):
    """(% of a core, threads, wake-ups a second) of (a bridge, an aggregator) that have nothing to do.  The bridge does not
    read the engines' load: kvfleet sends it ten times a second, of each rank."""
    silent = "\n".join(line for line in place.workers.splitlines() if "load = {" not in line)
    daemons = place.start_bridge(silent), place.start_aggregator()
    for daemon in daemons:
        programs.wait_for("all streams are EXACT", lambda: is_exact(daemon), DEADLINE_S)
    progress(f"startup: all engines are silent for {silent_s + idle_s} s ...")
    time.sleep(silent_s)
    before = [(cpu_ns(daemon), wakeups(daemon)) for daemon in daemons]
    time.sleep(idle_s)
    return [((cpu_ns(daemon) - ns) / idle_s / 1e7, len(tasks_of(daemon)), (wakeups(daemon) - woken) / idle_s)
            for daemon, (ns, woken) in zip(daemons, before)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    with tempfile.TemporaryDirectory(prefix="kvb-startup.") as folder:
        place = Place(pathlib.Path(folder), *((2, 64) if options.small else (WORKERS, BLOCKS)))
        try:
            write_checkpoints(place)
            sockets, exact = zip(*(measure_start(place) for _ in range(STARTS)))
            idle = measure_idle(place, *((1, 1) if options.small else (SILENT_S, IDLE_S)))
        finally:
            place.close()
    figure("startup.sockets", statistics.median(sockets), "s")
    figure("startup.exact", statistics.median(exact), "s")
    for what, (percent, threads, woken) in zip(("bridge", "aggregator"), idle):
        figure(f"startup.idle.{what}", percent, "% of a core")
        figure(f"startup.idle.{what}.threads", threads, "threads")
        figure(f"startup.idle.{what}.wakeups", woken, "wake-ups/s")


if __name__ == "__main__":
    main()
