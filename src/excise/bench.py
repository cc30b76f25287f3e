"""Speed of plain and of routed training on this machine, beside the way the method is run today.

All variants are timed side by side in one process, on the same rows, and against the fastest matrix product that the
machine was seen to do in the same run. Tokens are real ones: padding does not count.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from excise.data.loader import BatchConfig, Loader
from excise.data.packing import IGNORED, Corpus, collate, truncate
from excise.extras import needs
from excise.model.gpt import GPT, GPTConfig, compile_blocks, n_parameters
from excise.recipes.paper import TINYSTORIES, WIKIPEDIA
from excise.routing.partition import partition
from excise.routing.rules import RoutingConfig
from excise.train.loop import autocast, build_optimizer, pick_device, pick_precision
from excise.train.recorded import RecordedPasses
from excise.train.run import Precision, TrainConfig
from excise.train.step import Passes, accumulate_passes

Size = Literal["tiny", "8m", "64m", "125m", "254m"]
SIZES: Mapping[str, tuple[GPTConfig, int]] = {
    "tiny": (GPTConfig(vocabulary_size=4096, context=256, n_layers=4, d_model=256, n_heads=8, d_mlp=1024), 16),
    "8m": (TINYSTORIES["8m"], 128),
    "64m": (TINYSTORIES["64m"], 128),
    "125m": (WIKIPEDIA["125m"], 64),
    "254m": (WIKIPEDIA["254m"], 64),
}
"""Models, and rows in a step."""
BILINGUAL_MIX, WIKIPEDIA_MIX = (0.29, 0.10, 0.61), (0.86, 0.10, 0.04)
"""Shares of unlabeled, retain and forget data in the paper's runs."""
PLAIN, MIXED, SINGLE, REFERENCE = "plain training", "SGTM, mixed rows", "SGTM, one label a micro-batch", "reference"
SINGLE_LABELS = ("unlabeled micro-batch", "retain micro-batch", "forget micro-batch")
FORGET_UNITS = 64
N_STEPS = 8
"""Steps in an epoch."""
STEPS_IN_A_ROW = {"cpu": 1, "cuda": 5}
"""A GPU is given its next step while it does the one before, as in training."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured."""

    size: Size = "tiny"
    """A model of the paper, or one that a CPU trains in a second."""
    documents: Literal["full", "stories"] = "full"
    """Rows filled by two documents each, or documents with the lengths of TinyStories."""
    rows: int = 0
    """Rows in a step; 0 means 65,536 tokens, or 4,096 for the tiny model."""
    reference: bool = False
    """Whether the set-up that the field uses is timed too: GPT-Neo of `transformers`, eager attention, compiled, a document
    a row, gradients zeroed after the backward pass."""
    compile: bool = False
    """Whether the blocks are compiled, as long trainings on a GPU do."""
    precision: Precision = "auto"
    rounds: int = 10


@dataclass(frozen=True)
class Timing:
    name: str
    tokens_per_second: float
    milliseconds: float
    """Of a step."""
    ratio: float
    """Time per token against plain training."""
    matrix_share: float
    """Six FLOPs for every parameter and token, as a share of the machine's matrix peak (MFU)."""
    memory_gb: float | None
    """The most that was taken of the GPU; null on a CPU."""
    first_step_seconds: float
    """With compilation, where there is any."""


@dataclass(frozen=True)
class BenchResults:
    config: BenchConfig
    device: str
    torch: str
    precision: str
    parameters: int
    peak_tflops: float
    timings: Sequence[Timing]


Step = Callable[[], object]


@dataclass
class Variant:
    """What is known of a kind of step, and the real tokens in it."""

    n_tokens: float
    first: float
    memory: float | None
    seconds: list[float]

    @property
    def per_token(self) -> float:
        return statistics.median(self.seconds) / self.n_tokens


def bench(config: BenchConfig) -> BenchResults:
    """Median times of whole steps.

    On a CPU the variants take turns, so that a busy machine treats them alike; on a GPU, which has no other work but
    little memory, one goes after the other.
    """
    train = TrainConfig(precision=config.precision)
    device = pick_device(train.device)
    kinds = variants(config, train, device)
    groups = [{name: kind} for name, kind in kinds.items()] if device.type == "cuda" else [kinds]
    made = {name: variant for group in groups for name, variant in measured(group, config.rounds, device).items()}
    size, _ = SIZES[config.size]
    parameters, peak = n_parameters(GPT(size)), matrix_peak(device, autocast(train, device))

    def timing(name: str, variant: Variant, per_token: float) -> Timing:
        share = 6 * parameters / per_token / peak
        ratio, milliseconds = per_token / made[PLAIN].per_token, 1000 * per_token * variant.n_tokens
        return Timing(name, 1 / per_token, milliseconds, ratio, share, variant.memory, variant.first)

    timings = [timing(name, variant, variant.per_token) for name, variant in made.items()]
    # One label a micro-batch takes the time of its labels, in the shares of the mix.
    labels = zip(label_mix(config), SINGLE_LABELS, strict=True)
    timings.append(timing(SINGLE, made[PLAIN], sum(share * made[name].per_token for share, name in labels)))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    precision = pick_precision(config.precision, device)
    return BenchResults(config, name, torch.__version__, precision, parameters, peak / 1e12, timings)


def measured(
    kinds: Mapping[str, Callable[[], tuple[Step, float]]], rounds: int, device: torch.device
) -> dict[str, Variant]:
    """Kinds of step that take turns, after first steps that compile them."""
    steps = {name: make() for name, make in kinds.items()}
    found = {name: warmed_up(step, n_tokens, device) for name, (step, n_tokens) in steps.items()}
    in_a_row = STEPS_IN_A_ROW[device.type]
    for _ in range(rounds):
        for name, (step, _) in steps.items():
            found[name].seconds.append(timed(step, device, in_a_row))
    steps.clear()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def warmed_up(step: Step, n_tokens: float, device: torch.device) -> Variant:
    """What the first steps tell: how long one takes to compile, and how much memory is held."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    first, memory = timed(step, device), None
    if device.type == "cuda":
        timed(step, device)
        memory = torch.cuda.max_memory_reserved(device) / 1e9
    return Variant(n_tokens, first, memory, [])


def timed(step: Step, device: torch.device, in_a_row: int = 1) -> float:
    """Seconds for a step."""
    start = time.perf_counter()
    for _ in range(in_a_row):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / in_a_row


def matrix_peak(device: torch.device, precision: AbstractContextManager[None]) -> float:
    """FLOPs a second of a large square matrix product in the precision of training, the best of a few."""
    n = 8192 if device.type == "cuda" else 2048
    x = torch.randn(n, n, device=device)
    with torch.no_grad(), precision:
        return 2 * n**3 / min(timed(lambda: x @ x, device) for _ in range(5))


def label_mix(config: BenchConfig) -> tuple[float, ...]:
    return WIKIPEDIA_MIX if config.size in ("125m", "254m") else BILINGUAL_MIX


def variants(
    config: BenchConfig, train: TrainConfig, device: torch.device
) -> dict[str, Callable[[], tuple[Step, float]]]:
    """What makes each kind of step."""
    embeddings: Any = "retain" if label_mix(config) == WIKIPEDIA_MIX else "joint"
    routing = RoutingConfig(domains=("forget",), forget_heads=1, forget_units=FORGET_UNITS, embeddings=embeddings)
    plain = RoutingConfig(rule="none", domains=("forget",))

    def ours(routing: RoutingConfig, mix: Sequence[float]) -> Callable[[], tuple[Step, float]]:
        return lambda: stepper(config, train, device, routing, mix)

    made = {PLAIN: ours(plain, label_mix(config)), MIXED: ours(routing, label_mix(config))}
    for i, name in enumerate(SINGLE_LABELS):
        made[name] = ours(routing, [float(i == label) for label in range(3)])
    if config.reference:
        made[REFERENCE] = lambda: reference_stepper(config, train, device)
    return made


def stepper(
    config: BenchConfig, train: TrainConfig, device: torch.device, routing: RoutingConfig, mix: Sequence[float]
) -> tuple[Step, float]:
    """A whole training step of ours on packed rows, which are read while the steps before are done."""
    size, _ = SIZES[config.size]
    parts = partition(routing, n_layers=size.n_layers, n_heads=size.n_heads, d_mlp=size.d_mlp)
    model = GPT(size, parts).to(device)
    if config.compile:
        compile_blocks(model)
    optimizer = build_optimizer(model, train)
    rows = BatchConfig(context=size.context, rows_per_step=n_rows(config), rows_per_micro_batch=n_rows(config))
    loader = Loader(documents(config, mix), rows, seed=0)
    batches = loader.steps(itertools.count(), device)
    passes = Passes(model, routing, autocast(train, device))
    if config.compile and device.type == "cuda":
        passes = RecordedPasses(passes, (n_rows(config), size.context))

    def step() -> None:
        accumulate_passes(passes, next(batches))
        optimizer.step()

    return step, loader.tokens_per_epoch / loader.steps_per_epoch


def reference_stepper(config: BenchConfig, train: TrainConfig, device: torch.device) -> tuple[Step, float]:
    """The same model as the field trains it: a document a row, padded, all logits at once, gradients zeroed by hand."""
    transformers, (size, _) = needs("transformers", "hf"), SIZES[config.size]
    neo = transformers.GPTNeoConfig(
        vocab_size=size.vocabulary_size,
        max_position_embeddings=size.context,
        hidden_size=size.d_model,
        num_layers=size.n_layers,
        num_heads=size.n_heads,
        intermediate_size=size.d_mlp,
        window_size=size.window,
        attention_types=[[["global", "local"], size.n_layers // 2]],
        attn_implementation="eager",
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    plain = transformers.GPTNeoForCausalLM(neo).to(device).train()

    def loss_of(tokens: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        logits = plain(input_ids=tokens, attention_mask=mask).logits
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)

    loss_function = torch.compile(loss_of) if config.compile else loss_of
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True)
    retained = [parameter for name, parameter in plain.named_parameters() if "mlp" in name]
    corpus = documents(config, label_mix(config))
    pieces = truncate(corpus, size.context)
    rows = n_rows(config) // (4 if size.context > 512 else 1)  # all scores of all heads are in memory at once
    batch = collate(corpus, pieces, [[i] for i in range(min(rows, len(pieces)))], size.context).to(device)
    mask = (batch.documents >= 0).long()

    def step() -> None:
        with autocast(train, device):
            loss = loss_function(batch.tokens, mask, batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in retained:
            if parameter.grad is not None:
                parameter.grad[FORGET_UNITS:] = 0
        optimizer.step()
        optimizer.zero_grad()

    return step, batch.n_predicted


def n_rows(config: BenchConfig) -> int:
    return config.rows or SIZES[config.size][1]


def documents(config: BenchConfig, mix: Sequence[float]) -> Corpus:
    """Enough random documents for some steps, labelled in these shares."""
    (size, _), random = SIZES[config.size], np.random.default_rng(0)
    n = N_STEPS * n_rows(config)
    if config.documents == "full":
        lengths = np.full(n, size.context + 1)
    else:
        # English and Spanish stories have 220 and 339 tokens on average.
        means = random.choice([220, 339], n * size.context // 280)
        lengths = random.gamma(4.0, means / 4).astype(int).clip(8, size.context + 1)
    texts = [random.integers(0, size.vocabulary_size, n).tolist() for n in lengths]
    bounds = np.round(np.cumsum(mix) * len(texts))
    labels = np.searchsorted(bounds, np.arange(len(texts)), side="right")
    return Corpus.of(texts, random.permutation(labels).tolist())
