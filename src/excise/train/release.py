"""Load the model of a run, and write a copy of a run without some of its modules.

A release is a run directory with one more file, `ablation.json`. Where a module was removed, its file is simply not
there, and neither is any optimizer state.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from excise.labels import nearest
from excise.model.ablation import Ablation, ablate
from excise.model.gpt import GPT
from excise.train.checkpoint import Done, checkpoint_at, latest_checkpoint, load_checkpoint, save_checkpoint
from excise.train.loop import pick_device
from excise.train.run import RunConfig, RunDirectory, build_model


def load_run(directory: Path, without: Sequence[str] = ()) -> tuple[GPT, Done]:
    """The model of a run at its latest checkpoint, without some modules, and how far it was trained."""
    files = RunDirectory(directory)
    run = files.config()
    checkpoint = latest_checkpoint(files.checkpoints)
    if checkpoint is None:
        raise ValueError(f"{directory} has no checkpoint yet; train it first")
    removed = (*removed_modules(directory), *without)
    model = build_without(run, removed)
    done = load_checkpoint(checkpoint, model, without=removed)
    return model.to(pick_device(run.train.device)), done


def build_without(run: RunConfig, removed: Sequence[str]) -> GPT:
    """The untrained model of a run, with some modules never built."""
    model = build_model(run)
    partition = model.partition
    for domain in removed:
        if domain not in partition.domains:
            raise ValueError(f"the model has no module {domain!r}; {nearest(domain, partition.domains)}")
        partition = partition.without(domain)
    return GPT(run.model, partition) if removed else model


def removed_modules(directory: Path) -> tuple[str, ...]:
    """Domains whose module a release no longer has."""
    file = directory / "ablation.json"
    if not file.exists():
        return ()
    fields = json.loads(file.read_text(encoding="utf-8"))
    return tuple(fields["domains"]) if fields["how"] == "remove" else ()


def release(source: Path, target: Path, domains: Sequence[str], how: Ablation = "remove") -> Path:
    """Write a run without the knowledge in some modules, and return its checkpoint."""
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} is not empty; choose another directory")
    model, done = load_run(source, without=domains if how == "remove" else ())
    if how != "remove":
        for domain in domains:
            model = ablate(model, domain, how)
    gone = (*removed_modules(source), *domains) if how == "remove" else domains
    checkpoint = checkpoint_at(RunDirectory(target).checkpoints, done.step)
    save_checkpoint(checkpoint, model, None, done)
    shutil.copyfile(RunDirectory(source).config_file, RunDirectory(target).config_file)
    note = json.dumps({"how": how, "domains": list(gone)}, indent=2)
    (target / "ablation.json").write_text(note + "\n", encoding="utf-8")
    return checkpoint
