#!/usr/bin/python3
"""Replays corpora of the bench through other prefix indexes and through ours in turn:

    peers.py --seconds N [--input FILE]... [NAME...]

Builds the program beside it with cargo, into build/peers.  A figure is the median of ROUNDS, in which the contenders take
turns, each in a process of its own; a ratio is the median of the rounds' ratios.  Prints the figures index.....vs_PEER, one
JSON object a line; README.md says what they mean.  KVB_BIN is the build folder of bench_index.  Ends with 1 when an index
answered otherwise."""

import array
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import measure  # noqa: E402
from measure import progress  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[2]
PEERS = {"chainindex": "ChainIndex", "crtc": "CRTC", "radixtree": "RadixTree", "two_chainindex": "ChainIndex, two threads"}
ALONE, ALL = ("chainindex", "crtc", "radixtree"), tuple(PEERS)
ROUNDS = 5

# ---- What is replayed ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    what: str  # word of bench_peers
    ours: str  # how rows of bench_index begin
    names: tuple  # of the figures, which both call the same
    peers: tuple = ALONE  # who takes part


def rows_of(workers):
    """Rows of a corpus that bench_corpus wrote."""
    conversation = f"index.conversation.{workers}"
    rows = [Row("conversation", conversation, (conversation,), ALL)]
    if workers == 128:
        rows.append(Row("quiet", "index.query", (
            "index.query.p50", "index.query.p99", "index.bytes_per_membership.resident")))
    return rows


# Stores into an empty index, by the two whose one thread does all the work.
GROWTH = Row("growth", "index.growth.worst", ("index.growth.worst",), ("chainindex", "radixtree"))
GROWTH_STORES = 125000  # as bench_index


class Failed(Exception):
    """What prevents a figure."""


# ---- Programs --------------------------------------------------------------------


def build():
    if not shutil.which("cargo"):
        raise Failed("--peers needs cargo (Rust, https://rustup.rs): nothing is compared")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "build/peers"))
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", str(HERE / "Cargo.toml")]
    progress("building the peers (minutes, the first time)")
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


def ours(options, row, seconds):
    """options: further ones, like the corpus."""
    return figures_of([bench_program("bench_index"), "--seconds", format(seconds, "g"), *options, row])


# ---- One corpus ------------------------------------------------------------------


def workers_of(corpus):
    with open(corpus, "rb") as file:
        magic, workers = struct.unpack("<8sI", file.read(12))
    if magic != b"KVBCORP1":
        raise Failed(f"{corpus}: not a corpus")
    return workers


def measure_row(program, title, row, peers, seconds, our_options, their_words):
    """Figures of all contenders by name, of each round."""
    def take(side):
        progress(f"{title}: {side}")
        return ours(our_options, row.ours, seconds) if side == "ours" else figures_of([program, side, *their_words, seconds])

    return measure.take_turns(("ours", *peers), ROUNDS, take)


def kernel_percent(side):
    """Median; None: nobody says it."""
    known = [figure["kernel_percent"] for of_round in side for figure in of_round if "kernel_percent" in figure]
    return statistics.median(known) if known else None


def tell(name, our_rounds, peer, their_rounds):
    ours, theirs = ([statistics.median(figure["value"] for figure in of_round) for of_round in side]
                    for side in (our_rounds, their_rounds))
    measure.figure(f"{name}.vs_{peer}", our_rounds[0][0]["unit"], ours, PEERS[peer], theirs,
                   kernel_percent=kernel_percent(our_rounds), against_kernel_percent=kernel_percent(their_rounds))


def tell_all(taken, row, options):
    for name in row.names:
        for peer in peers_of(row, options):
            if options.wants(f"{name}.vs_{peer}"):
                tell(name, [figures[name] for figures in taken["ours"]], peer, [figures[name] for figures in taken[peer]])


# ---- Answers -----------------------------------------------------------------------


def read_answers(path):
    answers = array.array("Q", path.read_bytes())
    path.unlink()
    return answers


def answer_alike(program, corpus, title, peers):
    """Does each index answer as we do?  Each query's answer, worker by worker, is in the checksum."""
    name = f"index.conversation.{workers_of(corpus)}"
    right, right_answers, is_alike = ours(("--input", corpus), name, 0.01)[name + ".checksum"][0]["value"], None, True
    for peer in (peer for peer in ALONE if peer in peers):  # two threads do not say when a query is asked
        progress(f"answers, {title}: {PEERS[peer]}")
        kept = program.parent / "answers"
        checksum = figures_of([program, peer, corpus, "answers", kept])[name + ".checksum"][0]["value"]
        answers = read_answers(kept)
        if checksum == right:
            right_answers = answers
            continue
        wrong = sum(map(int.__ne__, answers, right_answers)) if right_answers else "some"
        progress(f"{title}: {PEERS[peer]} gave {wrong} of {len(answers)} answers otherwise than ours")
        is_alike = False
    return is_alike


def peers_of(row, options):
    """Who is asked for."""
    return [peer for peer in row.peers if any(options.wants(f"{name}.vs_{peer}") for name in row.names)]


def compare(program, corpus, options):
    """Returns whether all answered as we do."""
    workers = workers_of(corpus)
    title = f"conversation, {workers} workers"
    rows = [row for row in rows_of(workers) if peers_of(row, options)]
    if not rows:
        return True
    is_alike = answer_alike(program, corpus, title, {peer for row in rows for peer in peers_of(row, options)})
    for row in rows:
        taken = measure_row(program, f"{title}, {row.what}", row, peers_of(row, options), options.seconds / ROUNDS,
                            ("--input", corpus), (corpus, row.what))
        tell_all(taken, row, options)
    return is_alike


def grow(program, options):
    """The row that needs no corpus, and no answers."""
    peers = peers_of(GROWTH, options)
    if peers:
        taken = measure_row(program, GROWTH.what, GROWTH, peers, options.seconds / ROUNDS, ["--small"] * options.small,
                            (GROWTH.what, options.size(GROWTH_STORES)))
        tell_all(taken, GROWTH, options)


def main():
    options = measure.begin(__doc__)
    program = build()
    same = [compare(program, corpus, options) for corpus in options.inputs]
    grow(program, options)
    return 0 if all(same) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, OSError, KeyError, ValueError) as failure:
        progress(f"tests/bench/peers: {failure}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
