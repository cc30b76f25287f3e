"""Speed of plain and of routed training on this machine, beside the way the method is run today.

All variants are timed side by side in one process, on the same rows, and against the fastest matrix product that the
machine was seen to do in the same run. Tokens are real ones: padding does not count.
"""

import gc
import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from excise.data.loader import BatchConfig, LabelMixing, Loader
from excise.data.packing import IGNORED, Batch, Corpus, collate, truncate
from excise.extras import needs
from excise.model.gpt import GPT, GPTConfig, compile_blocks, n_parameters
from excise.recipes.paper import TINYSTORIES, WIKIPEDIA
from excise.routing.kernels import HAS_KERNELS
from excise.routing.partition import partition
from excise.routing.rules import RoutingConfig
from excise.train.loop import autocast, build_optimizer, pick_device, pick_precision
from excise.train.recorded import passes_for
from excise.train.run import Precision, TrainConfig
from excise.train.step import Passes, accumulate_passes

logger = logging.getLogger(__name__)

Size = Literal["tiny", "8m", "64m", "125m", "254m"]
Kind = Literal["mixed", "vectors", "single", "labels", "quarters"]
KINDS: tuple[Kind, ...] = get_args(Kind)
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
PLAIN, MIXED, SINGLE = "plain training", "SGTM, mixed rows", "SGTM, one label a micro-batch"
VECTORS = "mixed rows, token vectors"
"""With embeddings and norms that forget data cannot update: what had the best trade-off."""
SINGLE_LABELS = ("unlabeled micro-batch", "retain micro-batch", "forget micro-batch")
PLAIN_QUARTERS, SINGLE_QUARTERS = "plain, in quarters", "SGTM, one label a quarter"
"""Steps of as many tokens in four micro-batches."""
REFERENCE = "reference"
FORGET_UNITS = 64
TOKENS_SHARE = 0.05
"""Of the vocabulary, tokens that the module has vectors for."""
N_MICRO_BATCHES = 20
"""In an epoch of one label a micro-batch: as many as it takes for each label to have its share, a few more or less."""
N_STEPS = 5
"""Steps in any other epoch."""
IN_A_ROW = 20
"""Steps at the least between two looks at the clock on a GPU: it is given its next step while it does the one before, as in
training."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured."""

    size: Size = "tiny"
    """A model of the paper, or one that a CPU trains in a second."""
    documents: Literal["full", "stories"] = "full"
    """Rows filled by a document each, or documents with the lengths of TinyStories."""
    rows: int = 0
    """Rows in a step; 0 means 65,536 tokens, or 4,096 for the tiny model."""
    kinds: tuple[Kind, ...] = KINDS
    """Kinds of step beside plain training. mixed: rows of all labels; vectors: these with token vectors; single: one label a
    micro-batch; labels: each label alone; quarters: steps in four micro-batches."""
    reference: bool = False
    """Whether the set-up that the field uses is timed too: GPT-Neo of `transformers`, eager attention, compiled, a document
    a row, gradients zeroed after the backward pass."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the blocks and the reference are compiled; `auto` does so on a GPU, as long trainings do."""
    precision: Precision = "auto"
    """Of matrix products; `auto` takes the fastest of the device."""
    rounds: int = 5
    """How often each kind is timed."""

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"rows={self.rows} must be at least 0, which means as many as the size has")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds} must be at least 1")


@dataclass(frozen=True)
class Timing:
    name: str
    tokens_per_second: float
    milliseconds: float
    """Of a step, the median of all rounds."""
    rounds: Sequence[float]
    """Milliseconds of a step in each."""
    ratio: float
    """Time per token against plain training."""
    matrix_share: float
    """Six FLOPs for every parameter and token, as a share of the machine's matrix peak (MFU)."""
    memory_gb: float | None
    """The most that was taken of the GPU; null on a CPU."""
    memory_in_use_gb: float | None
    """The most of that which was in use at a time."""
    first_step_seconds: float
    """With compilation, where there is any."""
    set_up_seconds: float
    """What the first steps took beyond the usual until all kinds of micro-batch were compiled and recorded."""


@dataclass(frozen=True)
class BenchResults:
    config: BenchConfig
    device: str
    torch: str
    precision: str
    parameters: int
    peak_tflops: float
    timings: Sequence[Timing]


@dataclass(frozen=True)
class Stepper:
    """A kind of step."""

    step: Callable[[], object]
    n_tokens: float
    """Real ones in a step, on average."""
    in_a_row: int
    """Steps that are timed together, so that they hold what they are to hold on average."""


@dataclass
class Variant:
    """What is known of a kind of step."""

    n_tokens: float
    memory: tuple[float | None, float | None]
    """The most GB that were taken of the GPU, and in use of these."""
    warm_up: Sequence[float]
    """Seconds of each of the first steps."""
    seconds: list[float]
    """Of a step in each round after those."""

    @property
    def set_up(self) -> float:
        return max(0.0, sum(self.warm_up) - len(self.warm_up) * statistics.median(self.seconds))

    @property
    def per_token(self) -> float:
        return statistics.median(self.seconds) / self.n_tokens

    def against(self, other: "Variant", in_turns: bool) -> float:
        """Time per token against another's; where they took turns round by round, as a machine is busy for some rounds and
        idle for others."""
        if not in_turns:
            return self.per_token / other.per_token
        ratios = statistics.median(mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True))
        return ratios * other.n_tokens / self.n_tokens

    def timing(self, name: str, plain: "Variant", in_turns: bool, seconds_at_peak: float) -> Timing:
        """What is told of it; at the machine's peak the products for a token would take so long."""
        milliseconds, rounds = 1000 * self.per_token * self.n_tokens, [1000 * seconds for seconds in self.seconds]
        ratio, share = self.against(plain, in_turns), seconds_at_peak / self.per_token
        return Timing(
            name, 1 / self.per_token, milliseconds, rounds, ratio, share, *self.memory, self.warm_up[0], self.set_up
        )


def bench(config: BenchConfig, listen: Callable[[BenchResults], object] = lambda results: None) -> BenchResults:
    """Median times of whole steps; `listen` hears of all that is known whenever more is.

    On a CPU the variants take turns, so that a busy machine treats them alike; on a GPU, which has no other work but
    little memory, one goes after the other.
    """
    train = TrainConfig(precision=config.precision)
    device = pick_device(train.device)
    precision = pick_precision(config.precision, device)
    kinds, in_turns = variants(config, train, device), take_turns(device)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    parameters, peak = (
        n_parameters(GPT(SIZES[config.size][0])),
        matrix_peak(device, getattr(torch, precision.removesuffix("_stream"))),
    )
    made: dict[str, Variant] = {}
    for group in [kinds] if in_turns else [{name: kind} for name, kind in kinds.items()]:
        made |= measured(group, config.rounds, device)
        timings = [variant.timing(name, made[PLAIN], in_turns, 6 * parameters / peak) for name, variant in made.items()]
        results = BenchResults(config, machine, torch.__version__, precision, parameters, peak / 1e12, timings)
        listen(results)
        if not in_turns:  # a large model takes minutes
            logger.info("%s: %.1f ms a step", timings[-1].name, timings[-1].milliseconds)
    return results


def take_turns(device: torch.device) -> bool:
    return device.type == "cpu"


def measured(kinds: Mapping[str, Callable[[], Stepper]], rounds: int, device: torch.device) -> dict[str, Variant]:
    """Kinds of step that take turns, after first steps that compile them."""
    if device.type == "cuda":  # of which nothing may be left that the kinds before have held
        gc.collect()
        torch.cuda.empty_cache()
    steppers = {name: make() for name, make in kinds.items()}
    found = {name: warmed_up(stepper, device) for name, stepper in steppers.items()}
    for _ in range(rounds):
        for name, stepper in steppers.items():
            found[name].seconds.append(timed(stepper.step, device, stepper.in_a_row))
    return found


def warmed_up(stepper: Stepper, device: torch.device) -> Variant:
    """What the first steps tell: how long they take to compile, and how much memory is held."""
    if device.type == "cpu":
        return Variant(stepper.n_tokens, (None, None), [timed(stepper.step, device)], [])
    torch.cuda.reset_peak_memory_stats(device)
    seconds = [timed(stepper.step, device)]
    seconds += [timed(stepper.step, device, stepper.in_a_row)] * stepper.in_a_row  # now all kinds are recorded
    taken, in_use = torch.cuda.max_memory_reserved(device), torch.cuda.max_memory_allocated(device)
    return Variant(stepper.n_tokens, (taken / 1e9, in_use / 1e9), seconds, [])


def timed(step: Callable[[], object], device: torch.device, in_a_row: int = 1) -> float:
    """Seconds for a step."""
    start = time.perf_counter()
    for _ in range(in_a_row):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / in_a_row


def matrix_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs a second of a large square matrix product in the precision of training, the best of a few."""
    n, in_a_row = (8192, 10) if device.type == "cuda" else (2048, 1)
    x = torch.randn(n, n, device=device, dtype=dtype)
    return 2 * n**3 / min(timed(lambda: x @ x, device, in_a_row) for _ in range(5))


def label_mix(config: BenchConfig) -> tuple[float, ...]:
    return WIKIPEDIA_MIX if config.size in ("125m", "254m") else BILINGUAL_MIX


def in_whole_micro_batches(mix: Sequence[float]) -> list[float]:
    """A mix that fills the micro-batches of an epoch with one label each."""
    return [round(N_MICRO_BATCHES * share) / N_MICRO_BATCHES for share in mix]


def compiles(config: BenchConfig, device: torch.device) -> bool:
    return config.compile == "on" or (config.compile == "auto" and HAS_KERNELS and device.type == "cuda")


def variants(config: BenchConfig, train: TrainConfig, device: torch.device) -> dict[str, Callable[[], Stepper]]:
    """What makes each kind of step."""
    mix = label_mix(config)
    embeddings: Any = "retain" if mix == WIKIPEDIA_MIX else "joint"
    routing = RoutingConfig(domains=("forget",), forget_heads=1, forget_units=FORGET_UNITS, embeddings=embeddings)
    plain = RoutingConfig(rule="none", domains=("forget",))

    def ours(
        routing: RoutingConfig, mix: Sequence[float], n: int = 1, mixing: LabelMixing = "rows"
    ) -> Callable[[], Stepper]:
        return lambda: stepper(config, train, device, routing, mix, n, mixing)

    single = in_whole_micro_batches(mix)
    vectors = replace(routing, embeddings="retain", norms="retain", forget_tokens=0.9)
    by_kind: dict[Kind, dict[str, Callable[[], Stepper]]] = {
        "mixed": {MIXED: ours(routing, mix)},
        "vectors": {VECTORS: ours(vectors, mix)},
        "single": {SINGLE: ours(routing, single, 1, "micro_batches")},
        "labels": {
            name: ours(routing, [float(i == label) for label in range(3)]) for i, name in enumerate(SINGLE_LABELS)
        },
        "quarters": {PLAIN_QUARTERS: ours(plain, mix, 4), SINGLE_QUARTERS: ours(routing, single, 4, "micro_batches")},
    }
    if n_rows(config) % 4:
        del by_kind["quarters"]
    made = {PLAIN: ours(plain, mix)}
    for kind, steppers in by_kind.items():
        made |= steppers if kind in config.kinds else {}
    if config.reference:
        made[REFERENCE] = lambda: reference_stepper(config, train, device)
    return made


def stepper(
    config: BenchConfig,
    train: TrainConfig,
    device: torch.device,
    routing: RoutingConfig,
    mix: Sequence[float],
    micro_batches: int = 1,
    mixing: LabelMixing = "rows",
) -> Stepper:
    """A whole training step of ours on packed rows, which are read while the steps before are done."""
    size, _ = SIZES[config.size]
    tokens = {"forget": range(int(TOKENS_SHARE * size.vocabulary_size))} if routing.forget_tokens else None
    parts = partition(routing, n_layers=size.n_layers, n_heads=size.n_heads, d_mlp=size.d_mlp, tokens=tokens)
    model = GPT(size, parts).to(device)
    if compiles(config, device):
        compile_blocks(model)
    optimizer = build_optimizer(model, train)
    rows = n_rows(config) // micro_batches
    batch = BatchConfig(
        context=size.context, rows_per_step=n_rows(config), rows_per_micro_batch=rows, label_mixing=mixing
    )
    n_steps = N_MICRO_BATCHES // micro_batches if mixing == "micro_batches" else N_STEPS
    loader = Loader(documents(config, mix, n_steps), batch, seed=0)
    batches = loader.steps(itertools.count(), device)
    passes = passes_for(Passes(model, routing, autocast(train, device)), config.compile, (rows, size.context))

    def step() -> None:
        accumulate_passes(passes, next(batches))
        optimizer.step()

    in_a_row = 1 if mixing == "rows" else loader.steps_per_epoch
    if device.type == "cuda":
        in_a_row = loader.steps_per_epoch * math.ceil(IN_A_ROW / loader.steps_per_epoch)  # whole epochs
    return Stepper(step, loader.tokens_per_epoch / loader.steps_per_epoch, in_a_row)


def reference_stepper(config: BenchConfig, train: TrainConfig, device: torch.device) -> Stepper:
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

    loss_function = torch.compile(loss_of) if compiles(config, device) else loss_of
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True)
    batches = padded_batches(config, 4 if size.context > 512 else 1)  # all scores of all heads are in memory at once
    inputs = [
        (batch.tokens, (batch.documents >= 0).long(), batch.targets)
        for batch in (batch.to(device) for batch in batches)
    ]

    def step() -> None:
        for micro_batch in inputs:
            with autocast(train, device):
                loss = loss_function(*micro_batch) / len(inputs)
            loss.backward()  # type: ignore[no-untyped-call]
        zero_retain_gradients(plain, size.head_size)
        optimizer.step()
        optimizer.zero_grad()

    n_tokens = sum(batch.n_predicted for batch in batches)
    return Stepper(step, n_tokens, IN_A_ROW if device.type == "cuda" else 1)


def padded_batches(config: BenchConfig, n: int) -> list[Batch]:
    """A step of documents in so many micro-batches, a document a row, or in one where there are fewer rows."""
    (size, _), corpus = SIZES[config.size], documents(config, label_mix(config), N_STEPS)
    pieces, rows = truncate(corpus, size.context), [[i] for i in range(n_rows(config))]
    per_batch = max(1, len(rows) // n)
    return [collate(corpus, pieces, rows[i : i + per_batch], size.context) for i in range(0, len(rows), per_batch)]


def zero_retain_gradients(model: torch.nn.Module, head_size: int) -> None:
    """What the field does after a forget batch: of heads and MLP units all but the module's get no gradient."""
    for name, parameter in model.named_parameters():
        kept = FORGET_UNITS if ".mlp." in name else head_size
        if name.endswith(("c_fc.weight", "c_fc.bias", "q_proj.weight", "k_proj.weight", "v_proj.weight")):
            parameter.grad[kept:] = 0  # type: ignore[index]
        elif name.endswith(("c_proj.weight", "out_proj.weight")):
            parameter.grad[:, kept:] = 0  # type: ignore[index]
        elif name.endswith(("c_proj.bias", "out_proj.bias")):
            parameter.grad.zero_()  # type: ignore[union-attr]


def n_rows(config: BenchConfig) -> int:
    return config.rows or SIZES[config.size][1]


def documents(config: BenchConfig, mix: Sequence[float], n_steps: int) -> Corpus:
    """Random documents for so many steps, labelled in these shares."""
    (size, _), random = SIZES[config.size], np.random.default_rng(0)
    n = n_steps * n_rows(config)
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
