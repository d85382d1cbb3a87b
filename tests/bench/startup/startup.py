"""A bridge of 1,000 ranks starts, with a checkpoint of each.

    startup.py --seconds N [--small] [NAME...]

kvfleet simulates the engines, which fill their caches and then pause; a first bridge writes the checkpoints. Then a
bridge is started on them several times. nats-server, kvfleet and kvbridge (in the folder KVB_BIN) are processes of
their own. Prints the rows startup.*, one JSON object a line; ../rows.py says what they are. --seconds has no
effect: the starts take as long as they take, and after the last one all engines are silent for SILENT_S."""

import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import measure  # noqa: E402
import programs  # noqa: E402
from measure import figure, is_exact, progress  # noqa: E402

WORKERS = 125
RANKS = 8
BLOCKS = 4096
STARTS = 3
MEAN_REQUEST_BLOCKS = 750  # of the trace
DEADLINE_S = 120
SILENT_S = 240  # then the bridge's pauses between probes have reached their minute
IDLE_S = 60
ESTABLISHED = "01"


class Place(measure.Place):
    def begin(self, workers, blocks):
        self.streams = workers * RANKS
        (self.folder / "checkpoints").mkdir()
        self.start_nats()
        self.start_fleet(
            "--workers", workers, "--ranks", RANKS, "--blocks", blocks, "--rate", 3 * self.streams,
            "--requests", self.streams * max(16, 3 * blocks // MEAN_REQUEST_BLOCKS),
            "--scale", 1 if blocks == BLOCKS else BLOCKS // blocks)
        self.ports = {  # of the ranks' events
            int(first) + rank for first in re.findall(r'events = "tcp://[^"]*:(\d+)"', self.workers) for rank in range(RANKS)}

    def start_bridge(self, workers):
        return self.daemon(f"kvbridge{len(self.started)}", "kvbridge", (
            f'{self.nats}publish = {{ namespace = "bench"; component = "Worker"; formats = ["protobuf"]; }};\n'
            f'checkpoint = "{self.folder}/checkpoints";\ncheckpoint_s = 5;\n{workers}'))

    def connected(self):
        """Ranks that have a connection to their engine: the engines' ends of them."""
        rows = (line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])
        return len({row[1] for row in rows if row[3] == ESTABLISHED and int(row[1][-4:], 16) in self.ports})


def write_checkpoints(place):
    """Has a bridge write a checkpoint of every rank after its last batch."""
    bridge = place.start_bridge(place.workers)
    place.wait_full()
    place.ask("pause")
    programs.wait_for("all streams are EXACT", lambda: is_exact(bridge), DEADLINE_S)
    written, before = 0, -1
    while written != before:
        time.sleep(2)
        written, before = bridge.metric("kvb_checkpoints_written_total"), written
    bridge.stop()
    files = list((place.folder / "checkpoints").iterdir())
    progress(f"startup: {len(files)} checkpoints, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB")


def measure_start(place):
    """(s until all are connected, s until all are EXACT); each checkpoint must have been used."""
    began = time.monotonic()
    bridge = place.start_bridge(place.workers)
    programs.wait_for("all sockets are connected", lambda: place.connected() >= place.streams, DEADLINE_S)
    sockets_s = time.monotonic() - began
    programs.wait_for("all streams are EXACT", lambda: is_exact(bridge), DEADLINE_S)
    exact_s = time.monotonic() - began
    restored = bridge.metric("kvb_checkpoints_restored_total")
    bridge.stop()
    progress(f"startup: {sockets_s:.2f} s to the sockets, {exact_s:.2f} s to EXACT")
    if restored < place.streams:
        sys.exit(f"startup: only {restored:.0f} of {place.streams} checkpoints were used")
    return sockets_s, exact_s


def tasks_of(daemon):
    return list(pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir())


def wakeups(daemon):
    """How often its threads have waited for something, and got it."""
    return sum(int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[1])
               for task in tasks_of(daemon))


def measure_idle(place, silent_s, idle_s):
    """(% of a core, threads, wake-ups a second) of (a bridge, an aggregator) that have nothing to do.  The bridge does not
    read the engines' load: kvfleet sends it ten times a second, of each rank."""
    aggregator = f'{place.nats}subscribe = {{ namespace = "bench"; component = "Worker"; }};\n'
    daemons = place.start_bridge(place.silent_workers), place.daemon("kvaggregator", "kvaggregator", aggregator)
    for daemon in daemons:
        programs.wait_for("all streams are EXACT", lambda: is_exact(daemon), DEADLINE_S)
    progress(f"startup: all engines are silent for {silent_s + idle_s} s ...")
    time.sleep(silent_s)
    before = [(measure.cpu_ns(daemon.process.pid), wakeups(daemon)) for daemon in daemons]
    time.sleep(idle_s)
    return [((measure.cpu_ns(daemon.process.pid) - ns) / idle_s / 1e7, len(tasks_of(daemon)), (wakeups(daemon) - woken) / idle_s)
            for daemon, (ns, woken) in zip(daemons, before)]


def main():
    options = measure.begin(__doc__)
    with Place() as place:
        place.begin(*((2, 64) if options.small else (WORKERS, BLOCKS)))
        write_checkpoints(place)
        sockets, exact = zip(*(measure_start(place) for _ in range(STARTS)))
        idle = measure_idle(place, *((1, 1) if options.small else (SILENT_S, IDLE_S)))
    figure("startup.sockets", "s", sockets)
    figure("startup.exact", "s", exact)
    for what, (percent, threads, woken) in zip(("bridge", "aggregator"), idle):
        figure(f"startup.idle.{what}", "% of a core", [percent])
        figure(f"startup.idle.{what}.threads", "threads", [threads])
        figure(f"startup.idle.{what}.wakeups", "wake-ups/s", [woken])


if __name__ == "__main__":
    main()
