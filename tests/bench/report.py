"""Figures for people: the table, the same as Markdown, and the file that a run leaves."""

import json
import os
import pathlib
import platform

import machine
from goals import APART, MAX_SPREAD


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


def goal_words(goal, unit=""):
    return f"{goal.comparison} {number(goal.bound)}{' ' + unit if unit and goal.what == 'value' else ''}" + (
        " (ratio)" if goal.what == "ratio" else "")


def goal_lines(goals):
    width = max((len(goal.name) for goal in goals), default=0)
    return [f"{goal.name:{width}}  {goal_words(goal):18}  {goal.text}{' (--peers)' * goal.is_peer}"
            f"{' (--only)' * goal.name.startswith(APART)}" for goal in goals]


def verdict(goal, figure):
    if not goal:
        return ""
    if not goal.reaches(figure):
        return "NO"
    return "spread" if goal.is_too_wide(figure) else "yes"


def rows(figures, goals):
    """(name, what it is, goal, figure, ratio, spread, kernel, machine, met) in words.  A figure may have two
    goals; goals without a figure come last."""
    table, seen = [], set()
    for figure in figures:
        if figure["unit"] == "checksum":
            continue
        own = [goal for goal in goals if goal.name == figure["name"]] or [None]
        seen.add(figure["name"])
        ratio = f"{number(figure['ratio'])} of {figure['against']}" if figure["against"] else ""
        for goal in own:
            table.append((
                figure["name"], goal.text if goal else "", goal_words(goal, figure["unit"]) if goal else "",
                f"{number(figure['value'])} {figure['unit']}", ratio, spread_words(figure).removeprefix("spread "),
                kernel_words(figure).removeprefix("kernel "), machine.busy_words(figure), verdict(goal, figure)))
    for goal in goals:
        if goal.name not in seen:
            table.append((goal.name, goal.text, goal_words(goal), "not measured", "", "", "", "", "-"))
    return table


HEAD = ("row", "what", "goal", "figure", "ratio", "spread", "kernel", "machine", "met")


def print_table(about, figures, goals):
    for line in about_lines(about, figures):
        print(line)
    table = [HEAD, *rows(figures, goals)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
    print()
    for row in table:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip())
    print(f"\n{summary(figures, goals)}")


def print_markdown(about, figures, goals):
    for line in about_lines(about, figures):
        print("- " + line)
    print("\n| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD))
    for row in rows(figures, goals):
        print("| " + " | ".join((f"`{row[0]}`", *row[1:])) + " |")
    print(f"\n{summary(figures, goals)}")


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
