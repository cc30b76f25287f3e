"""Measures that only the reproduction takes: which parameters each label updates (paper, table 1), the first loss, and
the loss that learning rates are judged by."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from excise.data.loader import Loader
from excise.data.packing import Corpus, evaluation_batches
from excise.evals.losses import NotFinite, evaluate
from excise.evals.measures import MEASURES, Measure, some
from excise.evals.options import MeasureOptions
from excise.evals.run import Subject, trained_on
from excise.labels import RETAIN, label_names, part_of
from excise.model.gpt import GPT
from excise.routing.rules import RoutingConfig
from excise.train.run import build_model
from excise.train.step import accumulate

DOCUMENTS = 16


@dataclass(frozen=True)
class Updates:
    """By label, then by part: |gradient| / |parameters| of one step on documents of that label alone."""

    relative_gradient_norm: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class FirstLoss:
    """The loss of the first step of training, before anything is learned."""

    loss: float


@dataclass(frozen=True)
class Validation:
    """The retain loss on the calibration split after ablation, before calibration."""

    loss: float


def measure_updates(subject: Subject, options: MeasureOptions) -> Updates:
    routing, corpus = subject.config.routing, trained_on(subject).train
    labels = label_names(routing.domains)
    of_label = {label: corpus[np.flatnonzero(corpus.labels == number)] for number, label in enumerate(labels)}
    return Updates(
        {
            label: updates(subject.model, some(documents, DOCUMENTS), routing, subject.context)
            for label, documents in of_label.items()
            if len(documents)
        }
    )


def updates(model: GPT, corpus: Corpus, routing: RoutingConfig, context: int) -> dict[str, float]:
    """By part, the relative gradient norm of one step on these documents with their labels; 0 where there is none."""
    device = next(model.parameters()).device
    accumulate(model, [batch.to(device) for batch in evaluation_batches(corpus, context, DOCUMENTS)], routing)
    squares: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        of_part = squares.setdefault(part_of(name), [0.0, 0.0])
        of_part[0] += 0.0 if parameter.grad is None else float(parameter.grad.double().square().sum())
        of_part[1] += float(parameter.detach().double().square().sum())
    model.zero_grad(set_to_none=True)
    return {part: (gradient / whole) ** 0.5 for part, (gradient, whole) in squares.items()}


def measure_first_loss(subject: Subject, options: MeasureOptions) -> FirstLoss:
    config, device = subject.config, next(subject.model.parameters()).device
    model = build_model(config).to(device)
    loader = Loader(trained_on(subject).train, config.batch, config.train.seed)
    batches = [batch.to(device) for batch in loader.step(0)]
    return FirstLoss(accumulate(model, batches, config.routing, subject.autocast).mean)


def measure_validation(subject: Subject, options: MeasureOptions) -> Validation:
    documents, removed = subject.data.calibration[RETAIN], subject.removed
    loss = evaluate(subject.model, documents, removed=removed, context=subject.context, autocast=subject.autocast).mean
    if not math.isfinite(loss):
        raise NotFinite("the model's losses on validation documents are not finite, so it cannot be evaluated")
    return Validation(loss)


OWN_MEASURES: Mapping[str, Measure] = {
    "first_loss": measure_first_loss,
    "updates": measure_updates,
    "validation": measure_validation,
}
ALL_MEASURES: Mapping[str, Measure] = {**OWN_MEASURES, **MEASURES}
