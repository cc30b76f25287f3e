"""Load the model of a run, and write a copy of a run without some of its modules.

A release is a run directory with one more file, `ablation.json`, which says how each module was ablated. Where a module
was removed, its file is simply not there, and neither is any optimizer state.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from excise import config as configs
from excise.files import make_folder, write_whole
from excise.labels import nearest
from excise.model.ablation import Ablation, ablate
from excise.model.gpt import GPT
from excise.train.checkpoint import (
    ANEW,
    SEAL,
    DamagedError,
    Done,
    check_seal,
    checkpoint_at,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    saved_steps,
)
from excise.train.loop import has_device, pick_device
from excise.train.run import OwnTokens, RunConfig, RunDirectory, build_model


def load_run(directory: Path, without: Sequence[str] = (), step: int | None = None) -> tuple[GPT, Done]:
    """The model of a run at a step, the latest where none is given, without some modules, and how far it was trained.

    Damage is an error: only training goes on from an earlier checkpoint by itself, since it comes back to this one.
    """
    run = RunDirectory(directory).config()
    checkpoint = find_checkpoint(directory, step)
    try:
        check_seal(checkpoint)  # before a file that it covers is used
        removed = (*removed_modules(directory), *without)
        model = build_without(run, removed, RunDirectory(directory).own_tokens())
        done = load_checkpoint(checkpoint, model, without=removed)
    except DamagedError as error:
        steps = [] if step is not None else saved_steps(checkpoint.parent)[:-1]
        earlier = [step for step in steps if (checkpoint_at(checkpoint.parent, step) / SEAL).exists()]
        mend = f"the command that trained the run goes on from step {earlier[-1]} and mends it" if earlier else ANEW
        raise DamagedError(f"{error}; {mend}") from None
    device = run.train.device if has_device(run.train.device) else "auto"
    return model.to(pick_device(device)), done


def find_checkpoint(directory: Path, step: int | None = None) -> Path:
    """The checkpoint of a run at a step, or its latest."""
    checkpoints = RunDirectory(directory).checkpoints
    latest = latest_checkpoint(checkpoints)
    if latest is None:
        cut_short = RunDirectory(directory).alterations()
        remedy = "it was cut short; delete it and make it again" if cut_short else "train it first"
        raise ValueError(f"{directory} has no checkpoint yet; {remedy}")
    if step is None:
        return latest
    if not checkpoint_at(checkpoints, step).is_dir():
        raise ValueError(
            f"{directory} has no checkpoint of step {step}, only of {', '.join(map(str, saved_steps(checkpoints)))}"
        )
    return checkpoint_at(checkpoints, step)


def build_without(run: RunConfig, removed: Sequence[str], tokens: OwnTokens | None = None) -> GPT:
    """The untrained model of a run, with some modules never built."""
    model = build_model(run, tokens)
    partition = model.partition
    for domain in removed:
        if domain not in partition.domains:
            raise ValueError(f"the model has no module {domain!r}; {nearest(domain, partition.domains)}")
        partition = partition.without(domain)
    return GPT(run.model, partition) if removed else model


def removed_modules(directory: Path) -> tuple[str, ...]:
    """Domains whose module a release no longer has."""
    return tuple(domain for domain, how in ablations(directory).items() if how == "remove")


def ablations(directory: Path) -> dict[str, Ablation]:
    """How each ablated module of a release was, by domain; a run that is none has no such module."""
    file = ablation_file(directory)
    try:
        noted = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (json.JSONDecodeError, UnicodeDecodeError):
        noted = None
    if not isinstance(noted, dict) or not all(how in get_args(Ablation) for how in noted.values()):
        raise ValueError(f"{file} does not say how each domain was ablated ({', '.join(get_args(Ablation))})")
    return noted


def ablation_file(directory: Path) -> Path:
    return directory / "ablation.json"


def release(source: Path, target: Path, domains: Sequence[str], how: Ablation = "remove") -> Path:
    """Write a run without the knowledge in some modules, and return its checkpoint."""
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} is not empty; choose another directory")
    model, done = load_run(source, without=domains if how == "remove" else ())
    if how != "remove":
        for domain in domains:
            model = ablate(model, domain, how)
    files = RunDirectory(target)
    make_folder(target)
    noted = ablations(source) | dict.fromkeys(domains, how)
    write_whole(ablation_file(target), (json.dumps(noted, indent=2) + "\n").encode())
    if RunDirectory(source).unlearning_file.exists():
        write_whole(files.unlearning_file, RunDirectory(source).unlearning_file.read_bytes())
    files.keep_same(RunDirectory(source))
    files.note_same_tokens(RunDirectory(source), but=removed_modules(target))
    configs.save(RunDirectory(source).config(), files.config_file)
    checkpoint = checkpoint_at(files.checkpoints, done.step)
    save_checkpoint(checkpoint, model, None, done, files.sealed())  # last, since without it there is no run
    return checkpoint
