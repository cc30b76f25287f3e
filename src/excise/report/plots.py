"""The trade-off between what is removed and what is kept, over training (paper, figure 4a)."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from excise.report.style import LOOKS

Results = Mapping[str, Any]
"""The dictionary in results.json."""
Point = Mapping[str, float]
"""One checkpoint of a curve: step, tokens, share of training, retain and forget loss."""


@dataclass(frozen=True)
class Method:
    """How a training method is called and drawn."""

    name: str
    label: str
    colour: str
    marker: str


METHODS = tuple(
    Method(name, label, LOOKS[name].light, LOOKS[name].marker)
    for name, label in {
        "perfect_filter": "Perfect filter (oracle)",
        "sgtm": "SGTM with token vectors",
        "data_filter": "Data filter",
        "no_filter": "No filter",
    }.items()
)
INK, MUTED, GRID, PAPER = "#22272e", "#767c85", "#e4e6e9", "#ffffff"
EQUAL_SHARE = 0.02
"""Checkpoints whose shares of training differ by no more than this count as equal."""
SIZE = (5.4, 5.2)
"""In inches; small, so that its text can still be read at the width of a phone."""
DOTS_PER_INCH = 220
STYLE: dict[Any, Any] = {  # matplotlib types the keys as one enormous literal
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "svg.hashsalt": "excise",
}
NO_METADATA: dict[str, dict[str, Any]] = {  # times and versions would make two equal pictures differ
    ".png": {"Software": None},
    ".svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    ".pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
}


def methods_in(by_name: Mapping[str, Any]) -> list[Method]:
    """The methods that the mapping speaks of, from the most to the least thorough removal."""
    known = {method.name for method in METHODS}
    if unknown := sorted(set(by_name) - known):
        raise ValueError(f"results name the unknown method {unknown[0]!r}; add it to METHODS in excise.report.plots")
    return [method for method in METHODS if method.name in by_name]


def tradeoff_figure(results: Results) -> Figure:
    """Forget loss over retain loss, a line per method, a point per checkpoint and a star at the end of training."""
    curves: Mapping[str, Sequence[Point]] = results["curves"]
    methods = methods_in(curves)
    if empty := [method.name for method in methods if not curves[method.name]]:
        raise ValueError(f"the curve of {empty[0]!r} has no point; give it at least the end of training")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE, facecolor=PAPER)
        axes = figure.add_axes((0.13, 0.105, 0.84, 0.725))
        for method in methods:
            _draw_curve(axes, method, curves[method.name])
        _draw_equal_shares(axes, equal_shares([curves[method.name] for method in methods]))
        _dress(figure, axes, methods)
    return figure


def equal_shares(curves: Sequence[Sequence[Point]]) -> list[list[Point]]:
    """The checkpoints of different methods at the same share of training, lowest forget loss first."""
    groups: list[list[Point]] = []
    for point in sorted((point for curve in curves for point in curve), key=lambda point: point["share"]):
        if groups and point["share"] - groups[-1][0]["share"] <= EQUAL_SHARE:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [sorted(group, key=lambda point: point["forget"]) for group in groups if len(group) > 1]


def save_tradeoff(results: Results, path: Path) -> None:
    """A file with the trade-off figure, PNG, SVG or PDF by its suffix; equal results give equal bytes."""
    suffix = path.suffix.lower()
    if suffix not in NO_METADATA:
        raise ValueError(f"cannot draw a {path.suffix or 'suffixless'} file; name it .png, .svg or .pdf")
    figure = tradeoff_figure(results)
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=NO_METADATA[suffix])


def tradeoff_svg(results: Results) -> str:
    """The trade-off figure as an svg element for a page: transparent, with text that stays text."""
    figure, stream = tradeoff_figure(results), io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", transparent=True, metadata=NO_METADATA[".svg"])
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _draw_curve(axes: Axes, method: Method, curve: Sequence[Point]) -> None:
    retain, forget = ([point[loss] for point in curve] for loss in ("retain", "forget"))
    axes.plot(
        retain,
        forget,
        label=method.label,
        color=method.colour,
        marker=method.marker,
        markersize=5.5,
        markeredgecolor=PAPER,
        markeredgewidth=0.7,
        linewidth=2,
    )
    axes.plot(retain[-1:], forget[-1:], label=f"{method.label}, end", color=method.colour, zorder=4, **_STAR)


_STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 17,
    "markeredgecolor": PAPER,
    "markeredgewidth": 1,
    "linestyle": "none",
}
_DASHES: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (4, 3))}


def _draw_equal_shares(axes: Axes, groups: Sequence[Sequence[Point]]) -> None:
    for group in groups:
        line = [[point[loss] for point in group] for loss in ("retain", "forget")]
        axes.plot(*line, label=f"equal share {group[0]['share']:.2f}", zorder=1, **_DASHES)
    axes.margins(0.07, 0.09)
    for point in _far_apart(axes, [group[0] for group in reversed(groups)]):
        position = (point["retain"], point["forget"])
        axes.annotate(
            f"{point['share']:.0%}",
            position,
            (8, -10),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=MUTED,
        )


def _far_apart(axes: Axes, points: Sequence[Point]) -> list[Point]:
    """The points that can carry a small text each without covering one another; the first always can."""
    width, height = (abs(high - low) for low, high in (axes.get_xlim(), axes.get_ylim()))
    kept: list[Point] = []
    for point in points:
        if all(
            abs(point["retain"] - other["retain"]) > 0.07 * width
            or abs(point["forget"] - other["forget"]) > 0.05 * height
            for other in kept
        ):
            kept.append(point)
    return kept


def _dress(figure: Figure, axes: Axes, methods: Sequence[Method]) -> None:
    axes.set_xlabel("English loss per token  (← lower: better kept)")
    axes.set_ylabel("Spanish loss per token  (higher: more removed →)")
    axes.grid(True, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0, labelsize=9.5)
    figure.suptitle(
        "Spanish removed against English kept, over training", x=0.022, y=0.975, ha="left", fontsize=12, weight="bold"
    )
    figure.legend(
        handles=_legend_handles(methods),
        loc="upper left",
        bbox_to_anchor=(0.012, 0.935),
        ncols=3,
        frameon=False,
        fontsize=9.5,
        borderaxespad=0,
        handlelength=1.9,
        handletextpad=0.6,
        columnspacing=1.3,
    )


def _legend_handles(methods: Sequence[Method]) -> list[Line2D]:
    style: dict[str, Any] = {"markersize": 5.5, "markeredgecolor": PAPER, "markeredgewidth": 0.7, "linewidth": 2}
    handles = [Line2D([], [], color=m.colour, marker=m.marker, label=m.label, **style) for m in methods]
    end = Line2D([], [], color=MUTED, label="End of training", **_STAR | {"markersize": 12})
    share = Line2D([], [], label="Same share of training", **_DASHES)
    return [*handles, end, share]
