"""Numbers with intervals over seeds or, of one seed, over documents; and claims that such intervals decide."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from excise.evals.compute_penalty import t95
from excise.evals.figure import Estimate, PaperClaim
from excise.evals.losses import SetLosses
from excise.recipes.figures.planned import FinishedRun, Group

LOSS = "nats per token"
LossTable = Literal["sets", "category_means"]
"""Means over the tokens of a test set, or over its categories."""


def over_seeds(values: Sequence[float], error: float | None = None) -> Estimate:
    """The mean with Student's interval; of one seed, with the standard error given, where there is one."""
    mean, n = float(np.mean(values)), len(values)
    if n > 1:
        half = half_width(values)
    elif error is not None:
        half = 1.96 * error
    else:
        return Estimate(mean)
    return Estimate(mean, mean - half, mean + half)


def at_most_1(estimate: Estimate) -> Estimate:
    """A number that is told as 1 where it is above that."""
    low, high = (None if end is None else min(1.0, end) for end in (estimate.low, estimate.high))
    return Estimate(min(1.0, estimate.value), low, high)


def at_least_0(estimate: Estimate) -> Estimate:
    """A share, which is never below."""
    return Estimate(estimate.value, None if estimate.low is None else max(0.0, estimate.low), estimate.high)


def paired(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """How much higher numbers are than others of the same seeds."""
    return over_seeds([value - other for value, other in zip(values, others, strict=True)])


def half_width(values: Sequence[float]) -> float:
    """Half of Student's interval of a mean over seeds."""
    return t95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def losses_of(run: FinishedRun, name: str, table: LossTable) -> SetLosses:
    """The losses of a run on a test set."""
    of_sets: Mapping[str, SetLosses] = getattr(run.losses, table)
    return of_sets[name]


def loss(group: Group, name: str, stage: str = "calibrated") -> Estimate:
    """The loss of a run on a test set."""
    of_runs = [run.losses.sets[name] for run in group]
    return over_seeds([getattr(of, stage) for of in of_runs], of_runs[0].error(stage))


def loss_difference(
    group: Group, other: Group, name: str, stage: str = "calibrated", *, table: LossTable = "sets"
) -> Estimate:
    """How much higher the loss of a run is than another's, seed by seed.

    Of one seed, the errors over documents are taken as independent, which is cautious: the documents are the same.
    """
    mine, theirs = ([losses_of(run, name, table) for run in one] for one in (group, other))
    differences = [getattr(a, stage) - getattr(b, stage) for a, b in zip(mine, theirs, strict=True)]
    return over_seeds(differences, math.hypot(*(of[0].error(stage) for of in (mine, theirs))))


def by_seed(group: Group, value: Callable[[FinishedRun], float]) -> Estimate:
    """A number of each run, over its seeds."""
    return over_seeds([value(run) for run in group])


def in_percent(share: Estimate) -> Estimate:
    low, high = (None if end is None else 100 * end for end in (share.low, share.high))
    return Estimate(100 * share.value, low, high)


def is_above(estimate: Estimate, bound: float = 0.0) -> bool | None:
    """Whether a number is above a bound; null where its interval does not decide."""
    low, high = (estimate.value if end is None else end for end in (estimate.low, estimate.high))
    if low > bound:
        return True
    return False if high <= bound else None


def is_below(estimate: Estimate, bound: float = 0.0) -> bool | None:
    negative = [None if end is None else -end for end in (estimate.high, estimate.low)]
    return is_above(Estimate(-estimate.value, *negative), -bound)


def every(verdicts: Sequence[bool | None]) -> bool | None:
    """True where all hold, False where one does not, and otherwise not decided."""
    if not verdicts or (None in verdicts and False not in verdicts):
        return None
    return all(verdicts)


def claim_all_above(text: str, paper: str, differences: Sequence[Estimate], unit: str, why: str) -> PaperClaim:
    """A claim that all of these are above 0, told by the smallest of them."""
    smallest = min(differences, key=lambda estimate: estimate.value, default=None)
    return PaperClaim(text, paper, smallest, unit, every([is_above(one) for one in differences]), why)


def claim_all_below(text: str, paper: str, differences: Sequence[Estimate], unit: str, why: str) -> PaperClaim:
    """A claim that all of these are below 0, told by the largest of them."""
    largest = max(differences, key=lambda estimate: estimate.value, default=None)
    return PaperClaim(text, paper, largest, unit, every([is_below(one) for one in differences]), why)
