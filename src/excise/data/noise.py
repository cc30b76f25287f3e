"""A simulated classifier: labels with a known share of errors (paper, section 4.1)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from excise.data.documents import Document
from excise.labels import RETAIN, UNLABELED


def simulate_labels(
    documents: Sequence[Document], domains: Sequence[str], *, undiscovered_share: float, retain_share: float, seed: int
) -> list[Document]:
    """The same documents, labelled with their domain but for an undiscovered share, and a share of the others as retain.

    Shares are exact to one document. Everything else is unlabeled.
    """
    labels = [UNLABELED] * len(documents)
    for domain in domains:
        mine = [i for i, document in enumerate(documents) if document.category == domain]
        for i in _draw(mine, 1 - undiscovered_share, [seed, *domain.encode()]):
            labels[i] = domain
    others = [i for i, document in enumerate(documents) if document.category not in domains]
    for i in _draw(others, retain_share, [seed]):
        labels[i] = RETAIN
    return [replace(document, label=label) for document, label in zip(documents, labels, strict=True)]


def _draw(items: Sequence[int], share: float, seed: Sequence[int]) -> list[int]:
    chosen = np.random.default_rng(seed).permutation(len(items))[: round(share * len(items))]
    return [items[i] for i in chosen]
