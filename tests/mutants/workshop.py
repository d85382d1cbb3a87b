"""A copy of the tree in build/mutants in which one thing at a time is wrong: how it is made, built,
and asked whether the suites notice.

    src, build   the copy and its build. Only what a mutant changes is compiled again
    log          the output of each build and suite

A suite is a room (all unit suites of it), "sim" (the simulator, always the same seeds), or
"fuzz.NAME" (the saved corpus of that fuzz target)."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
SEEDS = 100  # of the simulator
WALL_S = 300.0  # for what waits for ever without computing; however busy the machine is, no suite needs it


class Broken(Exception):
    """What stands in the way of a verdict."""


class Workshop:
    def __init__(self, jobs):
        self.jobs = jobs
        self.top = TREE / "build" / "mutants"
        self.src, self.bin, self.logs = self.top / "src", self.top / "build", self.top / "log"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.top / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Broken("another run is at work in build/mutants") from None
        self.copy_tree()
        self.configure()
        self.targets = set(re.findall(r"^(\S+): phony", self.ask("ninja", "-t", "targets", "all"), re.M))
        self.normal_cpu_s, self.normal_digest = {}, {}  # of a suite, without a mutant
        self.inputs = {}  # of a suite: every file that its program is made of

    # ---- The copy ----

    def copy_tree(self):
        """Files that are the same keep their times, so that a second run builds little."""
        done = subprocess.run(["sh", "tests/lint/files.sh"], cwd=TREE, capture_output=True, text=True, check=True)
        names = set(done.stdout.splitlines())
        for old in self.src.rglob("*"):
            if old.is_file() and str(old.relative_to(self.src)) not in names:
                old.unlink()
        for name in names:
            fresh, copy = TREE / name, self.src / name
            if not copy.exists() or copy.read_bytes() != fresh.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(fresh, copy)
                shutil.copymode(fresh, copy)

    def configure(self):
        """Optimized a little, for compiling counts as much as running."""
        command = ["cmake", "-G", "Ninja", "-S", str(self.src), "-B", str(self.bin), "-DCMAKE_BUILD_TYPE=Mutants",
                   "-DCMAKE_C_FLAGS=-O1"]
        if shutil.which("ccache"):
            command.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
        self.step(command, "configure.txt", self.top)

    def apply_patch(self, patch):
        """Moved lines do not matter, and of the two lines around a change one may be another. git is
        not to find the checkout around the copy: paths count from the copy."""
        done = subprocess.run(
            ["git", "apply", "-C1", str(patch)], cwd=self.src, capture_output=True, text=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(self.top)})
        if done.returncode != 0:
            raise Broken(f"the patch no longer applies: {done.stderr.strip().splitlines()[0]}")

    @contextlib.contextmanager
    def keeping(self, names):
        """These files are afterwards what they were."""
        before = {name: (self.src / name).read_bytes() for name in names if (self.src / name).exists()}
        try:
            yield
        finally:
            for name, data in before.items():
                (self.src / name).write_bytes(data)

    # ---- Building ----

    def ask(self, *command):
        return subprocess.run(command, cwd=self.bin, capture_output=True, text=True, check=True).stdout

    def step(self, command, log, cwd):
        path = self.logs / log
        with open(path, "wb") as out:
            done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise Broken(f"{command[0]} failed ({path.relative_to(TREE)})")

    def program(self, suite):
        name = {"sim": "sim"}.get(suite) or (f"{suite}.replay" if suite.startswith("fuzz.") else f"unit.{suite}")
        if name not in self.targets:
            raise Broken(f"no such suite: {suite}")
        return name

    def build(self, suites, log):
        self.step(["ninja", "-j", str(self.jobs), *map(self.program, suites)], log, self.bin)

    def links(self, suite, name):
        """True: the suite's program has the code of this file."""
        if suite not in self.inputs:
            self.inputs[suite] = self.ask("ninja", "-t", "inputs", self.program(suite))
        return f"/{name}\n" in self.inputs[suite]

    def digest(self, suite):
        return hashlib.sha256((self.bin / "tests" / self.program(suite)).read_bytes()).digest()

    def differs(self, suite):
        """True: its program is another than without the mutant."""
        return self.digest(suite) != self.normal_digest.get(suite)

    # ---- Running ----

    def command(self, suite):
        program = str(self.bin / "tests" / self.program(suite))
        if suite == "sim":
            return [program, "--first", "1", "--seeds", str(SEEDS)]
        if suite.startswith("fuzz."):
            return [program, *sorted(map(str, (self.src / "tests/data/fuzz" / suite.split(".")[1]).iterdir()))]
        return [program]

    def run(self, suite, folder):
        """Returns what failed first; "": nothing did. Limits count the time of the processor, not that of
        the clock, so that a busy machine makes no verdict."""
        log = self.logs / folder / f"{suite}.txt"
        log.parent.mkdir(exist_ok=True)
        limit_s = int(10 + 3 * self.normal_cpu_s.get(suite, 100))

        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        before_s = cpu_of_children()
        with open(log, "wb") as out:
            process = subprocess.Popen(
                self.command(suite), cwd=self.src, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=limit)
        try:
            status = await_end(process, log)
        finally:
            end_group(process)
        if status == 0:
            self.normal_cpu_s.setdefault(suite, cpu_of_children() - before_s)
            return ""
        return f"{suite}: {first_failure(log) or how_it_ended(status)}"

    def pass_without(self, suites):
        """What fails without a mutant says nothing about one."""
        self.build(suites, "build.txt")
        for suite in suites:
            failed = self.run(suite, "none")
            if failed:
                raise Broken(f"fails without a mutant: {failed} (build/mutants/log/none)")
            self.normal_digest[suite] = self.digest(suite)
            print(f"passes without a mutant: {suite}, {self.normal_cpu_s[suite]:.1f} s of processor time", flush=True)


def cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def await_end(process, log):
    """Returns how it ended.  One failure is enough: the rest is not waited for."""
    until = time.monotonic() + WALL_S
    while True:
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if first_failure(log) or time.monotonic() > until:
                return -signal.SIGKILL


def end_group(process):
    """A program that crashed may leave others behind: a nats-server of a test."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def first_failure(log):
    """The test, or the seed of the simulator, that the output names; None: none."""
    text = log.read_text(errors="replace")
    found = re.search(
        r"^\[  FAILED  \] (\w+)|^(seed \d+ (?:fails at|leaves) .*)|^\S*unit\.\S+ (\w+: failed)$", text, re.M)
    return found and next(filter(None, found.groups()))


def how_it_ended(status):
    return "hangs" if -status in (signal.SIGXCPU, signal.SIGKILL) else f"ends with {status}"
