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
    for record in (record for record in short.metrics() if record["step"] <= step):
        files.log(record)
    save_checkpoint(checkpoint_at(files.checkpoints, step), model, optimizer, done, files.sealed())


def common_step(short: RunDirectory, run: RunConfig, loader: Loader) -> int:
    """The last checkpoint of a shorter run that is one of a longer run too."""
    there = short.config()
    if other := differences(there, run).keys() - LENGTH:
        raise ValueError(
            f"{short.path} differs in {', '.join(sorted(other))}; a run goes on from one that differs in train.budget alone"
        )
    n_steps = [of.train.budget.n_steps(loader) for of in (there, run)]

    def is_common(step: int) -> bool:
        first, second = ([run.train.rate_at(k, n) for k in range(step)] for n in n_steps)
        return step <= n_steps[1] and first == second

    found = [step for step in saved_steps(short.checkpoints) if is_common(step)]
    if not found:
        raise ValueError(
            f"no checkpoint of {short.path} is of the rates that a run of {n_steps[1]} steps has; train it with "
            "train.schedule constant, or warmup_stable_decay and a checkpoint before its decay, and with "
            "train.warmup_steps as a number of steps"
        )
    return found[-1]
