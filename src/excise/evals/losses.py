"""Loss per token on held-out text: a sum over tokens and a count, divided once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from excise.data.packing import Batch, Corpus, evaluation_batches
from excise.labels import forget_part
from excise.model.gpt import GPT
from excise.routing.route import Route, single_route
from excise.routing.rules import Effect

ROWS_PER_BATCH = 16


@dataclass(frozen=True)
class Loss:
    """A sum over predicted tokens, and their number."""

    total: float
    n_tokens: int

    @property
    def mean(self) -> float:
        return self.total / self.n_tokens


def without_modules(domains: Sequence[str]) -> Route:
    """A route under which the modules of these domains do not exist, which equals ablating them."""
    return single_route(Effect(hide=frozenset(forget_part(domain) for domain in domains)))


@torch.no_grad()
def evaluate(
    model: GPT,
    corpus: Corpus,
    *,
    removed: Sequence[str] = (),
    bias: Tensor | None = None,
    context: int | None = None,
) -> Loss:
    """The loss of a model on a corpus, with some modules removed and a bias added to the logits."""
    route = without_modules(removed)
    total, n_tokens = 0.0, 0
    for batch in batches_of(model, corpus, context):
        hidden = model.hidden(batch.tokens, positions=batch.positions, documents=batch.documents, route=route)
        losses, _ = model.losses(hidden, batch.targets, torch.ones_like(hidden[..., 0]), route, bias)
        total += losses.item()
        n_tokens += batch.n_predicted
    return Loss(total, n_tokens)


def batches_of(model: GPT, corpus: Corpus, context: int | None = None) -> list[Batch]:
    """Every pair of a corpus once, in rows of this many pairs, or of as many as the model takes."""
    device = next(model.parameters()).device
    batches = evaluation_batches(corpus, context or model.config.context, ROWS_PER_BATCH)
    return [batch.to(device) for batch in batches]


@dataclass(frozen=True)
class AblationLosses:
    """The losses of one model on one set of documents."""

    before: float
    """With all modules."""
    ablated: float
    """With the modules removed."""
    calibrated: float
    """With the modules removed and a bias on the logits fitted (appendix I)."""


def ablation_losses(
    model: GPT, sets: Mapping[str, Corpus], removed: Sequence[str], bias: Tensor, context: int | None = None
) -> dict[str, AblationLosses]:
    """Losses on every set before ablation, after it, and after calibration."""

    def losses(corpus: Corpus) -> AblationLosses:
        before = evaluate(model, corpus, context=context).mean
        ablated = evaluate(model, corpus, removed=removed, context=context).mean if removed else before
        calibrated = evaluate(model, corpus, removed=removed, bias=bias, context=context).mean
        return AblationLosses(before, ablated, calibrated)

    return {name: losses(corpus) for name, corpus in sets.items()}
