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
from textwrap import wrap
from typing import Any

from excise.evals.figure import Bars, Estimate, Heat, Panel, Plot, Point, Series, Split, Table
from excise.report.html import join
from excise.report.numbers import decimals_of, estimate, number
from excise.report.placement import (
    Axis,
    Frame,
    Text,
    bar_limits,
    cut_off,
    drawable,
    ends,
    is_banded,
    limits_of,
    place_texts,
)
from excise.report.style import colour_of
from excise.report.tables import heat_table, html_row, html_table, plain_table, split_table


@dataclass(frozen=True)
class Sheet:
    """The size of a chart and the room for a letter and for a line of text, in units of its own."""

    width: float
    height: float
    letter: float
    line: float


HALF, WHOLE = Sheet(420.0, 300.0, 7.2, 15.0), Sheet(540.0, 340.0, 8.4, 17.5)
"""For half of the width of a figure, and for all of it; letters are large enough for both on a phone."""
MOST_POINTS = 60
"""Of a line without markers that have a tool tip and a row in the table."""
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
    dashed: bool = False
    """Whatever the variant."""

    @property
    def attributes(self) -> str:
        dashed = " dashed" if self.dashed else ""
        return f'class="s s{self.index} v{self.variant % 4}{dashed}" style="--c: var({colour_of(self.method)})"'


Legend = Mapping[tuple[str, str], Entry]
"""By method and label."""


def legend_of(panels: Sequence[Panel], markers: Mapping[str, str]) -> dict[tuple[str, str], Entry]:
    """The series of all panels of a figure, each once; a marker that is drawn nowhere is not in the legend either."""
    series = [one for panel in panels for one in _series_in(panel)]
    marked = {(one.method, one.label) for one in series if one.markers}
    found: dict[tuple[str, str], Entry] = {}
    for one in series:
        key = one.method, one.label
        variant = sum((other.method, other.dashed) == (one.method, one.dashed) for other in found.values())
        marker = markers[one.method] if key in marked else ""
        found.setdefault(key, Entry(len(found), *key, marker, variant, one.dashed))
    return found


def _series_in(panel: Panel) -> Sequence[Series]:
    """Those of a plot; bars count as series without points."""
    if isinstance(panel, Plot):
        return panel.series
    return [Series(method, label, ()) for method, label in panel.labels.items()] if isinstance(panel, Bars) else []


def methods_in(panels: Iterable[Panel]) -> set[str]:
    return {series.method for panel in panels for series in _series_in(panel)}


def draw_legend(legend: Legend) -> str:
    """Check boxes that show and hide a series in all panels of a figure."""
    if not legend:
        return ""
    return f'<fieldset class="legend"><legend class="hidden">Series shown</legend>\n{join(map(_key, legend.values()))}</fieldset>\n'


def _key(entry: Entry) -> str:
    mark = f'<path class="line" d="M2 8H42"/><use href="#{NAMES[entry.marker]}" x="22" y="8"/>'
    key = f'<svg class="key" viewBox="0 0 44 16" aria-hidden="true"><g {entry.attributes}>{mark}</g></svg>'
    box = f'<input type="checkbox" class="k{entry.index}" checked autocomplete="off">'
    return f"<label>{box}{key}<span>{escape(entry.label)}</span></label>"


def rows_of(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Two panels in a row; tables have one to themselves."""
    rows: list[list[Panel]] = []
    for panel in panels:
        if rows and len(rows[-1]) == 1 and not _is_wide(panel) and not _is_wide(rows[-1][0]):
            rows[-1].append(panel)
        else:
            rows.append([panel])
    return rows


def _is_wide(panel: Panel) -> bool:
    return isinstance(panel, Table | Split) or (isinstance(panel, Heat) and len(panel.columns) > 6)


def draw_panels(panels: Sequence[Panel], legend: Legend) -> str:
    """All panels of a figure, each with its title."""
    return "".join(_panel(panel, legend, alone=len(row) == 1) for row in rows_of(panels) for panel in row)


def _panel(panel: Panel, legend: Legend, alone: bool) -> str:
    """A panel that has its row to itself takes all of it, save bars and narrow heats, which stand in its middle."""
    if isinstance(panel, Plot):
        kind, content = "wide", _plot(panel, legend, WHOLE if alone else HALF)
    else:
        kind, content = "wide" if _is_wide(panel) else "alone", OTHERS[panel.kind](panel, legend)
    title = f"<h3>{escape(panel.title)}</h3>\n" if panel.title else ""
    return f'<div class="{f"panel {kind}" if alone else "panel"}">\n{title}{content}</div>\n'


def _plot(panel: Plot, legend: Legend, sheet: Sheet) -> str:
    frame = _frame(panel, sheet)
    texts = place_texts(panel, frame)
    names = _levels(panel, frame) + "".join(_text(text) for text in texts if text.series is None)
    drawn = [_series(panel, series, legend[series.method, series.label], frame) for series in panel.series]
    drawn += [_text(text, legend[text.series.method, text.series.label].index) for text in texts if text.series]
    missing = sum(not drawable(panel, point) for series in panel.series for point in series.points)
    note = f'<p class="quiet">{missing} points at or below 0 cannot be drawn on this axis.</p>\n' if missing else ""
    inside = f'{_grid(frame, sheet)}<g class="levels">{names}</g>\n{"".join(drawn)}'
    return (
        f'<p class="axis">↑ {escape(panel.y_label)}</p>\n'
        + _svg(inside, sheet.width, sheet.height, _plot_in_words(panel), panel.x_label, panel.y_label)
        + f'<p class="axis right">{escape(panel.x_label)} →</p>\n{note}'
        + _numbers(_plot_table(panel))
    )


def _frame(panel: Plot, sheet: Sheet) -> Frame:
    """Axes with room for what stands at their ticks."""
    x_limits, y_limits = limits_of(panel)
    longest = max((len(label) for _, label in Axis(*y_limits, panel.y_log, 1, 0).ticks), default=0)
    x = Axis(*x_limits, panel.x_log, 10 + sheet.letter * longest, sheet.width - 8, panel.x_ticks)
    lines = max((len(lines) for _, lines in _tick_lines(x, sheet)), default=1)
    y = Axis(*y_limits, panel.y_log, sheet.height - 7 - sheet.line * lines, sheet.line / 2)
    return Frame(x, y, sheet.letter, sheet.line)


def _tick_lines(x: Axis, sheet: Sheet) -> list[tuple[float, list[str]]]:
    """The places of ticks and what stands there, names in as many lines as it takes to keep them apart."""
    ticks = [(x.at(value), label) for value, label in x.ticks]
    if not x.named:
        return [(at, [label]) for at, label in _apart(ticks, sheet)]
    places = sorted(at for at, _ in ticks)
    room = min([2 * places[0], 2 * (sheet.width - places[-1]), *(b - a for a, b in pairwise(places))])
    return [(at, wrap(label, max(1, int(room / sheet.letter)), break_long_words=False)) for at, label in ticks]


def _text(text: Text, index: int | None = None) -> str:
    kind = {"left": "", "center": " middle", "right": " end"}[text.side] + ("" if index is None else f" s{index}")
    x, y = text.place
    return f'<text class="halo{kind}" x="{x:.1f}" y="{y:.1f}" dy=".35em">{escape(text.words)}</text>'


def _svg(inside: str, width: float, height: float, words: str, x_label: str = "", y_label: str = "") -> str:
    labels = f'data-x="{escape(_short(x_label))}" data-y="{escape(_short(y_label))}"'
    start = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(words)}" {labels}>'
    return f'<div class="chart">{start}\n{inside}</svg></div>\n'


def _short(label: str) -> str:
    """An axis label without its explanation, for a tool tip."""
    return re.sub(r"\s*\([^)]{12,}\)", "", label)


def _plot_in_words(panel: Plot) -> str:
    def in_words(series: Series) -> str:
        ends = series.points[:: max(1, len(series.points) - 1)][:2]
        bare = [Point(Estimate(end.x.value), Estimate(end.y.value)) for end in ends]
        return f"{series.label} from {' to '.join(map(', '.join, _columns(panel, bare)))}"

    lines = "; ".join(in_words(series) for series in panel.series if series.points)
    return f"{panel.title}. {panel.y_label} over {panel.x_label}: {lines}."


def _grid(frame: Frame, sheet: Sheet) -> str:
    x, y = frame.x, frame.y
    rows = "".join(
        f'<path class="grid" d="M{x.start:.0f} {y.at(tick):.1f}H{x.end:.0f}"/>'
        f'<text x="{x.start - 6:.0f}" y="{y.at(tick):.1f}" dy=".35em" class="end">{label}</text>'
        for tick, label in y.ticks
    )
    columns = "".join(
        f'<path class="tick" d="M{at:.1f} {y.start:.0f}v4"/>'
        f'<text y="{y.start + 4 + sheet.line / 2:.0f}" class="middle">{_spans(lines, at)}</text>'
        for at, lines in _tick_lines(x, sheet)
    )
    return f'<g class="axes">{rows}{columns}<path class="base" d="M{x.start:.0f} {y.start:.0f}H{x.end:.0f}"/></g>\n'


def _spans(lines: Sequence[str], at: float) -> str:
    """Lines of text under one another, the first around its middle."""
    downs = (".35em", *("1.2em" for _ in lines[1:]))
    return " ".join(
        f'<tspan x="{at:.1f}" dy="{down}">{escape(line)}</tspan>' for line, down in zip(lines, downs, strict=True)
    )


def _apart(ticks: Sequence[tuple[float, str]], sheet: Sheet) -> list[tuple[float, str]]:
    """The ticks whose labels fit between their neighbours and the edge."""
    kept: list[tuple[float, str]] = []
    for at, label in ticks:
        half = sheet.letter * len(label) / 2
        if at + half <= sheet.width and (not kept or at - half > kept[-1][0] + sheet.letter * len(kept[-1][1]) / 2 + 6):
            kept.append((at, label))
    return kept


def _levels(panel: Plot, frame: Frame) -> str:
    x, y = frame.x, frame.y
    rows = (f"M{x.start:.0f} {y.at(level):.1f}H{x.end:.0f}" for level in panel.levels.values())
    columns = (f"M{x.at(level):.1f} {y.start:.0f}V{y.end:.0f}" for level in panel.x_levels.values())
    return "".join(f'<path class="level" d="{way}"/>' for way in (*rows, *columns))


def _series(panel: Plot, series: Series, entry: Entry, frame: Frame) -> str:
    x, y = frame.x, frame.y
    points = [point for point in series.points if drawable(panel, point)]
    if not points:
        return ""
    line = f'<path class="line" d="M{_way([(p.x.value, p.y.value) for p in points], x, y)}"/>' if series.line else ""
    shown = points if series.markers else points[:: math.ceil(len(points) / MOST_POINTS)]
    marks = [entry.marker if series.markers else "" for _ in shown]
    marks[-1] = "*" if series.star else marks[-1]
    uses = "".join(
        _use(mark, x.at(p.x.value), y.at(p.y.value), (" ".join(p.text.split()), *values))
        for mark, p, values in zip(marks, shown, _columns(panel, shown), strict=True)
    )
    intervals = _intervals(points, is_banded(series, points), frame)
    return f'<g {entry.attributes} data-l="{escape(series.label)}">{intervals}{line}{uses}</g>\n'


def _columns(panel: Plot, points: Sequence[Point]) -> list[tuple[str, str]]:
    """Both numbers of points, with as many decimals in all of a plot; a named tick stands in the place of its number."""
    every = [point for series in panel.series for point in series.points]
    x_decimals = None if panel.x_log else decimals_of(point.x.value for point in every)
    y_decimals = None if panel.y_log else decimals_of(point.y.value for point in every)
    names = {value: name for name, value in panel.x_ticks.items()}
    return [
        (names.get(p.x.value) or estimate(p.x, decimals=x_decimals), estimate(p.y, decimals=y_decimals)) for p in points
    ]


def _use(marker: str, x: float, y: float, tip: Sequence[str]) -> str:
    return f'<use href="#{NAMES[marker]}" x="{x:.1f}" y="{y:.1f}" data-t="{"&#10;".join(map(escape, tip))}"/>'


def _way(places: Iterable[tuple[float, float]], x: Axis, y: Axis) -> str:
    return "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in places)


def _intervals(points: Sequence[Point], banded: bool, frame: Frame) -> str:
    """A band or whiskers; a drawing within the drawing cuts off what is beyond the axes."""
    x, y = frame.x, frame.y
    bare = [Point(p.x, Estimate(p.y.value)) if banded else p for p in points]
    drawn = (_band(points, x, y) if banded else "") + _whiskers(bare, x, y)
    box = f"{x.start:.1f} {y.end:.1f} {x.end - x.start:.1f} {y.start - y.end:.1f}"
    left, top, width, height = box.split()
    place = f'x="{left}" y="{top}" width="{width}" height="{height}" viewBox="{box}"'
    return f"<svg {place}>{drawn}</svg>" if drawn else ""


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
    low, high = bar_limits(panel)
    x = Axis(low, high + ((high - low) or 1.0) * 0.15, False, 22, HALF.width - 8)
    drawn, top = _groups(panel, legend, x, (low, high))
    axis = f'<path class="base" d="M{x.at(0):.1f} 4V{top:.0f}"/>' + "".join(
        f'<path class="grid" d="M{at:.1f} 4V{top:.0f}"/><text class="middle" x="{at:.1f}" y="{top + 14:.0f}">{label}</text>'
        for at, label in _apart([(x.at(tick), label) for tick, label in x.ticks], HALF)
    )
    words = f"{panel.title}. {panel.y_label}: " + "; ".join(_bars_in_words(panel))
    return (
        _svg(f'<g class="axes">{axis}</g>{drawn}', HALF.width, top + 20, words, "", panel.y_label)
        + f'<p class="axis right">{escape(panel.y_label)} →</p>\n'
        + _numbers(_bars_table(panel))
    )


def _groups(panel: Bars, legend: Legend, x: Axis, limits: tuple[float, float]) -> tuple[str, float]:
    """All bars under the names of their groups, and how far down they reach."""
    top, drawn = 6.0, ""
    for i, group in enumerate(panel.groups):
        for line in wrap(group, int(HALF.width / HALF.letter / 1.1)):
            top += HALF.line
            drawn += f'<text class="group halo" x="0" y="{top:.0f}">{escape(line)}</text>'
        top += 7
        for method, label in panel.labels.items():
            drawn += _bar(panel.bars[method][i], legend[method, label], group, x, limits, top)
            top += BAR + BAR_GAP
        top += GROUP_GAP
    return drawn, top


def _bar(of: Estimate | None, entry: Entry, group: str, x: Axis, limits: tuple[float, float], top: float) -> str:
    middle, zero = top + BAR / 2, x.at(0)
    mark = f'<use href="#{NAMES[entry.marker]}" x="9" y="{middle:.1f}"/>'
    if of is None:
        inside = f'{mark}<text x="{zero + 6:.1f}" y="{middle + 4:.1f}">not measured</text>'
        return f'<g {entry.attributes} data-l="{escape(entry.label)}">{inside}</g>\n'
    shown = cut_off(of, limits)
    at, low, high = (x.at(v) for v in (of.value, min(ends(shown)), max(ends(shown))))
    bar = f'<rect x="{min(at, zero):.1f}" y="{top:.1f}" width="{max(abs(at - zero), 0.8):.1f}" height="{BAR:g}"/>'
    whisker = f'<path class="whisker over" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>' if high > low else ""
    beside = max(high, zero) + 5  # on the left are the markers
    value = f'<text x="{beside:.1f}" class="value" y="{middle + 4:.1f}">{estimate(of).split(" [")[0]}</text>'
    inside = mark + bar + whisker + value + _use("", at, middle, (group, "", estimate(of)))
    return f'<g {entry.attributes} data-l="{escape(entry.label)}">{inside}</g>\n'


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
        shown = series.points[::thin]
        for point, values in zip(shown, _columns(panel, shown), strict=True):
            rows.append(html_row(name, map(escape, [point.text, *values] if texts else values)))
    head = ["Series", *(["Point"] if texts else []), panel.x_label, panel.y_label]
    return html_table(head, rows, f"Numbers of {panel.title}")


def _bars_table(panel: Bars) -> str:
    columns = []
    for method in panel.labels:
        decimals = decimals_of(of.value for of in panel.bars[method] if of)
        columns.append([estimate(of, decimals=decimals) if of else "–" for of in panel.bars[method]])
    rows = (html_row(escape(group), cells) for group, *cells in zip(panel.groups, *columns, strict=True))
    return html_table(["", *panel.labels.values()], rows, f"Numbers of {panel.title}")


OTHERS: Mapping[str, Callable[[Any, Legend], str]] = {
    "bars": _bars,
    "heat": lambda panel, _: heat_table(panel),
    "table": lambda panel, _: plain_table(panel),
    "split": lambda panel, _: split_table(panel),
}
"""How panels are drawn that are no plots."""

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
