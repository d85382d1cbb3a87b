"""Figures for people: the table, the same as Markdown, and the file that a run leaves."""

import json
import os
import pathlib
import platform

import machine
from rows import APART, MAX_SPREAD


def number(value):
    """Three digits that count, thousands apart."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}"


def words_of(figure):
    against = ""
    if figure["against"]:
        against = f", {number(figure['ratio'])} of {figure['against']} ({number(figure['against_value'])})"
    beside = [words for words in (spread_words(figure), kernel_words(figure), machine.busy_words(figure), figure.get("note"))
              if words]
    note = f"  ({'; '.join(beside)})" if beside else ""
    return f"{figure['name']}: {number(figure['value'])} {figure['unit']}{against}{note}"


def spread_words(figure):
    """Of the ratio where there is one."""
    spread = figure.get("ratio_spread", figure.get("spread"))
    return "" if spread is None else f"spread {100 * spread:.0f} %"


def kernel_words(figure):
    percent = figure.get("kernel_percent")
    return "" if percent is None else f"kernel {percent:.0f} %"


AGAINST = {"chainindex": "ChainIndex", "crtc": "CRTC", "radixtree": "RadixTree", "python": "Python",
           "protobuf": "protobuf"}


def goal_words(goal, unit=""):
    bound = f"{goal.comparison} {goal.bound:,g}"
    if goal.what == "ratio":
        return f"{bound} of {AGAINST[goal.name.rpartition('.vs_')[2]]}" if ".vs_" in goal.name else f"ratio {bound}"
    return f"{bound} {unit}" if unit else bound


def columns(table):
    """Lines of a table of words."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in table]


def list_lines(rows):
    """A figure a line; the question stands at the first of its row."""
    lines = []
    for row in rows:
        for i, figure in enumerate(row.figures):
            goals = "; ".join(goal_words(goal) for goal in figure.goals)
            question = row.question + " (--only)" * row.name.startswith(APART) if i == 0 else ""
            lines.append((row.name + figure.tail, figure.unit, goals, question))
    return columns(lines)


def verdict(goal, figure):
    if not goal:
        return ""
    if not goal.reaches(figure):
        return "NO"
    return "spread" if goal.is_too_wide(figure) else "yes"


def table_of(figures, goals):
    """(name, goal, figure, ratio, spread, kernel, machine, met) in words.  A figure may have two goals; goals without a
    figure come last."""
    table, seen = [], set()
    for figure in figures:
        if figure["unit"] == "checksum":
            continue
        own = [goal for goal in goals if goal.name == figure["name"]] or [None]
        seen.add(figure["name"])
        ratio = f"{number(figure['ratio'])} of {figure['against']}" if figure["against"] else ""
        for goal in own:
            table.append((
                figure["name"], goal_words(goal, figure["unit"]) if goal else "",
                f"{number(figure['value'])} {figure['unit']}", ratio, spread_words(figure).removeprefix("spread "),
                kernel_words(figure).removeprefix("kernel "), machine.busy_words(figure), verdict(goal, figure)))
    for goal in goals:
        if goal.name not in seen:
            table.append((goal.name, goal_words(goal), "not measured", "", "", "", "", "-"))
    return table


HEAD = ("figure of a row", "goal", "value", "ratio", "spread", "kernel", "machine", "met")


def print_table(about, figures, goals):
    print(*about_lines(about, figures), "", *columns([HEAD, *table_of(figures, goals)]), "", summary(figures, goals), sep="\n")


def print_json(_about, figures, _goals):
    for figure in figures:
        print(json.dumps(figure))


def missed(figures, goals):
    by_name = {figure["name"]: figure for figure in figures}
    return [goal for goal in goals if goal.name not in by_name or not goal.is_met(by_name[goal.name])]


def summary(figures, goals):
    by_name = {figure["name"]: figure for figure in figures}
    wide = sum(1 for goal in goals if goal.name in by_name and verdict(goal, by_name[goal.name]) == "spread")
    more = f"; {wide} more would be, but their spread is above {100 * MAX_SPREAD:.0f} %" if wide else ""
    return f"{len(goals) - len(missed(figures, goals))} of {len(goals)} goals met{more}"


# ---- The run -----------------------------------------------------------------------


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def about(options, corpus):
    command = ["tests/bench/run", "--seconds", format(options.seconds, "g")]
    command += [word for one in options.only for word in ("--only", one)]
    command += ["--peers"] * options.peers + ["--small"] * options.small
    return {
        "command": " ".join(command),
        "machine": f"{processor()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "corpus": corpus,
    }


def about_lines(about, figures):
    lines = [f"{key}: {value}" for key, value in about.items()]
    notes = sorted({figure["note"] for figure in figures if figure.get("note")})
    return lines + [f"WARNING: {note}" for note in notes]


FIELDS = {"name", "value", "unit", "against", "against_value", "ratio"}


def save(path, about, figures):
    lines = [json.dumps({"run": about}), *(json.dumps(figure) for figure in figures)]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def load(path):
    """As saved; lines of --json, with no line about the run, do too."""
    try:
        lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path}: not the figures of a run: {error}") from None
    if not all(isinstance(line, dict) and ("run" in line or FIELDS <= line.keys()) for line in lines):
        raise ValueError(f"{path}: not the figures of a run: a line is no figure; expected lines of --json, or figures.jsonl")
    runs = [line["run"] for line in lines if "run" in line]
    return (runs[0] if runs else {}), [line for line in lines if "run" not in line]
