"""Does each row of the bench give a figure, and is a wrong call refused?  The size of the figures
is not checked: that is what the bench is for."""

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

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/bench"))

import rows  # noqa: E402

APART = (*rows.APART, *rows.WITH_PEERS)  # no part of a plain run
TRACE = TREE / "tests/data/conversation_trace.jsonl"
FIELDS = {"name", "value", "unit", "against", "against_value", "ratio"}

pytestmark = pytest.mark.no_nats


def run(*words, status=0):
    done = subprocess.run(
        [TREE / "tests/bench/run", *map(str, words)], capture_output=True, text=True, timeout=120,
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


def test_a_row_is_listed_with_unit_goal_and_question():
    listed = run("--list", "--only", "relay.latency").stdout.splitlines()

    assert [line.split()[:2] for line in listed] == [["relay.latency.p50", "us"], ["relay.latency.p99", "us"]]
    assert "ratio >= 0.77" in listed[0] and listed[0].endswith("?")


def test_a_simulated_fleet_gives_the_same_figures_again(short):
    def figures():
        return figures_of(run(*short, "--only", "worth.agents.8.open", "--json").stdout)

    first = figures()
    assert len([figure for figure in first if "checksum" in figure]) >= 20 and first == figures()


def test_the_table_says_goal_figure_and_whether_it_is_met(short):
    table = run(*short, "--only", "index.query.p99").stdout
    row = next(line for line in table.splitlines() if line.startswith("index.query.p99"))

    assert "<= 2.5 us" in row and row.split()[-1] in ("yes", "NO", "spread"), table
    assert table.splitlines()[-1].startswith(("0 of 1 goals met", "1 of 1 goals met"))


def test_only_chooses_by_how_names_begin(short):
    names = {figure["name"] for figure in figures_of(
        run(*short, "--only", "index.query.", "--only", "path.decode.8block", "--json").stdout)}

    assert names == {"index.query.p50", "index.query.p99", "path.decode.8block"}


def test_only_selected_queries_are_measured(short):
    done = run(*short, "--only", "query.http.p99", "--json")

    assert {figure["name"] for figure in figures_of(done.stdout)} == {"query.http.p99"}
    assert "query.http: p50" in done.stderr, done.stderr
    assert "query.nats" not in done.stderr and "answers a second" not in done.stderr, done.stderr


def test_the_same_corpus_gives_the_same_answers(short):
    def checksums():
        figures = figures_of(run(*short, "--only", "index.conversation", "--json").stdout)
        return [figure["value"] for figure in figures if figure["unit"] == "checksum"]

    first = checksums()
    assert len(first) == 2 and first == checksums()


def test_a_run_can_be_printed_again(short):
    run(*short, "--only", "index.conversation")

    assert "\nindex.conversation.128 " in run("--from", short[-1] / "figures.jsonl").stdout


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


def test_a_simulation_that_lacks_a_run_is_not_published(documents):
    lines = (TREE / "tests/bench/worth.jsonl").read_text().splitlines()
    (documents / "less.jsonl").write_text(
        "\n".join(line for line in lines if '"worth.heads.64.open.exact.ttft"' not in line))

    done = run("--from", documents / "less.jsonl", "--only", "worth", "--publish", documents, status=1)
    assert "heads.64.open.exact.ttft was not measured" in done.stderr
    assert (documents / "README.md").read_text() == (TREE / "README.md").read_text()


def test_a_run_that_lacks_a_figure_is_not_published(documents):
    lines = (TREE / "tests/bench/figures.jsonl").read_text().splitlines()
    (documents / "less.jsonl").write_text("\n".join(line for line in lines if '"index.growth.worst"' not in line))

    done = run("--from", documents / "less.jsonl", "--publish", documents, status=1)
    assert "index.growth.worst was not measured" in done.stderr
    for name in ("README.md", "tests/bench/README.md"):
        assert (documents / name).read_text() == (TREE / name).read_text()


def test_strict_says_that_a_goal_was_missed(tmp_path):
    figure = dict.fromkeys(FIELDS) | {"name": "index.query.p99", "value": 1e9, "unit": "us"}
    (tmp_path / "slow.jsonl").write_text(json.dumps(figure))

    run("--from", tmp_path / "slow.jsonl", "--only", "index.query.p99", status=0)
    run("--from", tmp_path / "slow.jsonl", "--only", "index.query.p99", "--strict", status=3)


def test_help_says_what_the_exit_codes_mean():
    assert "--strict" in run("--help").stdout


@pytest.mark.parametrize("words", [
    ["--seconds", "0"], ["--seconds", "soon"], ["--only", "no.such.row"], ["--only", "index.query.p99.vs_crtc"],
    ["--corpus", "no-such-file"], ["--corpus", "/"], ["--from", "no-such-file"],
    ["--publish"], ["--publish", "--peers", "--small"], ["--bogus"]])
def test_a_wrong_call_is_refused(words):
    assert run(*words, status=64).stderr


def test_peers_without_cargo_are_refused_before_anything_is_measured(tmp_path):
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = subprocess.run([TREE / "tests/bench/run", "--peers"], capture_output=True, text=True, timeout=60,
                          env={"PATH": str(tmp_path), "KVB_BIN": str(programs.BIN)})

    assert done.returncode == 64 and "cargo" in done.stderr, done


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

    assert bench.wait(timeout=20) == 130
    programs.wait_for("the program is gone", lambda: not pathlib.Path(f"/proc/{child}").exists())


def test_a_corrupt_corpus_is_a_failure(tmp_path, short):
    run(*short, "--only", "index.conversation.128")
    whole = (short[-1] / "conversation-128.corpus").read_bytes()
    (tmp_path / "cut.corpus").write_bytes(whole[:len(whole) // 16 * 8])

    done = run("--corpus", tmp_path / "cut.corpus", "--out", tmp_path, "--only", "index.conversation", status=1)
    assert "cut.corpus: " in done.stderr
