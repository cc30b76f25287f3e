"""Panels of a figure for a page: inline SVG with tool tips, and HTML where the panel is a table.

Everything is there without JavaScript: series are switched by check boxes and the style sheet, and each chart has its
numbers as a table. The script adds tool tips for mouse, touch and keyboard.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from excise.evals.figure import Bars, Estimate, Heat, Panel, Plot, Point, Series, Split, Table
from excise.report.html import join
from excise.report.numbers import estimate, linear_ticks, log_ticks, number, tick_labels
from excise.report.style import colour_of
from excise.report.tables import heat_table, html_row, html_table, plain_table, split_table

WIDTH, HEIGHT = 420.0, 300.0
"""Of a chart in its own units, which are pixels at the width of a phone."""
CHARACTER, LINE = 7.2, 15.0
"""Room for a letter, and for a line of text."""
MOST_POINTS = 60
"""Of a line without markers that have a tool tip and a row in the table."""
MOST_LABELS = 12
"""Texts beside the points of a plot."""
BAR, BAR_GAP, GROUP_GAP = 13.0, 4.0, 12.0
MARKERS = {
    "o": '<circle r="4"/>',
    "s": '<path d="M-3.7-3.7h7.4v7.4h-7.4z"/>',
    "^": '<path d="M0-5 4.7 3.6h-9.4z"/>',
    "v": '<path d="M0 5 4.7-3.6h-9.4z"/>',
    "<": '<path d="M-5 0 3.6-4.7v9.4z"/>',
    ">": '<path d="M5 0-3.6-4.7v9.4z"/>',
    "D": '<path d="M0-5.2 5.2 0 0 5.2-5.2 0z"/>',
    "P": '<path d="M-1.7-5h3.4v3.3H5v3.4H1.7V5h-3.4V1.7H-5v-3.4h3.3z"/>',
    "X": '<path d="M-4.8-2.4-2.4-4.8 0-2.4 2.4-4.8 4.8-2.4 2.4 0 4.8 2.4 2.4 4.8 0 2.4-2.4 4.8-4.8 2.4-2.4 0z"/>',
    "p": '<path d="M0-4.9 4.7-1.5 2.9 4h-5.8l-1.8-5.5z"/>',
    "h": '<path d="M0-4.9 4.2-2.4v4.9L0 4.9-4.2 2.4v-4.9z"/>',
    "d": '<path d="M0-5.6 3.2 0 0 5.6-3.2 0z"/>',
    "*": '<path d="M0-8.5 2-2.7l6.1.1-4.9 3.6 1.8 5.9L0 3.4l-5 3.5 1.8-5.9-4.9-3.6 6.1-.1z"/>',
    "": "",
}
NAMES = {marker: f"m{i}" for i, marker in enumerate(MARKERS)}
SYMBOLS = (
    '<svg width="0" height="0" style="position: absolute" aria-hidden="true"><defs>'
    + "".join(f'<g id="{NAMES[marker]}">{shape}</g>' for marker, shape in MARKERS.items())
    + "</defs></svg>\n"
)


@dataclass(frozen=True)
class Entry:
    """A series of a figure as its legend has it."""

    index: int
    method: str
    label: str
    marker: str
    variant: int
    """0 for the first label of a method; the others of the same colour are dashed and hollow."""

    @property
    def attributes(self) -> str:
        return f'class="s s{self.index} v{self.variant % 4}" style="--c: var({colour_of(self.method)})"'


Legend = Mapping[tuple[str, str], Entry]
"""By method and label."""


def legend_of(panels: Sequence[Panel], markers: Mapping[str, str]) -> dict[tuple[str, str], Entry]:
    """The series of all panels of a figure, each once; a marker that is drawn nowhere is not in the legend either."""
    keys = [key for panel in panels for key in _keys(panel)]
    marked = {key[:2] for key in keys if key[2]}
    found: dict[tuple[str, str], Entry] = {}
    for method, label, _ in keys:
        variant = sum(other == method for other, _ in found)
        marker = markers[method] if (method, label) in marked else ""
        found.setdefault((method, label), Entry(len(found), method, label, marker, variant))
    return found


def _keys(panel: Panel) -> list[tuple[str, str, bool]]:
    """Method, label and whether it has markers, of each series."""
    if isinstance(panel, Plot):
        return [(series.method, series.label, series.markers) for series in panel.series]
    return [(*key, True) for key in panel.labels.items()] if isinstance(panel, Bars) else []


def methods_in(panels: Iterable[Panel]) -> set[str]:
    return {method for panel in panels for method, _, _ in _keys(panel)}


def draw_legend(legend: Legend) -> str:
    """Check boxes that show and hide a series in all panels of a figure."""
    if not legend:
        return ""
    return f'<fieldset class="legend"><legend class="hidden">Series shown</legend>\n{join(map(_key, legend.values()))}</fieldset>\n'


def _key(entry: Entry) -> str:
    mark = f'<path class="line" d="M2 8H32"/><use href="#{NAMES[entry.marker]}" x="17" y="8"/>'
    key = f'<svg class="key" viewBox="0 0 34 16" aria-hidden="true"><g {entry.attributes}>{mark}</g></svg>'
    box = f'<input type="checkbox" class="k{entry.index}" checked autocomplete="off">'
    return f"<label>{box}{key}<span>{escape(entry.label)}</span></label>"


NARROW = '<div class="panel">'
"""How a panel begins that takes half of a row."""


def draw_panel(panel: Panel, legend: Legend) -> str:
    """A panel with its title; tables take the whole width of a figure."""
    content = PANELS[panel.kind](panel, legend)
    wide = isinstance(panel, Table | Split) or (isinstance(panel, Heat) and len(panel.columns) > 6)
    title = f"<h3>{escape(panel.title)}</h3>\n" if panel.title else ""
    start = '<div class="panel wide">' if wide else NARROW
    return f"{start}\n{title}{content}</div>\n"


@dataclass(frozen=True)
class Axis:
    """Numbers and where they lie."""

    low: float
    high: float
    log: bool
    start: float
    end: float

    def at(self, value: float) -> float:
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, max(value, self.least)))
        return self.start + (self.end - self.start) * (here - low) / (high - low)

    @property
    def least(self) -> float:
        return self.low if self.log else -math.inf

    @property
    def ticks(self) -> list[tuple[float, str]]:
        ticks = log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)
        return [(self.at(tick), label) for tick, label in zip(ticks, tick_labels(ticks, self.log), strict=True)]


def limits(values: Iterable[float], log: bool, margin: float = 0.06) -> tuple[float, float]:
    """The ends of an axis with some room beyond the values."""
    drawn = [math.log(value) if log else value for value in values if value > 0 or not log] or [0.0]
    low, high = min(drawn), max(drawn)
    room = (high - low) * margin or abs(high) * 0.1 or 1.0
    return (math.exp(low - room), math.exp(high + room)) if log else (low - room, high + room)


def ends(of: Estimate) -> list[float]:
    return [of.value, *(end for end in (of.low, of.high) if end is not None)]


def drawable(panel: Plot, point: Point) -> bool:
    return (point.x.value > 0 or not panel.x_log) and (point.y.value > 0 or not panel.y_log)


def limits_of(panel: Plot) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ends of both axes of a plot, with room for intervals and levels."""
    points = [point for series in panel.series for point in series.points if drawable(panel, point)]
    heights = [*(value for point in points for value in ends(point.y)), *panel.levels.values()]
    widths = [value for point in points for value in ends(point.x)]
    return limits(widths, panel.x_log), limits(heights, panel.y_log)


def _plot(panel: Plot, legend: Legend) -> str:
    x_limits, y_limits = limits_of(panel)
    y = Axis(*y_limits, panel.y_log, HEIGHT - 22, 8)
    left = 10 + CHARACTER * max((len(label) for _, label in y.ticks), default=0)
    x = Axis(*x_limits, panel.x_log, left, WIDTH - 8)
    drawn = "".join(_series(panel, series, legend[series.method, series.label], x, y) for series in panel.series)
    taken = _ink(panel, x, y)
    inside = _grid(x, y) + drawn + _levels(panel.levels, x, y, taken) + _point_labels(panel, legend, x, y, taken)
    missing = sum(not drawable(panel, point) for series in panel.series for point in series.points)
    note = f'<p class="quiet">{missing} points at or below 0 cannot be drawn on this axis.</p>\n' if missing else ""
    return (
        f'<p class="axis">↑ {escape(panel.y_label)}</p>\n'
        + _svg(inside, HEIGHT, _plot_in_words(panel), panel.x_label, panel.y_label)
        + f'<p class="axis right">{escape(panel.x_label)} →</p>\n{note}'
        + _numbers(_plot_table(panel))
    )


def _svg(inside: str, height: float, words: str, x_label: str = "", y_label: str = "") -> str:
    labels = f'data-x="{escape(_short(x_label))}" data-y="{escape(_short(y_label))}"'
    start = (
        f'<div class="chart"><svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(words)}" {labels}>'
    )
    return f"{start}\n{inside}</svg></div>\n"


def _short(label: str) -> str:
    """An axis label without its explanation, for a tool tip."""
    return re.sub(r"\s*\([^)]{12,}\)", "", label)


def _plot_in_words(panel: Plot) -> str:
    def in_words(series: Series) -> str:
        ends = [f"{number(p.x.value)}, {number(p.y.value)}" for p in series.points[:: max(1, len(series.points) - 1)]]
        return f"{series.label} from {' to '.join(ends[:2])}"

    lines = "; ".join(in_words(series) for series in panel.series if series.points)
    return f"{panel.title}. {panel.y_label} over {panel.x_label}: {lines}."


def _grid(x: Axis, y: Axis) -> str:
    rows = "".join(
        f'<path class="grid" d="M{x.start:.0f} {at:.1f}H{x.end:.0f}"/><text x="{x.start - 6:.0f}" y="{at + 4:.1f}" class="end">{label}</text>'
        for at, label in y.ticks
    )
    columns = "".join(
        f'<path class="tick" d="M{at:.1f} {y.start:.0f}v4"/><text x="{at:.1f}" y="{y.start + 17:.0f}" class="middle">{label}</text>'
        for at, label in _apart(x.ticks)
    )
    return f'<g class="axes">{rows}{columns}<path class="base" d="M{x.start:.0f} {y.start:.0f}H{x.end:.0f}"/></g>\n'


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The ticks whose labels fit between their neighbours and the edge."""
    kept: list[tuple[float, str]] = []
    for at, label in ticks:
        half = CHARACTER * len(label) / 2
        if at + half <= WIDTH and (not kept or at - half > kept[-1][0] + CHARACTER * len(kept[-1][1]) / 2 + 6):
            kept.append((at, label))
    return kept


Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def _ink(panel: Plot, x: Axis, y: Axis) -> list[Box]:
    """Where markers and lines are, so that no text covers them."""
    taken = []
    for series in panel.series:
        places = [(x.at(p.x.value), y.at(p.y.value)) for p in series.points if drawable(panel, p)]
        taken += [(a - 5, b - 5, a + 5, b + 5) for a, b in (_between(places) if series.line else places)]
    return taken


def _between(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places along the line through these, no more than a marker apart."""
    found = list(places)
    for (a, b), (c, d) in pairwise(places):
        n = int(max(abs(c - a), abs(d - b)) / 8)
        found += [(a + (c - a) * i / (n + 1), b + (d - b) * i / (n + 1)) for i in range(1, n + 1)]
    return found


def _covered(box: Box, taken: Iterable[Box], x: Axis, y: Axis) -> int:
    """How much a text in this box would cover; anything outside the axes counts for much."""
    outside = box[0] < x.start or box[2] > WIDTH or box[1] < y.end - 8 or box[3] > y.start
    return 1000 * outside + sum(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
    )


def _levels(levels: Mapping[str, float], x: Axis, y: Axis, taken: list[Box]) -> str:
    """Dashed lines with their names beside them, where these cover least."""
    drawn = "".join(f'<path class="level" d="M{x.start:.0f} {y.at(v):.1f}H{x.end:.0f}"/>' for v in levels.values())
    names: list[Box] = []
    for name, level in levels.items():
        words = f"{name} {number(level)}"
        wide, at = CHARACTER * len(words), y.at(level)
        lefts = [x.end - wide, x.start + 4, *(x.start + 4 + (x.end - x.start - wide) * i / 6 for i in range(1, 6))]
        tops = [at - LINE - 1, at + 2, at - 2 * LINE, at + LINE]
        boxes = [(left, top, left + wide, top + LINE) for top in tops for left in lefts]
        box = min(boxes, key=lambda box: _covered(box, [*taken, *50 * names], x, y))
        names.append(box)
        anchor = f'class="halo end" x="{box[2]:.1f}"' if box[0] == lefts[0] else f'class="halo" x="{box[0]:.1f}"'
        drawn += f'<text {anchor} y="{box[1] + 11:.1f}">{escape(words)}</text>'
    taken += names
    return f'<g class="levels">{drawn}</g>\n' if drawn else ""


def _point_labels(panel: Plot, legend: Legend, x: Axis, y: Axis, taken: list[Box]) -> str:
    """Short texts beside their points, where they are few and cover nothing; the others are in the tool tips."""
    asked = [(s, p) for s in panel.series if s.markers for p in reversed(s.points) if p.text and drawable(panel, p)]
    drawn = ""
    for series, point in asked if len(asked) <= MOST_LABELS else ():
        a, b, wide = x.at(point.x.value), y.at(point.y.value), CHARACTER * len(point.text)
        lefts = {a + 8: (-8, -18, 4), a - 8 - wide: (-8, -18, 4), a - wide / 2: (-23, 9)}
        boxes = [(left, b + down, left + wide, b + down + 14) for left, downs in lefts.items() for down in downs]
        box = min(boxes, key=lambda box: _covered(box, taken, x, y))
        if not _covered(box, taken, x, y):
            taken.append(box)
            index = legend[series.method, series.label].index
            drawn += f'<text class="halo s{index}" x="{box[0]:.1f}" y="{box[1] + 11:.1f}">{escape(point.text)}</text>'
    return drawn


def is_banded(series: Series, points: Sequence[Point]) -> bool:
    """Whether intervals are a band: they are where a line has one everywhere, and whiskers elsewhere."""
    return series.line and len(points) > 2 and all(p.y.low is not None and p.y.high is not None for p in points)


def _series(panel: Plot, series: Series, entry: Entry, x: Axis, y: Axis) -> str:
    points = [point for point in series.points if drawable(panel, point)]
    if not points:
        return ""
    banded = is_banded(series, points)
    whiskers = _whiskers([Point(p.x, Estimate(p.y.value)) if banded else p for p in points], x, y)
    intervals = (_band(points, x, y) if banded else "") + whiskers
    line = f'<path class="line" d="M{_way([(p.x.value, p.y.value) for p in points], x, y)}"/>' if series.line else ""
    shown = points if series.markers else points[:: math.ceil(len(points) / MOST_POINTS)]
    marks = [entry.marker if series.markers else "" for _ in shown]
    marks[-1] = "*" if series.star else marks[-1]
    uses = "".join(_use(mark, x.at(p.x.value), y.at(p.y.value), _tip(p)) for mark, p in zip(marks, shown, strict=True))
    return f'<g {entry.attributes} data-l="{escape(series.label)}">{intervals}{line}{uses}</g>\n'


def _tip(point: Point) -> tuple[str, str, str]:
    return " ".join(point.text.split()), estimate(point.x), estimate(point.y)


def _use(marker: str, x: float, y: float, tip: Sequence[str]) -> str:
    return f'<use href="#{NAMES[marker]}" x="{x:.1f}" y="{y:.1f}" data-t="{"&#10;".join(map(escape, tip))}"/>'


def _way(places: Iterable[tuple[float, float]], x: Axis, y: Axis) -> str:
    return "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in places)


def _band(points: Sequence[Point], x: Axis, y: Axis) -> str:
    low = [(p.x.value, p.y.low) for p in points if p.y.low is not None]
    high = [(p.x.value, p.y.high) for p in reversed(points) if p.y.high is not None]
    return f'<path class="band" d="M{_way([*low, *high], x, y)}z"/>'


def _whiskers(points: Sequence[Point], x: Axis, y: Axis) -> str:
    steps = []
    for p in points:
        here, there = x.at(p.x.value), y.at(p.y.value)
        if len(of := ends(p.y)) > 1:
            steps.append(f"M{here:.1f} {y.at(min(of)):.1f}V{y.at(max(of)):.1f}")
        if len(of := ends(p.x)) > 1:
            steps.append(f"M{x.at(min(of)):.1f} {there:.1f}H{x.at(max(of)):.1f}")
    return f'<path class="whisker" d="{"".join(steps)}"/>' if steps else ""


def _bars(panel: Bars, legend: Legend) -> str:
    """Bars that lie, so that their names can be long and a phone is wide enough."""
    found = [value for bars in panel.bars.values() for one in bars if one for value in ends(one)]
    low, high = min([0.0, *found]), max([0.0, *found])
    room = ((high - low) or 1.0) * 0.13
    x = Axis(low - (room if low < 0 else 0), high + room, False, 22, WIDTH - 8)
    drawn, top = _groups(panel, legend, x)
    axis = f'<path class="base" d="M{x.at(0):.1f} 4V{top:.0f}"/>' + "".join(
        f'<path class="grid" d="M{at:.1f} 4V{top:.0f}"/><text class="middle" x="{at:.1f}" y="{top + 14:.0f}">{label}</text>'
        for at, label in _apart(x.ticks)
    )
    words = f"{panel.title}. {panel.y_label}: " + "; ".join(_bars_in_words(panel))
    return (
        _svg(f'<g class="axes">{axis}</g>{drawn}', top + 20, words, "", panel.y_label)
        + f'<p class="axis right">{escape(panel.y_label)} →</p>\n'
        + _numbers(_bars_table(panel))
    )


def _groups(panel: Bars, legend: Legend, x: Axis) -> tuple[str, float]:
    """All bars under the names of their groups, and how far down they reach."""
    top, drawn = 6.0, ""
    for i, group in enumerate(panel.groups):
        for line in _lines(group):
            top += LINE
            drawn += f'<text class="group halo" x="0" y="{top:.0f}">{escape(line)}</text>'
        top += 7
        for method, label in panel.labels.items():
            drawn += _bar(panel.bars[method][i], legend[method, label], group, x, top)
            top += BAR + BAR_GAP
        top += GROUP_GAP
    return drawn, top


def _bar(of: Estimate | None, entry: Entry, group: str, x: Axis, top: float) -> str:
    middle, zero = top + BAR / 2, x.at(0)
    mark = f'<use href="#{NAMES[entry.marker]}" x="9" y="{middle:.1f}"/>'
    if of is None:
        inside = f'{mark}<text x="{zero + 6:.1f}" y="{middle + 4:.1f}">not measured</text>'
        return f'<g {entry.attributes} data-l="{escape(entry.label)}">{inside}</g>\n'
    at, low, high = (x.at(v) for v in (of.value, min(ends(of)), max(ends(of))))
    bar = f'<rect x="{min(at, zero):.1f}" y="{top:.1f}" width="{max(abs(at - zero), 0.8):.1f}" height="{BAR:g}"/>'
    whisker = f'<path class="whisker over" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>' if high > low else ""
    side = f'x="{low - 5:.1f}" class="value end"' if of.value < 0 else f'x="{high + 5:.1f}" class="value"'
    value = f'<text {side} y="{middle + 4:.1f}">{estimate(of).split(" [")[0]}</text>'
    inside = mark + bar + whisker + value + _use("", at, middle, (group, "", estimate(of)))
    return f'<g {entry.attributes} data-l="{escape(entry.label)}">{inside}</g>\n'


def _lines(text: str) -> list[str]:
    """A text in lines that fit the width of a chart."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], joined] if len(joined) * CHARACTER * 1.1 <= WIDTH else [*lines, word]
    return lines


def _bars_in_words(panel: Bars) -> list[str]:
    return [
        f"{label}, {group}: {number(of.value) if of else 'not measured'}"
        for method, label in panel.labels.items()
        for group, of in zip(panel.groups, panel.bars[method], strict=True)
    ]


def _numbers(table: str) -> str:
    return f"<details><summary>The numbers</summary>\n{table}</details>\n"


def _plot_table(panel: Plot) -> str:
    texts = any(point.text for series in panel.series for point in series.points)
    rows = []
    for series in panel.series:
        thin = 1 if series.markers else math.ceil(len(series.points) / MOST_POINTS)
        name = escape(series.label) + (f" (1 point of {thin})" if thin > 1 else "")
        for point in series.points[::thin]:
            cells = [estimate(point.x), estimate(point.y)]
            rows.append(html_row(name, [escape(point.text), *cells] if texts else cells))
    head = ["Series", *(["Point"] if texts else []), panel.x_label, panel.y_label]
    return html_table(head, rows, f"Numbers of {panel.title}")


def _bars_table(panel: Bars) -> str:
    def row(i: int, group: str) -> str:
        found = [panel.bars[method][i] for method in panel.labels]
        return html_row(escape(group), [estimate(of) if of else "–" for of in found])

    rows = (row(i, group) for i, group in enumerate(panel.groups))
    return html_table(["", *panel.labels.values()], rows, f"Numbers of {panel.title}")


PANELS: Mapping[str, Callable[[Any, Legend], str]] = {
    "plot": _plot,
    "bars": _bars,
    "heat": lambda panel, _: heat_table(panel),
    "table": lambda panel, _: plain_table(panel),
    "split": lambda panel, _: split_table(panel),
}

SCRIPT = """<script>
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.firstElementChild, tip = document.createElement("div");
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  let shown = null;
  tip.className = "tip"; tip.setAttribute("role", "status"); tip.hidden = true; chart.append(tip);
  ring.setAttribute("class", "ring"); ring.setAttribute("r", 9); ring.style.display = "none"; svg.append(ring);
  svg.setAttribute("tabindex", "0");
  const points = () => [...svg.querySelectorAll("[data-t]")].filter(p => getComputedStyle(p.parentNode).display !== "none");
  const place = p => [+p.getAttribute("x"), +p.getAttribute("y")];
  const hide = () => { shown = null; tip.hidden = true; ring.style.display = "none"; };
  const show = p => {
    if (!p || p === shown) return;
    shown = p;
    const [text, x, y] = p.dataset.t.split("\\n"), name = document.createElement("b"), scale = svg.clientWidth / svg.viewBox.baseVal.width;
    name.textContent = p.parentNode.dataset.l;
    const lines = [text, x && `${svg.dataset.x}: ${x}`, `${svg.dataset.y}: ${y}`].filter(Boolean);
    tip.replaceChildren(name, ...lines.map(line => Object.assign(document.createElement("div"), {textContent: line})));
    tip.hidden = false; ring.style.display = "";
    const [left, top] = place(p), room = chart.clientWidth - tip.offsetWidth;
    ring.setAttribute("cx", left); ring.setAttribute("cy", top);
    const above = top * scale - tip.offsetHeight - 14;
    tip.style.left = Math.max(0, Math.min(left * scale - tip.offsetWidth / 2, room)) + "px";
    tip.style.top = (above < -30 ? top * scale + 14 : above) + "px";
  };
  const follow = event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const far = p => Math.hypot(place(p)[0] - (event.clientX - box.left) * scale, place(p)[1] - (event.clientY - box.top) * scale);
    const near = points().reduce((best, p) => !best || far(p) < far(best) ? p : best, null);
    near && far(near) < 40 ? show(near) : hide();
  };
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(points()[0]); });
  svg.addEventListener("keydown", event => {
    const all = points(), here = Math.max(0, all.indexOf(shown)), series = [...new Set(all.map(p => p.parentNode))];
    const inside = group => [...group.querySelectorAll("[data-t]")];
    const turn = by => {
      const group = all[here].parentNode, other = inside(series[(series.indexOf(group) + by + series.length) % series.length]);
      return other[Math.min(inside(group).indexOf(all[here]), other.length - 1)];
    };
    const keys = {ArrowRight: () => all[Math.min(here + 1, all.length - 1)], ArrowLeft: () => all[Math.max(here - 1, 0)],
      ArrowDown: () => turn(1), ArrowUp: () => turn(-1), Home: () => all[0], End: () => all[all.length - 1]};
    if (event.key === "Escape") hide();
    else if (keys[event.key] && all.length) { event.preventDefault(); show(keys[event.key]()); }
  });
}
</script>
"""
