"""Loss per token on held-out text: a sum over tokens and a count, divided once.

Documents are packed as in training, and the loss of each is kept apart, so that one pass over the text gives the losses
of sets that overlap, of every category, and their confidence intervals.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from excise.data.packing import Batch, Corpus, cut, evaluation_batches
from excise.evals.intervals import Interval, percentiles, resampled_means
from excise.evals.progress import advance
from excise.labels import forget_part, nearest
from excise.model.gpt import GPT
from excise.routing.route import Route, single_route
from excise.routing.rules import Effect

ROWS_PER_BATCH = {"cpu": 16, "cuda": 128}
STAGES = ("before", "ablated", "calibrated")

Biases = Sequence[Tensor | None]


class NotFinite(ValueError):
    """What a model predicts is no number any more, so that it cannot be evaluated."""


@dataclass(frozen=True)
class Loss:
    """A sum over predicted tokens, and their number."""

    total: float
    n_tokens: int

    @property
    def mean(self) -> float:
        return self.total / self.n_tokens


@dataclass(frozen=True)
class DocumentLosses:
    """Sums over the predicted tokens of each document (N x S, for S ways to predict them), and their numbers."""

    totals: NDArray[np.float64]
    n_tokens: NDArray[np.int64]

    def __getitem__(self, members: NDArray[Any]) -> "DocumentLosses":
        return DocumentLosses(self.totals[members], self.n_tokens[members])

    @property
    def means(self) -> list[float]:
        return [float(total) for total in self.totals.sum(0) / self.n_tokens.sum()]

    def resampled(self, seed: int = 0) -> NDArray[np.float64]:
        return resampled_means(self.totals, self.n_tokens, seed=seed)


def without_modules(model: GPT, domains: Sequence[str]) -> Route:
    """A route under which the modules of these domains do not exist, which equals ablating them."""
    for domain in domains:
        if domain not in model.partition.domains:
            raise ValueError(f"the model has no module {domain!r}; {nearest(domain, model.partition.domains)}")
    return single_route(Effect(hide=frozenset(forget_part(domain) for domain in domains)))


def evaluate(
    model: GPT,
    corpus: Corpus,
    *,
    removed: Sequence[str] = (),
    bias: Tensor | None = None,
    context: int | None = None,
    autocast: AbstractContextManager[None] | None = None,
) -> Loss:
    """The loss of a model on a corpus, with some modules removed and a bias added to the logits."""
    losses = document_losses(model, corpus, removed=removed, biases=[bias], context=context, autocast=autocast)
    return Loss(float(losses.totals.sum()), int(losses.n_tokens.sum()))


@torch.no_grad()
def document_losses(
    model: GPT,
    corpus: Corpus,
    *,
    removed: Sequence[str] = (),
    biases: Biases = (None,),
    context: int | None = None,
    autocast: AbstractContextManager[None] | None = None,
) -> DocumentLosses:
    """The losses of each document, with some modules removed and each of the biases added to the logits in turn."""
    if not corpus.n_predicted:
        raise ValueError("there is nothing to evaluate: the set of documents is empty")
    pieces, route = cut(corpus, context or model.config.context), without_modules(model, removed)
    device = next(model.parameters()).device
    totals = torch.zeros(len(biases), len(pieces), dtype=torch.float64, device=device)
    for batch in batches_of(model, corpus, context):
        with autocast or nullcontext():
            losses = token_losses(model, batch, route, biases)
        totals.index_add_(1, batch.documents.clamp_min(0).flatten(), losses.flatten(1).double())
    of_documents = np.zeros((len(corpus), len(biases)))
    np.add.at(of_documents, pieces.document, totals.T.cpu().numpy())
    return DocumentLosses(of_documents, corpus.lengths - 1)


def token_losses(model: GPT, batch: Batch, route: Route, biases: Biases = (None,)) -> Tensor:
    """The loss at every position of a batch with each of the biases (S B T); 0 where nothing is predicted."""
    return model.losses_with(model.hidden(**batch.inputs, route=route), batch.targets, biases, route)


def batches_of(model: GPT, corpus: Corpus, context: int | None = None) -> Iterator[Batch]:
    """Every pair of a corpus once, in rows of this many pairs, or of as many as the model takes."""
    device = next(model.parameters()).device
    for batch in evaluation_batches(corpus, context or model.config.context, ROWS_PER_BATCH[device.type]):
        yield batch.to(device)
        advance(batch.n_predicted)


@dataclass(frozen=True)
class AblationLosses:
    """The losses of one model on one set of documents."""

    before: float
    """With all modules."""
    ablated: float
    """With the modules removed."""
    calibrated: float
    """With the modules removed and a bias on the logits fitted (appendix I)."""

    @staticmethod
    def mean_of(categories: Iterable[DocumentLosses]) -> "AblationLosses":
        """The mean over categories, each weighing the same, which is what the paper reports for Wikipedia."""
        return AblationLosses(*np.mean([losses.means for losses in categories], 0).tolist())


@dataclass(frozen=True)
class SetLosses(AblationLosses):
    """The same with 95 % intervals over documents."""

    intervals: Mapping[str, Interval]
    """By stage: `before`, `ablated`, `calibrated`."""
    n_documents: int
    n_tokens: int

    def error(self, stage: str) -> float:
        """The standard error over documents."""
        low, high = self.intervals[stage]
        return (high - low) / (2 * 1.96)

    @staticmethod
    def of(losses: DocumentLosses) -> "SetLosses":
        return SetLosses.mean_over([losses])

    @staticmethod
    def mean_over(categories: Sequence[DocumentLosses]) -> "SetLosses":
        """The same of the mean over categories."""
        mean = AblationLosses.mean_of(categories)
        resampled = np.mean([losses.resampled(seed) for seed, losses in enumerate(categories)], 0)
        return SetLosses(
            mean.before,
            mean.ablated,
            mean.calibrated,
            intervals=dict(zip(STAGES, percentiles(resampled), strict=True)),
            n_documents=sum(len(losses.n_tokens) for losses in categories),
            n_tokens=sum(int(losses.n_tokens.sum()) for losses in categories),
        )


def stage_losses(
    model: GPT,
    sets: Mapping[str, Corpus],
    removed: Sequence[str],
    bias: Tensor,
    context: int | None = None,
    autocast: AbstractContextManager[None] | None = None,
) -> dict[str, DocumentLosses]:
    """Losses of every document before ablation, after it, and after calibration, by set."""

    def losses_on(corpus: Corpus) -> DocumentLosses:
        after = document_losses(model, corpus, removed=removed, biases=[None, bias], context=context, autocast=autocast)
        before = document_losses(model, corpus, context=context, autocast=autocast) if removed else after
        return DocumentLosses(np.concatenate([before.totals[:, :1], after.totals], 1), after.n_tokens)

    found = by_set(sets, losses_on)
    for name, losses in found.items():
        if not np.isfinite(losses.totals).all():
            raise NotFinite(f"the model's losses on {name!r} are not finite, so it cannot be evaluated")
    return found


def by_set(sets: Mapping[str, Corpus], losses_on: Callable[[Corpus], DocumentLosses]) -> dict[str, DocumentLosses]:
    """The losses of sets of which one that is part of another before it, as adjacent categories are of the retain data,
    costs nothing."""
    found: dict[str, DocumentLosses] = {}
    for name, corpus in sets.items():
        larger = next((other for other in found if is_part(corpus, sets[other])), None)
        found[name] = found[larger][places(corpus, sets[larger])] if larger else losses_on(corpus)
    return found


def is_part(corpus: Corpus, other: Corpus) -> bool:
    """Whether all documents of a corpus are in another."""
    return len(corpus) > 0 and corpus.tokens is other.tokens and bool(np.isin(corpus.starts, other.starts).all())


def places(corpus: Corpus, other: Corpus) -> NDArray[np.int64]:
    """Where each document of a corpus stands in another that holds it."""
    order = np.argsort(other.starts)
    found: NDArray[np.int64] = order[np.searchsorted(other.starts, corpus.starts, sorter=order)]
    return found


def of_categories(corpus: Corpus, losses: DocumentLosses) -> dict[str, DocumentLosses]:
    """The losses of the documents of each category that a set holds."""
    columns = corpus.categories
    return {name: losses[columns.index == i] for i, name in enumerate(columns.names) if np.any(columns.index == i)}
