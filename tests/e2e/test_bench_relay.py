"""Does each relay row of the bench give a figure, and end all its processes?  The size of the figures is
not checked."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import programs

ROWS = {
    f"relay.{format}.{blocks}block{tail}"
    for format in ("protobuf", "json") for blocks in (1, 8) for tail in ("", ".cpu", ".vs_python")
} | {"relay.latency.p50", "relay.latency.p99"}

RELAY = pathlib.Path(__file__).resolve().parents[1] / "bench/relay/relay.py"

pytestmark = pytest.mark.no_nats


def start(*words, programs_in=programs.BIN):
    return subprocess.Popen(
        [sys.executable, RELAY, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "KVB_BIN": str(programs_in)})


def children_of(process):
    return pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def figures_of(*words):
    process = start("--seconds", 0.05, *words)
    out, trouble = process.communicate(timeout=120)
    assert process.returncode == 0, trouble
    assert "LOST" not in trouble
    return {figure["name"]: figure for figure in map(json.loads, out.splitlines())}


def test_every_row_against_another_relay_gives_a_figure():
    figures = figures_of("relay.protobuf", "relay.json", "relay.latency")

    assert figures.keys() == ROWS
    assert all(figure["value"] > 0 and figure["ratio"] > 0 for figure in figures.values()), figures


def test_memory_gives_figures():
    figures = figures_of("relay.memory")

    assert figures.keys() == {"relay.memory.block", "relay.memory.connection"}
    assert all(figure["value"] > 0 for figure in figures.values()), figures


def test_python_takes_part_where_it_is_compared_with():
    assert figures_of("relay.json.8block.cpu").keys() == {"relay.json.8block", "relay.json.8block.cpu"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_that_was_started(how):
    process = start("--seconds", 600, "relay.json.1block.cpu")
    programs.wait_for("server, engines, pass-through and bridge run", lambda: len(children_of(process)) == 4)
    children = children_of(process)
    process.send_signal(how)
    process.communicate(timeout=60)

    programs.wait_for("all are gone", lambda: not any(pathlib.Path(f"/proc/{child}").exists() for child in children))


def test_a_relay_that_cannot_begin_is_a_failure_and_its_words_are_shown(tmp_path):
    (tmp_path / "tests").symlink_to(programs.BIN / "tests")
    broken = tmp_path / "kvbridge"
    broken.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    broken.chmod(0o755)
    process = start("relay.json.1block.cpu", programs_in=tmp_path)
    _, trouble = process.communicate(timeout=60)

    assert process.returncode == 1 and "no such luck" in trouble
