"""The rows worth.*: what cache-aware routing is worth.  A run of one policy is a figure with more fields than
others have, so these rows have a table, a picture and published files of their own."""

import html
import math
import pathlib

import publish as documents
import report
from report import number

BEGIN, END = "<!-- worth: tests/bench/run --only worth --publish writes it -->", "<!-- worth end -->"

WORKLOADS = ("conversation", "heads", "agents")
WORKLOAD_WORDS = {"conversation": "conversation: chat trace", "heads": "heads: system prompts (generated)",
                  "agents": "agents: tool calls (generated)"}
PICTURES = ("exact", "late_100ms", "late_1000ms", "lossy_10", "no_events")
PICTURE_WORDS = {"exact": "exact", "late_100ms": "100 ms old", "late_1000ms": "1 s old", "lossy_10": "10 % lost",
                 "no_events": "no events"}
BLIND = ("round_robin", "least_requests")
AWARE = ("kv", "kv_weight_8", "ttft")
SHOWN_WORKERS = "64"


def runs_of(figures):
    """{(workload, workers, loop, picture, policy): figure}"""
    return {tuple(figure["name"].split(".")[1:]): figure for figure in figures if "hit_rate" in figure}


def milliseconds(value):
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.0f} ms"


def percent(share):
    return f"{100 * share:.0f} %"


def words_of(figure):
    return (f"{figure['name']}: hit rate {figure['hit_rate']:.3f}, time to first token p50 {milliseconds(figure['value'])}, "
            f"p99 {milliseconds(figure['ttft_p99_ms'])}, load std {figure['load_std']:.3f}")


# ---- Tables ------------------------------------------------------------------------

HEAD = ("workload", "workers", "loop", "picture", "policy", "hit rate", "TTFT p50 ms", "p99 ms", "load std", "requests/s")


# The same whatever the machine does: no spread, no kernel time.
GOAL_HEAD = (*report.HEAD[:4], report.HEAD[-1])


def run_rows(figures):
    return [(*name, f"{figure['hit_rate']:.3f}", f"{figure['value']:,.0f}", f"{figure['ttft_p99_ms']:,.0f}",
             f"{figure['load_std']:.3f}", f"{figure['requests_per_s']:.2f}") for name, figure in runs_of(figures).items()]


def goal_rows(figures, goals):
    compared = [figure for figure in figures if "hit_rate" not in figure]
    return [(*row[:4], row[-1]) for row in report.table_of(compared, goals)]


def print_table(about, figures, goals):
    runs, met = (report.columns([head, *rows]) for head, rows in (
        (HEAD, run_rows(figures)), (GOAL_HEAD, goal_rows(figures, goals))))
    print(*report.about_lines(about, figures), "", *runs, "", *met, "", report.summary(figures, goals), sep="\n")


# ---- The rows of README.md -----------------------------------------------------------


def best_of(runs, setting, policies):
    """The policy with the lowest median, and its figure."""
    name = min(policies, key=lambda policy: runs[(*setting, policy)]["value"])
    return name, runs[(*setting, name)]


def cell(figure):
    return f"{milliseconds(figure['value'])}, {percent(figure['hit_rate'])}"


def readme_row(runs, workload):
    setting = (workload, SHOWN_WORKERS, "open", "exact")
    blind, blind_figure = best_of(runs, setting, BLIND)
    aware, aware_figure = best_of(runs, setting, AWARE)
    cells = [WORKLOAD_WORDS[workload], f"{cell(blind_figure)} (`{blind}`)", cell(runs[(*setting, "kv")]),
             f"{cell(aware_figure)} (`{aware}`)"]
    for picture in ("late_1000ms", "lossy_10", "no_events"):
        cells.append(cell(runs[(workload, SHOWN_WORKERS, "open", picture, "kv")]))
    return "| " + " | ".join(cells) + " |"


def readme_table(figures):
    runs = runs_of(figures)
    return "\n".join((
        "| TTFT p50, blocks reused | best that ignores caches | `kv` | best cache-aware | `kv`, 1 s old | 10 % lost | no events |",
        "|---|---|---|---|---|---|---|", *(readme_row(runs, workload) for workload in WORKLOADS)))


# ---- Where it loses ------------------------------------------------------------------

LOSSES = (  # what, the field, is more better, in which loops: throughput is given in an open one
    ("TTFT p50 ms", "value", False, ("open", "closed")), ("p99 ms", "ttft_p99_ms", False, ("open", "closed")),
    ("requests/s", "requests_per_s", True, ("closed",)))
LOSS_HEAD = ("workload", "workers", "loop", "picture", "policy", "what", "figure", "best that ignores caches", "times worse")
LOSS_FROM = 1.05


def losses_of(figures):
    """Where a policy that uses caches is at least 5 % worse than the best that ignores them."""
    runs = runs_of(figures)
    rows = []
    for name, figure in runs.items():
        blind = {policy: runs[(*name[:4], policy)] for policy in BLIND if (*name[:4], policy) in runs}
        if name[4] in BLIND or not blind:
            continue
        for what, field, is_more_better, loops in LOSSES:
            best = (max if is_more_better else min)(blind, key=lambda policy: blind[policy][field])
            ours, theirs = figure[field], blind[best][field]
            worse = theirs / ours if is_more_better else ours / theirs
            if name[2] in loops and worse >= LOSS_FROM:
                rows.append((*name, what, number(ours), f"{number(theirs)} (`{best}`)", f"{worse:.2f}"))
    return rows


# ---- The picture -----------------------------------------------------------------------

WIDTH, MARGIN, COLUMN, GAP = 960, 20, 292, 22
LABEL, BAR, ROW = 104, 13, 19
PLOT_HEIGHT = 150
INK, FAINT, LINE = "#22292d", "#5d6970", "#d5dcdf"
COLOURS = {"kv": "#1f6f8b", "kv_weight_8": "#b4541f", "ttft": "#5b7f1f", "least_requests": "#8a8f93",
           "round_robin": "#3d4347"}
BAR_COLOURS = {True: "#1f6f8b", False: "#9fabb1"}


def text(x, y, words, size=12, fill=INK, anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def draw_bars(runs, workload, x, y):
    """Medians of all policies, as bars; the hit rate beside each."""
    setting = (workload, SHOWN_WORKERS, "open", "exact")
    shown = [(policy, runs[(*setting, policy)]) for policy in (*BLIND, *AWARE) if (*setting, policy) in runs]
    longest = max((figure["value"] for _, figure in shown), default=1)
    drawn = []
    for policy, figure in shown:
        width = max(1.0, (COLUMN - LABEL - 98) * figure["value"] / longest)
        drawn += [
            text(x + LABEL - 6, y + BAR - 2, policy, 11, INK if policy in AWARE else FAINT, "end"),
            f'<rect x="{x + LABEL:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" fill="{BAR_COLOURS[policy in AWARE]}"/>',
            text(x + LABEL + width + 5, y + BAR - 2, f"{milliseconds(figure['value'])}, {percent(figure['hit_rate'])}", 11)]
        y += ROW
    return drawn, y


def apart(labels, distance):
    """Shifts labels vertically so that none covers another."""
    placed = []
    for height, label in sorted(labels):
        placed.append((max(height, placed[-1][0] + distance) if placed else height, label))
    return placed


def draw_lines(runs, workload, x, y):
    """The same medians by delay and loss of events, on a logarithmic scale."""
    series = {policy: [runs[(workload, SHOWN_WORKERS, "open", picture, policy)]["value"] for picture in PICTURES]
              for policy in COLOURS if all((workload, SHOWN_WORKERS, "open", picture, policy) in runs for picture in PICTURES)}
    if not series:
        return [], y
    values = [max(value, 1) for line in series.values() for value in line]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    left, right = x + 38, x + COLUMN - 88

    def at(i, value):
        return (left + (right - left) * i / (len(PICTURES) - 1),
                y + PLOT_HEIGHT * (high - math.log10(max(value, 1))) / (high - low))

    drawn = []
    for tick in (step * 10 ** power for power in range(0, 7) for step in (1, 2, 5)):
        if low <= math.log10(tick) <= high:
            height = at(0, tick)[1]
            drawn += [f'<line x1="{left:.1f}" y1="{height:.1f}" x2="{right:.1f}" y2="{height:.1f}" stroke="{LINE}"/>',
                      text(left - 5, height + 4, milliseconds(tick), 10, FAINT, "end")]
    for i, picture in enumerate(PICTURES):
        drawn.append(f'<g transform="translate({at(i, 1)[0]:.1f},{y + PLOT_HEIGHT + 12:.1f}) rotate(28)">'
                     + text(0, 0, PICTURE_WORDS[picture], 10, FAINT) + "</g>")
    labels = []
    for policy, line in series.items():
        points = [at(i, value) for i, value in enumerate(line)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        dashes = ' stroke-dasharray="4 3"' if policy in BLIND else ""
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[policy]}" stroke-width="2"{dashes}/>')
        drawn += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{COLOURS[policy]}"/>' for a, b in points]
        labels.append((points[-1][1], policy))
    drawn += [text(right + 7, height + 4, policy, 10.5, COLOURS[policy]) for height, policy in apart(labels, 12)]
    return drawn, y + PLOT_HEIGHT + 46


def draw(_about, figures):
    runs = runs_of(figures)
    y = MARGIN + 16
    drawn = [text(MARGIN, y, f"Median time to first token and share of blocks reused: {SHOWN_WORKERS} simulated workers at 75 % "
                  "load, exact picture", 13.5, weight="bold")]
    y += 26
    ends = []
    for i, workload in enumerate(WORKLOADS):
        x = MARGIN + i * (COLUMN + GAP)
        drawn.append(text(x, y, WORKLOAD_WORDS[workload], 12.5, weight="bold"))
        bars, end = draw_bars(runs, workload, x, y + 10)
        drawn += bars
        ends.append(end)
    y = max(ends) + 26
    drawn.append(text(MARGIN, y, "The same median when the router's picture is old or lossy, or there is none (logarithmic)", 13.5, weight="bold"))
    y += 18
    ends = []
    for i, workload in enumerate(WORKLOADS):
        lines, end = draw_lines(runs, workload, MARGIN + i * (COLUMN + GAP), y)
        drawn += lines
        ends.append(end)
    height = max(ends) + 6
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="system-ui, sans-serif">',
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8" fill="#ffffff" stroke="{LINE}"/>',
        *drawn, "</svg>", ""])


# ---- Publishing ----------------------------------------------------------------------------


def markdown_table(head, rows):
    return ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]


def markdown(figures, goals):
    lines = ["# What cache-aware routing is worth", "",
             "Written by `tests/bench/run --only worth --publish`; [how it is simulated](worth/README.md). TTFT: time to first "
             "token. Every run is virtual time, so the figures depend on no machine. `tests/bench/run --only worth --from "
             "tests/bench/worth.jsonl` prints all of them."]
    losses = losses_of(figures)
    lines += ["", "## Where it loses", "", f"{len(losses)} figures of policies that know of caches are worse than the best of a "
              "policy that does not by 5 % or more.", "", *markdown_table(LOSS_HEAD, losses)]
    met = [(f"`{row[0]}`", *row[1:]) for row in goal_rows(figures, goals)]
    lines += ["", "## Goals", "", report.summary(figures, goals) + ".", "", *markdown_table(GOAL_HEAD, met)]
    return "\n".join(lines) + "\n"


def publish(tree, about, figures, goals):
    """Writes nothing when a run that the table names is missing."""
    top, folder = pathlib.Path(tree) / "README.md", pathlib.Path(tree) / "tests/bench"
    try:
        table = readme_table(figures)
    except KeyError as error:
        raise ValueError(f"{'.'.join(error.args[0])} was not measured: the published figures are of a whole run") from None
    page = documents.put_between(top, table, BEGIN, END)
    report.save(folder / "worth.jsonl", about, figures)
    (folder / "worth.md").write_text(markdown(figures, goals))
    (folder / "worth.svg").write_text(draw(about, figures))
    top.write_text(page)
