"""One run of a row: starts everything, does what the row does, and judges. Times are printed, not judged."""

import dataclasses
import pathlib
import traceback

from matrix.case import Case
from matrix.oracle import S
from matrix.stage import MOST_RESIDENT_BYTES, Load, Stage
from programs import wait_for


@dataclasses.dataclass
class Result:
    wrong: list
    figures: str = ""
    logs: str = ""

    def text(self):
        return "\n".join([*self.wrong, self.figures, self.logs])


def run(row, folder, seed=1):
    stage, case, wrong, figures = Stage(folder, Load(**row.load), seed), None, [], ""
    try:
        stage.begin(row.prepare, row.site, row.judges_exact)
        case = Case(stage, row)
        resident = stage.resident()
        row.inject(case)
        judge(case, resident)
        figures = figures_of(case)
    except Exception as error:
        at = " < ".join(f"{pathlib.Path(one.filename).name}:{one.lineno}" for one in reversed(traceback.extract_tb(error.__traceback__)))
        wrong.append(f"{type(error).__name__}: {error} ({at})")
    finally:
        wrong = (case.wrong if case else []) + wrong + stage.close()
    return Result(wrong, figures, stage.logs() if wrong else "")


def judge(case, resident):
    if case.row.shows:
        wait_for("the fault shows", lambda: case.measured_d() is not None)
    wait_until_settled(case)
    # A state proves nothing while it may be older than the fault, but an equal list does.
    if not case.is_paused:
        case.pause()
    case.right_s = max(0.0, (case.settled_since() - case.end_ns) / S)
    compare(case)
    if case.row.check:
        case.row.check(case)
        wait_until_settled(case)
        compare(case)
    samples = case.oracle.samples
    wait_for("the oracle looks once more", lambda: case.oracle.samples > samples + len(case.stage.aggregators))
    check_always(case, resident)


def wait_until_settled(case):
    try:
        wait_for("each stream has its state", case.is_settled)
    except AssertionError:
        bad = [(w.aggregator.name, s, r[:2]) for w, s, r in case.oracle.all_states() if r[0] != "EXACT"]
        raise AssertionError(f"not settled in time: {bad[:4]}") from None


def compare(case):
    """With load paused, block by block, in every aggregator."""
    wrong = []

    def is_equal():
        wrong[:] = [word for one in case.stage.aggregators for word in case.oracle.compare(one)]
        return not wrong and case.is_settled()

    try:
        wait_for("the lists are the truth", is_equal)
    except AssertionError as error:
        raise AssertionError(f"{error}: {wrong[:5]}") from None


def check_always(case, resident):
    oracle, stage = case.oracle, case.stage
    if oracle.violations:
        at, who, stream, name, age = oracle.violations[0]
        case.wrong.append(
            f"{len(oracle.violations)} phantoms; first: {who} {stream} block {name} gone for {age} s, "
            f"{(at - case.fault_ns) / S:+.2f} s after the fault")
    most, whose = oracle.most_full_replays(case.fault_ns - 2 * S)
    case.expect_that(most <= case.row.most_full_replays, f"a publisher was asked for {most} full replays in a row: {whose}")
    denied = stage.denials()
    case.expect_that(not denied, f"nats-server denied {denied}")
    lame = [stream for stream, row in oracle.stats().items() if row["failures"]]
    case.expect_that(not lame, f"simulated engines that could not bind again: {len(lame)}, such as {lame[:3]}")
    for name, size in stage.resident().items():
        case.expect_that(size <= MOST_RESIDENT_BYTES, f"{name} takes {size >> 20} MiB")
        grown = size - resident.get(name, size)
        case.expect_that(grown < case.row.max_growth_bytes, f"{name} grew by {grown >> 20} MiB")


def figures_of(case):
    seen = case.measured_d()
    parts = [] if seen is None else [f"seen after {seen:.2f} s"]
    parts.append(f"right {case.right_s:.2f} s after its end")
    parts.append(f"a dropped block was listed for {case.oracle.oldest_s:.2f} s, of {case.oracle.judged} judged")
    return "; ".join(parts + [case.figures] * bool(case.figures))
