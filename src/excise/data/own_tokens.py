"""Tokens that mostly one domain uses, by the labels of the training documents.

A domain's module has a vector for a token whose frequency in the domain's documents is at least a given share of the
sum of its frequencies there, in retain documents and in those of every other domain. Unlabeled documents, which may
hide some of the domain, have no say. In retain documents every token counts once more than it occurs, to be sure of
rare ones, and so that no token is half one domain's and half another's.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from excise.data.packing import Corpus
from excise.labels import FIRST_DOMAIN_ID, RETAIN_ID

ALIGNED = 8
"""Rows that a GPU multiplies at a time; of each domain's tokens the surest are taken, a multiple of this."""


def own_tokens(corpus: Corpus, domains: Sequence[str], share: float, vocabulary_size: int) -> dict[str, list[int]]:
    """By domain the tokens that are its own at this share, in ascending order, where it has any; none where the share is
    0."""
    if not share or not domains:
        return {}
    of_retain = counts(corpus, RETAIN_ID, vocabulary_size)
    if not of_retain.any():
        raise ValueError(
            "routing.forget_tokens compares with documents labelled retain, of which there are none; label some "
            "(excise prepare --label retain=CATEGORY,CATEGORY), or set it to 0"
        )
    of_domains = [counts(corpus, FIRST_DOMAIN_ID + i, vocabulary_size) for i in range(len(domains))]
    in_domains = np.stack([of_domain / max(of_domain.sum(), 1) for of_domain in of_domains])
    shares = in_domains / ((of_retain + 1) / of_retain.sum() + in_domains.sum(0))
    found = {domain: surest(of_domain, share) for domain, of_domain in zip(domains, shares, strict=True)}
    return {domain: tokens for domain, tokens in found.items() if tokens}


def surest(shares: NDArray[np.float64], least: float) -> list[int]:
    n = int((shares >= least).sum())
    chosen: list[int] = np.argsort(-shares, kind="stable")[: n - n % ALIGNED].tolist()
    return sorted(chosen)


def counts(corpus: Corpus, label: int, vocabulary_size: int) -> NDArray[np.int64]:
    """How often each token stands under a label."""
    found = np.zeros(vocabulary_size, np.int64)
    some = corpus.labels == label if corpus.token_labels is None else np.ones(len(corpus), bool)
    for start, length in zip(corpus.starts[some], corpus.lengths[some], strict=True):
        tokens = corpus.tokens[start : start + length]
        if corpus.token_labels is not None:
            tokens = tokens[corpus.token_labels[start : start + length] == label]
        np.add.at(found, tokens, 1)
    return found
