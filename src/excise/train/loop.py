"""The training loop, one straight story: load, resume, step, log, checkpoint."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excise.data.dataset import Data
from excise.data.loader import Loader
from excise.model.gpt import GPT
from excise.train.checkpoint import checkpoint_at, latest_checkpoint, load_checkpoint, save_checkpoint
from excise.train.run import RunConfig, RunDirectory, TrainConfig, build_model
from excise.train.schedule import learning_rate
from excise.train.step import accumulate, clip_by_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step."""

    model: GPT
    step: int
    n_steps: int
    tokens: int
    """Predicted tokens so far."""
    loss: float
    """Loss per token of this step, unweighted; nan where it was not asked for."""
    seconds: float


Listener = Callable[[Progress], dict[str, Any] | None]
"""Called after logged steps; what it returns goes into the metrics."""


def pick_device(name: str) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)


def autocast(config: TrainConfig, device: torch.device) -> AbstractContextManager[None]:
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices only."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta_1, config.beta_2), fused=True)


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
    first = 0
    if files:
        files.open_for(run)
        if checkpoint := latest_checkpoint(files.checkpoints):
            first = load_checkpoint(checkpoint, model, optimizer)
            logger.info("resumed from %s", checkpoint)
        files.keep_metrics_until(first)
    tokens = tokens_before(loader, first)
    start = time.perf_counter()

    for step in range(first, n_steps):
        rate = learning_rate(step, n_steps, peak=config.learning_rate, warmup_steps=config.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batches = [batch.to(device) for batch in loader.step(step)]
        loss = accumulate(
            model, batches, run.routing, autocast(config, device), zero_instead=config.paper_faithful_optimizer
        )
        if config.clip_norm:
            clip_by_part(model, config.clip_norm)
        optimizer.step()
        tokens += loss.n_predicted

        done = step + 1
        if due(done, config.log_every, n_steps) or due(done, config.evaluate_every, n_steps):
            progress = Progress(model, done, n_steps, tokens, loss.mean, time.perf_counter() - start)
            record = {"step": done, "tokens": tokens, "loss": progress.loss, "learning_rate": rate}
            for listener in listeners:
                record |= listener(progress) or {}
            if files:
                files.log({**record, "seconds": round(progress.seconds, 3)})
        if files and due(done, config.checkpoint_every, n_steps):
            save_checkpoint(checkpoint_at(files.checkpoints, done), model, optimizer, done)
    return model


def due(step: int, every: int, n_steps: int) -> bool:
    """Whether something that happens every so often, and at the end, happens after this step."""
    return step == n_steps or (every > 0 and step % every == 0)


def tokens_before(loader: Loader, step: int) -> int:
    """Predicted tokens in all steps before this one."""
    epochs, within = divmod(step, loader.steps_per_epoch)
    rest = range(step - within, step)
    return epochs * loader.tokens_per_epoch + sum(batch.n_predicted for k in rest for batch in loader.step(k))


def check_vocabulary(run: RunConfig, data: Data) -> None:
    if data.tokenizer.vocabulary_size > run.model.vocabulary_size:
        raise ValueError(
            f"the tokenizer has {data.tokenizer.vocabulary_size} tokens, more than "
            f"model.vocabulary_size={run.model.vocabulary_size}"
        )
