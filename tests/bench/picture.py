"""Draws the figures of one run as SVG: throughput and latency, with those of others next to ours.
Drawing needs only text, and viewing only a browser."""

import dataclasses
import html

from report import number


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    rows: tuple  # (name of the figure, label)


PANELS = (
    Panel("Index: a fleet replayed, one thread; longer is better", (
        ("index.conversation.128", "128 workers"),
        ("index.conversation.1000", "1,000 workers"),
        ("index.events.128", "128 workers, events only"),
        ("index.own_names.128", "128 workers, names of their own"))),
    Panel("Index: one query; shorter is better", (
        ("index.query.p50", "128 workers, p50"),
        ("index.query.p99", "128 workers, p99"),
        ("index.query.1000.p50", "1,000 workers, p50"),
        ("index.query.1000.p99", "1,000 workers, p99"),
        ("index.query.10000.p50", "10,000 workers, p50"),
        ("index.deep.p50", "6,250 blocks, p50"),
        ("index.staircase.p50", "999 depths, p50"))),
    Panel("Bridge: engine to subscriber; longer is better", (
        ("relay.protobuf.1block", "protobuf, 1 block"),
        ("relay.protobuf.8block", "protobuf, 8 blocks"),
        ("relay.json.1block", "json, 1 block"),
        ("relay.json.8block", "json, 8 blocks"))),
    Panel("Bridge: engine to subscriber, 10,000 batches/s; shorter is better", (
        ("relay.latency.p50", "p50"),
        ("relay.latency.p99", "p99"))),
    Panel("Aggregator: a query of 64 blocks, 100,000 block operations/s arriving; shorter is better", (
        ("query.http.p50", "HTTP, p50"),
        ("query.http.p99", "HTTP, p99"),
        ("query.nats.p50", "NATS, p50"),
        ("query.nats.p99", "NATS, p99"))),
)

WIDTH, LEFT, BAR_WIDTH = 900, 250, 430
BAR, GAP, ROW_GAP, TITLE, MARGIN = 15, 3, 9, 34, 20
OURS, OTHERS, INK, FAINT = "#1f6f8b", "#b9c4c9", "#22292d", "#68757c"


def bars_of(name, label, figures):
    """[(label, value, unit, is ours)] of one figure and all figures that it is compared with."""
    by_name = {figure["name"]: figure for figure in figures}
    if name not in by_name:
        return []
    own = by_name[name]
    beside = next((figure for figure in figures if figure["name"].startswith(name + ".vs_")), own)
    bars, seen = [(label, beside["value"], own["unit"], True)], set()  # measured in turns with the others
    for figure in figures:
        if figure["against"] and (figure["name"] == name or figure["name"].startswith(name + ".vs_")):
            if figure["against"] not in seen:
                seen.add(figure["against"])
                bars.append((figure["against"], figure["against_value"], own["unit"], False))
    return bars


def text(x, y, words, size=13, fill=INK, anchor="start", weight="normal"):
    return (f'<text x="{x}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def draw_bar(bar, y, longest):
    label, value, unit, is_ours = bar
    width = max(1.0, BAR_WIDTH * value / longest) if longest else 1.0
    middle = y + BAR - 3
    return [
        text(LEFT - 10, middle, label, fill=INK if is_ours else FAINT, anchor="end"),
        f'<rect x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" fill="{OURS if is_ours else OTHERS}"/>',
        text(round(LEFT + width + 7, 1), middle, f"{number(value)} {unit}", fill=INK if is_ours else FAINT),
    ]


def draw_panel(panel, figures, y):
    """Returns the drawing and the height where the next one begins; nothing when there is no
    figure."""
    rows = [bars for bars in (bars_of(name, label, figures) for name, label in panel.rows) if bars]
    if not rows:
        return [], y
    longest = max(value for bars in rows for _, value, _, _ in bars)
    drawn = [text(MARGIN, y + 18, panel.title, size=15, weight="bold")]
    y += TITLE
    for bars in rows:
        for bar in bars:
            drawn += draw_bar(bar, y, longest)
            y += BAR + GAP
        y += ROW_GAP
    return drawn, y + ROW_GAP


def draw(about, figures):
    drawn, y = [], MARGIN
    for panel in PANELS:
        more, y = draw_panel(panel, figures, y)
        drawn += more
    for line in (f"{key}: {value}" for key, value in about.items()):
        drawn.append(text(MARGIN, y + 12, line, size=11, fill=FAINT))
        y += 16
    height = y + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="#ffffff"/>',
        *drawn, "</svg>", ""])
