"""Trade-off curves: forget loss over retain loss while methods train (paper, figures 1, 4a, 7 and 13), and who leads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from excise.evals.figure import Estimate, PaperClaim, Point, Series
from excise.evals.losses import SetLosses
from excise.recipes.figures.estimates import LOSS, LossTable, at_most_1, is_above, losses_of, over_seeds
from excise.recipes.figures.planned import FinishedRun, Group, PlannedRun


def with_curve(run: PlannedRun, evaluations: int) -> PlannedRun:
    """The same run, its losses followed while it trains."""
    return replace(run, config=replace(run.config, train=replace(run.config.train, evaluations=evaluations)))


Curve = Sequence[tuple[float, float, float]]
"""Share of training, retain loss, forget loss."""


class Axes(NamedTuple):
    """The test sets of retain and of forget loss, and whether a loss is a mean over tokens or over categories."""

    retain: str
    forget: str
    means: LossTable = "sets"

    def end(self, run: FinishedRun, name: str) -> SetLosses:
        """The losses of a run on a test set at the end of its training."""
        return losses_of(run, name, self.means)


def curve_of(run: FinishedRun, axes: Axes, stage: str = "calibrated") -> Curve:
    table = "losses" if axes.means == "sets" else axes.means
    points = run.results.measures["tradeoff"]
    if not all(point.get(table) for point in points):
        raise ValueError(
            f"{run.name} has no means over categories along its curve; delete its folder to train it again"
        )

    def loss(point: Mapping[str, Any], name: str) -> float:
        return float(point[table][name][stage])

    return [(point["share"], loss(point, axes.retain), loss(point, axes.forget)) for point in points]


def tradeoff_series(method: str, label: str, group: Group, axes: Axes, stage: str = "calibrated") -> Series:
    """Forget loss over retain loss while a method trains, a point for each evaluation; the last is its end."""
    points = []
    for of_seeds in zip(*(curve_of(run, axes, stage) for run in group), strict=True):
        shares, x, y = zip(*of_seeds, strict=True)
        points.append(Point(over_seeds(x), over_seeds(y), f"{np.mean(shares):.0%} of training"))
    return Series(method, label, points, star=True)


def equal_share_lines(groups: Mapping[str, Group], axes: Axes) -> list[Series]:
    """Lines between methods at the same share of their training, at most four, none at its end."""
    curves = [tradeoff_series(name, "", group, axes).points for name, group in groups.items()]
    at_share = list(zip(*curves, strict=True))
    every = max(1, len(at_share) // 4)

    def line(points: Sequence[Point]) -> Series:
        means = [Point(Estimate(point.x.value), Estimate(point.y.value)) for point in points]
        return Series("equal", points[0].text, sorted(means, key=lambda point: point.y.value), markers=False)

    return [line(points) for points in at_share[every - 1 : -1 : every]]


def common_retain_losses(curves: Sequence[Curve]) -> list[float]:
    """The retain losses of all points of some curves where all of them have been, the lowest first."""
    losses = [[retain for _, retain, _ in curve] for curve in curves]
    first, last = max(map(min, losses)), min(map(max, losses))
    return sorted(loss for of in losses for loss in of if first <= loss <= last)


def leads_at(retain_losses: Sequence[float], curve: Curve, other: Curve) -> list[float]:
    """By how much a curve's forget loss is above another's at these retain losses, on straight lines."""

    def forget_at(of: Curve) -> Any:
        retain, forget = zip(*sorted((retain, forget) for _, retain, forget in of), strict=True)
        return np.interp(retain_losses, retain, forget)

    return (forget_at(curve) - forget_at(other)).tolist()  # type: ignore[no-any-return]


def leads(curve: Curve, other: Curve) -> list[float]:
    """The same at all points of either curve where both have been."""
    return leads_at(common_retain_losses([curve, other]), curve, other)


def is_behind_somewhere(curves: Sequence[Curve], others: Sequence[Curve]) -> bool:
    """Whether seeds agree on a retain loss at which the first forget less, or have none in common. Smallest leads of seeds,
    which may lie at different retain losses, are lower than any that seeds agree on."""
    at = common_retain_losses([*curves, *others])
    by_seed = [leads_at(at, curve, other) for curve, other in zip(curves, others, strict=True)]
    return not at or any(is_above(over_seeds(of_seeds)) is False for of_seeds in zip(*by_seed, strict=True))


def lead_claim(text: str, paper: str, group: Group, other: Group, axes: Axes, *, at_end: bool = False) -> PaperClaim:
    """A claim that a method forgets more at any retain loss, or at the lowest that both methods have come to."""
    curves = [[curve_of(run, axes) for run in one] for one in (group, other)]
    of_seeds = [leads(mine, theirs) for mine, theirs in zip(*curves, strict=True)]
    if not all(of_seeds):
        return PaperClaim(text, paper, None, LOSS, None, "the curves have no retain loss in common")
    errors = [axes.end(one[0], axes.forget).error("calibrated") for one in (group, other)]
    estimate = over_seeds([lead[0] if at_end else min(lead) for lead in of_seeds], math.hypot(*errors))
    verdict = is_above(estimate)
    if at_end:
        why = "the difference of forget losses at the lowest retain loss that both curves have come to"
    else:
        why = "the smallest difference of forget losses at equal retain loss, where both curves have been"
        if verdict is False and len(group) > 1 and not is_behind_somewhere(*curves):
            verdict = None
            why += "; but seeds agree on no retain loss at which it is below 0"
    return PaperClaim(text, paper, estimate, LOSS, verdict, why)


def share_of_training(curve: Curve, retain: float) -> float:
    """The share of training after which a run first had this retain loss, on straight lines; 1 where it never had."""
    shares, losses = zip(*((share, loss) for share, loss, _ in curve), strict=True)
    return float(np.interp(-retain, -np.minimum.accumulate(losses), shares))


def recovered_of_seeds(group: Group, data_filter: Group, perfect_filter: Group, name: str) -> list[float] | None:
    """How far a method's forget loss is on the way from the filter's to the perfect filter's in each seed, or beyond; None
    where these are equal."""
    losses = [[run.losses.sets[name].calibrated for run in one] for one in (group, data_filter, perfect_filter)]
    if any(b == c for _, b, c in zip(*losses, strict=True)):
        return None
    return [(a - b) / (c - b) for a, b, c in zip(*losses, strict=True)]


def recovered_by(group: Group, data_filter: Group, perfect_filter: Group, name: str) -> Estimate | None:
    """The same over seeds. It is cut at 1 only then: cut before, seeds beyond 1 would seem to agree."""
    of_seeds = recovered_of_seeds(group, data_filter, perfect_filter, name)
    return None if of_seeds is None else at_most_1(over_seeds(of_seeds))
