"""Confidence intervals by the bootstrap over documents: tokens of one document are much alike, so documents are drawn."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95

Interval = tuple[float, float]


def resampled_means(
    totals: NDArray[np.float64], counts: NDArray[Any], *, seed: int = 0, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Sums over counts of documents drawn with replacement (resamples x S), for totals of N documents (N x S).

    All columns are drawn together, so that their differences are paired.
    """
    random, n = np.random.default_rng(seed), len(counts)
    means = np.empty((resamples, totals.shape[1]))
    for i in range(resamples):
        drawn = np.bincount(random.integers(n, size=n), minlength=n)
        means[i] = drawn @ totals / (drawn @ counts)
    return means


def percentiles(resampled: NDArray[np.float64], level: float = LEVEL) -> list[Interval]:
    """The middle of each column that holds this share of it."""
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
