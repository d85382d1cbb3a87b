#!/usr/bin/python3
"""Replays corpora of the bench through other prefix indexes and through ours in turn:

    peers.py --seconds N [--corpus FILE]... [NAME...]

Builds the program beside it with cargo, into build/peers.  A figure is the median of
ROUNDS (of growth the least), in which the contenders take turns: ours, theirs, ours, theirs; a ratio is the median of
the rounds' ratios.  Prints the rows index.....vs_chainindex and ..vs_crtc, one JSON object a line; README.md says what they
mean.
KVB_BIN is the build folder of bench_index.  Ends with 1 when an index answered otherwise."""

import argparse
import array
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import rounds  # noqa: E402

TREE = HERE.parents[2]
PEERS = {"chainindex": "ChainIndex", "crtc": "CRTC", "two_chainindex": "ChainIndex, two threads"}
ALONE, ALL = ("chainindex", "crtc"), tuple(PEERS)
ROUNDS = 5
HOG_LIMIT_S = 3600  # one that is left behind ends by itself
LESS_IS_BETTER = {"us", "ms", "ns/block", "bytes"}

# ---- What is replayed ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    what: str  # word of bench_peers
    ours: str  # row of bench_index
    names: dict  # {how both call a figure: how it is called here}
    of_rounds: callable = statistics.median
    known_wrong: frozenset = frozenset()  # peers that answer otherwise: that is told, and no failure
    refusing: frozenset = frozenset()  # peers that refuse such events: what they do instead is an error
    peers: tuple = ALONE  # who takes part
    is_beside_hog: bool = False  # bench_hog copies memory on another core meanwhile


def named(*names):
    return {name: name for name in names}


def rows_of(workers):
    """Rows of a corpus that bench_corpus wrote."""
    conversation, events = f"index.conversation.{workers}", f"index.events.{workers}"
    dot = "" if workers == 128 else f".{workers}"
    quiet = named(f"index.query{dot}.p50", f"index.query{dot}.p99", f"index.bytes_per_membership{dot}.resident")
    dump, two = f"index.dump.{workers}", f"index.two.{workers}"
    return [Row("conversation", conversation, named(conversation), peers=ALL),
            Row("events", events, named(events), peers=ALL),
            Row("conversation", two, {conversation: two}, peers=("crtc", "two_chainindex")),
            Row("conversation", conversation, {conversation: f"index.beside_hog.{workers}"}, peers=("chainindex",),
                is_beside_hog=True),
            Row("quiet", "index.query", quiet), Row("dump", dump, named(dump), peers=("crtc",))]


def renamed_row(workers):
    """The same with other names. CRTC finds a block only by the name that one worker gave it."""
    conversation = f"index.conversation.{workers}"
    return Row("conversation", conversation, {conversation: f"index.own_names.{workers}"}, known_wrong=frozenset({"crtc"}))


def scene_row(what, names, of_rounds=statistics.median):
    return Row(what, f"scene.{what}", {f"scene.{what}.{name}": here for name, here in names.items()}, of_rounds)


# By the names of bench_scenes. The machine sometimes interrupts a run, but an index's own work is
# the same in every run, so the smallest value counts.
SCENES = {
    "wide": scene_row("rounds", {"remove": "index.wide.lose", "store": "index.wide.store"}),
    "wide_long": scene_row("rounds", {"remove": "index.wide_long.lose", "store": "index.wide_long.store"}),
    "clear": scene_row("rounds", {"clear.at_once": "index.clear.at_once", "clear.all": "index.clear.all"}),
    "staircase": scene_row("queries", {"p50": "index.staircase.p50"}),
    "deep": scene_row("queries", {"p50": "index.deep.p50"}),
    "growth": scene_row("growth", {"worst": "index.growth.worst"}, min),
    "growth_one": scene_row("growth", {"worst": "index.growth.one_worker.worst"}, min),
    "waiting": dataclasses.replace(
        scene_row("rounds", {"store": "index.hostile.waiting.store", "clear.all": "index.hostile.waiting.clear"}),
        refusing=frozenset(ALONE)),
    "collide_rustc": scene_row("rounds", {"store": "index.hostile.collide_rustc.store",
                                          "clear.all": "index.hostile.collide_rustc.clear"}),
    "collide_fibonacci": scene_row("rounds", {"store": "index.hostile.collide_fibonacci.store",
                                              "clear.all": "index.hostile.collide_fibonacci.clear"}),
    "fleet": scene_row("queries", {"p50": "index.query.10000.p50", "p99": "index.query.10000.p99"}),
}


class Failed(Exception):
    """What prevents a figure."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(prog="peers.py", description="Compares the prefix index with others.")
    parser.add_argument("--seconds", type=float, default=10, metavar="N", help="for each row (10)")
    parser.add_argument("--corpus", action="append", default=[], metavar="FILE", help="written by bench_corpus")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows whose names begin so (all)")
    return parser.parse_args()


def is_wanted(name, wanted):
    return not wanted or any(name.startswith(one) or one.startswith(name) for one in wanted)


# ---- Programs --------------------------------------------------------------------


def build():
    if not shutil.which("cargo"):
        raise Failed("--peers needs cargo (Rust, https://rustup.rs): nothing is compared")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "build/peers"))
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", str(HERE / "Cargo.toml")]
    say("building the peers (minutes, the first time)")
    if subprocess.run(command, env={**os.environ, "CARGO_TARGET_DIR": str(target)}, stdout=sys.stderr).returncode != 0:
        raise Failed("cargo build failed")
    return target / "release/bench_peers"


def bench_program(name):
    return pathlib.Path(os.environ["KVB_BIN"]) / "tests" / name


def figures_of(command):
    """By name, all figures of each."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{pathlib.Path(command[0]).name} ended with {done.returncode}")
    figures = {}
    for line in done.stdout.splitlines():
        figure = json.loads(line)
        figures.setdefault(figure["name"], []).append(figure)
    return figures


def ours(corpus, row, seconds):
    return figures_of([bench_program("bench_index"), "--seconds", format(seconds, "g"), "--corpus", corpus, row])


@contextlib.contextmanager
def beside_hog():
    """One core copies memory; what is measured meanwhile has the others."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failed("index.beside_hog: needs two cores")
    command = [bench_program("bench_hog"), "--cpu", str(cores[-1]), "--seconds", str(HOG_LIMIT_S)]
    hog = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(0, cores[:-1])
        yield
        if hog.poll() is not None:
            raise Failed(f"bench_hog ended with {hog.returncode} before the row did")
    finally:
        os.sched_setaffinity(0, cores)
        hog.kill()
        hog.wait()


@contextlib.contextmanager
def scene(program, name, *words):
    """The file of one scene, deleted after use: some have a gigabyte."""
    path = program.parent / "scene.corpus"
    say(f"writing the scene {name}")
    try:
        if subprocess.run([bench_program("bench_scenes"), "--scene", name, "--out", path, *words]).returncode != 0:
            raise Failed(f"bench_scenes failed with {name}")
        yield path
    finally:
        path.unlink(missing_ok=True)


# ---- One corpus ------------------------------------------------------------------


def workers_of(corpus):
    with open(corpus, "rb") as file:
        magic, workers = struct.unpack("<8sI", file.read(12))
    if magic != b"KVBCORP1":
        raise Failed(f"{corpus}: not a corpus")
    return workers


def add(figures, more):
    for name, of_round in more.items():
        figures.setdefault(name, []).append(of_round)


def measure(program, corpus, title, row, peers, seconds):
    """Figures of all contenders by name, a list for each round."""
    figures = {name: {} for name in ("ours", *peers)}
    for number in range(1, ROUNDS + 1):
        say(f"{title}, {row.what}{' beside a hog' if row.is_beside_hog else ''}: round {number} of {ROUNDS}")
        add(figures["ours"], ours(corpus, row.ours, seconds))
        for peer in peers:
            add(figures[peer], figures_of([program, peer, corpus, row.what, seconds]))
    return figures


def kernel_percent(side):
    """Median; None: nobody says it."""
    known = [figure["kernel_percent"] for of_round in side for figure in of_round if "kernel_percent" in figure]
    return statistics.median(known) if known else None


def tell(name, row, our_rounds, peer, their_rounds, note):
    unit = our_rounds[0][0]["unit"]
    ours, theirs = ([row.of_rounds(figure["value"] for figure in of_round) for of_round in side]
                    for side in (our_rounds, their_rounds))
    figure = {"name": f"{name}.vs_{peer}", "value": row.of_rounds(ours), "unit": unit,
              "against": PEERS[peer] + (" (wrong answers)" if note else " (refuses them)" if peer in row.refusing else ""),
              "against_value": row.of_rounds(theirs), **rounds.turns(ours, theirs, unit in LESS_IS_BETTER),
              "kernel_percent": kernel_percent(our_rounds), "against_kernel_percent": kernel_percent(their_rounds), "note": note}
    print(json.dumps({field: value for field, value in figure.items() if value is not None}), flush=True)


def tell_all(figures, row, notes, wanted):
    for theirs, name in row.names.items():
        own = name if name in figures["ours"] else theirs
        for peer in peers_of(row, wanted):
            if is_wanted(f"{name}.vs_{peer}", wanted):
                tell(name, row, figures["ours"][own], peer, figures[peer][theirs], notes.get(peer))


# ---- Answers -----------------------------------------------------------------------


def read_answers(path):
    answers = array.array("Q", path.read_bytes())
    path.unlink()
    return answers


def compare_answers(program, corpus, title, peers):
    """What is wrong, by peer: each query's answer, worker by worker, is in the checksum."""
    workers = workers_of(corpus)
    name = f"index.conversation.{workers}.checksum"
    right, right_answers, notes = ours(corpus, f"index.conversation.{workers}", 0.01)[name][0]["value"], None, {}
    for peer in (peer for peer in ALONE if peer in peers):  # two threads do not say when a query is asked
        words = PEERS[peer]
        say(f"answers, {title}: {words}")
        kept = program.parent / "answers"
        checksum = figures_of([program, peer, corpus, "answers", kept])[name][0]["value"]
        answers = read_answers(kept)
        if checksum == right:
            right_answers = answers
            continue
        wrong = sum(map(int.__ne__, answers, right_answers)) if right_answers else "some"
        notes[peer] = f"{title}: {words} gave {wrong} of {len(answers)} answers otherwise than ours"
        say(notes[peer])
    return notes


def peers_of(row, wanted):
    """Who is asked for."""
    return [peer for peer in row.peers if any(is_wanted(f"{name}.vs_{peer}", wanted) for name in row.names.values())]


def compare(program, corpus, title, rows, options):
    """Returns whether all answered as we do, but for those of which it is known."""
    notes = compare_answers(program, corpus, title, {peer for row in rows for peer in peers_of(row, options.names)})
    for row in rows:
        with beside_hog() if row.is_beside_hog else contextlib.nullcontext():
            figures = measure(program, corpus, title, row, peers_of(row, options.names), options.seconds / ROUNDS)
        tell_all(figures, row, notes, options.names)
    return all(peer in row.known_wrong for peer in notes for row in rows)


def workloads(program, options):
    """(corpus, what it is, rows) of all that is asked for; each corpus lasts for its turn."""
    def asked(rows):
        return [row for row in rows if peers_of(row, options.names)]

    for corpus in options.corpus:
        workers = workers_of(corpus)
        if rows := asked(rows_of(workers)):
            yield corpus, f"conversation, {workers} workers", rows
        if rows := asked([renamed_row(workers)]):
            with scene(program, "own_names", "--corpus", corpus) as renamed:
                yield renamed, f"own_names, {workers} workers", rows
    for name, row in SCENES.items():
        if rows := asked([row]):
            with scene(program, name) as corpus:
                yield corpus, name, rows


def main():
    options = parse()
    program = build()
    same = [compare(program, corpus, title, rows, options) for corpus, title, rows in workloads(program, options)]
    return 0 if all(same) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, OSError, KeyError, ValueError) as failure:
        say(f"tests/bench/peers: {failure}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
