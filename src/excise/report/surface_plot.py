"""SGTM against data filtering over the whole range of classifiers, and where one of them lies (paper, appendix D)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from excise.evals.classifier_surface import ClassifierSurface
from excise.report.plots import DOTS_PER_INCH, INK, NO_METADATA, PAPER, STYLE, Results

SIZE = (9.2, 4.6)
"""In inches."""
N_PIXELS = 240
"""Along a side of a heatmap."""
COLOURS = ("#a84300", "#e8924f", "#f7f7f5", "#5ba4d1", "#00507f")
"""From the filter being far better to SGTM being far better, in the colours of the methods."""
TITLES = {"retain": "Retain loss (lower is better)", "forget": "Forget loss (higher is better)"}
_RUNS: dict[str, Any] = {"color": PAPER, "marker": "o", "markersize": 3.6, "linestyle": "none"}
_RUNS |= {"markeredgecolor": INK, "markeredgewidth": 0.7, "zorder": 3}
_ROC: dict[str, Any] = {"color": INK, "linewidth": 2, "path_effects": [withStroke(linewidth=4, foreground=PAPER)]}


def surface_figure(surface: Results, on_roc: Sequence[Results] = ()) -> Figure:
    """Differences in retain and forget loss, each on a scale of its own around 0, with a ROC curve over both."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE, facecolor=PAPER)
        for left, name in zip((0.065, 0.56), TITLES, strict=True):
            axes = figure.add_axes((left, 0.12, 0.345, 0.69))
            _draw_differences(axes, figure.add_axes((left + 0.36, 0.12, 0.012, 0.69)), surface, name)
            _draw_roc(axes, on_roc)
            axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="false positive rate", ylabel="recall")
            axes.set_title(TITLES[name], loc="left", fontsize=10.5)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0, labelsize=9)
        _dress(figure, bool(on_roc))
    return figure


def save_surface(surface: Results, path: Path, on_roc: Sequence[Results] = ()) -> None:
    """A file with the figure, PNG, SVG or PDF by its suffix; equal results give equal bytes."""
    suffix = path.suffix.lower()
    if suffix not in NO_METADATA:
        raise ValueError(f"cannot draw a {path.suffix or 'suffixless'} file; name it .png, .svg or .pdf")
    figure = surface_figure(surface, on_roc)
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=NO_METADATA[suffix])


def _draw_differences(axes: Axes, scale: Axes, surface: Results, name: str) -> None:
    """A heatmap of the bilinear surface, with dots where runs were made."""
    columns, rows = surface["false_positive_rate"], surface["recall"]
    extent = (columns[0], columns[-1], rows[0], rows[-1])
    middle = (np.arange(N_PIXELS) + 0.5) / N_PIXELS
    x, y = np.meshgrid(extent[0] + middle * (extent[1] - extent[0]), extent[2] + middle * (extent[3] - extent[2]))
    retain, forget = ClassifierSurface(**surface).at(y.ravel(), x.ravel())
    values = (retain if name == "retain" else forget).reshape(x.shape)
    largest = float(np.abs(surface[name]).max()) or 1.0
    colours = LinearSegmentedColormap.from_list("differences", COLOURS[::-1] if name == "retain" else COLOURS)
    image = axes.imshow(values, colours, vmin=-largest, vmax=largest, origin="lower", extent=extent, aspect="auto")
    axes.plot(*(side.ravel() for side in np.meshgrid(columns, rows)), label="runs", **_RUNS)
    bar = axes.figure.colorbar(image, cax=scale)
    bar.outline.set_visible(False)
    scale.tick_params(length=0, labelsize=8.5)


def _draw_roc(axes: Axes, on_roc: Sequence[Results]) -> None:
    """A classifier's curve, dotted where the surface does not reach."""
    x, y = (np.array([point[rate] for point in on_roc]) for rate in ("false_positive_rate", "recall"))
    outside = np.array([point["outside"] for point in on_roc], bool)
    axes.plot(x, y, label="ROC", linestyle=":", **_ROC)
    axes.plot(np.where(outside, np.nan, x), y, label="ROC on the grid", **_ROC)


def _dress(figure: Figure, with_roc: bool) -> None:
    figure.suptitle("Loss of SGTM − loss of the data filter", x=0.02, y=0.975, ha="left", fontsize=12, weight="bold")
    square: dict[str, Any] = {"marker": "s", "markersize": 9, "linestyle": "none"}
    handles = [
        Line2D([], [], color=COLOURS[3], label="SGTM better", **square),
        Line2D([], [], color=COLOURS[1], label="Data filter better", **square),
        Line2D([], [], label="Runs", **_RUNS),
        Line2D([], [], label="ROC of the classifier", **_ROC),
    ]
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.008, 0.93), "borderaxespad": 0, "ncols": 4}
    style: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "handletextpad": 0.5, "handlelength": 1.7}
    figure.legend(handles=handles if with_roc else handles[:-1], **place, **style)
