"""Runs rows of the fault matrix and prints the measured values next to the permitted ones."""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import hostile  # noqa: E402
import soak  # noqa: E402
from case import Case, LeftOut  # noqa: E402
from oracle import S  # noqa: E402
from rows import ROWS  # noqa: E402
from stage import MOST_RESIDENT_BYTES, Load, Stage  # noqa: E402

SETTLE_S = 15.0  # how long after the end of a fault a repair may take before it counts as failed
FIRST_ROWS = ("F1", "F6", "F13", "F16", "F18", "F23", "F35", "F38")


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="such as F1,F13; first: the rows of tests/run (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object a row")
    parser.add_argument("--list", action="store_true", help="the rows there are")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="no rows: a random fault every 3 s")
    parser.add_argument("--hostile", type=float, metavar="MINUTES", help="no rows: hostile peers, each kind at least once")
    parser.add_argument("--kinds", help="of --hostile: these alone, such as wrong_frames,full_disk")
    parser.add_argument(
        "--permissions", action="store_true",
        help="NATS users with what `kvctl permissions` prints (not in rows that set up nats-servers themselves); nothing may be denied")
    parser.add_argument("--keep", help="keep logs and configurations below this folder")
    for name in ("workers", "ranks", "blocks", "aggregators", "scale", "step-ms"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Load, name.replace("-", "_")))
    parser.add_argument("--rate", type=float, default=Load.rate, help="requests a second")
    return parser.parse_args()


def load_of(options, row=None):
    names = ("workers", "ranks", "blocks", "aggregators", "scale", "step_ms", "rate")
    return Load(**{**{name: getattr(options, name) for name in names}, **(row.load if row else {})})


def find_rows(words):
    if not words:
        return ROWS
    wanted = FIRST_ROWS if words == "first" else words.split(",")
    found = [row for row in ROWS if row.name in wanted]
    missing = set(wanted) - {row.name for row in found}
    if missing:
        sys.exit(f"no such row: {', '.join(sorted(missing))}")
    return found


def judge_end(case, limits):
    """With load paused, compares block by block, in every aggregator."""
    stage = case.stage
    if not case.is_paused:
        case.pause()
    deadline, looks = time.monotonic() + 3, 0
    while True:
        wrong = [word for one in stage.aggregators for word in case.oracle.compare(one)]
        looks += 1
        # One look at a million blocks takes longer than the whole wait should.
        if not wrong or (looks > 2 and time.monotonic() > deadline):
            break
        time.sleep(0.1)
    case.wrong += wrong[:5]


def check_always(case, resident):
    oracle, stage = case.oracle, case.stage
    if oracle.violations:
        at, who, stream, name, age = oracle.violations[0]
        case.wrong.append(
            f"{len(oracle.violations)} phantoms; first: {who} {stream} block {name} gone for {age} s, "
            f"{(at - case.fault_ns) / S:+.2f} s after the fault")
    case.expect_that(oracle.samples > 2, f"the oracle looked only {oracle.samples} times")
    most, whose = oracle.most_full_replays(case.fault_ns - 2 * S)
    # A bridge that is killed twice in 10 s does not remember the limit on full replays, and soak
    # does that. Each of F9's two bridges has its own limit.
    allowed = {"SOAK": most, "F9": 2}.get(case.row.name, 1)
    case.expect_that(most <= allowed, f"a publisher was asked for {most} full replays within 10 s: {whose}")
    denied = stage.denials()
    case.expect_that(not denied, f"nats-server denied {denied}")
    lame = [stream for stream, row in oracle.stats().items() if row["failures"]]
    case.expect_that(not lame, f"simulated engines that could not bind again: {len(lame)}, such as {lame[:3]}")
    for name, size in stage.resident().items():
        case.expect_that(size <= MOST_RESIDENT_BYTES, f"{name} takes {size >> 20} MiB")
        before = resident.get(name)
        case.expect_that(
            before is None or size - before < case.row.max_growth_bytes, f"{name} grew by {(size - (before or 0)) >> 20} MiB")


def wait_until_settled(case):
    """Settled, and still settled half a second later: a list that says EXACT right after a fault
    may not know of it yet."""
    deadline, since = time.monotonic() + SETTLE_S, None
    while time.monotonic() < deadline:
        since = (since or time.monotonic()) if case.is_settled() else None
        if since and time.monotonic() - since >= 0.5:
            return True
        time.sleep(0.02)
    return False


def lists_are_the_truth(case):
    deadline = time.monotonic() + SETTLE_S
    while any(case.oracle.compare(one) for one in case.stage.aggregators):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def measure_d(case):
    """Seconds from the fault to the first change of state; None when there was none."""
    limit = case.row.d_limit
    deadline = case.fault_ns + int(((limit or 0) + 1) * S)
    while limit is not None and case.measured_d() is None and time.monotonic_ns() < deadline:
        time.sleep(0.01)
    d = case.measured_d()
    if limit is not None:
        case.expect_that(d is not None and d <= limit, f"D {'not seen' if d is None else format(d, '.2f')}")
    return d


def measure_c(case):
    """Seconds from the end of the fault to the last change on the way to EXACT."""
    if case.row.c_limit is None:
        return None
    # A state alone proves nothing while nothing changes, so the lists are compared too.
    if not wait_until_settled(case) or (case.is_paused and not lists_are_the_truth(case)):
        bad = [(w.aggregator.name, s, r[:2]) for w, s, r in case.oracle.all_states() if r[0] != "EXACT"]
        case.wrong.append(f"not settled within {SETTLE_S:.0f} s: {bad[:4]}")
        return None
    c = max(0.0, (case.settled_since() - case.end_ns) / S)
    case.expect_that(c <= case.row.c_limit, f"C {c:.2f} s, allowed {case.row.c_limit:g}")
    return c


def run_row(row, options, folder):
    began = time.monotonic()
    load = load_of(options, row)
    stage = Stage(folder, load, options.seed, options.permissions and not row.site)
    result = {"row": row.name, "title": row.title, "load": load.text(), "d_s": None, "c_s": None}
    wrong, case = [], None
    try:
        stage.begin(row.prepare, row.limit_s, row.site)
        case = Case(stage, row)
        resident = stage.resident()
        row.inject(case)
        result["d_s"] = measure_d(case)
        result["c_s"] = measure_c(case)
        time.sleep(0 if case.is_paused else 1)  # the oracle continues to watch, under load
        if row.check:
            row.check(case)
        judge_end(case, row)
        check_always(case, resident)
        result.update(
            oldest_s=round(stage.oracle.oldest_s, 2), samples=stage.oracle.samples, judged=stage.oracle.judged)
    except LeftOut as why:
        result["figures"] = f"left out on this machine: {why}"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        wrong.append(f"{type(error).__name__}: {error} ({pathlib.Path(last.filename).name}:{last.lineno})")
    finally:
        wrong += stage.close()
    wrong = (case.wrong if case else []) + wrong
    if case and case.figures:
        result["figures"] = case.figures
    if hasattr(case, "soak"):
        grown = {name: f"{size / (1 << 20):+.1f} MiB" for name, size in case.soak["growth"].items()}
        result["soak"] = {"faults": case.soak["faults"], "growth": grown}
    for key in ("d_s", "c_s"):
        result[key] = None if result[key] is None else round(result[key], 3)
    result.update(
        d_limit_s=row.d_limit, c_limit_s=row.c_limit, must_hold=row.must, note=row.note, ok=not wrong,
        wrong=wrong, seconds=round(time.monotonic() - began, 1))
    if wrong and not options.keep:
        (folder / "all.log").write_text(stage.logs())
    return result


def show(value, limit):
    return f"{'-' if value is None else format(value, '.2f'):>6} /{'-' if limit is None else format(limit, 'g'):>4}"


def print_row(result, usual):
    print(
        f"{result['row']:4} {show(result['d_s'], result['d_limit_s'])}  {show(result['c_s'], result['c_limit_s'])}"
        f"  {result.get('oldest_s', '-'):>6}  {'ok    ' if result['ok'] else 'FAILED'} {result['seconds']:5.1f} s"
        f"  {result['title']}: {result['must_hold']}{' (' + result['note'] + ')' if result['note'] else ''}")
    if result["load"] != usual:
        print(f"       load: {result['load']}")
    if "figures" in result:
        print(f"       {result['figures']}")
    for name, value in result.get("soak", {}).items():
        print(f"       {name}: {value}")
    for word in result["wrong"]:
        print(f"       {word}")
    sys.stdout.flush()


def main():
    options = parse()
    rows = (
        [soak.row(options.soak)] if options.soak else
        [hostile.row(options.hostile, options.kinds)] if options.hostile else find_rows(options.rows))
    if options.list:
        for row in rows:
            print(f"{row.name:4} {row.title}: {row.must}")
        return 0
    if not options.json:
        print(f"load: {load_of(options).text()}; seed {options.seed}")
        print("row    D s / max     C s / max  oldest  result  time  fault: what must hold")
    failed, began = 0, time.monotonic()
    base = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="kvb-matrix-"))
    for row in rows:
        folder = base / row.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        result = run_row(row, options, folder)
        failed += not result["ok"]
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            print_row(result, load_of(options).text())
    if not failed and not options.keep:
        shutil.rmtree(base)
    elif failed:
        print(f"logs: {base}", file=sys.stderr)
    if not options.json:
        # Ends like pytest's output, because tests/run adds these up.
        words = f"{failed} failed, " * bool(failed) + f"{len(rows) - failed} passed"
        print(f"==== {words} in {time.monotonic() - began:.1f}s ====")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    sys.exit(main())
