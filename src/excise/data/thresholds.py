"""Two thresholds cut scores in three: how they are chosen, and how good the labels are that they give.

Everything here is a function of two arrays: `scores` from 0 to 1, and `domain`, which says of each document whether it
is of the domain: 1 or 0 where the truth is known, the probability where it is not. Sums over it are numbers of
documents, expected ones if need be.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from excise.labels import RETAIN, UNLABELED

LARGEST_ODDS = 25.0
HISTOGRAM_EDGES = np.linspace(-LARGEST_ODDS, LARGEST_ODDS, 101)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """Where a threshold should lie, by what it should achieve."""

    by: Literal["threshold", "recall", "precision", "share"]
    value: float


@dataclass(frozen=True)
class Thresholds:
    """Scores from `forget` on get the domain as label, scores up to `retain` get retain."""

    forget: float
    retain: float

    def __post_init__(self) -> None:
        if self.retain >= self.forget:
            raise ValueError(f"retain_threshold={self.retain:g} must be below forget_threshold={self.forget:g}")

    def label(self, score: float, domain: str) -> str:
        if score >= self.forget:
            return domain
        return RETAIN if score <= self.retain else UNLABELED


@dataclass(frozen=True)
class Rates:
    """How good a three-way split is; null where nothing has the label."""

    n_domain: float
    n_others: float
    recall: float
    """Share of the domain that is labelled with it."""
    precision: float | None
    """Share of what is labelled with the domain that is of it."""
    false_positive_rate: float
    """Share of the others that is labelled with the domain."""
    retain_share: float
    """Share of the others that is labelled retain."""
    retain_precision: float | None
    """Share of what is labelled retain that is not of the domain."""
    retain_false_rate: float
    """Share of the domain that is labelled retain."""


@dataclass(frozen=True)
class Roc:
    """The ROC curve, from the highest threshold to the lowest, and the area under it."""

    auc: float
    threshold: tuple[float, ...]
    false_positive_rate: tuple[float, ...]
    recall: tuple[float, ...]


@dataclass(frozen=True)
class ReliabilityBin:
    """Scores in a tenth of the range: what they say on average, and what is true, with a 95 % interval."""

    n: int
    mean_score: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class HeldOut:
    """How good scores and thresholds are on documents, or sentences, of which the truth is known."""

    on: str
    rates: Rates
    roc: Roc
    reliability: tuple[ReliabilityBin, ...]
    domain_counts: tuple[int, ...]
    """By log-odds of the score, between the HISTOGRAM_EDGES."""
    other_counts: tuple[int, ...]


def measure(on: str, scores: Floats, domain: Floats, thresholds: Thresholds) -> HeldOut:
    return HeldOut(
        on,
        rates(scores, domain, thresholds),
        roc(scores, domain),
        reliability(scores, domain),
        tuple(histogram(scores[domain == 1]).tolist()),
        tuple(histogram(scores[domain == 0]).tolist()),
    )


def expected_domain(scores: Floats, prior: float) -> Floats:
    """The probability of the domain for each score, which is right where the share of the domain is the prior.

    Here the share may be another; it is the one that its own posterior probabilities add up to (Saerens, Latinne and
    Decaestecker, 2002).
    """
    share, posterior = prior, scores
    for _ in range(1000):
        odds = share / (1 - share) * (1 - prior) / prior
        posterior = scores * odds / (scores * odds + 1 - scores)
        before, share = share, float(np.clip(posterior.mean(), 1e-6, 1 - 1e-6))
        if abs(share - before) < 1e-8:
            break
    return posterior


def choose_thresholds(scores: Floats, domain: Floats, forget: Target, retain: Target) -> Thresholds:
    """The two thresholds that meet the targets; a target out of reach is an error."""
    levels, which = np.unique(scores, return_inverse=True)
    own: Floats = np.bincount(which, domain).astype(np.float64)
    others: Floats = np.bincount(which, 1 - domain).astype(np.float64)
    at = forget.value if forget.by == "threshold" else float(levels[_forget_level(own, others, forget)])
    if retain.by == "threshold":
        return Thresholds(at, retain.value)
    n_below = int(np.searchsorted(levels, at))
    if not n_below:
        raise ValueError(f"no score is below the forget threshold of {at:g}, so that none is left for retain")
    return Thresholds(at, float(levels[_retain_level(own, others, n_below, retain)]))


def _forget_level(own: Floats, others: Floats, target: Target) -> int:
    """The highest score with the recall, or the lowest with the precision."""
    hits, above = own[::-1].cumsum()[::-1], (own + others)[::-1].cumsum()[::-1]
    if target.by == "precision":
        return int(_reached(hits / above, target, "precision")[0])
    level = int(np.flatnonzero(hits >= target.value * hits[0] * (1 - 1e-9))[-1])
    if level == 0:
        raise ValueError(f"a recall of {target.value:g} cannot be reached short of giving all documents the label")
    return level


def _retain_level(own: Floats, others: Floats, n_below: int, target: Target) -> int:
    """The score with the share of the others up to it, or the highest with the precision."""
    kept, below = others.cumsum()[:n_below], (own + others).cumsum()[:n_below]
    if target.by == "precision":
        return int(_reached(kept / below, target, "retain precision")[-1])
    n_others = others.sum()
    level = int(np.abs(kept / n_others - target.value).argmin())
    if abs(kept[level] - target.value * n_others) > max(1.0, 0.01 * n_others):
        raise ValueError(
            f"a retain share of {target.value:g} cannot be reached below the forget threshold; the nearest that can "
            f"is {kept[level] / n_others:.3f}"
        )
    return level


def _reached(precision: Floats, target: Target, name: str) -> NDArray[np.int64]:
    reached = np.flatnonzero(precision >= target.value - 1e-9)
    if not len(reached):
        raise ValueError(f"a {name} of {target.value:g} cannot be reached; the highest is {precision.max():.3f}")
    return reached


def rates(scores: Floats, domain: Floats, thresholds: Thresholds) -> Rates:
    """Precision, recall and the like of a three-way split."""
    forget, retain = scores >= thresholds.forget, scores <= thresholds.retain
    n_domain, n_others = float(domain.sum()), float((1 - domain).sum())
    hits, false = float(domain[forget].sum()), float((1 - domain[forget]).sum())
    missed, kept = float(domain[retain].sum()), float((1 - domain[retain]).sum())
    return Rates(
        n_domain=n_domain,
        n_others=n_others,
        recall=hits / n_domain,
        precision=hits / (hits + false) if forget.any() else None,
        false_positive_rate=false / n_others,
        retain_share=kept / n_others,
        retain_precision=kept / (kept + missed) if retain.any() else None,
        retain_false_rate=missed / n_domain,
    )


def roc(scores: Floats, domain: Floats, n_points: int = 200) -> Roc:
    """The area under the ROC curve, and points of the curve that are spread evenly over its scores."""
    levels, which = np.unique(-scores, return_inverse=True)
    recall = np.append(0, np.bincount(which, domain).cumsum()) / domain.sum()
    false = np.append(0, np.bincount(which, 1 - domain).cumsum()) / (1 - domain).sum()
    points = np.unique(np.linspace(0, len(levels), n_points).round().astype(int))
    curves = (tuple(curve[points].tolist()) for curve in (np.append(1, -levels), false, recall))
    return Roc(float(np.trapezoid(recall, false)), *curves)


def reliability(scores: Floats, domain: Floats, n_bins: int = 10) -> tuple[ReliabilityBin, ...]:
    """What scores say against what is true, for every part of the range that has any."""
    which = np.minimum((scores * n_bins).astype(int), n_bins - 1)
    bins = [(scores[which == i], domain[which == i]) for i in np.unique(which)]
    return tuple(
        ReliabilityBin(len(own), float(own.mean()), float(truth.mean()), *wilson(float(truth.mean()), len(own)))
        for own, truth in bins
    )


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share that was seen in n trials (Wilson, 1927)."""
    z = 1.96
    middle, width = share + z * z / (2 * n), z * (share * (1 - share) / n + (z / (2 * n)) ** 2) ** 0.5
    return max(0.0, (middle - width) / (1 + z * z / n)), min(1.0, (middle + width) / (1 + z * z / n))


def log_odds(scores: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(scores) - np.log1p(-scores), -LARGEST_ODDS, LARGEST_ODDS))


def histogram(scores: Floats) -> NDArray[np.int64]:
    """How many scores there are between any two HISTOGRAM_EDGES, which are in log-odds."""
    return np.histogram(log_odds(scores), HISTOGRAM_EDGES)[0]
