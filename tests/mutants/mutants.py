"""Makes one known mistake after the other in a copy of the tree, builds it, and says which
suites catch it: unit programs of the pure rooms and of the daemons, and the simulator.
The first that does is enough, unless --every suite is asked for.

    *.patch   "# what is wrong", then a unified diff
    copy      build/mutants/src, built in build/mutants/build: only what a mutant touches is
              compiled, and only programs that were linked anew are run
    caught    a suite fails that passes without the mutant, or does not end in its time
    error     the patch does not fit, or does not compile: never counted as caught"""

import argparse
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
SHARE = 0.95  # of the mutants are to be caught
SUITES_S = 20.0  # for all suites of one mutant
SEEDS, SEEDS_S = 600, 8  # of the simulator: so many, or those that fit
PATIENCE_S = 300.0  # for all of them without a mutant, on a busy machine


class Broken(Exception):
    """What stands in the way of a verdict."""


# ---- Mutants ------------------------------------------------------------------


class Mutant:
    def __init__(self, patch):
        self.patch = patch
        self.name = patch.stem
        self.what = " ".join(
            line[1:].strip() for line in patch.read_text().split("--- ", 1)[0].splitlines() if line.startswith("#"))
        self.files = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M)
        self.before = {}  # their bytes in the copy

    def is_of_room(self, suite):
        """Those of its own room are built and run first: fewer programs to link."""
        return any(suite.split(".")[1:2] == file.split("/")[1:2] for file in self.files)


def parse():
    parser = argparse.ArgumentParser(prog="tests/mutants/run", description="Do the tests notice known mistakes?")
    parser.add_argument("--only", metavar="NAME,...", help="these mutants")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--every", action="store_true", help="run the other suites too when one has caught it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="so much at a time (all cores)")
    try:
        return parser.parse_args()
    except SystemExit as error:
        sys.exit(64 if error.code else 0)


def find_mutants(words):
    mutants = [Mutant(patch) for patch in sorted(HERE.glob("*.patch"))]
    wanted = set(words.split(",")) if words else {mutant.name for mutant in mutants}
    unknown = wanted - {mutant.name for mutant in mutants}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}", file=sys.stderr)
        sys.exit(64)
    return [mutant for mutant in mutants if mutant.name in wanted]


# ---- Processes: each in a group of its own, so that nothing is left behind -----


class Running:
    everything = set()

    def __init__(self, command, log, cwd, env=None):
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})}, start_new_session=True)
        self.began = time.monotonic()
        Running.everything.add(self)

    def end(self):
        """Its group may outlive it: a nats-server of a test that crashed."""
        Running.everything.discard(self)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    @classmethod
    def end_all(cls):
        for running in list(cls.everything):
            running.end()


def run(command, log, cwd):
    """A step that has to succeed."""
    running = Running(command, log, cwd)
    status = running.process.wait()
    running.end()
    if status != 0:
        raise Broken(f"{command[0]} failed ({log.relative_to(TREE)})")


# ---- The copy -----------------------------------------------------------------


class Workshop:
    def __init__(self, jobs, runs_every_suite):
        self.jobs, self.runs_every_suite = jobs, runs_every_suite
        self.top = TREE / "build" / "mutants"
        self.src, self.bin, self.logs = self.top / "src", self.top / "build", self.top / "log"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.top / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Broken("another run is at work in build/mutants") from None

    def project_files(self):
        out = subprocess.run(["sh", "tests/lint/files.sh"], cwd=TREE, capture_output=True, text=True, check=True)
        return out.stdout.split("\n")[:-1]

    def copy_tree(self):
        """Files that are the same keep their times, so that a second run builds little."""
        names = set(self.project_files())
        for old in [path for path in self.src.rglob("*") if path.is_file()]:
            if str(old.relative_to(self.src)) not in names:
                old.unlink()
        for name in names:
            self.copy_file(name)

    def copy_file(self, name):
        fresh, copy = TREE / name, self.src / name
        if copy.exists() and copy.read_bytes() == fresh.read_bytes():
            return
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fresh, copy)
        shutil.copymode(fresh, copy)

    def configure(self):
        """Neither Debug nor a release: optimized a little, for compiling counts as much."""
        run(["cmake", "-G", "Ninja", "-S", str(self.src), "-B", str(self.bin), "-DCMAKE_BUILD_TYPE=Mutants",
             "-DCMAKE_C_FLAGS=-O1"], self.logs / "configure.txt", self.top)

    def find_suites(self):
        out = subprocess.run(
            ["ctest", "-N", "-L", "mutants"], cwd=self.bin, capture_output=True, text=True, check=True)
        return re.findall(r"^ *Test +#\d+: (\S+)", out.stdout, re.M) + ["sim"]

    def program(self, suite):
        return self.bin / "tests" / suite

    def build(self, suites, log):
        """Returns the suites whose programs are others than before."""
        before = {name: self.age_of(name) for name in suites}
        run(["ninja", "-j", str(self.jobs), *suites], log, self.bin)
        return [name for name in suites if self.age_of(name) != before[name]]

    def age_of(self, suite):
        return self.program(suite).stat().st_mtime_ns if self.program(suite).exists() else None

    def apply(self, mutant):
        """git is not to find the checkout around the copy: paths count from the copy."""
        mutant.before = {name: (self.src / name).read_bytes() for name in mutant.files if (self.src / name).exists()}
        command = ["git", "apply", str(mutant.patch)]
        done = subprocess.run(
            command, cwd=self.src, capture_output=True, text=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(self.top)})
        if done.returncode != 0:
            raise Broken(f"the patch does not fit: {done.stderr.strip()}")

    def undo(self, mutant):
        for name, data in mutant.before.items():
            (self.src / name).write_bytes(data)


# ---- Suites -------------------------------------------------------------------


class Verdict:
    def __init__(self, caught, late, seconds):
        self.caught, self.late, self.seconds = caught, late, seconds


def run_suites(workshop, suites, folder, most_s, normal_s):
    """Unit programs as many at a time as there are jobs, the shortest first, then the simulator,
    which takes all cores.  What does not end in the time for all is stopped: late, and caught
    only when that is many times what it takes without a mutant."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + most_s
    waiting = sorted(suites, key=lambda name: (name == "sim", normal_s.get(name, 0.0)))
    running, caught, late, took = {}, [], [], {}
    while (waiting or running) and (workshop.runs_every_suite or not caught):
        while waiting and len(running) < (workshop.jobs if waiting[0] != "sim" else 1):
            name = waiting.pop(0)
            running[name] = start(workshop, name, folder)
        for name, one in list(running.items()):
            status, age = one.process.poll(), time.monotonic() - one.began
            is_hanging = status is None and age > 2 + 10 * normal_s.get(name, most_s)
            if status is None and not is_hanging and time.monotonic() < until:
                continue
            one.end()
            del running[name]
            took[name] = age
            if is_hanging or status:
                caught.append(name)
            elif status is None:
                late.append(name)
        time.sleep(0.005)
    for one in running.values():
        one.end()
    return Verdict(caught, late, took)


def start(workshop, suite, folder):
    log = folder / f"{suite}.txt"
    if suite != "sim":
        return Running([str(workshop.program(suite))], log, workshop.src)
    return Running(
        ["tests/sim/run", "--first", "1", "--seeds", str(SEEDS), "--seconds", str(SEEDS_S)], log, workshop.src,
        {"KVB_SIM": str(workshop.program("sim"))})


def try_mutant(workshop, mutant, suites, normal_s):
    folder = workshop.logs / mutant.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        workshop.apply(mutant)
        own = [] if workshop.runs_every_suite else [name for name in suites if mutant.is_of_room(name)]
        late = []
        for some in [own, suites] if own else [suites]:
            touched = workshop.build(some, folder / "build.txt")
            verdict = run_suites(workshop, touched, folder, SUITES_S, normal_s)
            late += verdict.late
            if verdict.caught:
                break
        return Verdict(verdict.caught, late, verdict.seconds)
    finally:
        workshop.undo(mutant)


# ---- All ----------------------------------------------------------------------


def short(names):
    return ", ".join(name.removeprefix("unit.") for name in names)


def print_table(rows):
    wide = max(len(mutant.name) for mutant, _, _, _ in rows)
    print()
    for mutant, verdict, error, seconds in rows:
        word = f"ERROR: {error}" if error else short(verdict.caught) or "SURVIVED"
        print(f"{mutant.name:{wide}}  {seconds:5.1f} s  {word}")
        print(f"{'':{wide}}           {mutant.what}")


def judge(rows):
    survivors = [mutant.name for mutant, verdict, error, _ in rows if not error and not verdict.caught]
    errors = [mutant.name for mutant, _, error, _ in rows if error]
    caught = len(rows) - len(survivors) - len(errors)
    print(f"\n{caught} of {len(rows)} mutants caught ({100 * caught / len(rows):.1f} %)")
    if survivors:
        print(f"survived: {', '.join(survivors)}")
    if errors:
        print(f"no mutant any more, to be made anew: {', '.join(errors)}")
    return 1 if errors or caught < SHARE * len(rows) else 0


def run_all(workshop, mutants):
    print("the tree without a mutant ...", flush=True)
    workshop.copy_tree()
    workshop.configure()
    suites = workshop.find_suites()
    workshop.build(suites, workshop.logs / "build.txt")
    normal = run_suites(workshop, suites, workshop.logs / "none", PATIENCE_S, {})
    if normal.caught or normal.late:
        raise Broken(f"fails without a mutant: {short(normal.caught + normal.late)} (build/mutants/log/none)")
    print(f"{len(suites) - 1} unit programs and the simulator pass without one", flush=True)
    rows = []
    for number, mutant in enumerate(mutants, 1):
        began, verdict, error = time.monotonic(), None, None
        try:
            verdict = try_mutant(workshop, mutant, suites, normal.seconds)
        except Broken as broken:
            error = broken
        seconds = time.monotonic() - began
        rows.append((mutant, verdict, error, seconds))
        word = f"ERROR: {error}" if error else f"{'caught' if verdict.caught else 'SURVIVED'}: {short(verdict.caught)}"
        late = f" (not in time: {short(verdict.late)})" if verdict and verdict.late else ""
        print(f"{number:2d}/{len(mutants)}  {mutant.name}  {word}{late}  {seconds:.1f} s", flush=True)
    print_table(rows)
    return judge(rows)


def main():
    options = parse()
    mutants = find_mutants(options.only)
    if options.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # into head
        print("\n".join(f"{mutant.name}\n    {mutant.what}" for mutant in mutants))
        return 0
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.default_int_handler)
    try:
        return run_all(Workshop(max(1, options.jobs), options.every), mutants)
    except Broken as broken:
        print(f"error: {broken}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        Running.end_all()


if __name__ == "__main__":
    sys.exit(main())
