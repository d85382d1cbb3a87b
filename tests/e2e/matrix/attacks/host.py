"""Faults of the host of the daemons: a realtime clock that is set back and forward, NATS away or
frozen, a name server that falls silent, a log that nobody reads, a full disk. Faults that this
machine does not permit are left out and listed in `left_out`."""

import fcntl
import json
import os
import random
import select
import signal
import subprocess
import threading
import time

import pytest

import programs
from clock import Clock, build_shim
from matrix.attacks import Attack
from matrix.attacks.engines import MOST_PAUSE_S, HostileEngine, follow
from matrix.attacks.memory import Memory, attacks as attacks_on_memory
from name_server import SILENT, NameServer
from programs import wait_for
from web import Web

HOUR_S = 3600
TOKEN = "a-token-of-the-tests"
HOST = "hostile.fleet"  # the name of an engine, which its name server knows; queries for another name get no answer
FOUND = "found.fleet"  # the name of the engine that reports its own sockets
SOURCES = "/kv_event_sources"
KNOWN = (1, ["127.0.0.1"])
BROKER_HEAL_S = 3.0  # until all is EXACT once NATS answers again
# A second is a ping's distance, two unanswered ones end a connection: then lists grow old.
MOST_EXACT_S = 5.0
SMALLEST_PIPE = 4096
DISK_BYTES = 96 << 20
SCRAPE_FOREIGN = ("bridge", "kvb_scrapes_total", {"outcome": "foreign"})
SCRAPE_LARGE = ("bridge", "kvb_scrapes_total", {"outcome": "too_large"})
SCRAPE_LATE = ("bridge", "kvb_scrapes_total", {"outcome": "late"})
SCRAPE_OK = ("bridge", "kvb_scrapes_total", {"outcome": "ok"})
DNS_FAILURE = ("bridge", "kvb_dns_failures_total", {"reason": "failure"})
CHECKPOINTS = ("bridge", "kvb_checkpoint_failures_total", {})


class LogPipe:
    """The stderr of a daemon, copied into a file while somebody reads."""

    def __init__(self, path):
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
        self.is_read = threading.Event()
        self.is_read.set()
        threading.Thread(target=self._copy, args=(path,), daemon=True).start()

    def _copy(self, path):
        with open(path, "ab", buffering=0) as out:
            while self.is_read.wait() and (piece := os.read(self.reader, 65536)):
                self.is_read.wait()
                out.write(piece)

    def is_full(self):
        poll = select.poll()
        poll.register(self.writer, select.POLLOUT)
        return not poll.poll(0)


class Host:
    def __init__(self, stage, worker_id):
        self.stage = stage
        self.left_out = []
        self.pipes = {}  # name of a daemon: its log
        self.clock = self.names = self.engine = self.found = self.disk = self.memory = None
        self.web = Web()
        self.web.pages["/metrics"] = self.page
        self.rng = random.Random(stage.seed)
        self._try("the clock", self._set_up_clock)
        self._try("a silent name server", lambda: self._set_up_names(worker_id))
        self._try("little memory", lambda: self._set_up_memory(worker_id + 2))
        self._try("a full disk", self._set_up_disk)

    def _try(self, what, set_up):
        try:
            set_up()
        except (pytest.skip.Exception, OSError, subprocess.CalledProcessError) as why:
            self.left_out.append(f"{what}: {why}")

    def _set_up_clock(self):
        self.shim = build_shim(self.stage.folder)
        self.clock = Clock(self.stage.folder / "clock")

    def _set_up_names(self, worker_id):
        self.names = NameServer(self.stage.folder)
        self.names.names = {HOST: KNOWN, FOUND: KNOWN, "silent.fleet": SILENT}
        self.engine = HostileEngine()
        self.stage.add_hostile(
            self.engine, worker_id, host=HOST,
            more=f'load = {{ prometheus = "{self.web.url("/metrics")}"; scrape_ms = 200; '
                 'zmq = "tcp://silent.fleet:7557"; }; ')

        self.found = HostileEngine()
        self.web.pages[SOURCES] = self._sources()
        self.stage.add_hostile(
            self.found, worker_id + 1, host=FOUND, where=f'discover = "http://127.0.0.1:{self.web.port}";')
        follow(self.found, lambda name, **labels: self.stage.bridge_metric(name, pod_key=str(worker_id + 1), **labels))

    def _sources(self):
        """Its answer to the question where its events are."""
        rank = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv-events", "buffer_steps": 10_000}
        for key, address in (("endpoint", self.found.events), ("replay_endpoint", self.found.replay)):
            rank[key] = address.replace("127.0.0.1", "*")
        return json.dumps({"0": rank})

    def _set_up_memory(self, worker_id):
        self.memory = Memory(self.stage, worker_id)

    def _set_up_disk(self):
        """The bridge of the hostile engines keeps its checkpoints on a small disk."""
        folder = self.stage.checkpoints(0).resolve()
        options = f"mode=700,size={DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, capture_output=True)
        self.disk = folder
        self.stage.keeps_checkpoints = True

    def options_of(self, name):
        """Of programs.Daemon."""
        self.pipes[name] = pipe = LogPipe(self.stage.folder / f"{name}.log")
        options = {"stderr": pipe.writer, "env": self.clock.environment(self.shim) if self.clock else {}}
        if self.names and name.startswith("kvbridge"):
            options["prefix"] = self.names.prefix
        return options

    def close(self):
        for pipe in self.pipes.values():
            os.close(pipe.writer)
        self.web.close()
        if self.memory:
            self.memory.close()
        if self.names:
            self.names.close()
        if self.disk:
            subprocess.run(["umount", "--lazy", self.disk], check=True)

    # ---- the broker, and the clock ------------------------------------------------------

    def _daemons(self):
        return self.stage.bridges + self.stage.aggregators

    def _wait_until_missed(self):
        """No list of an engine that publishes unheard says EXACT."""
        for daemon in self._daemons():
            wait_for(f"{daemon.name} misses NATS", lambda one=daemon: not one.is_ready())
        fleet = set().union(*(self.stage.streams_of_bridge(part) for part in (0, 1)))
        wait_for("no list that grows old says EXACT", lambda: not any(
            row[0] == "EXACT" for watcher in self.stage.oracle.watchers
            for stream, row in watcher.states.items() if stream in fleet), MOST_EXACT_S)

    def _away(self, jump_s):
        self.stage.nats.kill()
        self._wait_until_missed()
        self.clock.jump(jump_s)
        self.stage.start_nats()
        self._wait_until_connected()

    def _wait_until_connected(self):
        """Messages sent before this reach nobody."""
        for daemon in self._daemons():
            wait_for(f"{daemon.name} is connected again", daemon.is_ready, MOST_PAUSE_S)

    def clock_set_back_while_nats_is_away(self):
        self._away(-HOUR_S)

    def clock_set_on_while_nats_is_away(self):
        self._away(0)

    def clock_set_back_and_on(self):
        """While all are connected, this must not affect anybody."""
        for jump_s in (-HOUR_S, HOUR_S, 0):
            self.clock.jump(jump_s)
            time.sleep(2)

    def frozen_nats(self):
        self.stage.nats.process.send_signal(signal.SIGSTOP)
        try:
            self._wait_until_missed()
            time.sleep(2)
        finally:
            self.stage.nats.process.send_signal(signal.SIGCONT)
        self._wait_until_connected()

    # ---- the log --------------------------------------------------------------------------

    def log_that_nobody_reads(self):
        """Each reload writes a line; a pipe of one page has no room for a second one."""
        pipes = [self.pipes[daemon.name] for daemon in self._daemons()]
        for pipe in pipes:
            pipe.is_read.clear()
        try:
            ends = time.monotonic() + 8
            while time.monotonic() < ends:
                self._reload()
            wait_for("no room is in a pipe", lambda: self._reload() or all(
                self.pipes[bridge.name].is_full() for bridge in self.stage.bridges), MOST_PAUSE_S)
        finally:
            for pipe in pipes:
                pipe.is_read.set()

    def _reload(self):
        for bridge in self.stage.bridges:
            bridge.process.send_signal(signal.SIGHUP)
        time.sleep(0.05)

    def reloads_in_a_loop(self):
        for _ in range(60):
            self._reload()

    def _wait_until_counted(self, what, counter, times=1):
        _, name, labels = counter
        before = self.stage.bridge_metric(name, **labels)
        wait_for(what, lambda: self.stage.bridge_metric(name, **labels) >= before + times, MOST_PAUSE_S)

    # ---- names, pages -----------------------------------------------------------------------

    def name_server_that_falls_silent(self):
        """Its engine leaves, so its name is queried again."""
        self.names.names[HOST] = SILENT
        self.engine.go_away()
        try:
            self._wait_until_counted("the name is asked for, twice in vain", DNS_FAILURE, 2)
        finally:
            self.names.names[HOST] = KNOWN
            self.engine.come_back()
        self.engine.begin_again()
        self._wait_until_counted("its page is read again", SCRAPE_OK)

    def page(self, connection):
        """The engine's figures, until an attack puts another page there."""
        self._say(connection, b'vllm:num_requests_running{engine="0"} 3\n')

    @staticmethod
    def _say(connection, body):
        connection.send_response(200)
        connection.send_header("Content-Length", str(len(body)))
        connection.end_headers()
        connection.wfile.write(body)

    def _with_pages(self, page, counter):
        self.web.pages["/metrics"] = page
        try:
            self._wait_until_counted("a page is refused", counter, 3)
        finally:
            self.web.pages["/metrics"] = self.page

    def pages_of_garbage(self):
        bodies = (
            b"x" * 20_000, os.urandom(500), b'vllm:num_requests_running{engine="0\\', b"# HELP\n\n\n",
            b'vllm:num_requests_running{engine="-1"} NaN\n' * 500, b'sglang:token_usage{dp_rank="4294967296"} 1e300\n')
        self._with_pages(lambda connection: self._say(connection, self.rng.choice(bodies)), SCRAPE_FOREIGN)

    def pages_without_end(self):
        self._with_pages(self.web.endless, SCRAPE_LARGE)

    def pages_that_hang(self):
        self._with_pages(lambda connection: time.sleep(6), SCRAPE_LATE)

    # ---- an engine that is asked where its events are ---------------------------------------

    def _while_it_is_away(self, is_met):
        """It leaves, so the bridge asks where it is; it comes back after the bridge has met the
        attack."""
        self.found.wait_until_subscribed()
        self.found.go_away()
        try:
            wait_for("the bridge has met it", is_met, 2 * MOST_PAUSE_S)
        finally:
            self.names.names[FOUND] = KNOWN
            self.web.pages[SOURCES] = self._sources()
            self.found.come_back()
        self.found.recover()

    def sources_of_garbage(self):
        def rank(**fields):
            return json.dumps({"0": {**json.loads(self._sources())["0"], **fields}}).encode()

        bodies = [
            b"", b"{", b"[]", b"{}", b"[" * 100_000, self.rng.randbytes(2000), b'{"detail":"Not Found"}',
            rank(endpoint="tcp://*:99999"), rank(endpoint="inproc://x"), rank(endpoint="ipc://" + "x" * 5000),
            rank(endpoint=5), rank(topic="x" * 100_000), b'{"4294967296":' + rank()[5:],
            json.dumps({str(at): json.loads(self._sources())["0"] for at in range(1000)}).encode()]
        rest, end = self.rng.sample(bodies, len(bodies)), self.web.asked[SOURCES] + 5
        self.web.pages[SOURCES] = lambda connection: self._say(connection, rest.pop() if rest else b"")
        self._while_it_is_away(lambda: self.web.asked[SOURCES] >= end)

    def sources_that_hang_or_never_end(self):
        end = self.web.asked[SOURCES] + 3
        self.web.pages[SOURCES] = lambda connection: self.rng.choice((
            self.web.endless, lambda _: time.sleep(6)))(connection)
        self._while_it_is_away(lambda: self.web.asked[SOURCES] >= end)

    def name_of_a_found_engine_falls_silent(self):
        end = self.names.asked[FOUND] + 4  # a second look-up, after the first one failed
        self.names.names[FOUND] = SILENT
        self._while_it_is_away(lambda: self.names.asked[FOUND] >= end)

    # ---- the disk ---------------------------------------------------------------------------

    def full_disk(self):
        ballast = self.disk / "ballast"
        try:
            with open(ballast, "wb", buffering=0) as out:
                before = self.stage.bridge_metric(CHECKPOINTS[1])
                wait_for("a checkpoint finds no room", lambda: (
                    self._fill(out) or self.stage.bridge_metric(CHECKPOINTS[1]) > before), 30)
        finally:
            ballast.unlink()

    @staticmethod
    def _fill(out):
        for size in (1 << 20, 4096):
            try:
                while True:
                    out.write(bytes(size))
            except OSError:
                continue


def attacks(one, fleet):
    """fleet: the streams that miss NATS when it is away."""
    fleet = frozenset(fleet)

    def broker(run):
        return Attack(run.__name__, run, touched=fleet, heal_s=BROKER_HEAL_S, is_unready=True)

    rows = [broker(one.frozen_nats), Attack("reloads_in_a_loop", one.reloads_in_a_loop),
            Attack("log_that_nobody_reads", one.log_that_nobody_reads)]
    if one.clock:
        rows += [Attack("clock_set_back_and_on", one.clock_set_back_and_on),
                 broker(one.clock_set_back_while_nats_is_away), broker(one.clock_set_on_while_nats_is_away)]
    if one.names:
        rows += [Attack("name_server_that_falls_silent", one.name_server_that_falls_silent, (DNS_FAILURE,)),
                 Attack("sources_of_garbage", one.sources_of_garbage),
                 Attack("sources_that_hang_or_never_end", one.sources_that_hang_or_never_end),
                 Attack("name_of_a_found_engine_falls_silent", one.name_of_a_found_engine_falls_silent, (DNS_FAILURE,)),
                 Attack("pages_of_garbage", one.pages_of_garbage, (SCRAPE_FOREIGN,)),
                 Attack("pages_without_end", one.pages_without_end, (SCRAPE_LARGE,)),
                 Attack("pages_that_hang", one.pages_that_hang, (SCRAPE_LATE,))]
    if one.memory:
        rows += attacks_on_memory(one.memory)
    if one.disk:
        rows += [Attack("full_disk", one.full_disk, (CHECKPOINTS,))]
    return rows
