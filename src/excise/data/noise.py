"""A simulated classifier: labels with a known share of errors (paper, section 4.1 and appendix D)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from excise.labels import FIRST_DOMAIN_ID, RETAIN_ID, UNLABELED_ID

ADJACENT, OTHER = -2, -1
"""The truth about a document that is in no domain."""


def simulate_labels(
    truth: NDArray[np.int64],
    domains: Sequence[str],
    *,
    undiscovered_share: float,
    false_positive_rate: float = 0.0,
    retain_share: float,
    adjacent_retain_share: float,
    seed: int,
) -> NDArray[np.int8]:
    """A label for each document, whose truth is the number of its domain, ADJACENT or OTHER.

    D_retain is drawn first; the false positives of each domain are a share of the retain documents that remain, and no
    document is drawn twice. Every share is exact to one document. What is not drawn is unlabeled.
    """
    labels = np.full(len(truth), UNLABELED_ID, np.int8)
    for group, share in ((OTHER, retain_share), (ADJACENT, adjacent_retain_share)):
        labels[draw(np.flatnonzero(truth == group), share, [seed, group + 2])] = RETAIN_ID
    n_remaining = int(((truth < 0) & (labels == UNLABELED_ID)).sum())
    for number, domain in enumerate(domains):
        random = [seed, *domain.encode()]
        labels[draw(np.flatnonzero(truth == number), 1 - undiscovered_share, random)] = FIRST_DOMAIN_ID + number
        remaining = np.flatnonzero((truth < 0) & (labels == UNLABELED_ID))
        share = min(1.0, false_positive_rate * n_remaining / max(1, len(remaining)))
        labels[draw(remaining, share, [*random, 1])] = FIRST_DOMAIN_ID + number
    return labels


def draw(items: NDArray[np.int64], share: float, seed: Sequence[int]) -> NDArray[np.int64]:
    """A share of the items, exact to one of them."""
    return np.random.default_rng(seed).permutation(items)[: round(share * len(items))]
