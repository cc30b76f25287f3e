"""One optimizer step: the routed loss of its micro-batches, and which parameters it may move."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.data.packing import Batch
from excise.labels import FIRST_DOMAIN_ID, label_names, part_of, parts_of
from excise.model.gpt import GPT
from excise.routing.route import Route, mixed_route, single_route
from excise.routing.rules import Effect, RoutingConfig


def route_of(batch: Batch, effects: Sequence[Effect]) -> Route:
    """The route of a batch; where all its rows have one label, the one without masks."""
    if len(batch.label_ids) == 1:
        return single_route(effects[next(iter(batch.label_ids))])
    if not any(effect != Effect() for effect in effects):
        return Route()
    return mixed_route(effects, batch.labels, mixed_documents=batch.mixed_documents)


def routed_losses(model: GPT, batch: Batch, route: Route, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of the losses of a batch, for the backward pass, and each row's loss (B T)."""
    hidden = model.hidden(**batch.inputs, route=route)
    return model.losses(hidden, batch.targets, weights, route)


def loss_weights(batch: Batch, forget_weight: float) -> Tensor:
    """The weight of each row's loss (B T)."""
    return torch.where(batch.labels >= FIRST_DOMAIN_ID, forget_weight, 1.0)


def touched_parts(label_ids: Iterable[int], routing: RoutingConfig) -> frozenset[str]:
    """Parts that data of these labels may update; forget data without weight updates nothing."""
    everything = frozenset(parts_of(routing.modules))
    weighed = (label for label in label_ids if label < FIRST_DOMAIN_ID or routing.forget_weight > 0)
    return frozenset().union(*(everything - routing.effects[label].still for label in weighed))


def hold_still(model: nn.Module, touched: frozenset[str], *, zero_instead: bool = False) -> None:
    """Keep the optimizer away from parts that nothing in the step may update.

    A zero gradient still moves a weight under AdamW, through its moments and its decay; no gradient does not. So an
    untouched part has none. In a touched part all have one, so that a step does not depend on which path computed it.
    """
    for name, parameter in model.named_parameters():
        if part_of(name) not in touched and not zero_instead:
            parameter.grad = None
        elif part_of(name) not in touched or parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def clip_by_part(model: nn.Module, largest: float = math.inf) -> dict[str, Tensor]:
    """Scale gradients so that their norm within each part is at most `largest`, and return the norms that they had.

    Per part, so that forget data cannot shrink the update of retain parameters. A part that is held still has none.
    """
    by_part: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            by_part.setdefault(part_of(name), []).append(parameter)
    norms = {
        part: nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        for part, parameters in by_part.items()
    }
    for part, norm in norms.items() if largest < math.inf else ():
        nn.utils.clip_grads_with_norm_(by_part[part], largest, norm)
    return norms


class Diverged(ValueError):
    """A training whose loss or weights are no numbers any more."""

    def __init__(self, step: int, loss: float, remedy: str = "try a lower train.learning_rate") -> None:
        super().__init__(f"the loss is {loss} at step {step}; {remedy}")
        self.step, self.loss = step, loss


@dataclass(frozen=True)
class StepLoss:
    """The losses of one step, summed by the number of their label, and the predicted tokens of each."""

    totals: Tensor
    n_by_label: Mapping[int, int]

    @property
    def total(self) -> Tensor:
        return self.totals.sum()

    @property
    def n_predicted(self) -> int:
        return sum(self.n_by_label.values())

    @property
    def mean(self) -> float:
        return float(self.total) / self.n_predicted

    def by_label(self, domains: Sequence[str]) -> dict[str, float]:
        """The mean loss of each label that occurs."""
        totals, names = self.totals.tolist(), label_names(domains)
        return {names[label]: totals[label] / n for label, n in sorted(self.n_by_label.items())}


class Passes:
    """The forward and backward passes of micro-batches, which add up gradients in the model, kernel by kernel."""

    def __init__(self, model: GPT, routing: RoutingConfig, autocast: AbstractContextManager[None] | None) -> None:
        self.model, self.routing, self.autocast = model, routing, autocast or nullcontext()

    def clear(self) -> None:
        """Forget the gradients that there are."""
        self.model.zero_grad()

    def __call__(self, batch: Batch, share: float | Tensor) -> Tensor:
        """By label, the sum of the losses of a micro-batch, each of which counts so much in the gradients."""
        with self.autocast:
            weights = loss_weights(batch, self.routing.forget_weight) * share
            loss, losses = routed_losses(self.model, batch, route_of(batch, self.routing.effects), weights)
        loss.backward()  # type: ignore[no-untyped-call]
        of_label = [batch.labels == label for label in range(len(self.routing.effects))]
        return torch.stack([losses.where(here, 0.0).sum() for here in of_label])


def accumulate(
    model: GPT,
    batches: Sequence[Batch],
    routing: RoutingConfig,
    autocast: AbstractContextManager[None] | None = None,
    *,
    zero_instead: bool = False,
) -> StepLoss:
    """Leave the gradients of a whole step in the model, divided once by its number of predicted tokens."""
    return accumulate_passes(Passes(model, routing, autocast), batches, zero_instead=zero_instead)


def accumulate_passes(passes: Passes, batches: Sequence[Batch], *, zero_instead: bool = False) -> StepLoss:
    """Leave the gradients of a whole step in the model of these passes, divided once, and return its losses."""
    passes.clear()
    n_by_label: Counter[int] = sum((Counter(batch.n_by_label) for batch in batches), Counter())
    totals = torch.zeros(len(passes.routing.effects), dtype=torch.float64, device=batches[0].tokens.device)
    for batch in batches:
        totals += passes(batch, 1 / n_by_label.total())
    hold_still(passes.model, touched_parts(n_by_label, passes.routing), zero_instead=zero_instead)
    return StepLoss(totals, n_by_label)
