"""The whole way beside a peer: one fleet of engines, read side by side by (a) nats-server, kvbridge and kvaggregator, and (b)
Dynamo's stand-alone indexer, which reads the engines itself.

    whole.py --seconds N [--small] [NAME...]

For each size of fleet, ROUNDS windows of N seconds without queries and as many with QUERIES_A_SECOND of both, in turns.  A
figure is the median of its windows, a ratio that of the windows' ratios: what Dynamo's indexer needed over what ours did.
Processor time is the kernel's own count of each process, in ns.  kvfleet, in the folder KVB_BIN like the daemons, reports no
load to either side: Dynamo's indexer would not read it.  The engines' caches are full before anything is measured.

KVB_DYNAMO_PYTHON is a Python that has Dynamo's indexer; without it the package is installed into build/dynamo (250 MB)."""

import http.client
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import measure  # noqa: E402
import programs  # noqa: E402
from measure import progress  # noqa: E402

RUNTIME, PYDANTIC = "ai-dynamo-runtime==1.6.1", "pydantic==2.13.5"
PEER = "dynamo"
SIZES = (1, 16, 64)  # engines
BLOCKS, BLOCK_TOKENS = 16384, 16
REQUESTS_A_SECOND = 2  # of each engine, whose steps then nearly all have an event
ROUNDS = 5
QUERIES_A_SECOND, QUERY_TOKENS, PROMPTS = 200, 1024, 64
DEADLINE_S = 300
OURS = {"nats": "nats-server", "bridge": "kvbridge", "aggregator": "kvaggregator"}


def dynamo_python():
    """A Python that has the indexer."""
    if os.environ.get("KVB_DYNAMO_PYTHON"):
        return os.environ["KVB_DYNAMO_PYTHON"]
    folder = measure.TESTS.parent / "build/dynamo"
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


class Place(measure.Place):
    def begin(self, engines, blocks):
        self.engines = engines
        self.start_nats()
        self.start_fleet(
            "--workers", engines, "--ranks", 1, "--blocks", blocks, "--dialect", "vllm-0.31",
            "--rate", max(1, round(engines * REQUESTS_A_SECOND)), "--scale", 1 if blocks == BLOCKS else BLOCKS // blocks)
        names = 'namespace = "whole"; component = "Worker";'
        aggregator = self.daemon("aggregator", "kvaggregator", f"{self.nats}subscribe = {{ {names} }};\n")
        self.ours = Line(aggregator.port)
        self.daemon("bridge", "kvbridge",
                    f'{self.nats}publish = {{ {names} formats = ["protobuf"]; }};\n{self.silent_workers}')
        self.start_peer()

    def start_peer(self):
        port = programs.free_port()
        self.start("peer", dynamo_python(), "-m", "dynamo.indexer", "--port", port, "--threads", "1")
        self.peer = Line(port)
        programs.wait_for("Dynamo's indexer answers", lambda: self.peer.ask("GET", "/health")[0] == 200)
        found = re.findall(r'id\s*=\s*(\d+)[^}]*?events\s*=\s*"([^"]+)"[^}]*?replay\s*=\s*"([^"]+)"', self.workers, re.S)
        assert len(found) == self.engines, found
        for worker, events, replay in found:
            status, text = self.peer.ask("POST", "/register", json.dumps({
                "instance_id": int(worker), "endpoint": events, "replay_endpoint": replay, "model_name": "fleet",
                "block_size": BLOCK_TOKENS}))
            assert status == 201, text


def prompts_of(place):
    """Tokens that the first engine holds now, from a root on."""
    blocks = place.ask("truth 1 0")[0]["blocks"]
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
        before, began = {name: measure.cpu_ns(place.started[name].process.pid) for name in named}, time.monotonic()
        self.ours_us, self.peer_us = [], []
        if prompts:
            self.ask(place, seconds, prompts, began)
        else:
            time.sleep(seconds)
        took = time.monotonic() - began
        self.cpu = {name: (measure.cpu_ns(place.started[name].process.pid) - before[name]) / took / 1e7 for name in named}
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


def measure_fleet(place, name, options):
    held = place.wait_full()
    for daemon in ("bridge", "aggregator"):
        programs.wait_for("all streams are EXACT", lambda: measure.is_exact(place.started[daemon]), DEADLINE_S)
    progress(f"{name}: {held} blocks are held")
    quiet, asked = [], []
    for _ in range(1 if options.small else ROUNDS):
        quiet.append(Window(place, options.seconds, None))
        asked.append(Window(place, options.seconds, prompts_of(place)))
    figure = measure.figure
    figure(name, "% of a core", [one.ours for one in quiet], PEER, [one.peer for one in quiet])
    for part in OURS:
        figure(f"{name}.{part}", "% of a core", [one.cpu[part] for one in quiet])
    figure(f"{name}.batches", "batches/s", [one.batches for one in quiet])
    figure(f"{name}.asked", "% of a core", [one.ours for one in asked], PEER, [one.peer for one in asked])
    for tail, percent in ((".query.p50", 50), (".query.p99", 99)):
        ours, peer = ([sorted(side)[len(side) * percent // 100] for side in sides] for sides in (
            [one.ours_us for one in asked], [one.peer_us for one in asked]))
        figure(name + tail, "us", ours, PEER, peer)
    mib = {part: measure.resident_bytes(place.started[part].process.pid) / (1 << 20) for part in (*OURS, "peer")}
    figure(f"{name}.memory", "MiB", [sum(mib[part] for part in OURS)], PEER, [mib["peer"]])


def main():
    options = measure.begin(__doc__)
    for engines in SIZES:
        if options.wants(f"whole.{engines}"):
            with Place() as place:
                place.begin(engines, 512 if options.small else BLOCKS)
                measure_fleet(place, f"whole.{engines}", options)


if __name__ == "__main__":
    main()
