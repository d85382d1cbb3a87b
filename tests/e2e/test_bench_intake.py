"""Does each row of bench_intake give its figures?  How large they are is not looked at."""

import json
import subprocess

import pytest

import programs

FIELDS = {"name", "value", "unit", "against", "against_value", "ratio"}
ROWS = {
    "intake.decode": {"intake.decode", "intake.decode.1block"},
    "intake.whole": {"intake.whole"},
    "intake.allocations": {"intake.allocations"},
    "intake.nats": {"intake.nats"},
    "query": {f"query.{way}.{part}" for way in ("http", "nats", "echo", "http.burst", "nats.burst", "http.dump")
              for part in ("p50", "p99")},
    "start.serving": {"start.serving"},
    "start.snapshot": {"start.snapshot", "start.snapshot.decode", "start.snapshot.apply", "start.snapshot.longest"},
}

pytestmark = pytest.mark.no_nats


def bench(*words):
    return subprocess.run(
        [programs.BIN / "tests/bench_intake", *words], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_gives_its_figures(row):
    done = bench("--small", "--seconds", "0.3", "--aggregator", programs.BIN / "kvaggregator", row)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]

    assert {figure["name"] for figure in figures} == ROWS[row]
    for figure in figures:
        assert figure.keys() == FIELDS and figure["value"] >= 0, figure
        assert (figure["against"] is None) == (figure["ratio"] is None) == (figure["against_value"] is None), figure


def test_a_wrong_call_is_refused():
    assert bench("--nonsense").returncode == 2
    assert bench("--seconds", "0").returncode == 2
