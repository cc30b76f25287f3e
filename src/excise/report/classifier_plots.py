"""How good a classifier's labels are: ROC with the working points, reliability, scores (`excise label`)."""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from excise.data.labelling import PICTURE, REPORT, LabelReport
from excise.data.thresholds import HISTOGRAM_EDGES, log_odds
from excise.files import write_whole
from excise.labels import RETAIN, UNLABELED
from excise.report.plots import DOTS_PER_INCH, INK, MUTED, NO_METADATA, PAPER, STYLE

Results = Mapping[str, Any]
"""The dictionary in report.json, or a part of it."""
DOMAIN, OTHERS, SOURCE = "#d55e00", "#0072b2", "#c9cdd2"
"""Colours after Okabe and Ito, told apart with any colour vision."""
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 4.5, 4.3, 0.75
"""In inches."""
TICKS = (0.5, 0.01, 0.99, 0.0001, 0.9999, 1e-6, 0.999999, 1e-9, 0.1, 0.9)
"""Of the scores, those most worth a place first."""
TICK_WIDTH = 0.15
"""Of the axis, for a tick with its number."""


def write_label_report(report: LabelReport, folder: Path) -> None:
    """Write report.png and, last of all, report.json beside the labels; equal reports give equal bytes."""
    plain = asdict(report)
    stream = io.BytesIO()
    figure = label_figure(plain)
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format="png", dpi=DOTS_PER_INCH, metadata=NO_METADATA[".png"])
    write_whole(folder / PICTURE, stream.getvalue())
    write_whole(folder / REPORT, (json.dumps(plain, indent=2, ensure_ascii=False) + "\n").encode())


def label_figure(report: Results) -> Figure:
    """A row of panels for documents, and one for sentences where they have labels of their own."""
    units = [(name, report[name]) for name in ("documents", "sentences") if report[name]]
    n_columns = 3 if report["documents"]["held_out"] else 1
    height = PANEL_HEIGHT * len(units) + MARGIN
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - MARGIN / height), w_pad=0.12, h_pad=0.12)
        figure = Figure(figsize=(PANEL_WIDTH * max(n_columns, 1.6), height), facecolor=PAPER, layout=layout)
        panels = figure.subplots(len(units), n_columns, squeeze=False)
        for row, (name, split) in zip(panels, units, strict=True):
            if split["held_out"]:
                _draw_roc(row[0], split["held_out"], name)
                _draw_reliability(row[1], split["held_out"])
            _draw_scores(row[-1], split, report["config"]["domain"], name)
        _title(figure, report, height)
    return figure


def _title(figure: Figure, report: Results, height: float) -> None:
    held_out, n = report["documents"]["held_out"], report["n_examples"]
    subtitle = f"trained on {n:,} examples" if n else "scores given with the source"
    if held_out:
        subtitle += f", measured on {held_out['on']}"
    title = f"Labels for {report['config']['domain']}"
    figure.text(0.012, 1 - 0.18 / height, title, va="top", fontsize=13, weight="bold", color=INK)
    figure.text(0.012, 1 - 0.45 / height, subtitle, va="top", fontsize=10, color=MUTED)


def _draw_roc(axes: Axes, held_out: Results, unit: str) -> None:
    roc, rates = held_out["roc"], held_out["rates"]
    _draw_diagonal(axes, "false positive rate", "recall")
    axes.plot(roc["false_positive_rate"], roc["recall"], color=INK, linewidth=2, label=f"ROC, area {roc['auc']:.3f}")
    x, y = rates["false_positive_rate"], rates["recall"]
    _draw_point(axes, x, y, DOMAIN, f"forget from here on:\nrecall {y:.3f}, false positives {x:.3f}")
    kept, lost = rates["retain_share"], rates["retain_false_rate"]
    _draw_point(axes, 1 - kept, 1 - lost, OTHERS, f"retain up to here:\n{kept:.3f} of others, {lost:.3f} of domain")
    axes.legend(loc="lower right", facecolor=PAPER, edgecolor="none", framealpha=0.95, fontsize=9, labelspacing=0.9)
    _dress(axes, f"ROC of {unit}")


def _draw_point(axes: Axes, x: float, y: float, colour: str, label: str) -> None:
    style: dict[str, Any] = {
        "marker": "o",
        "markersize": 9,
        "markeredgecolor": PAPER,
        "linestyle": "none",
        "clip_on": False,
    }
    axes.plot([x], [y], color=colour, label=label, zorder=4, **style)


def _draw_reliability(axes: Axes, held_out: Results) -> None:
    bins = held_out["reliability"]
    score, share, low, high = (np.array([one[key] for one in bins]) for key in ("mean_score", "share", "low", "high"))
    _draw_diagonal(axes, "score, mean of each tenth", "share that is of the domain")
    errors = np.clip([share - low, high - share], 0, None)
    axes.errorbar(score, share, errors, color=INK, marker="o", markersize=5.5, linewidth=1.2, ecolor=MUTED)
    _dress(axes, "Reliability, with 95 % intervals")


def _draw_diagonal(axes: Axes, x: str, y: str) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=x, ylabel=y)


def _draw_scores(axes: Axes, split: Results, domain: str, unit: str) -> None:
    """How many documents of the source, and of the examples, have which score."""
    held_out = split["held_out"] or {}
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("source", split["counts"], {"color": SOURCE, "fill": True}),
        ("others, measured", held_out.get("other_counts"), {"color": OTHERS, "linewidth": 1.8}),
        (f"{domain}, measured", held_out.get("domain_counts"), {"color": DOMAIN, "linewidth": 1.8}),
    ]
    shown = [(name, np.array(counts), style) for name, counts, style in kinds if counts]
    for name, counts, style in shown:
        axes.stairs(counts, HISTOGRAM_EDGES, label=name, **style)
    highest = np.max([counts for _, counts, _ in shown], axis=0)
    occupied = np.flatnonzero(highest)
    limits = HISTOGRAM_EDGES[occupied[0]] - 0.5, HISTOGRAM_EDGES[occupied[-1] + 1] + 0.5
    axes.set_yscale("log")
    axes.set(xlim=limits, ylim=(0.7, 8 * highest.max()), xlabel="score (axis in log-odds)", ylabel=f"number of {unit}")
    ticks = _ticks(limits)
    axes.set_xticks(list(ticks), list(ticks.values()))
    _draw_thresholds(axes, split, domain, limits)
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.9), frameon=False, fontsize=9)
    _dress(axes, f"Scores of {unit}")


def _ticks(limits: tuple[float, float]) -> dict[float, str]:
    """Where there is room for a score, and the score."""
    room = TICK_WIDTH * (limits[1] - limits[0])
    places: dict[float, str] = {}
    for score in TICKS:
        place = float(log_odds(np.array(score)))
        if limits[0] <= place <= limits[1] and all(abs(place - other) >= room for other in places):
            places[place] = f"{score:g}"
    return dict(sorted(places.items()))


def _draw_thresholds(axes: Axes, split: Results, domain: str, limits: tuple[float, float]) -> None:
    given = [split["thresholds"][name] for name in ("retain", "forget")]
    retain, forget = np.clip(log_odds(np.array(given)), *limits).tolist()
    for position, colour in ((retain, OTHERS), (forget, DOMAIN)):
        axes.axvline(position, ymax=0.905, color=colour, linewidth=1.2, linestyle=(0, (4, 2)))
    zones = (
        (RETAIN, limits[0], retain, OTHERS),
        (UNLABELED, retain, forget, MUTED),
        (domain, forget, limits[1], DOMAIN),
    )
    style: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center", "fontsize": 8.5}
    for (name, low, high, colour), position in zip(zones, _far_apart(retain, forget, limits), strict=True):
        axes.axvspan(low, high, ymin=0.905, color=colour, alpha=0.12, linewidth=0)
        axes.text(position, 0.953, f"{name}\n{split['labels'].get(name, 0):,}", color=colour, **style)


def _far_apart(retain: float, forget: float, limits: tuple[float, float]) -> tuple[float, float, float]:
    """Where the names of the three zones stand, as shares of the width: in their middles, as far as there is room."""
    low, high = ((threshold - limits[0]) / (limits[1] - limits[0]) for threshold in (retain, forget))
    middle = min(max((low + high) / 2, 0.32), 0.68)
    return min(max(low / 2, 0.1), middle - 0.22), middle, max(min((high + 1) / 2, 0.9), middle + 0.22)


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.grid(True, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0, which="both", labelsize=9)
