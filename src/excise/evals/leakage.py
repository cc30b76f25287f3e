"""Leakage (paper, section 4.3 and appendix G): how much of the undiscovered forget data reaches the retain parameters.

Standard runs on all retain data (D_retain and the retain share of D_unlabeled) with growing numbers of forget tokens
give a baseline curve, on which the ablated, uncalibrated forget loss of a run is looked up. Tokens are predicted ones,
over all epochs. Interpolation is linear, as in the paper: where the curve bends, it overstates tokens between points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LeakagePoint:
    """A standard run: the forget tokens in its training, and its uncalibrated forget loss."""

    tokens: int
    loss: float
    seed: int = 0


@dataclass(frozen=True)
class BaselineCurve:
    """Forget loss over forget tokens in standard training."""

    tokens: list[int]
    loss: list[float]
    """Mean over seeds, or the nearest curve that falls: neighbours in the wrong order are pooled."""
    pooled: bool
    n_seeds: list[int]
    deviation: list[float]
    degrees: list[float]
    """Deviation between seeds, of a point and its neighbours, and its degrees of freedom; 0 where it is not known."""


@dataclass(frozen=True)
class Leakage:
    """The forget tokens that give standard training the same loss, as a share of the undiscovered ones."""

    leakage: float
    low: float | None
    high: float | None
    """The 95 % interval; null where no error is known, its upper end also where the curve ends before it."""
    counts_seeds: bool
    """Whether the interval is of seeds too, or of documents alone."""
    equivalent_tokens: float
    undiscovered_tokens: int
    censored: bool
    """The loss is above the zero-token loss: the leakage is 0."""
    lower_bound: bool
    """The loss is below the last point of the curve: the leakage is this or more."""
    upper_bound: bool
    """The loss is above the first point with any forget tokens: the curve falls steeply there and the line to it does not, so
    that the leakage is this or less."""


def baseline_curve(points: Sequence[LeakagePoint], *, seed_deviation: float | None = None) -> BaselineCurve:
    """The curve of these runs; where each point has one seed, give the deviation between seeds, if it is known."""
    tokens = sorted({point.tokens for point in points})
    if len(tokens) < 2 or tokens[0] != 0 or len({(point.tokens, point.seed) for point in points}) < len(points):
        raise ValueError(f"runs with {tokens} forget tokens are no baseline curve; give 0, some above, each seed once")
    losses = [[point.loss for point in points if point.tokens == n] for n in tokens]
    means, n_seeds = [float(np.mean(seeds)) for seeds in losses], [len(seeds) for seeds in losses]
    falling = _falling(means, n_seeds)
    if not (np.isfinite(means).all() and falling[0] > falling[-1]):
        raise ValueError(f"the mean losses {means} of the baseline curve do not fall; train on more forget tokens")
    return BaselineCurve(tokens, falling, falling != means, n_seeds, *_deviation(losses, seed_deviation))


def leakage(
    curve: BaselineCurve,
    forget_loss: float,
    undiscovered_tokens: int,
    *,
    loss_error: float = 0.0,
    one_seed: bool = True,
    n_draws: int = 2000,
) -> Leakage:
    """The leakage of a run from its ablated, uncalibrated forget loss and the standard error of that: over documents or,
    where the loss is a mean over seeds, over these.

    For the interval, the curve is drawn as other seeds would give it, from Student's t: two or three seeds resampled look
    steadier than they are. So is the loss of one seed, which is taken to vary as the curve's runs do. The error over
    documents is cautious, as all runs share them.
    """
    if undiscovered_tokens < 1 or not np.isfinite([forget_loss, loss_error]).all():
        given = f"{undiscovered_tokens} undiscovered tokens and a loss of {forget_loss:g} with error {loss_error:g}"
        raise ValueError(f"leakage is not defined for {given}; it needs at least one token and finite numbers")
    tokens, low, high = _tokens_at(forget_loss, curve.loss, curve), None, None
    if any(curve.deviation) or loss_error:
        drawn = _draw(curve, forget_loss, tokens, loss_error, one_seed, n_draws)
        low, high = (np.quantile(drawn, (0.025, 0.975)) / undiscovered_tokens).tolist()
        high = high if high < curve.tokens[-1] / undiscovered_tokens else None
    return Leakage(
        leakage=tokens / undiscovered_tokens,
        low=low,
        high=high,
        counts_seeds=any(curve.deviation),
        equivalent_tokens=tokens,
        undiscovered_tokens=undiscovered_tokens,
        censored=forget_loss > curve.loss[0],
        lower_bound=forget_loss < curve.loss[-1],
        upper_bound=curve.loss[1] < forget_loss <= curve.loss[0],
    )


def _tokens_at(loss: float, losses: list[float], curve: BaselineCurve) -> float:
    return float(np.interp(loss, losses[::-1], curve.tokens[::-1]))


def _draw(
    curve: BaselineCurve, loss: float, tokens: float, loss_error: float, one_seed: bool, n_draws: int
) -> list[float]:
    """Equivalent tokens as other seeds and documents would give them."""
    random = np.random.default_rng(0)
    spread = random.standard_t(curve.degrees, (n_draws, len(curve.tokens))) * curve.deviation / np.sqrt(curve.n_seeds)
    deviation, degrees = (np.interp(tokens, curve.tokens, of) for of in (curve.deviation, curve.degrees))
    of_seed = deviation * random.standard_t(degrees, n_draws)
    losses = loss + (of_seed if one_seed else 0) + random.normal(0, loss_error, n_draws)
    curves = [_falling(drawn, curve.n_seeds) for drawn in (curve.loss + spread).tolist()]
    return [_tokens_at(*drawn, curve) for drawn in zip(losses, curves, strict=True)]


def _deviation(losses: list[list[float]], given: float | None) -> tuple[list[float], list[float]]:
    """Between seeds, of each point and its neighbours or, where these have one seed each, of all."""
    free, squares = np.array([(len(seeds) - 1, np.var(seeds) * len(seeds)) for seeds in losses]).T
    if given is not None or not free.any():
        return [given or 0.0] * len(losses), [1e6] * len(losses)
    near = np.tri(len(free), k=1) * np.tri(len(free), k=1).T
    near[near @ free == 0] = 1
    return np.sqrt(near @ squares / (near @ free)).tolist(), (near @ free).tolist()


def _falling(losses: list[float], weights: list[int]) -> list[float]:
    """The nearest falling curve (isotonic regression), by pooling adjacent violators."""
    blocks: list[tuple[float, int, int]] = []
    for loss, weight in zip(losses, weights, strict=True):
        blocks.append((loss, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (a, u, m), (b, v, n) = blocks[-2:]
            blocks[-2:] = [((u * a + v * b) / (u + v), u + v, m + n)]
    return [mean for mean, _, n_points in blocks for _ in range(n_points)]
