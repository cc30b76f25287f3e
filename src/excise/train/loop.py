"""The training loop, one straight story: load, resume, step, log, checkpoint."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excise.data.dataset import Data
from excise.data.loader import Loader
from excise.labels import JOINT, RETAIN, part_of
from excise.model.gpt import GPT
from excise.train.checkpoint import Done, checkpoint_at, latest_checkpoint, load_checkpoint, save_checkpoint
from excise.train.run import RunConfig, RunDirectory, TrainConfig, build_model
from excise.train.schedule import is_evaluation, learning_rate
from excise.train.step import accumulate, clip_by_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step."""

    model: GPT
    done: Done
    n_steps: int
    loss: float
    """Loss per token of this step, unweighted."""


Listener = Callable[[Progress], dict[str, Any] | None]
"""Called after logged steps; what it returns goes into the metrics."""


def pick_device(name: str) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)


def autocast(config: TrainConfig, device: torch.device) -> AbstractContextManager[None]:
    """The precision that a run computes in."""
    low = config.precision == "bfloat16" or (config.precision == "auto" and has_bfloat16(device))
    return torch.autocast(device.type, torch.bfloat16) if low else nullcontext()


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 itself; where it does not, bfloat16 is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


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


def train(run: RunConfig, data: Data, directory: Path | None = None, listeners: Sequence[Listener] = ()) -> GPT:
    """Train a run to the end of its budget and return its model.

    With a directory, the run is written there, goes on from its last checkpoint, and is only loaded when it is done.
    """
    config = run.train
    files = RunDirectory(directory) if directory else None
    check_vocabulary(run, data)
    loader = Loader(data.train, run.batch, config.seed)
    n_steps = config.budget.n_steps(loader)
    device = pick_device(config.device)
    model = build_model(run).to(device)
    optimizer = build_optimizer(model, config)
    done = Done(step=0, tokens=0, seconds=0.0)
    if files:
        files.open_for(run)
        if checkpoint := latest_checkpoint(files.checkpoints):
            done = load_checkpoint(checkpoint, model, optimizer)
            logger.info("resumed from %s", checkpoint)
        files.keep_metrics_until(done.step)
    tokens, start = done.tokens, time.perf_counter() - done.seconds

    for step in range(done.step, n_steps):
        rate = learning_rate(step, n_steps, peak=config.learning_rate, warmup_steps=config.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["relative_rate"]
        batches = [batch.to(device) for batch in loader.step(step)]
        loss = accumulate(
            model, batches, run.routing, autocast(config, device), zero_instead=config.paper_faithful_optimizer
        )
        if config.clip_norm:
            clip_by_part(model, config.clip_norm)
        optimizer.step()
        tokens += loss.n_predicted

        done = Done(step=step + 1, tokens=tokens, seconds=round(time.perf_counter() - start, 3))
        if due(done.step, config.log_every, n_steps) or is_evaluation(done.step, n_steps, config.evaluations):
            record: dict[str, Any] = {**asdict(done), "loss": loss.mean, "learning_rate": rate}
            for listener in listeners:
                record |= listener(Progress(model, done, n_steps, loss.mean)) or {}
            if files:
                files.log(record)
            start += time.perf_counter() - start - done.seconds  # listeners do not count as training
        if files and due(done.step, config.checkpoint_every, n_steps):
            save_checkpoint(checkpoint_at(files.checkpoints, done.step), model, optimizer, done)
    return model


def due(step: int, every: int, n_steps: int) -> bool:
    """Whether something that happens every so often, and at the end, happens after this step."""
    return step == n_steps or (every > 0 and step % every == 0)


def check_vocabulary(run: RunConfig, data: Data) -> None:
    if data.tokenizer.vocabulary_size > run.model.vocabulary_size:
        raise ValueError(
            f"the tokenizer has {data.tokenizer.vocabulary_size} tokens, more than "
            f"model.vocabulary_size={run.model.vocabulary_size}"
        )
