"""Writes the figures of one run into documents: the table of rows in README.md next to this file, five figures in the
README.md at the top; and next to this file the run itself, figures.jsonl."""

import pathlib
import re

import report
from rows import APART, ROWS

BEGIN, END = "<!-- figures: tests/bench/run --publish writes them -->", "<!-- figures end -->"

# What the README.md at the top shows: what, the figure, and the options that measure it.  {name} is a figure's value in
# three digits, {name:ratio} its ratio, {name:against} what it is measured against.
AT_THE_TOP = (
    ("the whole way from engines to answers: nats-server, a bridge and an aggregator, for 1, 16 and 64 engines, without and "
     "with 200 queries/s",
     "{whole.1}, {whole.16} and {whole.64} % of a core ({whole.1.memory}, {whole.16.memory} and {whole.64.memory} MiB); Dynamo's "
     "stand-alone indexer needs {whole.1:ratio}, {whole.16:ratio} and {whole.64:ratio} times that, with the queries "
     "{whole.1.asked:ratio}, {whole.16.asked:ratio} and {whole.64.asked:ratio} times, and {whole.1.memory:against}, "
     "{whole.16.memory:against} and {whole.64.memory:against} MiB", "--only whole"),
    ("the prefix index: events and queries of 128 workers, one thread",
     "{index.conversation.128.vs_chainindex} M block operations/s, {index.conversation.128.vs_chainindex:ratio} times the best "
     "other one (kv-index's ChainIndex); a query p50 {index.query.p50} us, p99 {index.query.p99} us, "
     "{index.query.p50.vs_chainindex:ratio} and {index.query.p99.vs_chainindex:ratio} times as fast as there",
     "--peers --only index"),
    ("from an engine's send to a NATS subscriber, 10,000 batches/s",
     "p50 {relay.latency.p50} us, p99 {relay.latency.p99} us; a relay in C that passes bytes on unread "
     "{relay.latency.p50:against} and {relay.latency.p99:against}", "--only relay.latency"),
    ("what a pick adds to a request of 4 KB through Envoy, 1,000 a second",
     "p50 {gateway.added.p50:ms} ms, p99 {gateway.added.p99:ms} ms more than with a picker that picks at once",
     "--only gateway"),
    ("memory of a block that a worker holds", "{index.bytes_per_membership.resident} bytes in the index, "
     "{relay.memory.block} in the bridge", "--only index.bytes --only relay.memory"),
)


def figure_named(name, by_name):
    if name not in by_name:
        raise ValueError(f"{name} was not measured: the published figures are of a whole run, with --peers")
    return by_name[name]


def fill(text, by_name):
    def word(match):
        name, _, what = match[1].partition(":")
        figure = figure_named(name, by_name)
        if what == "ms":
            return f"{figure['value'] / 1000:.2f}"
        return report.number(figure[{"ratio": "ratio", "against": "against_value"}.get(what, "value")])

    return re.sub(r"\{([^}]+)\}", word, text)


def run_words(about):
    return f"One run of `{about['command']}` on {about['machine']}"


def short_table(about, figures):
    by_name = {figure["name"]: figure for figure in figures}
    lines = [f"{run_words(about)} ([all rows, with their goals](tests/bench/README.md)):", "",
             "| what | figure | measured by |", "|---|---|---|"]
    lines += [f"| {what} | {fill(figure, by_name)} | `tests/bench/run {options}` |" for what, figure, options in AT_THE_TOP]
    return "\n".join(lines)


# ---- The table of rows -------------------------------------------------------------


def of_each(row, words_of):
    """Words of each figure of a row, with its tail where there are several."""
    words = [(figure.tail, words_of(figure)) for figure in row.figures]
    return "; ".join((f"`{tail}` " if tail and len(words) > 1 else "") + one for tail, one in words if one)


def units_of(row):
    units = {figure.unit for figure in row.figures}
    return units.pop() if len(units) == 1 else of_each(row, lambda figure: figure.unit)


def value_words(name, by_name, goals):
    """Value, ratios, and which goals it misses."""
    figure = figure_named(name, by_name)
    beside = [one for one in (figure, *(by_name[other] for other in by_name if other.startswith(name + ".vs_"))) if one["against"]]
    words = report.number(figure["value"])
    if beside:
        words += " (" + ", ".join(f"{report.number(one['ratio'])} of {one['against']}" for one in beside) + ")"
    verdicts = {report.verdict(goal, by_name[goal.name]) for goal in goals
                if goal.name in (one["name"] for one in (figure, *beside))}
    return words + (": missed" if "NO" in verdicts else ": spread" if "spread" in verdicts else "")


def row_line(row, by_name, goals):
    cells = (f"`{row.name}`" + (f" `{row.figures[0].tail}`" if len(row.figures) == 1 and row.figures[0].tail else ""),
             row.question, units_of(row),
             of_each(row, lambda figure: ", ".join(report.goal_words(goal) for goal in figure.goals)),
             of_each(row, lambda figure: " / ".join(value_words(name + figure.tail, by_name, goals) for name in row.names))
             if not row.name.startswith(APART) else "apart")
    return "| " + " | ".join(cells) + " |"


def whole_table(about, figures, goals):
    by_name = {figure["name"]: figure for figure in figures}
    return "\n".join((f"{run_words(about)}: {report.summary(figures, goals)}.", "", "| row | question | unit | goal | that run |", "|---|---|---|---|---|",
                      *(row_line(row, by_name, goals) for row in ROWS)))


# ---- Writing -----------------------------------------------------------------------


def put_between(path, table_text, begin_mark=BEGIN, end_mark=END):
    """The text of the file with this table inserted."""
    before, begin, rest = path.read_text().partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise ValueError(f"{path}: no place for the table; it begins with {begin_mark}, and ends with {end_mark}")
    return f"{before}{begin_mark}\n{table_text}\n{end_mark}{after}"


def publish(tree, about, figures, goals):
    """Nothing is written when a figure that a table names is missing."""
    top, folder = pathlib.Path(tree) / "README.md", pathlib.Path(tree) / "tests/bench"
    texts = {top: put_between(top, short_table(about, figures)),
             folder / "README.md": put_between(folder / "README.md", whole_table(about, figures, goals))}
    report.save(folder / "figures.jsonl", about, figures)
    for path, text in texts.items():
        path.write_text(text)
