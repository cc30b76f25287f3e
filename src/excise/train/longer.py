"""A longer run that begins where a shorter one stands, and ends with the bytes of the longer one trained from its beginning.

That is so up to the last step at which both have had the same rates: any step with a constant one, and those before the
decay of warmup_stable_decay, where the warm-up is a number of steps. A cosine falls with the length of the run.
"""

import torch

from excise.data.loader import Loader
from excise.identity import differences
from excise.model.gpt import GPT
from excise.train.checkpoint import checkpoint_at, load_checkpoint, save_checkpoint, saved_steps
from excise.train.run import RunConfig, RunDirectory

LENGTH = {"train.budget.unit", "train.budget.amount"}


def begin_as(
    short: RunDirectory,
    files: RunDirectory,
    run: RunConfig,
    loader: Loader,
    model: GPT,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write the beginning that a run has in common with a shorter one to its own directory."""
    step = common_step(short, run, loader)
    if short.digests() != files.digests():
        raise ValueError(f"{short.path} was trained on other data, so that this run cannot go on from it")
    done = load_checkpoint(checkpoint_at(short.checkpoints, step), model, optimizer)
    files.keep_metrics_until(0)  # an attempt that was cut short may have left some
    for record in short.metrics():
        if record["step"] <= step:
            files.log(record)
    save_checkpoint(checkpoint_at(files.checkpoints, step), model, optimizer, done, files.sealed())


def common_step(short: RunDirectory, run: RunConfig, loader: Loader) -> int:
    """The last checkpoint of a shorter run that is one of a longer run too."""
    there = short.config()
    if other := differences(there, run).keys() - LENGTH:
        raise ValueError(
            f"{short.path} differs in {', '.join(sorted(other))}; a run goes on from one that differs in train.budget alone"
        )
    saved = saved_steps(short.checkpoints)
    if not saved:
        raise ValueError(f"{short.path} has no checkpoint to go on from; train it first")
    lengths = [config.train.budget.n_steps(loader) for config in (there, run)]
    n_common = min(lengths)
    for k in range(n_common):
        if len({run.train.rate_at(k, length) for length in lengths}) > 1:
            n_common = k
            break
    found = [step for step in saved if step <= n_common]
    if not found:
        raise ValueError(
            f"no checkpoint of {short.path} is of the rates that a run of {lengths[1]} steps has; train it with "
            "train.schedule constant, or warmup_stable_decay and a checkpoint before its decay, and with "
            "train.warmup_steps as a number of steps"
        )
    return found[-1]
