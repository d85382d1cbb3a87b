"""Writes the figures of one run into documents: the table in README.md next to this file, some rows
of it in the README.md at the top, and next to this file also figures.jsonl (the run itself),
figures.md (every row) and figures.svg (the picture)."""

import contextlib
import io
import pathlib
import re

import picture
import report

BEGIN, END = "<!-- figures: tests/bench/run --publish writes them -->", "<!-- figures end -->"

# What, the figure, the goal, the rows.  {name} is a figure's value in three digits, {name:ratio} its
# ratio, {name:against} what it is measured against, {name:k} thousands of it.
TABLE = (
    ("the prefix index: events and queries of 128 workers, one thread",
     "{index.conversation.128.vs_chainindex} M block operations/s; {index.conversation.128.vs_chainindex:ratio} times "
     "kv-index's ChainIndex, {index.conversation.128.vs_crtc:ratio} times Dynamo's radix tree (CRTC)", "2.5 times both",
     "index.conversation.128"),
    ("the same of 1,000 workers",
     "{index.conversation.1000.vs_chainindex} M/s; {index.conversation.1000.vs_chainindex:ratio} and "
     "{index.conversation.1000.vs_crtc:ratio} times", "2.5 times both", "index.conversation.1000"),
    ("workers, each with its own names for blocks",
     "{index.own_names.128} M/s, beside {index.conversation.128} with common names", "25 M/s", "index.own_names.128"),
    ("a query of that index while no events arrive", "p50 {index.query.p50} us, p99 {index.query.p99} us", "p99 2.5 us",
     "index.query"),
    ("memory for each (worker, block), 128 and 1,000 workers",
     "{index.bytes_per_membership} and {index.bytes_per_membership.1000} bytes; ChainIndex "
     "{index.bytes_per_membership.resident.vs_chainindex:against} and "
     "{index.bytes_per_membership.1000.resident.vs_chainindex:against}", "below ChainIndex", "index.bytes_per_membership"),
    ("10,000 workers hold one prompt; each loses its end, and stores it again",
     "{index.wide.lose} and {index.wide.store} ns a block", "100 and 60 ns", "index.wide"),
    ("a worker of 16,384 blocks is cleared",
     "{index.clear.at_once} us; its memory is reclaimed in slices of at most {index.clear.slice} us", "500 us; 1 ms", "index.clear"),
    ("a query that 999 workers answer with 999 depths; one of 6,250 blocks",
     "{index.staircase.p50} us; {index.deep.p50} us", "10 us; 3.5 us", "index.staircase, .deep"),
    ("the worst store while an index grows to 8 million blocks", "{index.growth.worst} ms", "1 ms", "index.growth"),
    ("wrong answers of 6.5 million on prompts with holes", "{index.holes.wrong}", "0", "index.holes"),
    ("a bridge, protobuf, batches of 1 block",
     "{relay.protobuf.1block:k} k batches/s; {relay.protobuf.1block:ratio} of a relay in C that passes bytes on unread, "
     "{relay.protobuf.1block.vs_python:ratio} times a relay in Python", "0.85; 15 times", "relay.protobuf.1block"),
    ("the same, batches of 8 blocks",
     "{relay.protobuf.8block:k} k/s; {relay.protobuf.8block:ratio}; {relay.protobuf.8block.vs_python:ratio} times",
     "0.85; 15 times", "relay.protobuf.8block"),
    ("a bridge, JSON, batches of 1 and of 8 blocks",
     "{relay.json.1block:k} and {relay.json.8block:k} k/s; {relay.json.1block:ratio} and {relay.json.8block:ratio} of "
     "the relay in C", "0.75; 0.65", "relay.json"),
    ("from an engine's send to a NATS subscriber, 10,000 batches/s",
     "p50 {relay.latency.p50} us, p99 {relay.latency.p99} us; the relay in C {relay.latency.p50:against} "
     "and {relay.latency.p99:against}", "1.3 and 1.5 times that", "relay.latency"),
    ("what a bridge allocates in 10 million events",
     "{path.allocations.sockets.protobuf.ours}; JSON {path.allocations.sockets.json.ours}", "0", "path.allocations"),
    ("memory of a bridge for a block that an engine holds", "{relay.memory.block} bytes", "64", "relay.memory"),
    ("an aggregator's intake: decoding; decoded, ordered and indexed",
     "{intake.decode} ns a block; {intake.whole} M blocks/s", "20 ns; 3 M/s", "intake"),
    ("a request about 64 blocks, 1,000 workers, while 100,000 block operations/s arrive",
     "p99 {query.http.p99} us over HTTP, {query.nats.p99} us over NATS", "1 ms both", "query"),
    ("an aggregator answers; it has read a snapshot of 10 million blocks",
     "{start.serving} ms after exec; {start.snapshot} s", "100 ms; 2 s", "start"),
)

# The rows of TABLE that the README.md at the top shows, and the command that measures each.
AT_THE_TOP = {
    "index.conversation.128": "--peers --only index.conversation.128", "index.query": "--only index.query",
    "relay.protobuf.1block": "--only relay.protobuf.1block", "relay.latency": "--only relay.latency",
    "query": "--only query"}


def fill(text, by_name):
    def word(match):
        name, _, what = match[1].partition(":")
        if name not in by_name:
            raise ValueError(f"{name} was not measured: the published figures are of a whole run, with --peers")
        figure = by_name[name]
        if what == "k":
            return f"{figure['value'] / 1000:.0f}"
        return report.number(figure[{"ratio": "ratio", "against": "against_value"}.get(what, "value")])

    return re.sub(r"\{([^}]+)\}", word, text)


def run_line(about, figures, goals, link):
    return f"One run of `{about['command']}` on {about['machine']}: {report.summary(figures, goals)} ({link})."


def whole_table(about, figures, goals):
    by_name = {figure["name"]: figure for figure in figures}
    lines = [run_line(about, figures, goals, "[every row](figures.md)"), "",
             "| what | figure | goal | rows |", "|---|---|---|---|"]
    for what, figure, goal, names in TABLE:
        lines.append(f"| {what} | {fill(figure, by_name)} | {goal} | `{names}` |")
    return "\n".join(lines)


def short_table(about, figures, goals):
    by_name = {figure["name"]: figure for figure in figures}
    lines = [run_line(about, figures, goals, "[all of them, and how they are measured](tests/bench/README.md)"), "",
             "| what | figure | goal | measured by |", "|---|---|---|---|"]
    for what, figure, goal, names in TABLE:
        if names in AT_THE_TOP:
            lines.append(f"| {what} | {fill(figure, by_name)} | {goal} | `tests/bench/run {AT_THE_TOP[names]}` |")
    return "\n".join(lines)


def put_between(path, table_text):
    """The text of the file with this table inserted."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: no place for the figures; it begins with {BEGIN}, and ends with {END}")
    return f"{before}{BEGIN}\n{table_text}\n{END}{after}"


def publish(tree, about, figures, goals):
    """Nothing is written when a figure that a table names is missing."""
    top, folder = pathlib.Path(tree) / "README.md", pathlib.Path(tree) / "tests/bench"
    texts = {top: put_between(top, short_table(about, figures, goals)),
             folder / "README.md": put_between(folder / "README.md", whole_table(about, figures, goals))}
    markdown = io.StringIO()
    with contextlib.redirect_stdout(markdown):
        report.print_markdown(about, figures, goals)
    report.save(folder / "figures.jsonl", about, figures)
    (folder / "figures.md").write_text(markdown.getvalue())
    (folder / "figures.svg").write_text(picture.draw(about, figures))
    for path, text in texts.items():
        path.write_text(text)
