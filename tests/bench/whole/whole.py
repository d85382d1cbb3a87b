"""The whole way beside a peer: one fleet of engines, read side by side by (a) nats-server, kvbridge and kvaggregator, and (b)
Dynamo's stand-alone indexer, which reads the engines itself.

    whole.py --seconds N [--small] [NAME...]

For each size of fleet, ROUNDS windows of N seconds without queries and as many with QUERIES_A_SECOND of both, in turns.  A
figure is the median of its windows, a ratio that of the windows' ratios: what Dynamo's indexer needed over what ours did.
Processor time is the kernel's own count of each process, in ns.  kvfleet, in the folder KVB_BIN like the daemons, reports no
load to either side: Dynamo's indexer would not read it.  The engines' caches are full before anything is measured.

KVB_DYNAMO_PYTHON is a Python that has Dynamo's indexer; without it the package is installed into build/dynamo (250 MB)."""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "e2e"))

import programs  # noqa: E402
from matrix.truth import Door  # noqa: E402

RUNTIME, PYDANTIC = "ai-dynamo-runtime==1.6.1", "pydantic==2.13.5"
PEER = "dynamo"
SIZES = (1, 16, 64)  # engines
BLOCKS, BLOCK_TOKENS = 16384, 16
REQUESTS_A_SECOND = 2  # of each engine, whose steps then nearly all have an event
ROUNDS = 5
QUERIES_A_SECOND, QUERY_TOKENS, PROMPTS = 200, 1024, 64
DEADLINE_S = 300
OURS = {"nats": "nats-server", "bridge": "kvbridge", "aggregator": "kvaggregator"}


def progress(text):
    print(text, file=sys.stderr, flush=True)


def spread_of(values):
    """The interquartile range over the median, as bench.c has it."""
    if len(values) < 2:
        return 0.0
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return (quarters[2] - quarters[0]) / quarters[1] if quarters[1] else 0.0


def figure(name, unit, values, against=None):
    ratios = [other / own for own, other in zip(values, against)] if against else None
    row = {
        "name": name, "value": round(statistics.median(values), 6), "unit": unit, "against": PEER if against else None,
        "against_value": round(statistics.median(against), 6) if against else None,
        "ratio": round(statistics.median(ratios), 6) if against else None,
        "rounds": len(values), "spread": round(spread_of(values), 6)}
    if against:
        row["ratio_spread"] = round(spread_of(ratios), 6)
    print(json.dumps(row), flush=True)


def dynamo_python():
    """A Python that has the indexer."""
    if os.environ.get("KVB_DYNAMO_PYTHON"):
        return os.environ["KVB_DYNAMO_PYTHON"]
    folder = TESTS.parent / "build/dynamo"
    mark = folder / "made-of"
    if not (mark.exists() and mark.read_text() == RUNTIME + PYDANTIC):
        progress(f"whole: installing {RUNTIME} into build/dynamo")
        shutil.rmtree(folder, ignore_errors=True)
        pip = [folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (["/usr/bin/python3", "-m", "venv", folder], [*pip, "--no-deps", RUNTIME], [*pip, PYDANTIC]):
            subprocess.run(command, check=True, stdout=sys.stderr)
        mark.write_text(RUNTIME + PYDANTIC)
    return folder / "bin/python"


class Line:
    """A connection of HTTP that stays open."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method, path, body=None):
        """The server may have ended an idle connection: then the request is made again."""
        for is_last in (False, True):
            try:
                self.connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                self.connection.close()
                if is_last:
                    raise


class Place:
    """Everything that runs."""

    def __init__(self, folder, engines, blocks):
        self.folder, self.engines, self.started = folder, engines, {}
        self.start("nats", programs.Program, [
            shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin"), "-a", "127.0.0.1", "-p", -1,
            "--ports_file_dir", folder], {"GOGC": "100"})  # Go's default: as it is installed
        workers = folder / "workers"
        self.start("fleet", programs.Program, [
            programs.BIN / "kvfleet", "--workers", engines, "--ranks", 1, "--blocks", blocks, "--dialect", "vllm-0.31",
            "--rate", max(1, round(engines * REQUESTS_A_SECOND)), "--scale", 1 if blocks == BLOCKS else BLOCKS // blocks,
            "--trace", TESTS / "data/conversation_trace.jsonl", "--truth", folder / "truth", "--config-out", workers])
        ports = programs.wait_for("nats-server listens", lambda: list(folder.glob("*.ports")))
        self.nats_url = programs.wait_for("nats-server writes its ports", lambda: json.loads(ports[0].read_text())["nats"][0])
        text = programs.wait_for("kvfleet has bound its sockets", lambda: workers.exists() and workers.read_text(), 60)
        self.workers = "\n".join(line for line in text.splitlines() if "load = {" not in line)
        self.door = programs.wait_for("kvfleet answers", lambda: Door(folder / "truth"))
        self.ours, self.peer = None, None

    def start(self, name, kind, *arguments):
        self.started[name] = kind(self.folder, name, *arguments)
        return self.started[name]

    def start_ours(self):
        names = 'namespace = "whole"; component = "Worker";'
        port = programs.free_port()
        self.start("aggregator", programs.Daemon, "kvaggregator", (
            f'nats = {{ url = "{self.nats_url}"; }};\nsubscribe = {{ {names} }};\nhttp = "127.0.0.1:{port}";\n'), port)
        self.ours = Line(port)
        port = programs.free_port()
        self.start("bridge", programs.Daemon, "kvbridge", (
            f'nats = {{ url = "{self.nats_url}"; }};\npublish = {{ {names} formats = ["protobuf"]; }};\n'
            f'http = "127.0.0.1:{port}";\n{self.workers}'), port)

    def start_peer(self):
        port = programs.free_port()
        self.start("peer", programs.Program, [dynamo_python(), "-m", "dynamo.indexer", "--port", port, "--threads", "1"])
        self.peer = Line(port)
        programs.wait_for("Dynamo's indexer answers", lambda: self.peer.ask("GET", "/health")[0] == 200)
        found = re.findall(r'id\s*=\s*(\d+)[^}]*?events\s*=\s*"([^"]+)"[^}]*?replay\s*=\s*"([^"]+)"', self.workers, re.S)
        assert len(found) == self.engines, found
        for worker, events, replay in found:
            status, text = self.peer.ask("POST", "/register", json.dumps({
                "instance_id": int(worker), "endpoint": events, "replay_endpoint": replay, "model_name": "fleet",
                "block_size": BLOCK_TOKENS}))
            assert status == 201, text

    def say(self, command):
        self.door.send([command])
        return self.door.answers()

    def wait_full(self):
        """Waits until a second brings hardly any further blocks."""
        held = -1
        while held < 0.995 * (now := self.say("stats")[-1]["held_blocks"]) or now == 0:
            held = now
            time.sleep(2)
        return now

    def close(self):
        for program in reversed(self.started.values()):
            program.kill()


def cpu_ns(program):
    """Of the whole process: clock_getcpuclockid(), which Python lacks."""
    return time.clock_gettime_ns(~program.process.pid << 3 | 2)


def resident_mib(program):
    text = pathlib.Path(f"/proc/{program.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def prompts_of(place):
    """Tokens that the first engine holds now, from a root on."""
    blocks = place.say("truth 1 0")[0]["blocks"]
    prompts = []
    for block in reversed(blocks):
        path = []
        while block:
            path.append(block["tokens"])
            block = blocks[block["parent"]] if block["parent"] >= 0 else None
        tokens = [token for tokens in reversed(path) for token in tokens]
        if len(tokens) >= QUERY_TOKENS:
            prompts.append(tokens[:QUERY_TOKENS])
    chosen = random.Random(1).sample(prompts, min(PROMPTS, len(prompts))) or [list(range(QUERY_TOKENS))]
    return [json.dumps({"token_ids": tokens, "model": "fleet", "model_name": "fleet"}) for tokens in chosen]


class Window:
    """What each process needed in a window, in % of a core; and the latencies of queries, in us."""

    def __init__(self, place, seconds, prompts):
        named = [name for name in place.started if name != "fleet"]
        batches = place.started["bridge"].metric("kvb_batches_received_total")
        before, began = {name: cpu_ns(place.started[name]) for name in named}, time.monotonic()
        self.ours_us, self.peer_us = [], []
        if prompts:
            self.ask(place, seconds, prompts, began)
        else:
            time.sleep(seconds)
        took = time.monotonic() - began
        self.cpu = {name: (cpu_ns(place.started[name]) - before[name]) / took / 1e7 for name in named}
        self.batches = (place.started["bridge"].metric("kvb_batches_received_total") - batches) / took
        self.ours = sum(self.cpu[name] for name in OURS)
        self.peer = self.cpu["peer"]

    def ask(self, place, seconds, prompts, began):
        sides = [(place.ours, self.ours_us), (place.peer, self.peer_us)]
        for i in range(round(seconds * QUERIES_A_SECOND)):
            time.sleep(max(0, began + i / QUERIES_A_SECOND - time.monotonic()))
            for line, took_us in sides if i % 2 else sides[::-1]:
                asked = time.perf_counter()
                status, text = line.ask("POST", "/query", prompts[i % len(prompts)])
                took_us.append(1e6 * (time.perf_counter() - asked))
                assert status == 200, text


def measure(place, name, options):
    place.start_ours()
    place.start_peer()
    held = place.wait_full()
    for daemon in ("bridge", "aggregator"):
        programs.wait_for("all streams are EXACT", lambda: place.started[daemon].http("GET", "/readyz?exact=1")[0] == 200,
                          DEADLINE_S)
    progress(f"{name}: {held} blocks are held")
    quiet, asked = [], []
    for _ in range(1 if options.small else ROUNDS):
        quiet.append(Window(place, options.seconds, None))
        asked.append(Window(place, options.seconds, prompts_of(place)))
    figure(name, "% of a core", [one.ours for one in quiet], [one.peer for one in quiet])
    for part in OURS:
        figure(f"{name}.{part}", "% of a core", [one.cpu[part] for one in quiet])
    figure(f"{name}.batches", "batches/s", [one.batches for one in quiet])
    figure(f"{name}.asked", "% of a core", [one.ours for one in asked], [one.peer for one in asked])
    for tail, percent in ((".query.p50", 50), (".query.p99", 99)):
        figure(name + tail, "us", *([sorted(side)[len(side) * percent // 100] for side in sides] for sides in (
            [one.ours_us for one in asked], [one.peer_us for one in asked])))
    figure(f"{name}.memory", "MiB", [sum(resident_mib(place.started[part]) for part in OURS)],
           [resident_mib(place.started["peer"])])


def is_wanted(name, wanted):
    return not wanted or any(name.startswith(one) or one.startswith(name) for one in wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    for engines in SIZES:
        if is_wanted(f"whole.{engines}", options.names):
            with tempfile.TemporaryDirectory(prefix="kvb-whole.") as folder:
                place = Place(pathlib.Path(folder), engines, 512 if options.small else BLOCKS)
                try:
                    measure(place, f"whole.{engines}", options)
                finally:
                    place.close()


if __name__ == "__main__":
    main()
