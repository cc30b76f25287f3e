"""SGTM against data filtering over the whole range of classifiers (paper, appendix D).

Two runs at each point of a grid of recall (true positive rate) and false positive rate give a surface of differences,
SGTM - filter. A classifier's ROC curve lies on it, a point for each threshold, and the surface says what to expect
there. Between the points of the grid it is bilinear.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.config import from_dict
from excise.data.thresholds import Roc

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LabelledPair:
    """The losses of an SGTM run and of a filter run on data with the same labels."""

    recall: float
    false_positive_rate: float
    """Share of all retain documents that is labelled with the domain, as in a ROC curve."""
    sgtm_retain: float
    sgtm_forget: float
    filter_retain: float
    filter_forget: float


@dataclass(frozen=True)
class ClassifierSurface:
    """Differences of losses, SGTM - filter, with a row for each recall and a column for each false positive rate."""

    recall: list[float]
    false_positive_rate: list[float]
    retain: list[list[float]]
    forget: list[list[float]]

    def at(self, recall: Floats, false_positive_rate: Floats) -> tuple[Floats, Floats]:
        """The differences in retain and forget loss at these points or, outside the grid, at its edge next to them."""
        rows, columns = _weights(self.recall, recall), _weights(self.false_positive_rate, false_positive_rate)
        retain, forget = (np.einsum("pr,rc,pc->p", rows, values, columns) for values in (self.retain, self.forget))
        return retain, forget


@dataclass(frozen=True)
class RocPoint:
    """The differences to expect with a classifier at one of its thresholds."""

    threshold: float
    recall: float
    false_positive_rate: float
    retain: float
    forget: float
    outside: bool
    """Of the grid; the differences are those at its edge."""


def classifier_surface(pairs: Sequence[LabelledPair]) -> ClassifierSurface:
    """The surface of a full grid of runs; seeds at the same point are averaged."""
    points: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for pair in pairs:
        at = pair.recall, pair.false_positive_rate
        difference = pair.sgtm_retain - pair.filter_retain, pair.sgtm_forget - pair.filter_forget
        if not (np.isfinite(difference).all() and 0 <= min(at) <= max(at) <= 1):
            raise ValueError(f"{pair} is no point of the grid; its rates are from 0 to 1 and its losses finite")
        points.setdefault(at, []).append(difference)
    recalls, rates = sorted({recall for recall, _ in points}), sorted({rate for _, rate in points})
    if min(len(recalls), len(rates)) < 2 or len(points) < len(recalls) * len(rates):
        raise ValueError(
            f"{len(points)} points are no full grid of the recalls {recalls} and the false positive rates {rates}; "
            "give runs at each of two or more"
        )
    grid = np.array([[np.mean(points[recall, rate], axis=0) for rate in rates] for recall in recalls])
    return ClassifierSurface(recalls, rates, grid[..., 0].tolist(), grid[..., 1].tolist())


def along_roc(surface: ClassifierSurface, roc: Roc) -> list[RocPoint]:
    """The differences to expect at each threshold of a classifier; a curve that never meets the grid is an error."""
    recall, false_positive_rate = np.array(roc.recall), np.array(roc.false_positive_rate)
    outside = _outside(surface.recall, recall) | _outside(surface.false_positive_rate, false_positive_rate)
    if outside.all():
        raise ValueError(
            f"no point of the ROC curve is on the grid, of recalls {surface.recall} and false positive rates "
            f"{surface.false_positive_rate}; train at rates nearer to the classifier's"
        )
    retain, forget = surface.at(recall, false_positive_rate)
    columns = roc.threshold, roc.recall, roc.false_positive_rate, retain.tolist(), forget.tolist(), outside.tolist()
    return [RocPoint(*point) for point in zip(*columns, strict=True)]


def roc_of(report: Mapping[str, Any]) -> Roc:
    """The ROC curve of documents in the report.json of `excise label`."""
    held_out = report["documents"]["held_out"]
    if held_out is None:
        raise ValueError("the report has no ROC curve, as no document had a known category; label some that have")
    return from_dict(Roc, held_out["roc"])


def _outside(grid: list[float], values: Floats) -> NDArray[np.bool_]:
    return (values < grid[0]) | (values > grid[-1])


def _weights(grid: list[float], values: Floats) -> Floats:
    """How much each value takes from each point of a grid: 1 at the point, falling linearly to 0 at its neighbours."""
    return np.array([np.interp(values, grid, one) for one in np.eye(len(grid))]).T
