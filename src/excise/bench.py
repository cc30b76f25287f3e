"""Tokens per second of plain and of routed training, measured side by side on this machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from excise.data.packing import Batch, Corpus, evaluation_batches
from excise.model.gpt import GPT, GPTConfig, compile_blocks
from excise.routing.partition import partition
from excise.routing.rules import RoutingConfig
from excise.train.loop import autocast, build_optimizer, pick_device
from excise.train.run import Precision, TrainConfig
from excise.train.step import accumulate

LABEL_MIX = (0.29, 0.10, 0.61)
"""Shares of unlabeled, retain and forget data in the paper's bilingual runs."""
SINGLE = "SGTM, one label a micro-batch"
MIXED = "SGTM, mixed rows"


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The size that is measured."""

    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 8
    context: int = 256
    rows: int = 16
    """Rows per micro-batch."""
    vocabulary_size: int = 4096
    rounds: int = 10
    precision: Precision = "float32"
    compile: bool = False
    """Whether the blocks are compiled, as long trainings on a GPU do."""


@dataclass(frozen=True)
class Timing:
    name: str
    tokens_per_second: float
    ratio: float
    """Time per token against plain training."""


def bench(config: BenchConfig) -> list[Timing]:
    """Median times of whole steps, the variants taking turns so that a busy machine treats them alike."""
    runs = variants(config)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(config.rounds + 1):
        for name, step in runs.items():
            start = time.perf_counter()
            step()
            if i:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    n_tokens = config.rows * config.context
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    # One label a micro-batch takes the time of its labels, in the shares of the mix.
    medians[SINGLE] = sum(share * medians[name] for share, name in zip(LABEL_MIX, SINGLE_LABELS, strict=True))
    plain = medians["plain training"]
    return [Timing(name, n_tokens / median, median / plain) for name, median in medians.items()]


SINGLE_LABELS = ("unlabeled micro-batch", "retain micro-batch", "forget micro-batch")


def variants(config: BenchConfig) -> dict[str, Callable[[], None]]:
    """One training step per kind of micro-batch."""
    routing = RoutingConfig(domains=("forget",), forget_heads=1, forget_units=64, embeddings="joint")
    plain = RoutingConfig(rule="none", domains=("forget",))
    runs = {"plain training": stepper(config, plain, label_mix(config, LABEL_MIX))}
    runs[MIXED] = stepper(config, routing, label_mix(config, LABEL_MIX))
    for i, name in enumerate(SINGLE_LABELS):
        runs[name] = stepper(config, routing, label_mix(config, [float(i == label) for label in range(3)]))
    return runs


def stepper(config: BenchConfig, routing: RoutingConfig, batch: Batch) -> Callable[[], None]:
    size = GPTConfig(
        vocabulary_size=config.vocabulary_size,
        context=config.context,
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_heads=config.n_heads,
        d_mlp=4 * config.d_model,
    )
    train = TrainConfig(precision=config.precision)
    device = pick_device(train.device)
    parts = partition(routing, n_layers=size.n_layers, n_heads=size.n_heads, d_mlp=size.d_mlp)
    model = GPT(size, parts).to(device)
    if config.compile:
        compile_blocks(model)
    optimizer = build_optimizer(model, train)
    batch = batch.to(device)

    def step() -> None:
        accumulate(model, [batch], routing, autocast(train, device))
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def label_mix(config: BenchConfig, shares: Sequence[float]) -> Batch:
    """Full rows of two documents each, labelled in these shares."""
    random = np.random.default_rng(0)
    n_documents, length = 2 * config.rows, config.context // 2 + 1
    documents = random.integers(0, config.vocabulary_size, (n_documents, length)).tolist()
    bounds = np.round(np.cumsum(shares) * n_documents)
    labels = np.searchsorted(bounds, np.arange(n_documents), side="right")
    corpus = Corpus.of(documents, random.permutation(labels).tolist())
    (batch,) = evaluation_batches(corpus, config.context, config.rows)
    return batch
