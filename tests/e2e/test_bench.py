"""Does each row of the bench give a figure, is a wrong call refused, is a row with a wide spread called met, and does
--compare find what got slower?  The size of the figures is not checked: that is what the bench is for."""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import programs
from programs import TRACE, TREE

sys.path[:0] = [str(TREE / "tests/bench"), str(TREE / "tests/bench/peers")]

import compare  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402

APART = (*rows.APART, *rows.WITH_PEERS)  # measured only where they are asked for
FIELDS = {"name", "value", "unit", "against", "against_value", "ratio"}

pytestmark = pytest.mark.no_nats


def run(*words, status=0):
    done = subprocess.run(
        [TREE / "tests/bench/run", *map(str, words)], capture_output=True, text=True, timeout=10 * programs.DEADLINE_S,
        env={**os.environ, "KVB_BIN": str(programs.BIN), "KVB_PYTHON": sys.executable})
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Options for a short trace, in a folder of its own."""
    folder = tmp_path_factory.mktemp("bench")
    with TRACE.open() as lines:
        (folder / "short.jsonl").write_text("".join(itertools.islice(lines, 5)))
    return ["--seconds", 0.1, "--small", "--corpus", folder / "short.jsonl", "--out", folder]


def figures_of(text):
    return [json.loads(line) for line in text.splitlines()]


def names_of(listed):
    return {line.split()[0] for line in listed.splitlines()}


def is_known(name, names):
    """By its own row, or as a comparison of one with another baseline."""
    return name in names or name.rpartition(".vs_")[0] in names or name.endswith(".checksum")


def test_every_row_has_its_figures_and_every_figure_a_row(short):
    names = {name for name in names_of(run("--list").stdout) if not name.startswith(APART)}
    figures = figures_of(run(*short, "--json").stdout)

    assert names - {figure["name"] for figure in figures} == set()
    assert [figure["name"] for figure in figures if not is_known(figure["name"], names)] == []
    for figure in figures:
        assert FIELDS <= figure.keys() and figure["value"] >= 0, figure
        assert (figure["against"] is None) == (figure["ratio"] is None) == (figure["against_value"] is None), figure
        assert figure["ratio"] is None or "rounds" in figure, figure
    assert sum("kernel_percent" in figure for figure in figures) >= len(figures) * 3 // 4


@pytest.mark.parametrize("apart", [*rows.APART, "whole"])
def test_what_is_measured_apart_has_its_figures_too(short, apart):
    if apart == "whole" and not os.environ.get("KVB_DYNAMO_PYTHON"):
        pytest.skip("KVB_DYNAMO_PYTHON names no Python with ai-dynamo-runtime")
    wanted = {name: figure.unit for row in rows.ROWS for figure in row.figures for name in
              (one + figure.tail for one in row.names) if name.startswith(apart)}
    figures = {figure["name"]: figure for figure in figures_of(run(*short, "--only", apart, "--json").stdout)}

    assert wanted and wanted.keys() - figures.keys() == set()
    assert {name: figures[name]["unit"] for name in wanted} == wanted
    if apart != "worth":  # which has a table of its own for its runs
        assert [name for name in figures if not is_known(name, wanted)] == []


def test_a_simulated_fleet_gives_the_same_figures_again(short):
    def figures():
        return figures_of(run(*short, "--only", "worth.agents.8.open", "--json").stdout)

    first = figures()
    assert len([figure for figure in first if "checksum" in figure]) >= 20 and first == figures()


def published_in(tree):
    return {name: (tree / name).read_text() for name in (
        "README.md", "tests/bench/README.md", "tests/bench/figures.jsonl")}


@pytest.fixture
def documents(tmp_path):
    """A copy of the two files that have tables of figures."""
    (tmp_path / "tests/bench").mkdir(parents=True)
    for name in ("README.md", "tests/bench/README.md"):
        shutil.copy(TREE / name, tmp_path / name)
    return tmp_path


def test_the_figures_in_documents_come_from_one_run(documents):
    run("--from", TREE / "tests/bench/figures.jsonl", "--publish", documents)

    assert published_in(documents) == published_in(TREE), "write them anew: tests/bench/run --from tests/bench/figures.jsonl --publish"
    rows = (documents / "README.md").read_text().split("## Five figures")[1].split("<!-- figures end")[0]
    assert rows.count("`tests/bench/run --") == 6, "five figures, each with its command, and the command of the run"


def worth_in(tree):
    return {name: (tree / name).read_text() for name in (
        "README.md", "tests/bench/worth.jsonl", "tests/bench/worth.md", "tests/bench/worth.svg")}


def test_the_routing_figures_in_documents_come_from_one_run(documents):
    run("--from", TREE / "tests/bench/worth.jsonl", "--only", "worth", "--publish", documents)

    assert worth_in(documents) == worth_in(TREE), "write them anew: tests/bench/run --only worth --publish"
    xml.etree.ElementTree.parse(documents / "tests/bench/worth.svg")


def test_a_run_that_lacks_a_figure_is_not_published(documents):
    lines = (TREE / "tests/bench/figures.jsonl").read_text().splitlines()
    (documents / "less.jsonl").write_text("\n".join(line for line in lines if '"index.growth.worst"' not in line))

    done = run("--from", documents / "less.jsonl", "--publish", documents, status=1)
    assert "index.growth.worst was not measured" in done.stderr
    for name in ("README.md", "tests/bench/README.md"):
        assert (documents / name).read_text() == (TREE / name).read_text()


@pytest.mark.parametrize("words", [
    ["--seconds", "0"], ["--seconds", "soon"], ["--only", "no.such.row"], ["--only", "index.query.p99.vs_crtc"],
    ["--corpus", "no-such-file"], ["--corpus", "/"], ["--from", "no-such-file"],
    ["--publish"], ["--publish", "--peers", "--small"], ["--bogus"]])
def test_a_wrong_call_is_refused(words):
    assert run(*words, status=64).stderr


def test_no_process_remains_when_it_is_stopped(tmp_path):
    bench = subprocess.Popen(
        [TREE / "tests/bench/run", "--only", "path.decode.8block", "--seconds", "3600", "--out", tmp_path],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "KVB_BIN": str(programs.BIN)})
    children = pathlib.Path(f"/proc/{bench.pid}/task/{bench.pid}/children")

    def measuring():  # the shell that it starts has children too
        return [one for one in children.read_text().split()
                if pathlib.Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")[0].endswith(b"bench_path")]

    child = programs.wait_for("the program runs", measuring)[0]
    bench.terminate()

    assert bench.wait(timeout=programs.DEADLINE_S) == 130
    programs.wait_for("the program is gone", lambda: not pathlib.Path(f"/proc/{child}").exists())


# ---- What is made of figures ------------------------------------------------------------


def figure(name, value, unit="us", ratio=None, against="other", **more):
    beside = {"against": None, "against_value": None, "ratio": None}
    if ratio is not None:
        beside = {"against": against, "against_value": value, "ratio": ratio}
    return {"name": name, "value": value, "unit": unit, **beside, **more}


@pytest.fixture
def kept(tmp_path):
    """Writes a run as --json prints it; returns its file."""
    def keep(name, *figures):
        path = tmp_path / name
        path.write_text("".join(json.dumps(one) + "\n" for one in figures))
        return path

    return keep


# ---- Met or not ----------------------------------------------------------------------


RATIO = rows.Goal("relay.latency.p99", "ratio", ">=", 0.67)
VALUE = rows.Goal("index.query.p99", "value", "<=", 2.5)


@pytest.mark.parametrize("goal, one, verdict", [
    (RATIO, figure("r", 5, ratio=0.9, ratio_spread=0.15), "yes"),
    (RATIO, figure("r", 5, ratio=0.9, ratio_spread=0.16), "spread"),
    (RATIO, figure("r", 5, ratio=0.9, ratio_spread=0.01, spread=0.5), "yes"),
    (RATIO, figure("r", 5, ratio=0.5, ratio_spread=0.5), "NO"),
    (RATIO, figure("r", 5, ratio=0.9), "yes"),
    (RATIO, figure("r", 5), "NO"),
    (VALUE, figure("v", 2.0, spread=0.15), "yes"),
    (VALUE, figure("v", 2.0, spread=0.2), "spread"),
    (VALUE, figure("v", 3.0, spread=0.01), "NO")])
def test_a_row_with_a_wide_spread_is_not_called_met(goal, one, verdict):
    assert report.verdict(goal, one) == verdict
    assert goal.is_met(one) == (verdict == "yes")


# ---- --compare -----------------------------------------------------------------------


def one_change(former, now):
    (change,) = compare.changes_of([former], [now])
    return "slower" if change.is_slower else "faster" if change.is_faster else "other" if change.is_other else "same"


@pytest.mark.parametrize("former, now, kind", [
    (figure("a", 10, spread=0.05), figure("a", 10.4, spread=0.05), "same"),
    (figure("a", 10, spread=0.05), figure("a", 10.6, spread=0.05), "slower"),
    (figure("a", 10, spread=0.05), figure("a", 9.0, spread=0.05), "faster"),
    (figure("a", 10, spread=0.05), figure("a", 11, spread=0.2), "same"),
    (figure("a", 10, spread=0.2), figure("a", 11, spread=0.05), "same"),
    (figure("a", 10, spread=0.0), figure("a", 10.2, spread=0.0), "same"),
    (figure("a", 10), figure("a", 11.4), "same"),
    (figure("a", 10), figure("a", 11.6), "slower"),
    (figure("a", 10, "batches/s", spread=0.05), figure("a", 9, "batches/s", spread=0.05), "slower"),
    (figure("a", 60, "bytes"), figure("a", 62, "bytes"), "slower"),
    (figure("a", 0, "threads"), figure("a", 1, "threads"), "slower"),
    (figure("a", 7, "checksum"), figure("a", 7, "checksum"), "same"),
    (figure("a", 7, "checksum"), figure("a", 8, "checksum"), "other"),
    (figure("a", 7, "us"), figure("a", 7, "ms"), "other"),
    (figure("a", 7, "us"), figure("a", 7, "us", note="with --small"), "other"),
    # The machine was twice as slow for both: the ratio says that nothing changed.
    (figure("a", 10, ratio=2.0, ratio_spread=0.05), figure("a", 20, ratio=2.0, ratio_spread=0.05), "same"),
    (figure("a", 10, ratio=2.0, ratio_spread=0.05), figure("a", 10, ratio=1.5, ratio_spread=0.05), "slower"),
    # Against another it is the value.
    (figure("a", 10, ratio=2.0, spread=0.01), figure("a", 10, ratio=1.0, against="better", spread=0.01), "same")])
def test_a_change_counts_beyond_the_spread(former, now, kind):
    assert one_change(former, now) == kind


def test_every_unit_of_a_row_has_a_direction():
    units = {one.unit for row in rows.ROWS for one in row.figures}
    assert units <= compare.MORE_IS_BETTER | compare.LESS_IS_BETTER


def test_every_published_figure_has_a_unit_of_its_row():
    units = {name + one.tail: one.unit for row in rows.ROWS for name in row.names for one in row.figures}
    _about, figures = report.load(TREE / "tests/bench/figures.jsonl")
    for one in figures:
        assert one["unit"] == compare.CHECKSUM or one["unit"] == units[one["name"].partition(".vs_")[0]], one


def test_what_got_slower_is_said_and_fails(kept):
    former = kept("former.jsonl", figure("index.query.p50", 1.5, spread=0.02), figure("index.query.p99", 4.0, spread=0.02),
                  figure("index.growth.worst", 300, spread=0.02))
    now = kept("now.jsonl", figure("index.query.p50", 1.8, spread=0.02, others_percent=90.0, steal_percent=0.0),
               figure("index.query.p99", 3.0, spread=0.02), figure("index.growth.worst", 301, spread=0.02))
    lines = run("--from", now, "--compare", former, "--only", "index", status=1).stdout.splitlines()

    assert "slower  index.query.p50: 1.5 -> 1.8 us, -17 % (spread 3 %); the machine was busy now" in lines
    assert "faster  index.query.p99: 4 -> 3 us, +33 % (spread 3 %)" in lines
    assert lines[-1] == f"3 rows compared with {former}: 1 slower, 1 faster, 0 of another kind, 0 missing; 0 rows are new"
