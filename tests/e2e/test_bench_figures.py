"""What the bench makes of figures without measuring: is a row with a wide spread called met, does --compare find what got
slower, and does a row say that the machine was busy?"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "tests/bench"), str(TREE / "tests/bench/peers")]

import compare  # noqa: E402
import machine  # noqa: E402
import peers  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402

pytestmark = pytest.mark.no_nats


def figure(name, value, unit="us", ratio=None, against="other", **more):
    beside = {"against": None, "against_value": None, "ratio": None}
    if ratio is not None:
        beside = {"against": against, "against_value": value, "ratio": ratio}
    return {"name": name, "value": value, "unit": unit, **beside, **more}


def run(*words, status=0):
    done = subprocess.run([TREE / "tests/bench/run", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


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


def test_the_table_says_spread_kernel_time_and_a_busy_machine(kept):
    path = kept("run.jsonl", figure("index.query.p99", 2.0, spread=0.23, kernel_percent=61.4, others_percent=45.2,
                                    steal_percent=3.1))
    done = run("--from", path, "--only", "index.query.p99")
    row = next(line for line in done.stdout.splitlines() if line.startswith("index.query.p99"))

    assert "23 %" in row and "61 %" in row and "busy: others 45 %, steal 3 % of a core" in row, row
    assert row.split()[-1] == "spread"
    assert done.stdout.splitlines()[-1] == "0 of 1 goals met; 1 more would be, but their spread is above 15 %"
    run("--from", path, "--only", "index.query.p99", "--strict", status=3)


# ---- Other indexes -------------------------------------------------------------------


def told(capsys, unit, our_rounds, their_rounds, **more):
    sides = [[[{"value": value, "unit": unit, **more} for value in values] for values in rounds]
             for rounds in (our_rounds, their_rounds)]
    peers.tell("index.x", sides[0], "crtc", sides[1])
    return json.loads(capsys.readouterr().out)


def test_a_ratio_against_a_peer_is_the_median_of_the_rounds(capsys):
    # Both at half the speed from the third round on; in a round several values have their median.
    one = told(capsys, "M block operations/s", [[40], [39, 40, 99], [20], [20], [20]], [[20], [20], [10], [10], [10]])
    assert (one["name"], one["value"], one["against_value"]) == ("index.x.vs_crtc", 20, 10)
    assert (one["ratio"], one["ratio_spread"], one["rounds"], one["spread"]) == (2.0, 0.0, 5, 1.0)


def test_a_ratio_against_a_peer_is_above_one_where_less_is_better(capsys):
    one = told(capsys, "us", [[1], [1], [1]], [[3], [4], [3]], kernel_percent=12.5)
    assert one["ratio"] == 3 and one["kernel_percent"] == one["against_kernel_percent"] == 12.5


# ---- What else the machine did -------------------------------------------------------


STAT = "cpu  1000 50 300 9000 10 5 70 {steal} 0 0\ncpu0 1 2 3 4\n"


def test_interrupts_and_idle_time_are_no_processes():
    assert machine.all_ticks(STAT.format(steal=12)) == (1350, 12)


def test_a_process_has_the_time_of_children_that_ended():
    text = "7 (a) b (c)) S 3 7 7 0 -1 4194560 1 2 3 4 100 20 30 4 20 0 1 0 99 1 2"
    assert machine.process_ticks(text) == (3, 130, 24)


def test_children_of_children_belong_to_a_program():
    found = {1: (0, 0, 0), 5: (1, 0, 0), 6: (5, 0, 0), 7: (6, 0, 0), 8: (1, 0, 0)}
    assert machine.family(found, 5) == {5, 6, 7} and machine.family(found, 99) == set()


def test_what_others_did_is_what_is_left():
    def reading(at_s, busy, steal, user, kernel):
        return machine.Reading(at_s, busy, steal, user, kernel)

    ticks = machine.TICKS_A_SECOND
    before, after = reading(0, 0, 0, 0, 0), reading(10, 15 * ticks, ticks, 6 * ticks, 2 * ticks)
    fields = machine.fields_between(before, after)
    assert fields == {"others_percent": 70.0, "steal_percent": 10.0, "kernel_percent": 25.0}
    assert machine.is_busy(fields)
    assert machine.fields_between(before, reading(0.5, 1, 0, 1, 0)) == {}
    quiet = machine.fields_between(before, reading(10, 8 * ticks + 50, 0, 6 * ticks, 2 * ticks))
    assert quiet["others_percent"] == 5.0 and not machine.is_busy(quiet) and machine.busy_words(quiet) == ""


def test_the_time_of_a_child_is_the_benchs_own():
    before = machine.read()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            while machine.read().own_user < before.own_user + 20:
                pass
            after = machine.read()
        finally:
            child.kill()
    assert after.own_user - before.own_user >= 20 and after.busy - before.busy >= 10


def test_what_a_program_says_itself_stays():
    watch = machine.Watch()
    watch.readings = [machine.Reading(watch.readings[0].at_s - 10, 0, 0, 0, 0)]
    filled = watch.fill(figure("a", 1, kernel_percent=3.0))
    assert filled["kernel_percent"] == 3.0 and "others_percent" in filled


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
    (figure("a", 10, "batches/s", spread=0.05), figure("a", 11, "batches/s", spread=0.05), "faster"),
    (figure("a", 60, "bytes"), figure("a", 62, "bytes"), "slower"),
    (figure("a", 0, "threads"), figure("a", 1, "threads"), "slower"),
    (figure("a", 1, "threads"), figure("a", 0, "threads"), "faster"),
    (figure("a", 0, "threads"), figure("a", 0, "threads"), "same"),
    (figure("a", 7, "checksum"), figure("a", 7, "checksum"), "same"),
    (figure("a", 7, "checksum"), figure("a", 8, "checksum"), "other"),
    (figure("a", 7, "us"), figure("a", 7, "ms"), "other"),
    (figure("a", 7, "us"), figure("a", 7, "us", note="with --small"), "other"),
    (figure("a", 7, "furlongs"), figure("a", 7, "furlongs"), "other"),
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


def test_a_run_is_as_fast_as_itself():
    path = TREE / "tests/bench/figures.jsonl"
    assert " 0 slower, 0 faster" in run("--from", path, "--peers", "--compare", path).stdout.splitlines()[-1]


def test_what_got_slower_is_said_and_fails(kept):
    former = kept("former.jsonl", figure("index.query.p50", 1.5, spread=0.02), figure("index.query.p99", 4.0, spread=0.02),
                  figure("index.growth.worst", 300, spread=0.02))
    now = kept("now.jsonl", figure("index.query.p50", 1.8, spread=0.02, others_percent=90.0, steal_percent=0.0),
               figure("index.query.p99", 3.0, spread=0.02), figure("index.growth.worst", 301, spread=0.02))
    lines = run("--from", now, "--compare", former, "--only", "index", status=1).stdout.splitlines()

    assert "slower  index.query.p50: 1.5 -> 1.8 us, -17 % (spread 3 %); the machine was busy now" in lines
    assert "faster  index.query.p99: 4 -> 3 us, +33 % (spread 3 %)" in lines
    assert lines[-1] == f"3 rows compared with {former}: 1 slower, 1 faster, 0 of another kind, 0 missing; 0 rows are new"


def test_what_is_faster_alone_does_not_fail(kept):
    former, now = kept("former.jsonl", figure("index.query.p50", 1.5)), kept("now.jsonl", figure("index.query.p50", 1.0))
    assert "faster  index.query.p50" in run("--from", now, "--compare", former).stdout


def test_a_row_that_is_missing_is_said_and_fails(kept):
    former = kept("former.jsonl", figure("index.query.p50", 1.5), figure("index.query.p99", 4.0),
                  figure("index.query.p50.vs_crtc", 1.5, ratio=2.0))
    now = kept("now.jsonl", figure("index.query.p50", 1.5))

    text = run("--from", now, "--compare", former, status=1).stdout
    assert f"missing index.query.p99: {former} has it, this run does not" in text
    assert "vs_crtc" not in text, "measured with --peers only"
    run("--from", now, "--compare", former, "--only", "index.query.p50", status=0)


def test_with_json_stdout_is_figures_alone(kept):
    former, now = kept("former.jsonl", figure("index.query.p50", 1.5)), kept("now.jsonl", figure("index.query.p50", 1.5))
    done = run("--from", now, "--compare", former, "--json")

    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["index.query.p50"]
    assert "1 rows compared" in done.stderr


@pytest.mark.parametrize("text, words", [
    ("", "has none of the selected rows"),
    ("no JSON\n", "not the figures of a run"),
    ("[1, 2]\n", "a line is no figure"),
    ('{"name": "index.query.p50"}\n', "a line is no figure"),
    (json.dumps(figure("relay.latency.p50", 1)) + "\n", "has none of the selected rows")])
def test_a_file_that_is_no_run_is_refused_before_anything_is_measured(tmp_path, text, words):
    (tmp_path / "bad.jsonl").write_text(text)
    done = subprocess.run([TREE / "tests/bench/run", "--only", "index.query.p50", "--compare", tmp_path / "bad.jsonl"],
                          capture_output=True, text=True, timeout=60, env={**os.environ, "KVB_BIN": "/no-such"})

    assert done.returncode == 64 and words in done.stderr and "--compare" in done.stderr, done
