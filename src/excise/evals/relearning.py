"""The relearning attack (paper, section 5.3, appendix E): how soon fine-tuning brings back what was removed.

The attacker trains on as much forget as retain data. Units that are zero on both sides get no gradient, so the module is
re-initialised by default. The paper names no learning rate: several are tried, and the strongest attack counts.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from excise.data.loader import BatchConfig, Loader
from excise.data.packing import Batch, Corpus
from excise.evals.lora import with_adapters
from excise.evals.losses import by_set, document_losses
from excise.labels import UNLABELED_ID, nearest
from excise.model.ablation import Ablation, ablate
from excise.model.gpt import GPT
from excise.routing.rules import RoutingConfig
from excise.train.loop import due
from excise.train.step import accumulate

Method = Literal["full", "lora"]


@dataclass(frozen=True, kw_only=True)
class AttackConfig:
    """What the attacker does."""

    steps: int = 500
    rows_per_step: int = 256
    """Rows of forget data in a step, and as many rows of retain data."""
    rows_per_micro_batch: int = 32
    context: int = 1024
    """Pairs of input and target in a row, for the attack and for the losses."""
    learning_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Rates that the attacker tries, constant after `warmup` steps."""
    weight_decay: float = 0.1
    warmup: int = 10
    method: Method = "full"
    """All parameters, or low-rank adapters only."""
    lora_rank: int = 16
    n_documents: int = 0
    """Forget documents that the attacker has, seen again and again; 0 means all."""
    ablation: Ablation = "reinitialise"
    """What becomes of the module before the attack."""
    evaluate_every: int = 25
    """Steps between evaluations, beside those at the start and at the end."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "rows_per_step", "rows_per_micro_batch", "context", "lora_rank", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"attack.{name}={getattr(self, name)} must be at least 1")
        for name in ("weight_decay", "warmup", "n_documents", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"attack.{name}={getattr(self, name)} must be a number from 0 up")
        if self.rows_per_step % self.rows_per_micro_batch:
            raise ValueError(f"attack.rows_per_step={self.rows_per_step} must be a multiple of rows_per_micro_batch")
        rates = self.learning_rates
        if not rates or len(set(rates)) < len(rates) or not all(0 < rate < math.inf for rate in rates):
            raise ValueError(f"attack.learning_rates={rates} must be one or more different numbers above 0")


@dataclass(frozen=True)
class AttackPoint:
    """Uncalibrated losses at some step of an attack."""

    step: int
    forget_tokens: int
    """Predicted tokens of forget data seen so far."""
    losses: dict[str, float]
    """Of the domain that is attacked; at the start and at the end of all test sets."""


@dataclass(frozen=True)
class Attack:
    """An attack at one learning rate."""

    learning_rate: float
    points: list[AttackPoint]
    diverged_at: int | None
    """The evaluated step at which a loss was no longer a number, where the attack ended."""
    relearning_steps: int | None = None
    """The first evaluated step at which the forget loss is down at the baseline's; None if it never is."""
    interpolated_steps: float | None = None
    """The same between evaluations, on the straight line that joins them."""


@dataclass(frozen=True)
class Relearning:
    """The attacks on one model."""

    config: AttackConfig
    domain: str
    ablation: Ablation | Literal["none"]
    """What became of the modules; `none` where the model had none."""
    baseline_loss: float
    attacks: list[Attack]
    strongest: float
    """The learning rate of the strongest attack, of which the rest is told."""
    at_edge: bool
    """Whether it is the lowest or the highest rate tried, so that one beyond may be stronger."""
    relearning_steps: int | None
    lowest_loss: float
    """The lowest forget loss on the way, and the step at which it was reached."""
    lowest_at: int


Sets = Mapping[str, Corpus]
Autocast = AbstractContextManager[None] | None
Listener = Callable[[GPT, float, AttackPoint], None]
"""Called after every evaluation with the attacked model, the learning rate and the losses."""


def relearn(
    model: GPT,
    forget: Corpus,
    retain: Corpus,
    test: Sets,
    domain: str,
    config: AttackConfig,
    baseline_loss: float,
    listener: Listener = lambda *_: None,
    autocast: Autocast = None,
) -> Relearning:
    """Attack a model, less its modules where it has any, at every rate; the model given is left alone."""
    if domain not in test:
        raise ValueError(f"there is no test set {domain!r} to follow the forget loss on; {nearest(domain, test)}")
    if not math.isfinite(baseline_loss):
        raise ValueError(f"baseline_loss={baseline_loss} must be the forget loss of a model trained with no filter")
    target = deepcopy(model).requires_grad_()
    for module in model.partition.domains:
        target = ablate(target, module, config.ablation, config.seed)
    halves = _half(forget, config.n_documents, config, 2 * config.seed), _half(retain, 0, config, 2 * config.seed + 1)
    adapted = partial(with_adapters, rank=config.lora_rank, seed=config.seed)
    fresh: Callable[[GPT], GPT] = adapted if config.method == "lora" else deepcopy
    attacks = []
    for rate in config.learning_rates:
        attacked, points = fresh(target), []
        for point in _points(attacked, rate, halves, test, domain, config, autocast):
            listener(attacked, rate, point)
            points.append(point)
        attacks.append(_attack(rate, points))
    return judged(config, domain, config.ablation if model.partition.domains else "none", attacks, baseline_loss)


def judged(
    config: AttackConfig,
    domain: str,
    ablation: Ablation | Literal["none"],
    attacks: Sequence[Attack],
    baseline_loss: float,
) -> Relearning:
    """Attacks on one model, their steps counted to this loss."""

    def counted(attack: Attack) -> Attack:
        reached, between = steps_to([(point.step, point.losses[domain]) for point in attack.points], baseline_loss)
        return replace(attack, relearning_steps=reached, interpolated_steps=between)

    attacks = list(map(counted, attacks))
    best = strongest(attacks, domain)
    end = lowest(best, domain)
    return Relearning(
        config=config,
        domain=domain,
        ablation=ablation,
        baseline_loss=baseline_loss,
        attacks=attacks,
        strongest=best.learning_rate,
        at_edge=best.learning_rate in (min(config.learning_rates), max(config.learning_rates)),
        relearning_steps=best.relearning_steps,
        lowest_loss=end.losses[domain],
        lowest_at=end.step,
    )


def _points(
    model: GPT,
    rate: float,
    halves: Sequence[Loader],
    test: Sets,
    domain: str,
    config: AttackConfig,
    autocast: Autocast,
) -> Iterator[AttackPoint]:
    """Losses of a model while it is trained at one rate, until it diverges."""
    optimizer, device = _optimizer(model, config.weight_decay), next(model.parameters()).device
    # The rule `none` has no modules, so they would stand still; unlabeled data is plain under every rule.
    routing = RoutingConfig(domains=model.partition.domains or ("none",))
    forget_tokens = 0
    for step in range(config.steps + 1):
        if step:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, step / max(1, config.warmup))
            forget, retain = ([batch.to(device) for batch in _step(half, step - 1)] for half in halves)
            accumulate(model, [*forget, *retain], routing, autocast)
            optimizer.step()
            forget_tokens += sum(batch.n_predicted for batch in forget)
        if due(step, config.evaluate_every, config.steps):
            wanted = test if step in (0, config.steps) else {domain: test[domain]}
            found = by_set(wanted, partial(document_losses, model, context=config.context, autocast=autocast))
            losses = {name: of_set.means[0] for name, of_set in found.items()}
            yield AttackPoint(step, forget_tokens, losses)
            if not all(map(math.isfinite, losses.values())):
                return


def _attack(rate: float, points: list[AttackPoint]) -> Attack:
    """An attack, whose last losses are not kept where they are not numbers."""
    *before, last = points
    diverged = not all(map(math.isfinite, last.losses.values()))
    if diverged and not before:
        raise ValueError(f"the model's losses before the attack are {last.losses}; an attack needs a sound model")
    return Attack(rate, before if diverged else points, last.step if diverged else None)


def steps_to(losses: Sequence[tuple[int, float]], baseline_loss: float) -> tuple[int | None, float | None]:
    """The first step, from 0 on, with a loss at or below the baseline's, and where the line to it crosses that."""
    reached = next((i for i, (_, loss) in enumerate(losses) if loss <= baseline_loss), None)
    if not reached:
        return reached, reached
    (earlier, above), (step, loss) = losses[reached - 1], losses[reached]
    return step, earlier + (step - earlier) * (above - baseline_loss) / (above - loss)


def strongest(attacks: Sequence[Attack], domain: str) -> Attack:
    """The attack with the fewest relearning steps; of those that tie or never get there, the one with the lowest forget
    loss on its way, where the attacker would stop. One that diverges later was strong all the same."""

    def strength(attack: Attack) -> tuple[float, float]:
        steps = attack.relearning_steps
        return math.inf if steps is None else steps, lowest(attack, domain).losses[domain]

    return min(attacks, key=strength)


def lowest(attack: Attack, domain: str) -> AttackPoint:
    """Where the forget loss was lowest."""
    return min(attack.points, key=lambda point: point.losses[domain])


def retain_matched(checkpoint_losses: Sequence[tuple[int, float]], target: float) -> int:
    """The step of the checkpoint whose retain loss is nearest to the target's and not below it (appendix E)."""
    elevated = [(loss, step) for step, loss in checkpoint_losses if loss >= target]
    if not elevated:
        raise ValueError(f"no checkpoint has a retain loss of {target:g} or more; keep checkpoints of earlier steps")
    return min(elevated)[1]


def _optimizer(model: GPT, weight_decay: float) -> torch.optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def _half(corpus: Corpus, n_documents: int, config: AttackConfig, seed: int) -> Loader:
    """Steps of one half of the attacker's data, none of which has a label; at least two in a pass over them."""
    if n_documents > len(corpus):
        raise ValueError(f"attack.n_documents={n_documents}, but there are {len(corpus)}; 0 takes all")
    mine = corpus[np.random.default_rng(seed).permutation(len(corpus))[: n_documents or None]]
    n = config.rows_per_step
    repeats = math.ceil(2 * n * config.context / max(1, mine.n_predicted))
    unlabeled = replace(mine, labels=np.full_like(mine.labels, UNLABELED_ID), token_labels=None)
    batch = BatchConfig(context=config.context, rows_per_step=n, rows_per_micro_batch=config.rows_per_micro_batch)
    return Loader(unlabeled[np.tile(np.arange(len(mine)), repeats)], batch, seed)


def _step(half: Loader, step: int) -> Iterator[Batch]:
    """One half of a step. The last step of a pass may be short and is left out."""
    number, within = divmod(step, half.steps_per_epoch - 1)
    return half.step(number * half.steps_per_epoch + within)
