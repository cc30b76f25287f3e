"""Losses token by token (paper, section 5.4 and figure 6b): is a higher loss a broad shift, or a few outliers?

Two models see the same tokens, and differ on every one by chance, now up, now down. So a rise is broad when most losses
rose and its mean remains once the largest differences are left out on both sides alike. How much of the rise is in the
tail of the distribution is told by rank: the largest differences of single tokens would add up to mostly chance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excise.evals.intervals import Interval, percentiles, resampled_means
from excise.evals.losses import NotFinite

Floats = NDArray[np.float64]
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
EXTREMES = (0.01, 0.1)
"""Shares of the tokens that are looked at, or left out, as extremes."""
N_BINS = 60


@dataclass(frozen=True)
class LossDistribution:
    """The losses of one model."""

    mean: float
    """Sum over tokens / number of tokens: the reported loss."""
    quantiles: dict[str, float]
    counts: list[int]
    """Tokens between the edges; those beyond are counted at the ends."""


@dataclass(frozen=True)
class TokenLossShift:
    """The losses of a model beside those of a reference, and where the difference of their means comes from."""

    n_tokens: int
    n_documents: int
    edges: list[float]
    losses: LossDistribution
    reference: LossDistribution
    shift: float
    """Of the mean."""
    shift_interval: Interval
    """95 %, over documents."""
    median_shift: float
    trimmed_shift: dict[str, float]
    """Mean difference without these shares of the largest, and of the smallest, differences of single tokens."""
    risen: float
    """Share of the tokens whose loss rose."""
    risen_interval: Interval
    rise_in_top: dict[str, float] | None
    """Sorted losses rise by as much: what these shares of them, the highest, have of it; null where nothing rose."""
    broad: bool
    """The interval of `risen` is above 0.5, and trimming 0.1 leaves at least half of the shift."""


def token_loss_shift(
    losses: Floats, reference: Floats, documents: NDArray[np.int64], edges: Sequence[float] | None = None
) -> TokenLossShift:
    """How the losses of a model differ from a reference's on the same tokens, each with its document."""
    losses, reference = np.asarray(losses, np.float64), np.asarray(reference, np.float64)
    of_document = _numbered(losses, reference, documents)
    if edges is None:
        edges = np.linspace(0, math.ceil(max(losses.max(), reference.max())), N_BINS + 1).tolist()
    difference = losses - reference
    totals = np.stack([np.bincount(of_document, values) for values in (difference, difference > 0)], 1).astype(float)
    intervals = percentiles(resampled_means(totals, np.bincount(of_document)))
    shift, trimmed = float(difference.mean()), {str(share): _trimmed_mean(difference, share) for share in EXTREMES}
    return TokenLossShift(
        n_tokens=len(losses),
        n_documents=len(totals),
        edges=list(edges),
        losses=_distribution(losses, edges),
        reference=_distribution(reference, edges),
        shift=shift,
        shift_interval=intervals[0],
        median_shift=float(np.median(losses) - np.median(reference)),
        trimmed_shift=trimmed,
        risen=float((difference > 0).mean()),
        risen_interval=intervals[1],
        rise_in_top=_rise_in_top(losses, reference),
        broad=shift > 0 and intervals[1][0] > 0.5 and trimmed["0.1"] >= shift / 2,
    )


def smoothed(counts: Sequence[int], edges: Sequence[float], at: Floats) -> Floats:
    """The density of counted losses at these: normal kernels of Scott's bandwidth, at least as wide as the bins."""
    bounds, shares = np.asarray(edges, np.float64), np.asarray(counts, np.float64) / sum(counts)
    middles = (bounds[:-1] + bounds[1:]) / 2
    spread = math.sqrt(float(shares @ (middles - shares @ middles) ** 2))
    width = max(spread * sum(counts) ** -0.2, float(np.diff(bounds).max()))
    # No loss is below the first edge, so what a kernel has there is mirrored.
    distances = (at[:, None] - np.concatenate([middles, 2 * bounds[0] - middles])) / width
    kernels = np.exp(-(distances**2) / 2) / (width * math.sqrt(2 * math.pi))
    return np.asarray(kernels @ np.tile(shares, 2))


def _numbered(losses: Floats, reference: Floats, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The document of each token, counted from 0; losses that are not of the same tokens are refused."""
    shapes = losses.shape, reference.shape, np.shape(documents)
    if losses.ndim != 1 or len(set(shapes)) > 1:
        raise ValueError(f"losses, reference and documents have the shapes {shapes}; give one number for each token")
    if not np.isfinite([losses, reference]).all():
        raise NotFinite("some losses are not finite; evaluate a model that has not diverged")
    numbers: NDArray[np.int64] = np.unique(documents, return_inverse=True)[1]
    if not len(numbers) or numbers.max() < 1:
        raise ValueError("the tokens are of fewer than two documents, which gives no interval; evaluate more")
    return numbers


def _distribution(losses: Floats, edges: Sequence[float]) -> LossDistribution:
    quantiles = dict(zip(map(str, QUANTILES), np.quantile(losses, QUANTILES).tolist(), strict=True))
    counts, _ = np.histogram(np.clip(losses, edges[0], edges[-1]), edges)
    return LossDistribution(float(losses.sum() / len(losses)), quantiles, counts.tolist())


def _trimmed_mean(values: Floats, share: float) -> float:
    n_left_out = int(share * len(values))
    return float(np.sort(values)[n_left_out : len(values) - n_left_out].mean())


def _rise_in_top(losses: Floats, reference: Floats) -> dict[str, float] | None:
    by_rank = np.sort(losses) - np.sort(reference)
    total = by_rank.sum()
    if total <= 0:
        return None
    return {str(share): float(by_rank[-math.ceil(share * len(by_rank)) :].sum() / total) for share in EXTREMES}
