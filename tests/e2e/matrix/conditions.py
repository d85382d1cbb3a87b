"""Rows of the matrix about the environment of programs: a clock that jumps, scarce memory, a full disk."""

import os
import pathlib
import subprocess

import pytest
from clock import Clock, build_shim
from matrix.case import ENGINE_SIDE, REPAIRS
from programs import wait_for

DAYS_S = 3 * 24 * 3600
CHECKPOINT_DISK_BYTES = 4 << 20
MIB = 1 << 20


def need_root(what):
    if os.geteuid() != 0:
        pytest.skip(f"{what} needs root")


# ---- A disk of its own ----------------------------------------------------------------


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
