"""What the scripts of the bench share: options, figures with the spread of their rounds, turns, the programs that they start,
and what those use."""

import argparse
import json
import pathlib
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
TESTS = BENCH.parent
sys.path[:0] = [str(BENCH), str(TESTS / "e2e")]

import compare  # noqa: E402
import machine  # noqa: E402
import programs  # noqa: E402


def progress(text):
    print(text, file=sys.stderr, flush=True)


# ---- Options -------------------------------------------------------------------------


class Options(argparse.Namespace):
    """seconds: of a row; small: to try the bench, not to measure; inputs: what rows read; names: of rows or figures, or how
    such begin."""

    def wants(self, name):
        return not self.names or any(name.startswith(one) or one.startswith(name) for one in self.names)

    def size(self, count):
        """With --small a hundredth, but at least 1."""
        return max(1, count // 100) if self.small else count


def begin(about):
    """Reads --seconds N [--small] [--input FILE]... [NAME...]."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--input", action="append", default=[], dest="inputs")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(namespace=Options())
    figure.note = {"note": "with --small"} if options.small else {}
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # what runs is ended
    return options


# ---- Figures -------------------------------------------------------------------------


def spread_of(values):
    """The interquartile range over the median, as bench_spread() of parts/bench.h; None: less than three values."""
    if len(values) < 3:
        return None
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return round((third - first) / middle, 4) if middle > 0 else float(third > first)


def figure(name, unit, ours, against=None, theirs=(), **more):
    """Prints one.  ours, theirs: values of rounds, in turns.  A value is the median of the rounds; a ratio is the median of
    the rounds' ratios, above 1 where ours is better.  more: further fields, but for those that are None."""
    row = {"name": name, "value": statistics.median(ours), "unit": unit, "against": against, "against_value": None, "ratio": None}
    if len(ours) > 1 or against:
        row |= {"rounds": len(ours), "spread": spread_of(ours)}
    if against:
        pairs = zip(ours, theirs) if unit in compare.MORE_IS_BETTER else zip(theirs, ours)
        ratios = [better / base if base else 0 for better, base in pairs]
        row |= {"against_value": statistics.median(theirs), "ratio": statistics.median(ratios), "ratio_spread": spread_of(ratios)}
    fields = ("against", "against_value", "ratio")  # of every figure
    print(json.dumps({field: value for field, value in {**row, **more, **figure.note}.items()
                      if value is not None or field in fields}), flush=True)


figure.note = {}


def take_turns(sides, rounds, take):
    """{side: [what take(side) gave in each round]}: what disturbs the machine disturbs all sides."""
    taken = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            taken[side].append(take(side))
    return taken


# ---- What a process uses -------------------------------------------------------------


def cpu_ns(pid):
    """Processor time of the whole process, as the kernel counts it: clock_getcpuclockid(), which Python lacks."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def resident_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def usage_of(pid):
    """(in its own code, in the kernel), in ticks."""
    return machine.process_ticks(pathlib.Path(f"/proc/{pid}/stat").read_text())[1:]


def kernel_percent(pid, since=(0, 0)):
    """The kernel's share of its processor time; None: too little to tell."""
    user, kernel = (now - then for now, then in zip(usage_of(pid), since))
    return round(100 * kernel / (user + kernel), 1) if user + kernel > 0 else None


# ---- Programs ------------------------------------------------------------------------


class Helper:
    """A program of the bench that does what the lines on its stdin say, and answers each with a line of JSON."""

    def __init__(self, *argv):
        self.process = subprocess.Popen(
            [str(word) for word in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, *words):
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:  # it said why on stderr
            sys.exit(f"{pathlib.Path(self.process.args[0]).name} ended at: {words[0]}")
        return json.loads(answer)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Place:
    """A folder, and what runs in it until the end of its with block."""

    def __enter__(self):
        self.made = tempfile.TemporaryDirectory(prefix="kvb-bench.")
        self.folder, self.started = pathlib.Path(self.made.name), {}
        return self

    def __exit__(self, *_trouble):
        for program in reversed(self.started.values()):
            program.kill()
        self.made.cleanup()

    def keep(self, name, program):
        self.started[name] = program
        return program

    def start(self, name, *argv, **more):
        return self.keep(name, programs.Program(self.folder, name, argv, **more))

    def daemon(self, name, program, config):
        """kvbridge or kvaggregator, with HTTP."""
        port = programs.free_port()
        return self.keep(name, programs.Daemon(self.folder, name, program, f'http = "127.0.0.1:{port}";\n{config}', port))

    def start_nats(self, config="", **more):
        (self.folder / "nats.conf").write_text(config)
        self.start("nats", shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin"), "-a", "127.0.0.1", "-p", -1,
                   "-c", self.folder / "nats.conf", "--ports_file_dir", self.folder, **more)
        ports = programs.wait_for("nats-server listens", lambda: list(self.folder.glob("*.ports")))
        self.nats_url = programs.wait_for("nats-server writes its ports", lambda: json.loads(ports[0].read_text())["nats"][0])
        self.nats = f'nats = {{ url = "{self.nats_url}"; }};\n'

    def start_fleet(self, *words):
        """kvfleet.  self.workers: for a bridge's configuration; self.silent_workers: without the engines' load."""
        from matrix.truth import Door  # it needs msgspec

        workers = self.folder / "workers"
        self.start("fleet", programs.BIN / "kvfleet", *words, "--trace", programs.TRACE, "--truth", self.folder / "truth",
                   "--config-out", workers)
        self.workers = programs.wait_for("kvfleet has bound its sockets", lambda: workers.exists() and workers.read_text())
        self.silent_workers = "\n".join(line for line in self.workers.splitlines() if "load = {" not in line)
        self.door = programs.wait_for("kvfleet answers", lambda: Door(self.folder / "truth"))

    def ask(self, command):
        """The fleet."""
        self.door.send([command])
        return self.door.answers()

    def wait_full(self):
        """Waits until two seconds bring hardly any further blocks; returns how many are held."""
        held = -1
        while held < 0.995 * (now := self.ask("stats")[-1]["held_blocks"]) or now == 0:
            held = now
            time.sleep(2)
        return now


def is_exact(daemon):
    return daemon.http("GET", "/readyz?exact=1")[0] == 200
