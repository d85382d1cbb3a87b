"""A random fault every few seconds, for minutes: the faults of the rows, without quiet time between
them. At the end: is everything EXACT and correct again, was a removed block listed, did memory
grow?

    python tests/e2e/matrix/soak.py MINUTES [--seed N] [--hostile [--kinds NAME,NAME]]

--hostile: attackers of every part of the stack in place of faults (hostile.py). Logs are kept when it fails."""

import argparse
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from matrix import hostile, judge, rows  # noqa: E402
from matrix.case import Row  # noqa: E402
from programs import wait_for  # noqa: E402

PERIOD_S = 3.0
MOST_GROWTH_BYTES = 24 << 20  # of one process, from a third of the way on


class Faults:
    """Each method is one fault from its beginning to its end."""

    def __init__(self, stage, rng):
        self.stage = stage
        self.rng = rng
        self.oracle = stage.oracle

    def _pause(self, least, most):
        time.sleep(self.rng.uniform(least, most))

    def _freeze(self, program, least=0.5, most=2.0):
        program.process.send_signal(signal.SIGSTOP)
        self._pause(least, most)
        program.process.send_signal(signal.SIGCONT)

    def _engine(self):
        return f"{self.rng.randint(1, self.stage.load.workers)} {self.rng.randrange(self.stage.load.ranks)}"

    def nats_dies(self):
        self.stage.nats.kill()
        self._pause(0.1, 2.0)
        self.stage.start_nats()

    def nats_freezes(self):
        self._freeze(self.stage.nats)

    def bridge_dies(self):
        part = self.rng.randrange(2)
        self.stage.killed.append(self.stage.bridges[part])
        self.stage.bridges[part].kill()
        self._pause(0.0, 1.0)
        self.stage.start_bridge(part, wait=False)

    def bridge_freezes(self):
        self._freeze(self.rng.choice(self.stage.bridges))

    def aggregator_freezes(self):
        self._freeze(self.rng.choice(self.stage.aggregators))

    def aggregator_dies(self):
        at = self.rng.randrange(1, len(self.stage.aggregators))  # the first aggregator has the link
        self.stage.killed.append(self.stage.aggregators[at])
        self.stage.aggregators[at].kill()
        self.oracle.replace(at, self.stage.start_aggregator(at=at))

    def engine_restarts(self):
        self.oracle.command(f"restart {self._engine()}" + self.rng.choice(["", " same"]))

    def batches_are_lost(self):
        self.oracle.command(f"drop {self._engine()} {self.rng.randint(1, 60)}")
        self._pause(0.5, 1.0)

    def links_fall_silent(self):
        links = [link for pair in self.stage.links[self.rng.choice(list(self.stage.links))] for link in pair]
        for link in links:
            link.hush(to_server=self.rng.random() < 0.5)
        self._pause(0.5, 2.5)
        for link in links:
            link.heal()

    def aggregator_is_cut_off(self):
        link = self.stage.proxies[0]
        link.cut()
        self._pause(0.2, 2.0)
        link.heal()

    def all(self):
        return [getattr(self, name) for name in dir(self) if not name.startswith("_") and name not in (
            "all", "stage", "rng", "oracle")]


def prepare(stage):
    # In minutes more is published than an engine's buffer keeps, so a killed bridge finds the
    # beginning only in its checkpoint.
    rows.keep_checkpoints(stage)
    rows.link_aggregator(stage)
    rows.link_three(stage)


def growth(samples):
    """{name: bytes} of memory since one third of each process's lifetime, for processes that ran
    long enough."""
    grown = {}
    for name, sizes in samples.items():
        if len(sizes) >= 30:
            third = sizes[len(sizes) // 3 :]
            part = max(1, len(third) // 5)
            grown[name] = sum(third[-part:]) / part - sum(third[:part]) / part
    return grown


def inject(case, minutes):
    """Faults for this long; the record goes to case.soak."""
    stage, rng = case.stage, random.Random(case.stage.seed)
    faults, samples, done = Faults(stage, rng), {}, {}
    case.soak_faults = []
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        began = time.monotonic()
        fault = rng.choice(faults.all())
        case.begin_fault()
        fault()
        case.end_fault()
        case.soak_faults.append((case.fault_ns, case.end_ns, fault.__name__))
        done[fault.__name__] = done.get(fault.__name__, 0) + 1
        while True:
            for name, size in stage.resident().items():
                samples.setdefault(name, []).append(size)
            left = began + PERIOD_S - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, 0.5))
    case.soak = {"faults": done, "growth": growth(samples)}


def late(case):
    """{fault: [looks, seconds]}: after which faults a list was too old, how often, how much."""
    looks = {}
    for at, who, _, _, age in case.oracle.violations:
        last = max((fault for fault in case.soak_faults if fault[0] <= at), default=(0, 0, "none"))
        looks.setdefault((last[2], who, at), []).append(age)
    by_fault = {}
    for (name, _, _), ages in looks.items():
        row = by_fault.setdefault(name, [0, 0.0])
        row[0] += 1
        row[1] = max([row[1], *(age for age in ages if isinstance(age, float))])
    return by_fault


def check(case):
    if case.oracle.violations:
        case.wrong.append(f"lists too old, by the fault before, looks and most seconds: {late(case)}")
    for name, grown in case.soak["growth"].items():
        case.expect_that(grown < MOST_GROWTH_BYTES, f"{name} grew by {grown / (1 << 20):.1f} MiB")
    case.figures = f"faults: {case.soak['faults']}; memory: " + ", ".join(
        f"{name} {grown / (1 << 20):+.1f} MiB" for name, grown in case.soak["growth"].items())
    for bridge in case.stage.bridges:
        wait_for("the bridges are ready", bridge.is_ready)
    case.expect_that(sum(case.soak["faults"].values()) > 0, "no fault happened")


def row(minutes):
    return Row(
        "SOAK", f"{minutes:g} minutes, a random fault every {PERIOD_S:g} s", lambda case: inject(case, minutes),
        "all EXACT and true at the end, no phantom, memory level", check, prepare=prepare, shows=False,
        # a bridge that is killed twice in 10 s does not remember that it has asked for all
        most_full_replays=1000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--kinds", help="of --hostile: these alone, such as wrong_frames,full_disk")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvb-soak-"))
    chosen = hostile.row(options.minutes, options.kinds) if options.hostile else row(options.minutes)
    done = judge.run(chosen, folder, options.seed)
    print(f"{chosen.title}: {'FAILED' if done.wrong else 'ok'}", *done.wrong, done.figures, sep="\n")
    if done.wrong:
        sys.exit(f"logs: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
