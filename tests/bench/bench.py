"""Runs the programs of the bench and prints their figures next to the goals."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import compare
import machine
import publish
import report
import worth
from rows import APART, GOALS, PROGRAMS, ROWS, WITH_PEERS, is_of_peers

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
TRACE = TREE / "tests/data/conversation_trace.jsonl"

KNOWN = tuple(row.name.partition("*")[0] for row in ROWS)
WRONG_USAGE, FAILED, MISSED = 64, 1, 3


class Failed(Exception):
    """What prevents a figure."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(
        prog="tests/bench/run", description="Measures what the project promises, on this machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Ends with 0 when everything was measured, whatever the figures; 1 when a program failed;\n"
               "or when, with --compare, something is slower, missing or cannot be compared;\n"
               "3 with --strict when a goal was missed; 64 when it was called wrongly.\n"
               "KVB_BIN names a build folder to use as it is, instead of building build/release.")
    parser.add_argument("--seconds", type=float, default=10, metavar="N", help="each row takes about so long (10)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="rows whose names begin so; may be given several times")
    parser.add_argument("--json", action="store_true", help="one JSON object a figure, one a line, as they come")
    parser.add_argument("--compare", type=pathlib.Path, metavar="FILE",
                        help="say what is slower and what is faster than in a former run, beyond the spread of both; FILE is "
                             "what --json printed then, or its build/bench/figures.jsonl; 1 when something is slower")
    parser.add_argument("--publish", type=pathlib.Path, nargs="?", const=TREE, metavar="TREE",
                        help="write the figures of a whole run into README.md, tests/bench/README.md and "
                             "tests/bench/figures.jsonl of the tree (this one); those of --only worth into README.md "
                             "and tests/bench/worth.*")
    parser.add_argument("--corpus", metavar="FILE",
                        help="a chat trace (.jsonl), or a corpus that bench_corpus wrote (default: a trace made long "
                             "of the one in tests/data)")
    parser.add_argument("--peers", action="store_true",
                        help="compare with other indexes, Dynamo's indexer and Envoy with another picker too; needs cargo")
    parser.add_argument("--small", action="store_true",
                        help="a hundredth of everything: to try the bench, not to measure")
    parser.add_argument("--out", type=pathlib.Path, default=TREE / "build/bench", metavar="FOLDER",
                        help="where corpora and the figures of the run go (build/bench)")
    parser.add_argument("--strict", action="store_true", help="end with 3 when a goal is missed")
    parser.add_argument("--list", action="store_true", help="the rows there are: unit, goal and question; measures nothing")
    parser.add_argument("--from", dest="saved", metavar="FILE",
                        help="measure nothing: the figures of a run, which lie in build/bench/figures.jsonl")
    try:
        options = parser.parse_args()
    except SystemExit as error:
        sys.exit(WRONG_USAGE if error.code else 0)
    if not 0 < options.seconds <= 86400:
        parser.print_usage(sys.stderr)
        refuse("--seconds: expected a number above 0")
    check(options)
    return options


def check(options):
    """Before anything is measured: what is found out at the end costs a whole run."""
    for name, path in (("--corpus", options.corpus), ("--from", options.saved), ("--compare", options.compare)):
        if path and not (os.path.isfile(path) and os.access(path, os.R_OK)):
            refuse(f"{name} {path}: cannot be read")
    is_whole = not options.only and (options.peers or options.saved)
    if options.publish and (options.small or not (is_whole or options.only == ["worth"])):
        refuse("--publish: the figures of a whole run, with --peers and without --only or --small; or of --only worth")
    if options.peers and not (options.saved or options.list or shutil.which("cargo")):
        refuse("--peers: needs cargo (Rust, https://rustup.rs)")


def refuse(text):
    say(f"tests/bench/run: {text}")
    sys.exit(WRONG_USAGE)


def touches(name, options):
    """Whether the row, or one of its figures, is selected."""
    return is_wanted(name, options) or any(one.startswith(name) for one in options.only)


def is_wanted(name, options):
    if not name.startswith(KNOWN):  # of a former run, whose row is gone
        return False
    if not options.only:
        return not name.startswith(APART if options.peers else (*APART, *WITH_PEERS))
    return any(name.startswith(one) for one in options.only)


def goals_of(options):
    return [goal for goal in GOALS if is_wanted(goal.name, options)]


def names_peers(one):
    """Does it select only comparisons with peers?"""
    named = [goal.is_peer for goal in GOALS if goal.name.startswith(one)]
    return ".vs_" in one and bool(named) and all(named)


def rows_for(program, options):
    return [row for row in program.rows if any(touches(name, options) for name in row.names)]


def programs_of(options):
    known = [name for row in ROWS for name in (*row.names, *row.figure_names)] + [goal.name for goal in GOALS]
    for one in options.only:
        if not any(name.startswith(one) or one.startswith(name) for name in known):
            refuse(f"--only {one}: no such row; --list names all")
        if not options.peers and names_peers(one):
            refuse(f"--only {one}: measured with --peers only")
    wanted = [program for program in PROGRAMS if rows_for(program, options)]
    if not options.peers and all(program.is_peer for program in wanted):
        refuse(f"--only {' '.join(options.only)}: measured with --peers only")
    return [program for program in wanted if options.peers or not program.is_peer]


# ---- Running a program -----------------------------------------------------------


class Interruption:
    """A signal ends the run at once; while a program is being started, only when somebody can end
    it."""

    def __init__(self):
        self.is_held = self.is_due = False

    def come(self, _number, _frame):
        self.is_due = True
        if not self.is_held:
            raise KeyboardInterrupt

    def hold(self):
        self.is_held = True

    def let_go(self):
        self.is_held = False
        if self.is_due:
            raise KeyboardInterrupt


INTERRUPTION = Interruption()


def run(command, what, on_line=None, log=None, env=None):
    """Runs the command to its end: stdout goes to on_line, line by line, and stderr to this process's; or both to the log."""
    if log:
        say(f"{what} ...")
    INTERRUPTION.hold()
    try:
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log or subprocess.PIPE, stderr=log, text=True,
            errors="replace", cwd=TREE, env={**os.environ, **(env or {})}, start_new_session=True)
    except OSError as error:
        INTERRUPTION.let_go()
        raise Failed(f"{what}: {error}") from None
    try:
        INTERRUPTION.let_go()
        for line in process.stdout or ():
            on_line(line)
        status = process.wait()
    finally:
        if process.poll() is None:  # the run was interrupted, so nothing of it is kept
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status != 0:
        raise Failed(f"{what} ended with {status}")


# ---- What is needed ----------------------------------------------------------------


def build():
    """Returns the folder of the programs."""
    if os.environ.get("KVB_BIN"):
        return pathlib.Path(os.environ["KVB_BIN"]).resolve()
    path = TREE / "build/log/bench-build.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    jobs = str(os.cpu_count() or 1)
    with path.open("w") as log:
        try:
            run(["cmake", "--preset", "release"], "configuring build/release", log=log)
            run(["cmake", "--build", "--preset", "release", "-j", jobs, "--target", "bench_programs", "kvbridge",
                 "kvaggregator", "kvfleet"], "building build/release", log=log)
        except Failed as error:
            say("\n".join(path.read_text(errors="replace").splitlines()[-40:]))
            raise Failed(f"{error}; log: build/log/bench-build.txt") from None
    return TREE / "build/release"


def python():
    """The virtual environment that tests/run uses."""
    if os.environ.get("KVB_PYTHON"):
        return os.environ["KVB_PYTHON"]
    path = TREE / "build/log/bench-venv.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as log:
        run(["bash", "-ec", ". tests/venv.sh; make_venv build/venv"], "making build/venv", log=log)
    return str(TREE / "build/venv/bin/python")


def is_corpus(path):
    with open(path, "rb") as file:
        return file.read(8) == b"KVBCORP1"


def laps_of(trace):
    """The number of repetitions that makes a short trace about as long as the whole of Mooncake's:
    12,000 rows."""
    with open(trace, "rb") as file:
        rows = sum(1 for _ in file)
    return max(1, min(6, 12000 // max(1, rows)))


def corpus_of(trace, workers, folder, out):
    """Writes the corpus unless one exists that the same program made from the same trace."""
    trace = pathlib.Path(trace).resolve()
    program = folder / "tests/bench_corpus"
    laps = laps_of(trace)
    stamp = f"{trace} {trace.stat().st_size} {trace.stat().st_mtime_ns} {program.stat().st_mtime_ns} {laps}\n"
    path = out / f"conversation-{workers}.corpus"
    mark = path.with_suffix(".made-of")
    if not (path.exists() and mark.exists() and mark.read_text() == stamp):
        out.mkdir(parents=True, exist_ok=True)
        mark.unlink(missing_ok=True)
        run([program, trace, workers, laps, path], f"writing the corpus of {workers} workers")
        mark.write_text(stamp)  # written last: its presence shows that the corpus is complete
    return path


def corpora_of(program, options, folder):
    corpora = sorted({row.corpus for row in rows_for(program, options)} - {0})
    if corpora and options.corpus and is_corpus(options.corpus):
        return [options.corpus]
    return [corpus_of(options.corpus or TRACE, workers, folder, options.out.resolve()) for workers in corpora]


def words_for(program, options, folder):
    rows = [name for row in program.rows for name in row.names]
    names = [name for name in rows if is_wanted(name, options)]
    # Names more specific than a row are left to the program, which knows the figures of its rows.
    names += [one for one in options.only if any(one.startswith(name) and one != name for name in rows)]
    words = ["--seconds", format(options.seconds, "g")] + ["--small"] * options.small
    inputs = corpora_of(program, options, folder)
    if program.needs_trace:
        has_trace = options.corpus and not is_corpus(options.corpus)
        inputs = [pathlib.Path(options.corpus).resolve() if has_trace else TRACE]
    for one in inputs:
        words += ["--input", one]
    return words + names


# ---- The whole ---------------------------------------------------------------------


def figure_of(line, program):
    try:
        figure = json.loads(line)
    except ValueError:
        raise Failed(f"{program.path}: not a figure: {line}") from None
    if not isinstance(figure, dict) or not report.FIELDS <= figure.keys():
        raise Failed(f"{program.path}: not a figure: {line}")
    return figure


def measure_one(program, options, folder, watch, take):
    path = HERE / program.path if program.is_script else folder / program.path
    # nats-server as docker-compose.yml starts it, for all that is measured on it.
    of_nats = {"GOMAXPROCS": "1", "GOGC": "200", "GOMEMLIMIT": "192MiB"}
    env = {"KVB_BIN": str(folder), **{name: os.environ.get(name, value) for name, value in of_nats.items()}}

    def on_line(line):
        figure = figure_of(line, program)
        if is_wanted(figure["name"], options):
            take(figure if program.is_simulation else watch.fill(figure))

    by = [python() if program.needs_venv else sys.executable] if program.is_script else []
    run([*by, path, *words_for(program, options, folder)], pathlib.Path(program.path).name, on_line=on_line, env=env)


def measure(options):
    """Returns the figures in order of arrival, and what went wrong."""
    figures, wrong = [], []

    def take(figure):
        figures.append(figure)
        if options.json:
            print(json.dumps(figure), flush=True)
        else:
            say(f"  {(worth if 'hit_rate' in figure else report).words_of(figure)}")

    programs = programs_of(options)
    folder = build()
    watch = machine.Watch()
    for program in programs:
        say(f"{pathlib.Path(program.path).name}: {', '.join(row.name for row in rows_for(program, options))}")
        try:
            measure_one(program, options, folder, watch, take)
        except Failed as error:
            wrong.append(str(error))
            say(f"tests/bench/run: {error}")
    return figures, wrong


def corpus_words(options):
    if not options.corpus:
        return f"tests/data/{TRACE.name} repeated {laps_of(TRACE)} times with other ids, 20 copies"
    if is_corpus(options.corpus):
        return pathlib.Path(options.corpus).name
    return f"{pathlib.Path(options.corpus).name}, {laps_of(options.corpus)} laps, 20 copies"


# ---- A former run ------------------------------------------------------------------


def is_compared(name, options):
    """Is this row of the former run one that this run measures, too?"""
    return is_wanted(name, options) and (options.peers or not is_of_peers(name))


def former_of(options):
    """The figures to compare with, before anything is measured; None: nothing is compared."""
    if not options.compare:
        return None
    try:
        _about, figures = report.load(options.compare)
    except ValueError as error:
        refuse(f"--compare {error}")
    figures = [figure for figure in figures if is_compared(figure["name"], options)]
    if not figures:
        refuse(f"--compare {options.compare}: has none of the selected rows")
    return figures


def compare_with(former, figures, options):
    """Is all as fast as it was?  stdout is for figures when these are JSON."""
    lines, is_as_fast = compare.lines_of(options.compare, former, figures, lambda name: is_compared(name, options))
    print("\n".join(lines), file=sys.stderr if options.json else sys.stdout, flush=True)
    return is_as_fast


def main():
    options = parse()
    if options.list:
        print("\n".join(report.list_lines(row for row in ROWS if not options.only or any(
            touches(name, options) for name in row.names))))
        return 0
    wrong, former = [], former_of(options)
    if options.saved:
        run_words, figures = report.load(options.saved)
        options.peers = "--peers" in run_words.get("command", "")
        figures = [figure for figure in figures if is_wanted(figure["name"], options)]
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        run_words = report.about(options, corpus_words(options))
        figures, wrong = measure(options)
        report.save(options.out / "figures.jsonl", run_words, figures)
    goals = [goal for goal in goals_of(options) if not goal.is_peer or options.peers
             or any(figure["name"] == goal.name for figure in figures)]
    is_worth = bool(figures) and all(figure["name"].startswith("worth.") for figure in figures)
    if is_worth and not options.json:
        worth.print_table(run_words, figures, goals)
    elif not options.json or options.saved:
        (report.print_json if options.json else report.print_table)(run_words, figures, goals)
    if options.publish and not wrong:
        (worth if is_worth else publish).publish(options.publish, run_words, figures, goals)
    missed = report.missed(figures, goals)
    if wrong or not figures:
        say("tests/bench/run: " + ("; ".join(wrong) or "no figure came out"))
        return FAILED
    if former and not compare_with(former, figures, options):
        return FAILED
    return MISSED if options.strict and missed else 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, INTERRUPTION.come)
    try:
        sys.exit(main())
    except Failed as failure:
        say(f"tests/bench/run: {failure}")
        sys.exit(FAILED)
    except (OSError, ValueError) as failure:
        say(f"tests/bench/run: {failure}")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
