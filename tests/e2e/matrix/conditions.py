"""Rows of the matrix about the environment of programs: lost packets, slow links, a full disk, a
clock that jumps, scarce memory.

Packets are lost in a network namespace of the row's own, by nftables (at random, in both
directions), so that TCP repairs them as on a bad network.  Delay, rate and flipped bytes are a
proxy's on each hop: netem is not in every kernel."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import time

import bus
import namespaces
import nats
import pytest
from clock import Clock, build_shim
from matrix.case import ENGINE_SIDE, REPAIRS
from matrix.crowd import forget_soon
from matrix.stage import PUBLISH
from programs import wait_for
from proxy import PoorLine

LOST_PERCENT = 5
DAYS_S = 3 * 24 * 3600
STREAM = "KV_EVENTS"
DISK_BYTES = 24 << 20
CHECKPOINT_DISK_BYTES = 4 << 20
MIB = 1 << 20


def need_root(what):
    if os.geteuid() != 0:
        pytest.skip(f"{what} needs root")


# ---- F29: lost packets ----------------------------------------------------------------


class OwnNetwork:
    """Moves this process and everything that it starts into a network namespace with only a
    loopback interface, until the row ends."""

    def __init__(self, stage):
        need_root("a network namespace")
        if not shutil.which("nft", path="/usr/sbin:/usr/bin"):
            pytest.skip("no nft (Debian: nftables)")
        self.inside = contextlib.ExitStack()
        try:
            network = namespaces.Namespace()
            self.inside.callback(network.close)
            self.inside.enter_context(network.entered())
            stage.start_nats()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def lose(ports, percent):
        chosen = "{ " + ", ".join(str(port) for port in sorted(ports)) + " }"
        rules = "table inet lossy {\nchain drops {\ntype filter hook input priority 0;\n" + "".join(
            f"tcp {side} {chosen} numgen random mod 100 < {percent} counter drop;\n" for side in ("sport", "dport")
        ) + "}\n}\n"
        made = subprocess.run(["nft", "-f", "-"], input=rules, text=True, capture_output=True)
        if made.returncode != 0:
            pytest.skip(f"nft: {made.stderr.strip()}")

    @staticmethod
    def lost():
        shown = subprocess.run(["nft", "list", "table", "inet", "lossy"], text=True, check=True, capture_output=True)
        return sum(int(count) for count in re.findall(r"packets (\d+)", shown.stdout))

    def end_loss(self):
        """The number of packets that were lost."""
        lost = self.lost()
        subprocess.run(["nft", "delete", "table", "inet", "lossy"], check=True)
        return lost

    def close(self):
        self.inside.close()


def engine_ports(stage):
    first = {int(port) for text in stage.bridge_parts for port in re.findall(r'"tcp://127\.0\.0\.1:(\d+)"', text)}
    return {port + rank for port in first for rank in range(stage.load.ranks)}


def lose_packets(case):
    stage = case.stage
    case.note_metrics(*REPAIRS, *ENGINE_SIDE)
    case.begin_fault(set())  # all lists are judged meanwhile
    case.oracle.records_staleness = True
    stage.site.lose(engine_ports(stage) | {stage.nats_port}, LOST_PERCENT)
    case.last(15)
    wait_for("200 packets are lost", lambda: stage.site.lost() > 200)
    case.packets_lost = stage.site.end_loss()
    case.oracle.records_staleness = False
    case.end_fault()


def check_lost_packets(case):
    ages = sorted(case.oracle.staleness)
    p99 = ages[int(0.99 * (len(ages) - 1))] if ages else 0.0
    down = sum(row[3] == "DOWN" for row in case.changes())
    case.figures = (f"{case.packets_lost} packets lost; staleness of {len(ages)} lists: p99 {p99:.2f} s, most {max(ages, default=0):.2f} s; "
                    f"{down} times DOWN")


# ---- F30: slow lines, and flipped bytes ---------------------------------------------------


def lay_lines(stage):
    """A proxy before each port of an engine, and one to NATS for each daemon."""
    stage.engine_lines, stage.nats_lines = [], []
    for part, text in enumerate(stage.bridge_parts):
        for port in sorted({int(port) for port in re.findall(r'(?:events|replay) = "tcp://127\.0\.0\.1:(\d+)"', text)}):
            line = PoorLine(port, seed=port)
            stage.engine_lines.append(line)
            text = text.replace(f'"tcp://127.0.0.1:{port}"', f'"tcp://127.0.0.1:{line.port}"')
        stage.bridge_parts[part] = text
    stage.nats_lines = [PoorLine(stage.nats_port, seed=at) for at in range(4)]
    stage.proxies += stage.engine_lines + stage.nats_lines
    stage.aggregator_ports = [line.port for line in stage.nats_lines[:2]]
    stage.bridge_urls = {part: stage.url_at(stage.nats_lines[2 + part].port, "bridge") for part in (0, 1)}
    fleet = {(worker, 0) for worker in range(1, stage.load.workers + 1)}
    stage.flips_subjects = True
    # Flipped bytes create other ids, and components with the same ids: those are forgotten when
    # they are silent.
    stage.is_made_up = lambda stream: stream not in fleet
    forget_soon(stage)


def set_lines(lines, distance_s, jitter_s, bytes_a_second, flip_share):
    for line in lines:
        line.distance_s, line.distance_jitter_s = distance_s, jitter_s
        line.bytes_a_second, line.flip_share = bytes_a_second, flip_share


DIFFER = [("aggregator", name, {}) for name in (
    "kvb_streams_differ_total", "kvb_streams_contradicted_total", "kvb_digest_buckets_differ_total")]
REFUSED = ("aggregator", "kvb_messages_refused_total", {})
CONNECTS = [(side, "kvb_nats_connects_total", {}) for side in ("bridge", "aggregator")]


def spoil_lines(case):
    stage = case.stage
    case.note_metrics(*REPAIRS, *ENGINE_SIDE, *DIFFER, REFUSED, *CONNECTS)
    case.begin_fault()
    set_lines(stage.engine_lines, 0.1, 0.05, 125_000, 0)
    set_lines(stage.nats_lines, 0.1, 0.05, 125_000, 0.01)
    case.last(8)
    wait_for("20 bytes are flipped", lambda: flips_of(stage) > 20)
    set_lines(stage.engine_lines + stage.nats_lines, 0, 0, 0, 0)
    case.end_fault()


def flips_of(stage):
    return sum(line.flipped for line in stage.nats_lines)


def check_spoilt_lines(case):
    flips = flips_of(case.stage)
    found = {name: sum(case.grew(*row[:2], **row[2]) for row in rows) for name, rows in (
        ("digests", DIFFER), ("messages refused", [REFUSED]), ("connections ended", CONNECTS), ("repairs", REPAIRS))}
    case.figures = f"{flips} bytes flipped; " + ", ".join(f"{name} {count:.0f}" for name, count in found.items())
    case.expect_that(sum(found.values()) > 0, "no flip was found")


# ---- F31: JetStream's disk ------------------------------------------------------------


def mount_disk(folder, size):
    need_root("a disk of its own")
    folder.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=700,size={size}", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"mount: {made.stderr.strip()}")


def unmount_disk(folder):
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path):
    with open(path, "ab", buffering=0) as out:
        for size in (MIB // 4, 4096):
            try:
                while True:
                    out.write(bytes(size))
            except OSError:
                continue


class JetStream:
    """One nats-server that keeps P.kv_events_pb in a stream, on a small disk."""

    def __init__(self, stage):
        self.stage = stage
        self.disk = stage.folder.resolve() / "jetstream"
        mount_disk(self.disk, DISK_BYTES)
        self.config = stage.folder / "jetstream.conf"
        self.config.write_text(f'jetstream {{ store_dir: "{self.disk}", max_file_store: 1GB }}\n')
        self.start()
        self.bus = bus.Bus(stage.url_at())
        self.jetstream = self.bus.client.jetstream(timeout=2)
        self.bus._wait(self.jetstream.add_stream(name=STREAM, subjects=[f"{PUBLISH}.kv_events_pb"]))

    def start(self):
        self.stage.nats = self.stage.start_server(self.stage.nats_port, self.config)

    def messages(self):
        return self.bus._wait(self.jetstream.stream_info(STREAM)).state.messages

    def is_stuck(self):
        """It refuses or does not answer: nats-server 2.9 waits for the disk."""
        try:
            before = self.messages()
            time.sleep(0.5)
            return self.messages() == before
        except (nats.errors.Error, TimeoutError):
            return True

    def close(self):
        if self.bus.thread.is_alive():
            self.bus.close()
        unmount_disk(self.disk)


def fill_disk_of_jetstream(case):
    """nats-server 2.9 reads no more from a client that publishes what it cannot store, for ever.
    Then it is restarted, as an operator would do."""
    site, ballast = case.stage.site, case.stage.site.disk / "ballast"
    case.note_metrics(*REPAIRS, *ENGINE_SIDE)
    case.kept, case.is_restarted = site.messages(), False
    case.begin_fault()
    try:
        wait_for("JetStream keeps nothing more", lambda: fill(ballast) or site.is_stuck())
        wait_for("no list stays EXACT that grows old", lambda: not site.is_stuck() or not any(
            row[0] == "EXACT" for _, _, row in case.oracle.all_states()))
    finally:
        ballast.unlink()
    if site.is_stuck():
        case.is_restarted = True
        site.bus.close()
        case.stage.nats.kill()
        site.start()
    case.end_fault()


def check_full_disk(case):
    case.figures = (
        f"{case.kept} messages kept before; nats-server "
        f"{'stopped serving publishers, and was restarted' if case.is_restarted else 'went on by itself'}; "
        f"{case.oracle.judged_exact} lists that said EXACT were judged meanwhile")
    case.expect_that(case.kept > 0, "JetStream kept nothing before")
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")


# ---- F32: the clock ---------------------------------------------------------------------


class Clocks:
    """All daemons run with a realtime clock that jumps on command."""

    def __init__(self, stage):
        self.shim = build_shim(stage.folder)
        self.clock = Clock(stage.folder / "clock")

    def options_of(self, _):
        return {"env": self.clock.environment(self.shim)}

    def close(self):
        pass


def shift_clocks(stage):
    stage.host = Clocks(stage)


def jump(case):
    case.note_metrics(*REPAIRS, *ENGINE_SIDE)
    case.begin_fault(set())
    for shift_s in (DAYS_S, -DAYS_S, 0):
        case.stage.host.clock.jump(shift_s)
        case.last(case.age_s() + 4)
    case.end_fault()


def check_jumped(case):
    case.others_were_untouched()
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")
    case.expect_that(case.grew("bridge", "kvb_engine_restarts_total") == 0, "an engine counts as restarted")


# ---- F34: memory --------------------------------------------------------------------------


class Caps:
    """Each daemon is in a cgroup of its own, and the kernel kills one that uses more than its
    limit."""

    def __init__(self, stage):
        need_root("a limit of memory")
        unified = pathlib.Path("/sys/fs/cgroup/cgroup.controllers")
        self.is_unified = unified.exists() and "memory" in unified.read_text().split()
        self.base = pathlib.Path("/sys/fs/cgroup" if self.is_unified else "/sys/fs/cgroup/memory")
        self.groups = {}
        self.disk = stage.checkpoints(0).resolve()
        streams = stage.load.workers * stage.load.ranks
        blocks = streams * stage.load.blocks
        self.caps = {"kvbridge": self._cap(streams + 1, blocks // 2), "kvaggregator": self._cap(1, blocks)}
        mount_disk(self.disk, CHECKPOINT_DISK_BYTES)

    @staticmethod
    def _cap(connections, blocks):
        """A bridge has two connections to each stream of its half."""
        return 32 * MIB + connections * MIB + 64 * blocks

    def options_of(self, name):
        cap = next(cap for program, cap in self.caps.items() if name.startswith(program))
        group = self.base / f"kvb-matrix-{os.getpid()}-{name}"
        try:
            group.mkdir()
            (group / ("memory.max" if self.is_unified else "memory.limit_in_bytes")).write_text(str(cap))
        except OSError as why:
            pytest.skip(f"no group with a limit of memory: {why}")
        self.groups[name] = group
        return {"prefix": ["sh", "-c", 'echo $$ >"$0" && exec "$@"', group / "cgroup.procs"]}

    def most_bytes(self):
        """{daemon: the most that it took}"""
        file = "memory.peak" if self.is_unified else "memory.max_usage_in_bytes"
        return {name: int((group / file).read_text()) for name, group in self.groups.items() if (group / file).exists()}

    def close(self):
        for group in self.groups.values():
            group.rmdir()
        unmount_disk(self.disk)


def cap_memory(stage):
    stage.keeps_checkpoints = True
    stage.host = Caps(stage)


FAILED = ("bridge", "kvb_checkpoint_failures_total", {})


def leave_without_memory(case):
    stage = case.stage
    case.note_metrics(*REPAIRS, *ENGINE_SIDE, FAILED)
    ballast = stage.host.disk / "ballast"
    wait_for("a checkpoint finds no room", lambda: fill(ballast) or case.grew(*FAILED[:2]) > 0)
    case.begin_fault()
    stage.nats.kill()
    case.last(5)
    case.wait_until_published(100)
    stage.start_nats()
    ballast.unlink()
    case.end_fault()


def check_without_memory(case):
    host = case.stage.host
    most = host.most_bytes()
    case.figures = "; ".join(
        f"{name} took {size / MIB:.1f} of {next(c for p, c in host.caps.items() if name.startswith(p)) / MIB:.1f} MiB"
        for name, size in sorted(most.items()))
    case.expect_that(case.grew(*FAILED[:2]) > 0, "no checkpoint failed")
    case.expect_that(all(one.is_running() for one in case.stage.bridges + case.stage.aggregators), "a daemon ended")
