"""The in-context attack (paper, section 6): forget loss with growing amounts of forget text in front.

Targets are the same at every length, so that differences are paired. Retain text in front is the control.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from excise.data.packing import Corpus, collate, cut
from excise.evals.intervals import percentiles, resampled_means
from excise.model.gpt import GPT
from excise.routing.route import PLAIN
from excise.train.step import routed_losses

ROWS_PER_BATCH = 16
Array = NDArray[np.float64]


@dataclass(frozen=True)
class ContextLoss:
    """Loss per target token after some text, and its change from none, with 95 % intervals over documents."""

    prefix_tokens: int
    loss: float
    change: float
    loss_interval: list[float]
    change_interval: list[float]


@dataclass(frozen=True)
class InContext:
    """Losses on the same targets by the text in front of them."""

    n_documents: int
    n_tokens: int
    forget: list[ContextLoss]
    retain: list[ContextLoss]


def in_context(
    model: GPT,
    forget: Corpus,
    retain: Corpus,
    *,
    context: int | None = None,
    target_tokens: int = 64,
    lengths: Sequence[int] = (),
    seed: int = 0,
) -> InContext:
    """Losses on the first tokens of all forget documents after others; lengths are powers of two where none are given."""
    context = context or model.config.context
    room = context - target_tokens
    lengths = sorted({0, *(lengths or (2**i for i in range(4, 32) if 2**i <= room))})
    if target_tokens < 1 or lengths[0] < 0 or lengths[-1] > room:
        raise ValueError(f"lengths={lengths} and target_tokens={target_tokens} do not fit into {context}")
    forget, retain = (corpus[np.flatnonzero(corpus.lengths > 1)] for corpus in (forget, retain))
    # Both in the same order, so that in parallel corpora no target follows its own translation.
    forget, retain = (corpus[np.random.default_rng(seed).permutation(len(corpus))] for corpus in (forget, retain))
    targets = [_document(forget, i)[: target_tokens + 1] for i in range(len(forget))]
    n_predicted = np.array([len(target) - 1.0 for target in targets])

    def after(source: Corpus) -> list[ContextLoss]:
        joined = [_before(source, i, lengths[-1]) + target for i, target in enumerate(targets)]
        sums = [_losses(model, [tokens[lengths[-1] - n :] for tokens in joined], n) for n in lengths]
        return paired_bootstrap(lengths, np.stack(sums), n_predicted, seed)

    return InContext(len(forget), int(n_predicted.sum()), after(forget), after(retain))


def _document(corpus: Corpus, i: int) -> list[int]:
    return [*corpus.tokens[int(corpus.starts[i]) : int(corpus.starts[i] + corpus.lengths[i])].tolist()]


def _before(corpus: Corpus, place: int, n: int) -> list[int]:
    """The last n tokens of the documents before a place, going round but never to the document at the place."""
    tokens: list[int] = []
    others = (_document(corpus, (place - i) % len(corpus)) for i in range(1, len(corpus)))
    while len(tokens) < n:
        if not (other := next(others, [])):
            raise ValueError(f"a context of {n} tokens is more than the {len(tokens)} of the other documents")
        tokens = other + tokens
    return tokens[len(tokens) - n :]


@torch.no_grad()
def _losses(model: GPT, documents: list[list[int]], n_prefix: int) -> Array:
    """Each document's loss, summed over the tokens that follow its prefix and one token more."""
    corpus, device = Corpus.of(documents, [0] * len(documents)), next(model.parameters()).device
    width, rows, sums = int(corpus.lengths.max()) - 1, [[i] for i in range(len(documents))], []
    for first in range(0, len(rows), ROWS_PER_BATCH):
        batch = collate(corpus, cut(corpus, width), rows[first : first + ROWS_PER_BATCH], width).to(device)
        _, losses = routed_losses(model, batch, PLAIN, torch.ones_like(batch.targets, dtype=torch.float32))
        sums.append(losses[:, n_prefix:].double().sum(-1).cpu().numpy())
    return np.concatenate(sums)


def paired_bootstrap(lengths: Sequence[int], sums: Array, n_predicted: Array, seed: int) -> list[ContextLoss]:
    """Losses at each length from the sums of documents (lengths, documents), whose draws all lengths share."""
    losses = (sums.sum(-1) / n_predicted.sum()).tolist()
    drawn = resampled_means(sums.T, n_predicted, seed=seed)
    rows = zip(lengths, losses, percentiles(drawn), percentiles(drawn - drawn[:, :1]), strict=True)
    return [ContextLoss(n, loss, loss - losses[0], [*of_loss], [*of_change]) for n, loss, of_loss, of_change in rows]
