"""Figures of the paper as PNG, SVG and PDF, a drawing function for each kind of panel."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Bbox

from excise.evals.figure import Bars, Estimate, FigureResults, Heat, Panel, Plot, Point, Series, Split, Table
from excise.files import write_whole
from excise.report.charts import Entry, Legend, legend_of, methods_in, rows_of
from excise.report.numbers import decimals_of, estimate, number
from excise.report.placement import Axis, Frame, bar_limits, cut_off, drawable, ends, is_banded, limits_of, place_texts
from excise.report.plots import DOTS_PER_INCH, GRID, INK, MUTED, NO_METADATA, PAPER, STYLE
from excise.report.style import Look, looks_of
from excise.report.tables import cells_of, heat_scale, kinds_of

COLUMN, MARGIN = 4.6, 0.5
"""Width of a panel, and height of the title and of a line of the legend, in inches."""
LETTERS = 11
"""Of the legend in an inch, about."""
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), ":", (0, (6, 2, 1, 2)))
PARTS = ("#8a929c", "#0072b2", "#d55e00", "#a0569b", "#009e73", "#9c6b00")
HATCHES = ("", "////", "", "\\\\\\\\", "", "....")
DIVERGING = LinearSegmentedColormap.from_list("about zero", ("#e2995c", PAPER, "#66a9d1"))
STAMP = "PIPELINE CHECK ONLY"
HALO = [withStroke(linewidth=3, foreground=PAPER)]
LETTER, LINE = 5.0, 10.5
"""Room for a letter, and for a line of text, in points."""


@dataclass(frozen=True)
class Drawing:
    """What all panels of a figure share."""

    legend: Legend
    looks: Mapping[str, Look]

    def colour(self, entry: Entry) -> str:
        return self.looks[entry.method].light


def save_figure(results: FigureResults, path: Path, looks: Mapping[str, Look] | None = None) -> None:
    """A file with the figure, PNG, SVG or PDF by its suffix; equal results give equal bytes."""
    suffix = path.suffix.lower()
    if suffix not in NO_METADATA:
        raise ValueError(f"cannot draw a {path.suffix or 'suffixless'} file; name it .png, .svg or .pdf")
    figure, stream = paper_figure(results, looks), io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=NO_METADATA[suffix])
    write_whole(path, stream.getvalue())


def paper_figure(results: FigureResults, looks: Mapping[str, Look] | None = None) -> Figure:
    """All panels of a figure, two in a row, under one legend."""
    looks = looks or looks_of(methods_in(results.panels))
    drawing = Drawing(legend_of(results.panels, {method: look.marker for method, look in looks.items()}), looks)
    rows = rows_of(results.panels)
    heights = [max(map(_height, row)) for row in rows]
    lone_plot = [type(panel) for panel in results.panels] in ([Plot], [Heat])
    width = COLUMN * (1.35 if lone_plot else 2)
    lines = _legend_lines(drawing.legend, width)
    top = MARGIN + 0.24 * len(lines)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, sum(heights) + top), facecolor=PAPER, layout="constrained")
        head, *bodies = figure.subfigures(len(rows) + 1, 1, height_ratios=[top, *heights], squeeze=False)[:, 0]
        _head(head, results, drawing, lines, top)
        plots: list[tuple[Axes, Plot]] = []
        for body, row in zip(bodies, rows, strict=True):
            for axes, panel in zip(body.subplots(1, len(row), squeeze=False)[0], row, strict=True):
                DRAW[panel.kind](axes, panel, drawing)
                axes.set_title(fill(panel.title, 58 if len(row) > 1 else 100), loc="left", fontsize=10.5, color=INK)
                plots += [(axes, panel)] if isinstance(panel, Plot) else []
        figure.draw_without_rendering()
        for axes, plot in plots:
            _write_texts(axes, plot)
    return figure


def _write_texts(axes: Axes, panel: Plot) -> None:
    """What stands beside levels and points, once it is known how large the axes are."""
    x_limits, y_limits = limits_of(panel)
    width, height = (72 * size / axes.figure.dpi for size in axes.bbox.size)
    x = Axis(*x_limits, panel.x_log, 0, width)
    frame = Frame(x, Axis(*y_limits, panel.y_log, height, 0), LETTER, LINE)
    style: dict[str, Any] = {"va": "center", "fontsize": 8.5, "color": MUTED, "path_effects": HALO, "zorder": 5}
    for text in place_texts(panel, frame):
        left, down = text.place
        axes.annotate(text.words, (left, height - down), xycoords="axes points", ha=text.side, **style)


def _height(panel: Panel) -> float:
    """In inches."""
    if isinstance(panel, Bars):
        return 0.9 + len(panel.groups) * (0.34 + 0.2 * len(panel.labels))
    if isinstance(panel, Split):
        return 1.0 + 0.32 * len(panel.matrices)
    return 0.7 + 0.27 * len(panel.rows) if isinstance(panel, Table) else 3.9


def _legend_lines(legend: Legend, width: float) -> list[list[Entry]]:
    """The entries of the legend in lines of about the width of a figure, in inches."""
    lines: list[list[Entry]] = []
    room = 0
    for entry in legend.values():
        room -= len(entry.label) + 8
        if room < 0:
            lines, room = [*lines, []], int(LETTERS * width) - len(entry.label)
        lines[-1].append(entry)
    return lines


def _head(
    head: SubFigure, results: FigureResults, drawing: Drawing, lines: Sequence[Sequence[Entry]], top: float
) -> None:
    head.text(0.012, 1 - 0.12 / top, results.title, va="top", fontsize=12, weight="bold", color=INK)
    if results.pipeline_check_only:
        box = {"boxstyle": "round,pad=0.3", "facecolor": PAPER, "edgecolor": "#b3261e", "linewidth": 1.4}
        style: dict[str, Any] = {"va": "top", "ha": "right", "fontsize": 8.5, "weight": "bold", "color": "#b3261e"}
        head.text(0.985, 1 - 0.13 / top, STAMP, bbox=box, **style)
    for i, line in enumerate(lines):
        place: dict[str, Any] = {
            "loc": "upper left",
            "bbox_to_anchor": (0.006, 1 - (0.4 + 0.24 * i) / top),
            "borderaxespad": 0,
            "handlelength": 3,
        }
        legend = head.legend(
            handles=[_handle(entry, drawing) for entry in line], ncols=len(line), frameon=False, fontsize=9.5, **place
        )
        legend.set_in_layout(False)


def _handle(entry: Entry, drawing: Drawing) -> Line2D:
    return Line2D([], [], label=entry.label, **_line_style(entry, drawing))


def _line_style(entry: Entry, drawing: Drawing) -> dict[str, Any]:
    colour, hollow = drawing.colour(entry), entry.variant % 2 == 1
    marks = {"marker": entry.marker or None, "markersize": 6, "markerfacecolor": PAPER if hollow else colour}
    edge = {"markeredgecolor": colour if hollow else PAPER, "markeredgewidth": 1.3 if hollow else 0.7}
    dashes = DASHES[1 if entry.dashed else entry.variant % 4]
    return {"color": colour, "linestyle": dashes, "linewidth": 1.8, **marks, **edge}


def _plot(axes: Axes, panel: Plot, drawing: Drawing) -> None:
    for series in panel.series:
        _draw_series(axes, panel, series, drawing.legend[series.method, series.label], drawing)
    _dress(axes, panel.x_label, panel.y_label)
    for name, log, span in zip("xy", (panel.x_log, panel.y_log), limits_of(panel), strict=True):
        named = panel.x_ticks if name == "x" else {}
        ticks = Axis(*span, log, 0, 1, named).ticks
        getattr(axes, f"set_{name}scale")("log" if log else "linear")
        getattr(axes, f"{name}axis").set_minor_locator(NullLocator())
        getattr(axes, f"set_{name}ticks")([at for at, _ in ticks], [fill(label, 14) for _, label in ticks])
        getattr(axes, f"set_{name}lim")(*span)
    style: dict[str, Any] = {"color": MUTED, "linewidth": 1, "linestyle": (0, (5, 4)), "zorder": 1}
    for level in panel.levels.values():
        axes.axhline(level, **style)
    for level in panel.x_levels.values():
        axes.axvline(level, **style)


def _draw_series(axes: Axes, panel: Plot, series: Series, entry: Entry, drawing: Drawing) -> None:
    points = [point for point in series.points if drawable(panel, point)]
    style = _line_style(entry, drawing)
    style |= {} if series.markers else {"marker": None}
    style |= {} if series.line else {"linestyle": "none"}
    x, y = [p.x.value for p in points], [p.y.value for p in points]
    axes.plot(x, y, label=series.label, **style)
    if series.star and points:
        star: dict[str, Any] = {"marker": "*", "markersize": 15, "linestyle": "none", "zorder": 4}
        axes.plot(x[-1:], y[-1:], label=f"{series.label}, end", **style | star)
    _draw_intervals(axes, series, points, drawing.colour(entry))


def _draw_intervals(axes: Axes, series: Series, points: Sequence[Point], colour: str) -> None:
    banded = is_banded(series, points)
    if banded:
        low, high = ([getattr(p.y, end) for p in points] for end in ("low", "high"))
        axes.fill_between([p.x.value for p in points], low, high, color=colour, alpha=0.16, linewidth=0)
    for p in points:
        vertical: dict[str, Any] = {} if banded else {"yerr": _arms(p.y)}
        axes.errorbar(p.x.value, p.y.value, xerr=_arms(p.x), fmt="none", ecolor=colour, elinewidth=1.2, **vertical)


def _arms(of: Estimate) -> list[list[float]] | None:
    """How far an interval reaches below and above its number."""
    return [[of.value - min(ends(of))], [max(ends(of)) - of.value]] if len(ends(of)) > 1 else None


def _bars(axes: Axes, panel: Bars, drawing: Drawing) -> None:
    """Lying bars, the first group on top."""
    n, (low, high) = len(panel.labels), bar_limits(panel)
    for i, (method, label) in enumerate(panel.labels.items()):
        entry = drawing.legend[method, label]
        for place, of in enumerate(panel.bars[method]):
            at = place * (n + 1.6) + i
            _bar(axes, of, at, drawing.colour(entry), "////" if entry.variant % 2 else "", (low, high))
    middles = [place * (n + 1.6) + (n - 1) / 2 for place in range(len(panel.groups))]
    axes.set_yticks(middles, [fill(group, 26) for group in panel.groups])
    axes.invert_yaxis()
    room = 0.14 * ((high - low) or 1.0)
    axes.set_xlim(low - (room if low < 0 else 0), high + room)
    _dress(axes, panel.y_label, "")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", labelcolor=INK)
    axes.axvline(0, color=MUTED, linewidth=1)


def _bar(axes: Axes, of: Estimate | None, at: float, colour: str, hatch: str, limits: tuple[float, float]) -> None:
    style: dict[str, Any] = {"va": "center", "fontsize": 8.5, "textcoords": "offset points"}
    if of is None:
        axes.annotate("not measured", (0, at), (4, 0), color=MUTED, **style)
        return
    shown = cut_off(of, limits)
    axes.barh(
        at, of.value, 0.86, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0, xerr=_arms(shown), ecolor=INK
    )
    beside = max(0, *ends(shown))  # on the left are the names of groups
    axes.annotate(estimate(of).split(" [")[0], (beside, at), (4, 0), color=INK, **style)


def _heat(axes: Axes, panel: Heat, drawing: Drawing) -> None:
    found = [value for row in panel.values for value in row if value is not None]
    base, reach = heat_scale(found)
    shown = [[float("nan") if value is None else value for value in row] for row in panel.values]
    axes.imshow(shown, DIVERGING, vmin=base - reach, vmax=base + reach, aspect="auto")
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            text = "–" if value is None else number(value, decimals_of(found))
            axes.text(j, i, text, ha="center", va="center", fontsize=9, color=INK)
    axes.set_xticks(range(len(panel.columns)), [fill(column, 14) for column in panel.columns])
    axes.set_yticks(range(len(panel.rows)), [fill(row, 20) for row in panel.rows])
    _dress(axes, panel.column_label, panel.row_label)
    axes.grid(False)
    axes.spines[:].set_visible(False)


CHARACTERS = 125
"""As many fit side by side."""


def _table(axes: Axes, panel: Table, drawing: Drawing) -> None:
    axes.set_axis_off()
    cells = cells_of(panel)
    longest = [max(map(len, column)) + 2 for column in zip(panel.header, *cells, strict=True)]
    table = axes.table(
        cells,
        colLabels=list(panel.header),
        colWidths=[n / sum(longest) for n in longest],
        cellLoc="left",
        colLoc="left",
        edges="horizontal",
        bbox=Bbox.unit(),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(9 * min(1.0, CHARACTERS / sum(longest)))
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor(GRID)
        cell.get_text().set_color(INK if row else MUTED)


def _split(axes: Axes, panel: Split, drawing: Drawing) -> None:
    """A bar for each matrix, cut where its parts meet, with the size of each part."""
    kinds = kinds_of(panel.parts)
    for i, unit in enumerate(panel.unit):
        total, done = sum(sizes[i] for sizes in panel.parts.values()) or 1, 0.0
        for part, sizes in panel.parts.items():
            share, kind = sizes[i] / total, kinds[part]
            axes.barh(i, share, 0.62, left=done, color=PARTS[kind], hatch=HATCHES[kind], edgecolor=PAPER)
            done += share
        words = " + ".join(f"{sizes[i]:,}" for sizes in panel.parts.values() if sizes[i])
        axes.text(1.015, i, f"{words} {unit}", va="center", fontsize=9, color=INK)
    square: dict[str, Any] = {"marker": "s", "markersize": 9, "linestyle": "none"}
    squares = [Line2D([], [], color=PARTS[kind], label=part, **square) for part, kind in kinds.items()]
    axes.legend(
        handles=squares, loc="upper left", bbox_to_anchor=(0, -0.02), ncols=len(squares), frameon=False, fontsize=9
    )
    axes.set(xlim=(0, 1.0), xticks=[])
    axes.set_yticks(range(len(panel.matrices)), list(panel.matrices))
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)


def _dress(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(fill(x_label, 56))
    axes.set_ylabel(fill(y_label, 44))
    axes.grid(True, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0, which="both", labelsize=9)


DRAW: Mapping[str, Callable[[Axes, Any, Drawing], None]] = {
    "plot": _plot,
    "bars": _bars,
    "heat": _heat,
    "table": _table,
    "split": _split,
}
