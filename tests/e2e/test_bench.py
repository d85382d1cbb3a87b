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


def test_every_goal_has_a_figure(short):
    goals = {line.split()[0] for line in run("--list").stdout.splitlines()
             if "(--peers)" not in line and "(--only)" not in line}
    figures = figures_of(run(*short, "--json").stdout)

    assert goals - {figure["name"] for figure in figures} == set()
    for figure in figures:
        assert FIELDS <= figure.keys() and figure["value"] >= 0, figure
        assert (figure["against"] is None) == (figure["ratio"] is None) == (figure["against_value"] is None), figure
        assert figure["ratio"] is None or "rounds" in figure, figure
    assert sum("kernel_percent" in figure for figure in figures) >= len(figures) * 3 // 4


@pytest.mark.parametrize("rows", ["scale", "discovery", "startup", "strangers", "republish", "worth"])
def test_what_is_measured_apart_has_a_figure_for_every_goal(short, rows):
    listed = (line for line in run("--list").stdout.splitlines() if line.startswith(rows + "."))
    goals = {line.split()[0] for line in listed if line.endswith("(--only)")}
    figures = {figure["name"]: figure["value"] for figure in figures_of(run(*short, "--only", rows, "--json").stdout)}

    assert goals and goals - figures.keys() == set()
    if rows == "scale":
        assert figures["scale.streams.not_exact"] == figures["scale.publishers.lost"] == 0, figures
        assert figures["scale.streams.applied"] > 0 and figures["scale.publishers.files"] > 20, figures


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
        run(*short, "--only", "index.query.1000.", "--only", "index.events.128", "--json").stdout)}

    assert names == {"index.query.1000.p50", "index.query.1000.p99", "index.events.128"}


def test_only_selected_queries_are_measured(short):
    done = run(*short, "--only", "query.http.p99", "--json")

    assert {figure["name"] for figure in figures_of(done.stdout)} == {"query.http.p99"}
    assert "query.http: p50" in done.stderr, done.stderr
    assert "query.nats" not in done.stderr and "query.http.burst" not in done.stderr, done.stderr


def test_the_same_corpus_gives_the_same_answers(short):
    def checksums():
        figures = figures_of(run(*short, "--only", "index.conversation", "--json").stdout)
        return [figure["value"] for figure in figures if figure["unit"] == "checksum"]

    first = checksums()
    assert len(first) == 2 and first == checksums()


def test_two_threads_together_answer_as_one_does(short):
    checksums = {figure["name"]: figure["value"] for figure in figures_of(
        run(*short, "--only", "index.conversation", "--only", "index.two", "--json").stdout) if figure["unit"] == "checksum"}

    assert len(checksums) == 4
    for workers in (128, 1000):
        assert checksums[f"index.two.{workers}.checksum"] == checksums[f"index.conversation.{workers}.checksum"] != 0


def program(name, *words):
    done = subprocess.run([programs.BIN / "tests" / name, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (words, done.stderr)
    return figures_of(done.stdout)


@pytest.mark.parametrize("workload, row, names", [
    ("wide", "rounds", {"store", "remove"}), ("wide_long", "rounds", {"store", "remove"}),
    ("clear", "rounds", {"store", "clear.at_once", "clear.all"}), ("staircase", "queries", {"p50", "p99"}),
    ("deep", "queries", {"p50", "p99"}), ("fleet", "queries", {"p50", "p99"}), ("growth", "growth", {"worst"}),
    ("growth_one", "growth", {"worst"}), ("waiting", "rounds", {"store", "clear.at_once", "clear.all"}),
    ("collide_rustc", "rounds", {"store", "clear.at_once", "clear.all"}),
    ("collide_fibonacci", "rounds", {"store", "clear.at_once", "clear.all"})])
def test_what_other_indexes_replay_we_replay_too(tmp_path, workload, row, names):
    program("bench_scenes", "--small", "--scene", workload, "--out", tmp_path / "scene")
    figures = program("bench_index", "--small", "--seconds", 0.01, "--corpus", tmp_path / "scene", f"scene.{row}")

    assert {figure["name"] for figure in figures} == {f"scene.{row}.{name}" for name in names}
    assert all(figure["value"] > 0 for figure in figures), figures


def test_names_change_no_answer(tmp_path, short):
    run(*short, "--only", "index.events.128")
    plain, renamed = short[-1] / "conversation-128.corpus", tmp_path / "renamed"
    program("bench_scenes", "--scene", "own_names", "--corpus", plain, "--out", renamed)

    def checksum(corpus):
        return [figure["value"] for figure in program("bench_index", "--seconds", 0.01, "--corpus", corpus, "index.conversation")
                if figure["unit"] == "checksum"]

    assert plain.read_bytes() != renamed.read_bytes() and checksum(plain) == checksum(renamed) != []


def test_a_run_can_be_printed_again(short):
    run(*short, "--only", "index.events")
    saved = short[-1] / "figures.jsonl"

    page = run("--from", saved, "--markdown").stdout
    assert "| `index.events.128` |" in page and "| --- |" in page


def test_a_picture_shows_our_figures_next_to_those_compared_with(tmp_path):
    plain = dict.fromkeys(FIELDS) | {"unit": "M block operations/s"}
    figures = [plain | {"name": "index.conversation.128", "value": 60.0},
               plain | {"name": "index.conversation.128.vs_other", "value": 60.0, "against": "Other & Sons",
                        "against_value": 15.0, "ratio": 4.0}]
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, figures)))
    run("--from", tmp_path / "two.jsonl", "--picture", tmp_path / "two.svg")

    drawn = xml.etree.ElementTree.parse(tmp_path / "two.svg").getroot()
    words = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Other & Sons", "128 workers", "60.0 M block operations/s", "15.0 M block operations/s"} <= set(words)
    widths = [float(node.get("width")) for node in drawn.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert len(widths) == 2 and abs(widths[0] - 4 * widths[1]) < 1


def published_in(tree):
    return {name: (tree / name).read_text() for name in (
        "README.md", "tests/bench/README.md", "tests/bench/figures.jsonl", "tests/bench/figures.md", "tests/bench/figures.svg")}


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
    ["--seconds", "0"], ["--seconds", "soon"], ["--only", "no.such.row"], ["--only", "index.hostile"], ["--only", "index.query.p99.vs_crtc"],
    ["--corpus", "no-such-file"], ["--corpus", "/"], ["--from", "no-such-file"], ["--picture", "/no-such/x.svg"],
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
        [TREE / "tests/bench/run", "--only", "index.deep", "--seconds", "600", "--out", tmp_path],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "KVB_BIN": str(programs.BIN)})
    children = pathlib.Path(f"/proc/{bench.pid}/task/{bench.pid}/children")

    def measuring():  # the shell that it starts has children too
        return [one for one in children.read_text().split()
                if pathlib.Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")[0].endswith(b"bench_index")]

    child = programs.wait_for("the program runs", measuring)[0]
    bench.terminate()

    assert bench.wait(timeout=20) == 130
    programs.wait_for("the program is gone", lambda: not pathlib.Path(f"/proc/{child}").exists())


def test_a_corrupt_corpus_is_a_failure(tmp_path, short):
    run(*short, "--only", "index.events.128")
    whole = (short[-1] / "conversation-128.corpus").read_bytes()
    (tmp_path / "cut.corpus").write_bytes(whole[:len(whole) // 16 * 8])

    done = run("--corpus", tmp_path / "cut.corpus", "--out", tmp_path, "--only", "index.events", status=1)
    assert "cut.corpus: " in done.stderr
