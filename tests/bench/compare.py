"""What got slower than in a former run, and what got faster: beyond the spread of both.

A row that was measured against something in turns is compared by its ratio, which the machine changes least; every
other one by its value.  A change counts when it is larger than the larger of both spreads and than LEAST.  A missing
spread counts as UNKNOWN."""

import dataclasses
import math

import machine
from report import number

LEAST = 0.03  # two runs of the same programs on a quiet machine differ by so much
UNKNOWN = 0.15

# Counts have no spread, because the machine does not change them.
COUNTED = {"allocations in 10 million events", "bytes", "of blocks", "threads"}
MORE_IS_BETTER = {"M block operations/s", "batches/s", "of blocks"}
LESS_IS_BETTER = {"allocations in 10 million events", "bytes", "MiB", "threads",
                  "% of a core", "ms", "ns/batch", "s", "s/10M blocks", "us", "wake-ups/s"}
CHECKSUM = "checksum"


@dataclasses.dataclass(frozen=True)
class Change:
    name: str
    words: str
    times: float  # above 1: better than it was; 1 where that cannot be told
    limit: float  # a change beyond it counts
    is_other: bool = False  # answers differ, or nothing can be compared: neither slower nor faster

    @property
    def is_slower(self):
        return not self.is_other and self.times < 1 / (1 + self.limit)

    @property
    def is_faster(self):
        return not self.is_other and self.times > 1 + self.limit


def spread_of(figure, what):
    return figure.get("ratio_spread" if what == "ratio" else "spread")


def limit_of(former, now, what):
    unknown = LEAST if now["unit"] in COUNTED else UNKNOWN
    spreads = [unknown if spread is None else spread for spread in (spread_of(former, what), spread_of(now, what))]
    return max(LEAST, *spreads)


def times_better(before, after, is_more_better):
    if before == after:
        return 1.0
    better, base = (after, before) if is_more_better else (before, after)
    return better / base if base else math.inf


def is_comparable(former, now):
    """The same thing, against the same: or else its name alone is the same."""
    return all(former.get(field) == now.get(field) for field in ("unit", "note"))


def change_of(former, now):
    name, unit = now["name"], now["unit"]
    if not is_comparable(former, now):
        return Change(name, f"cannot be compared: {kind_words(former)} before, {kind_words(now)} now", 1.0, 0, is_other=True)
    if unit == CHECKSUM:
        return Change(name, "other answers, or another corpus", 1.0, 0, is_other=former["value"] != now["value"])
    by_ratio = former["ratio"] is not None and now["ratio"] is not None and former["against"] == now["against"]
    what = "ratio" if by_ratio else "value"
    if not by_ratio and unit not in MORE_IS_BETTER | LESS_IS_BETTER:
        return Change(name, f"cannot be compared: it is not known whether more {unit} is better", 1.0, 0, is_other=True)
    times = times_better(former[what], now[what], by_ratio or unit in MORE_IS_BETTER)
    limit = limit_of(former, now, what)
    words = f"{number(former[what])} -> {number(now[what])} {'of ' + now['against'] if by_ratio else unit}"
    busy = [when for when, figure in (("then", former), ("now", now)) if machine.is_busy(figure)]
    return Change(name, f"{words}, {percent(times)} (spread {100 * limit:.0f} %)"
                  + (f"; the machine was busy {' and '.join(busy)}" if busy else ""), times, limit)


def kind_words(figure):
    return ", ".join(word for word in (figure.get("unit"), figure.get("note")) if word) or "no unit"


def percent(times):
    return "infinitely better" if math.isinf(times) else "much worse" if times == 0 else f"{100 * (times - 1):+.0f} %"


def changes_of(former, now):
    """Of the rows that both have."""
    by_name = {figure["name"]: figure for figure in former}
    return [change_of(by_name[figure["name"]], figure) for figure in now if figure["name"] in by_name]


def missing_of(former, now, is_expected):
    """Rows of the former run that this run should have."""
    names = {figure["name"] for figure in now}
    return [figure["name"] for figure in former if is_expected(figure["name"]) and figure["name"] not in names]


def lines_of(path, former, now, is_expected):
    """(lines to print, is everything as fast as before)"""
    changes = changes_of(former, now)
    slower = [change for change in changes if change.is_slower]
    faster = [change for change in changes if change.is_faster]
    others = [change for change in changes if change.is_other]
    missing = missing_of(former, now, is_expected)
    known = {figure["name"] for figure in former}
    new = sum(1 for figure in now if figure["name"] not in known)
    lines = [f"slower  {change.name}: {change.words}" for change in slower]
    lines += [f"faster  {change.name}: {change.words}" for change in faster]
    lines += [f"other   {change.name}: {change.words}" for change in others]
    lines += [f"missing {name}: {path} has it, this run does not" for name in missing]
    lines.append(f"{len(changes)} rows compared with {path}: {len(slower)} slower, {len(faster)} faster, "
                 f"{len(others)} of another kind, {len(missing)} missing; {new} rows are new")
    return lines, bool(changes) and not slower and not others and not missing
