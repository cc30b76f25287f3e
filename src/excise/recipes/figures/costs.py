"""What a run costs before it is done: tokens, FLOPs (6 x parameters x tokens), and time on this machine."""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from excise.data.dataset import DataConfig, everything, load_data
from excise.data.noise import ADJACENT
from excise.data.packing import Corpus, evaluation_batches
from excise.data.sources import EMBEDDED
from excise.model.gpt import GPTConfig
from excise.recipes.figures.bilingual_runs import parameters_of
from excise.recipes.figures.plan import Plan, Run
from excise.train.loop import autocast, build_optimizer, pick_device
from excise.train.run import RunConfig, build_model
from excise.train.step import accumulate

UNKNOWN: Mapping[str, tuple[float, float, float]] = {
    "bilingual": (15.3e6, 0.0, 19.3e6),
    "bilingual-4k": (18.7e6, 0.0, 16.5e6),
    "tinystories": (466e6, 0.0, 718e6),
    "topics": (12.8e6, 2.5e6, 1.1e6),
    "topics-4k": (19e6, 1.8e6, 1.4e6),
    "wikipedia": (3.3e9, 0.3e9, 0.14e9),
}
"""Tokens of sources that are not at hand, about: general, adjacent and forget data."""
TIMED = 20_000_000
"""Models with fewer parameters are timed in a moment, on a CPU too."""


def tokens_of(run: RunConfig) -> float:
    """Tokens that a run trains on, about."""
    budget, per_step = run.train.budget, run.batch.rows_per_step * run.batch.context
    if budget.unit != "epochs":
        return budget.amount * (per_step if budget.unit == "steps" else 1)
    data = run.data
    general, adjacent, forget = corpus_tokens(_size_of(data), run.routing.domains)
    wrong = data.false_positive_rate * (1 - data.retain_share)
    left = {
        "none": general + adjacent + forget,
        "weak": (general + adjacent) * (1 - wrong) + forget * data.undiscovered_share,
        "strict": general * (1 - wrong) + forget * data.undiscovered_share,
        "perfect": general + adjacent,
    }
    return budget.amount * left[data.filter]


def _size_of(data: DataConfig) -> DataConfig:
    return everything(DataConfig(**{**vars(data), "seed": 0}))


@lru_cache
def corpus_tokens(data: DataConfig, domains: tuple[str, ...]) -> tuple[float, float, float]:
    """Tokens of general, adjacent and forget data in a source, exact where it is at hand."""
    if data.source not in EMBEDDED and not Path(data.source).is_dir():
        return UNKNOWN.get(Path(data.source).name, UNKNOWN["bilingual"])
    loaded = load_data(data, domains)
    kinds = np.where(loaded.truth >= 0, 2, np.where(loaded.truth == ADJACENT, 1, 0))
    general, adjacent, forget = np.bincount(kinds, loaded.train.lengths - 1, minlength=3).tolist()
    return general, adjacent, forget


def flops_of(run: RunConfig) -> float:
    return 6.0 * parameters_of(run.model) * tokens_of(run)


def flops_per_second(run: RunConfig, rounds: int = 3) -> float:
    """The FLOPs that this machine does in a second of training this run, from the fastest of a few steps after a first
    one, on random tokens: a micro-batch of at most 4 rows on a CPU."""
    device = pick_device(run.train.device)
    rows = run.batch.rows_per_micro_batch if device.type == "cuda" else min(4, run.batch.rows_per_micro_batch)
    context, model = run.batch.context, build_model(run).to(device)
    tokens = np.random.default_rng(0).integers(0, run.model.vocabulary_size, (rows, context + 1)).tolist()
    (batch,) = evaluation_batches(Corpus.of(tokens, [0] * rows), context, rows)
    batch, optimizer, seconds = batch.to(device), build_optimizer(model, run.train), []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        accumulate(model, [batch], run.routing, autocast(run.train, device))
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 6.0 * parameters_of(run.model) * batch.n_predicted / min(seconds[1:])


@dataclass(frozen=True)
class Cost:
    """What some runs take, and how much of that is done or shared."""

    n_runs: int
    n_shared: int
    """Runs that several figures of the plan need."""
    n_done: int
    tokens: float
    flops: float
    seconds_left: float
    """Training of what is not done, on this machine."""


def cost(runs: Sequence[Run], done: Container[str], flops_per_second: float) -> Cost:
    """The cost of training these runs at so many FLOPs a second; measures and attacks are not counted."""
    left = [run for run in runs if run.name not in done]

    def total(of: Callable[[RunConfig], float], among: Sequence[Run]) -> float:
        return sum(of(run.planned.config) for run in among if run.planned.unlearning is None)

    return Cost(
        n_runs=len(runs),
        n_shared=sum(len(run.figures) > 1 for run in runs),
        n_done=len(runs) - len(left),
        tokens=total(tokens_of, runs),
        flops=total(flops_of, runs),
        seconds_left=total(flops_of, left) / flops_per_second,
    )


def speed_of(planned: Plan) -> tuple[float, int]:
    """FLOPs a second of this machine in training, and the parameters of the model that was timed: the one with the most
    work in the plan, or the smallest where that would take too long."""
    work: dict[GPTConfig, float] = {}
    configs = {run.planned.config.model: run.planned.config for run in planned.runs.values()}
    for run in planned.runs.values():
        work[run.planned.config.model] = work.get(run.planned.config.model, 0.0) + flops_of(run.planned.config)
    if not work:
        return 1.0, 0
    quick = [model for model in work if parameters_of(model) < TIMED] or [min(work, key=parameters_of)]
    model = max(quick, key=lambda model: work[model])
    return flops_per_second(configs[model]), parameters_of(model)
