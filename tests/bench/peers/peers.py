#!/usr/bin/python3
"""Replays the corpora of the bench through other prefix indexes and through ours in turn:

    peers.py --seconds N --corpus FILE... [NAME...]

Builds the program beside it with cargo, into build/peers.  Every figure is the median of
ROUNDS, in which the contenders take turns: ours, theirs, ours, theirs.  Prints the rows
index.....vs_chainindex and ..vs_crtc, one JSON object a line; README.md says what they mean.
KVB_BIN is the build folder of bench_index.  Ends with 1 when an index answered otherwise."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[2]
PEERS = {"chainindex": "ChainIndex", "crtc": "CRTC"}
ROUNDS = 3
WHATS = ("conversation", "events", "quiet")
LESS_IS_BETTER = {"us", "bytes"}


class Failed(Exception):
    """What stands in the way of a figure."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(prog="peers.py", description="Compares the prefix index with others.")
    parser.add_argument("--seconds", type=float, default=10, metavar="N", help="for each row (10)")
    parser.add_argument("--corpus", action="append", required=True, metavar="FILE", help="written by bench_corpus")
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


def figures_of(command):
    """By name, all values of each."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{pathlib.Path(command[0]).name} ended with {done.returncode}")
    figures = {}
    for line in done.stdout.splitlines():
        figure = json.loads(line)
        figures.setdefault(figure["name"], []).append((figure["value"], figure["unit"]))
    return figures


def ours(corpus, workers, what, seconds):
    program = pathlib.Path(os.environ["KVB_BIN"]) / "tests/bench_index"
    row = "index.query" if what == "quiet" else f"index.{what}.{workers}"
    return figures_of([program, "--seconds", format(seconds, "g"), "--corpus", corpus, row])


# ---- One corpus ------------------------------------------------------------------


def workers_of(corpus):
    with open(corpus, "rb") as file:
        magic, workers = struct.unpack("<8sI", file.read(12))
    if magic != b"KVBCORP1":
        raise Failed(f"{corpus}: not a corpus")
    return workers


def add(figures, more):
    for name, values in more.items():
        figures.setdefault(name, []).extend(values)


def whats_of(workers, wanted):
    rows = {"quiet": ("index.query", "index.bytes_per_membership"), "conversation": (f"index.conversation.{workers}",),
            "events": (f"index.events.{workers}",)}
    return [what for what in WHATS if any(is_wanted(row, wanted) for row in rows[what])]


def measure(program, corpus, workers, what, seconds):
    """Figures of all contenders, in turns."""
    figures = {name: {} for name in ("ours", *PEERS)}
    for number in range(1, ROUNDS + 1):
        say(f"{what}, {workers} workers: round {number} of {ROUNDS}")
        add(figures["ours"], ours(corpus, workers, what, seconds))
        for peer in PEERS:
            add(figures[peer], figures_of([program, peer, corpus, what, seconds]))
    return figures


def median(values):
    return statistics.median(value for value, _unit in values)


def tell(name, values, peer, their_values, note):
    unit = values[0][1]
    value, theirs = median(values), median(their_values)
    better, worse = (theirs, value) if unit in LESS_IS_BETTER else (value, theirs)
    figure = {"name": f"{name}.vs_{peer}", "value": value, "unit": unit, "against": PEERS[peer],
              "against_value": theirs, "ratio": better / worse if worse else None}
    if note:
        figure["note"] = note
    print(json.dumps(figure), flush=True)


def tell_all(figures, notes, wanted):
    for name, values in figures["ours"].items():
        for peer in PEERS:
            if name in figures[peer] and is_wanted(f"{name}.vs_{peer}", wanted) and values[0][1] != "checksum":
                tell(name, values, peer, figures[peer][name], notes.get(peer))


# ---- Answers -----------------------------------------------------------------------


def compare_answers(program, corpus, workers, seconds):
    """What is wrong, by peer: each query's answer, worker by worker, is in the checksum."""
    name = f"index.conversation.{workers}.checksum"
    right = ours(corpus, workers, "conversation", seconds).get(name)
    if not right:
        raise Failed(f"bench_index says no {name}")
    notes = {}
    for peer, words in PEERS.items():
        say(f"answers, {workers} workers: {words}")
        if figures_of([program, peer, corpus, "answers"])[name] != right[:1]:
            notes[peer] = f"{words} gave other answers than ours with {workers} workers"
            say(notes[peer])
    return notes


def compare(program, corpus, options):
    """Returns whether all answers were the same."""
    workers, seconds = workers_of(corpus), options.seconds / ROUNDS
    whats = whats_of(workers, options.names)
    notes = compare_answers(program, corpus, workers, seconds) if whats else {}
    for what in whats:
        tell_all(measure(program, corpus, workers, what, seconds), notes, options.names)
    return not notes


def main():
    options = parse()
    program = build()
    same = [compare(program, corpus, options) for corpus in options.corpus]
    return 0 if all(same) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, OSError, KeyError, ValueError) as failure:
        say(f"tests/bench/peers: {failure}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
