"""The training loop, one straight story: load, resume, step, log, checkpoint."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excise.config import override
from excise.data.dataset import Data
from excise.data.loader import Loader
from excise.data.own_tokens import own_tokens
from excise.files import flush
from excise.labels import JOINT, RETAIN, part_of
from excise.model.gpt import GPT, compile_blocks
from excise.routing.kernels import HAS_KERNELS
from excise.routing.precision import HalfStream
from excise.train.checkpoint import Done, checkpoint_at, drop_earlier, resume, save_checkpoint, saved_steps
from excise.train.idle import check_modules, mention_options
from excise.train.longer import begin_as
from excise.train.recorded import passes_for
from excise.train.run import DataDigests, Epoch, OwnTokens, Precision, RunConfig, RunDirectory, TrainConfig, build_model
from excise.train.schedule import is_evaluation
from excise.train.step import Diverged, Passes, accumulate_passes, clip_by_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step."""

    model: GPT
    done: Done
    n_steps: int
    loss: float
    """Loss per token of this step, unweighted."""
    metrics: Mapping[str, Any]
    """The record of this step, with what the listeners before this one have returned."""


Listener = Callable[[Progress], dict[str, Any] | None]
"""Called after logged steps; what it returns goes into the metrics."""


def pick_device(name: str) -> torch.device:
    """The device of this name, or the best one there is for `auto`."""
    if not has_device(name):
        raise ValueError(f"train.device={name!r} is not on this machine; set it to 'auto', which takes what is there")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.index is not None:
        torch.cuda.set_device(device)  # where kernels and streams go that are not told otherwise
    return device


def has_device(name: str) -> bool:
    """Whether this machine has a device of this name."""
    return not name.startswith("cuda") or (torch.device(name).index or 0) < torch.cuda.device_count()


def autocast(config: TrainConfig, device: torch.device) -> AbstractContextManager[None]:
    """The precision that a run computes in."""
    precision = pick_precision(config.precision, device)
    if precision == "bfloat16_stream":
        return HalfStream(device.type, torch.bfloat16)
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def pick_precision(name: Precision, device: torch.device) -> Precision:
    """This precision, or the fastest one of a device for `auto`."""
    if name != "auto":
        return name
    return "bfloat16" if has_bfloat16(device) else "float32"


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 itself; where it does not, bfloat16 is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def compiles(config: TrainConfig, device: torch.device, n_steps: int) -> bool:
    """Whether a run of so many steps, done or not, compiles its blocks; resumed it does as before, or it would differ."""
    worth_it = HAS_KERNELS and device.type == "cuda" and n_steps >= 1000
    return config.compile == "on" or (config.compile == "auto" and worth_it)


def resolve(run: RunConfig, files: RunDirectory | None, data: Data | None = None) -> RunConfig:
    """The run with what it leaves open settled: by its directory, or by the device and the data that it begins on."""
    there = files.config() if files and files.config_file.exists() else None
    precision, labels = run.train.precision, run.data.labels
    if precision == "auto":
        precision = there.train.precision if there else pick_precision("auto", pick_device(run.train.device))
    if labels == "auto" and data:
        labels = data.labels
    elif labels == "auto" and there and files and files.begun:
        labels = there.data.labels
    return override(run, {"train.precision": precision, "data.labels": labels})


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices only, and a rate of their own for modules."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        rate = config.module_rate if part_of(name) not in (RETAIN, JOINT) else 1.0
        groups.setdefault((decay, rate), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "lr": rate * config.learning_rate, "weight_decay": decay, "relative_rate": rate}
            for (decay, rate), parameters in groups.items()
        ],
        betas=(config.beta_1, config.beta_2),
        fused=True,
    )


def train(
    run: RunConfig,
    data: Data,
    directory: Path | None = None,
    listeners: Sequence[Listener] = (),
    *,
    continue_from: Path | None = None,
) -> GPT:
    """Train a run to the end of its budget and return its model.

    With a directory, the run is written there, goes on from its last checkpoint, and is only loaded when it is done.
    Ctrl-C then lets a step end and saves it first. `continue_from` is the directory of a shorter run, whose last checkpoint
    in common a new directory begins with.
    """
    if continue_from and not directory:
        raise ValueError(f"a run that goes on from {continue_from} needs a directory of its own; name one")
    files = RunDirectory(directory) if directory else None
    device = pick_device(run.train.device)
    run = resolve(run, files, data)
    config = run.train
    check_vocabulary(run, data)
    check_modules(run, data)
    loader = Loader(data.train, run.batch, config.seed)
    n_steps = config.budget.n_steps(loader)
    own = tokens_with_vectors(run, data, files)
    if files:
        files.open_for(run)
        files.trained_on(DataDigests(data.sha256, data.tokenizer.sha256))
        files.keep(data.tokenizer, Epoch.of(run, data))
        if run.routing.forget_tokens and run.routing.modules:
            files.note_tokens(own)
        sealed = files.sealed()
    model = build_model(run, own).to(device)
    optimizer = build_optimizer(model, config)
    done = Done(step=0, tokens=0, seconds=0.0)
    if files:
        if continue_from and not saved_steps(files.checkpoints):
            begin_as(RunDirectory(continue_from), files, run, loader, model, optimizer)
        if found := resume(files.checkpoints, model, optimizer, n_steps):
            done = found
            logger.info("%s step %d of %d", "resumed from" if done.step < n_steps else "already at", done.step, n_steps)
        files.keep_metrics_until(done.step)
    if done.step < n_steps:
        tell_start(run, data, own, device, n_steps)
    tokens, start = done.tokens, time.perf_counter() - done.seconds

    passes = Passes(model, run.routing, autocast(config, device))
    if done.step < n_steps:
        if compiles(config, device, n_steps):
            compile_blocks(model)
        passes = passes_for(passes, config.compile, (run.batch.rows_per_micro_batch, run.batch.context))

    steps, saved_at = range(done.step, n_steps), time.monotonic()
    with interrupts_deferred() as interrupted:
        for step, batches in zip(steps, loader.steps(steps, device), strict=True):
            rate = config.rate_at(step, n_steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["relative_rate"]
            loss = accumulate_passes(passes, batches, zero_instead=config.paper_faithful_optimizer)
            logs = due(step + 1, config.log_every, n_steps) or is_evaluation(step + 1, n_steps, config.evaluations)
            norms = clip_by_part(model, config.clip_norm or math.inf) if config.clip_norm or logs else {}
            optimizer.step()
            tokens += loss.n_predicted

            saves = due(step + 1, config.checkpoint_every, n_steps) or overdue(saved_at, config.checkpoint_minutes)
            if device.type == "cuda" and (logs or saves or interrupted()):
                torch.cuda.synchronize()  # or the time would be that of telling it what to do
            done = Done(step=step + 1, tokens=tokens, seconds=round(time.perf_counter() - start, 3))
            if logs:
                mean = loss.mean
                if not math.isfinite(mean):
                    raise Diverged(done.step, mean)
                record: dict[str, Any] = {
                    **asdict(done),
                    "loss": mean,
                    "loss_by_label": loss.by_label(run.routing.domains),
                    "gradient_norm_by_part": {part: float(norm) for part, norm in norms.items()},
                    "learning_rate": rate,
                }
                for listener in listeners:
                    record |= listener(Progress(model, done, n_steps, mean, record)) or {}
                if files:
                    files.log(record)
                start = time.perf_counter() - done.seconds  # listeners do not count as training
            stop = interrupted()
            if stop or saves:
                check_weights(model, done.step)
            if files and (stop or saves):
                flush(files.metrics_file)
                save_checkpoint(checkpoint_at(files.checkpoints, done.step), model, optimizer, done, sealed)
                saved_at = time.monotonic()
                if not config.keep_checkpoints:
                    drop_earlier(files.checkpoints)
            if stop:
                raise KeyboardInterrupt(
                    f"the same command goes on from step {done.step}" if files else "nothing is saved"
                )
    # The last step is always logged.
    if steps and (doubt := doubt_of("the last training loss", mean, data.tokenizer.vocabulary_size)):
        logger.warning(doubt)
    return model


def check_weights(model: nn.Module, step: int) -> None:
    """Refuse to keep weights that the last update has made no numbers."""
    if not math.isfinite(float(nn.utils.get_total_norm(model.parameters()))):
        raise Diverged(step, math.nan, "its update left weights that are no numbers; try a lower train.learning_rate")


def doubt_of(what: str, loss: float, vocabulary_size: int) -> str:
    """A sentence on a loss above that of a guess among all tokens; empty where it is not."""
    guess = math.log(vocabulary_size)
    if loss <= guess:
        return ""
    return (
        f"{what} is {loss:.3f}, above the {guess:.3f} of a guess among {vocabulary_size:,} tokens: the model knows nothing; "
        "try a lower train.learning_rate or a longer run"
    )


def tell_start(run: RunConfig, data: Data, own: OwnTokens, device: torch.device, n_steps: int) -> None:
    """Log what is about to be trained, and what is odd about it."""
    config = run.train
    logger.info("training on %s in %s", device, config.precision)
    logger.info("%s", data.told)
    mention_options(run, data)
    if config.warmup_steps > n_steps:
        logger.warning(
            "train.warmup_steps=%d is longer than the run (%d steps): the rate never reaches its peak; "
            "a share such as 0.5 fits any length",
            config.warmup_steps,
            n_steps,
        )
    for domain in run.routing.modules if run.routing.forget_tokens else ():
        words = sorted((data.tokenizer.decode([token]) for token in own.get(domain, ())), key=len, reverse=True)
        if words:
            some = " ".join(map(repr, words[:8]))
            logger.info("the module of %s has vectors for %d tokens, the longest: %s", domain, len(words), some)
        else:
            logger.warning(
                "the module of %s has vectors for no token: none is mostly its own (routing.forget_tokens=%g); label more "
                "documents, or set a lower share",
                domain,
                run.routing.forget_tokens,
            )


def tokens_with_vectors(run: RunConfig, data: Data, files: RunDirectory | None) -> OwnTokens:
    """The tokens that modules have vectors for: those that a run has noted, or else those that its labels tell."""
    routing = run.routing
    if not (routing.forget_tokens and routing.modules):
        return {}
    if files and files.begun and files.tokens_file.exists():
        return files.own_tokens()
    return own_tokens(data.train, routing.modules, routing.forget_tokens, run.model.vocabulary_size)


@contextmanager
def interrupts_deferred() -> Iterator[Callable[[], bool]]:
    """Ctrl-C only noted, so that a step is never left half done; a second one does not wait.

    Whoever has a handler of its own, or ignores the signal, keeps that; so do threads, which get no signals.
    """
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # the signal may come in the middle of a print, which cannot be entered twice
            logger.warning("stopping after this step; Ctrl-C again stops at once")

    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def due(step: int, every: int, n_steps: int) -> bool:
    """Whether something that happens every so often, and at the end, happens after this step."""
    return step == n_steps or (every > 0 and step % every == 0)


def overdue(since: float, minutes: float) -> bool:
    """Whether so many minutes have passed; never where they are none."""
    return minutes > 0 and time.monotonic() - since >= 60 * minutes


def check_vocabulary(run: RunConfig, data: Data) -> None:
    if data.tokenizer.vocabulary_size > run.model.vocabulary_size:
        raise ValueError(
            f"the tokenizer has {data.tokenizer.vocabulary_size} tokens, more than "
            f"model.vocabulary_size={run.model.vocabulary_size}"
        )
