"""Checkpoints in parts: a file per part for parameters and one for their optimizer state, a manifest written last.

    retain.safetensors  joint.safetensors  forget-<domain>.safetensors
    optimizer-retain.safetensors  ...
    manifest.json       how far the run has come, and the SHA-256 of every file

The safe model is the folder without a module's files: `without` loads it so, and never reads them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise.labels import forget_part, part_of

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Done:
    """How far a run has come."""

    step: int
    tokens: int
    """Predicted tokens so far."""
    seconds: float
    """Spent on training, evaluation left out."""


@dataclass(frozen=True)
class Manifest:
    done: Done
    files: Mapping[str, str]
    """SHA-256 by file name."""


def file_name(part: str) -> str:
    return f"{part.replace('/', '-')}.safetensors"


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, done: Done) -> None:
    """Write a checkpoint; the folder appears only when it is complete."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for part, tensors in _by_part(dict(model.named_parameters())).items():
        save_file(tensors, partial / file_name(part))
    if optimizer is not None:
        for part, tensors in _by_part(_optimizer_tensors(model, optimizer)).items():
            save_file(tensors, partial / f"optimizer-{file_name(part)}")
    files = {path.name: sha256(path) for path in sorted(partial.iterdir())}
    manifest = json.dumps({"done": asdict(done), "files": files}, indent=2)
    (partial / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, without: Sequence[str] = ()
) -> Done:
    """Fill a model, and an optimizer where one is given; damage is an error.

    Files of the domains in `without` are neither needed nor read; the model must have been built without them.
    """
    manifest = read_manifest(folder)
    left_out = tuple(file_name(forget_part(domain)) for domain in without)
    read: dict[str, Tensor] = {}
    for name, digest in manifest.files.items():
        if name.removeprefix("optimizer-") in left_out or (optimizer is None and name.startswith("optimizer-")):
            continue
        read |= _read(folder / name, digest)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in read:
                raise ValueError(f"checkpoint {folder} holds no values for {name}; it belongs to another model")
            parameter.copy_(read[name])
    if optimizer is not None:
        _fill_optimizer(model, optimizer, read)
    return manifest.done


def read_manifest(folder: Path) -> Manifest:
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return Manifest(Done(**fields["done"]), fields["files"])
    except FileNotFoundError:
        raise ValueError(f"checkpoint {folder} has no {MANIFEST}, so it is incomplete or none") from None
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"checkpoint {folder} is damaged: its {MANIFEST} cannot be read") from None


def checkpoint_at(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step}"


def latest_checkpoint(checkpoints: Path) -> Path | None:
    """The checkpoint with the highest step, or None before the first."""
    found = [path for path in checkpoints.glob("step-*") if path.is_dir()]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, digest: str) -> dict[str, Tensor]:
    if not path.exists():
        raise ValueError(f"checkpoint {path.parent} is damaged: {path.name}, which its manifest lists, is missing")
    if sha256(path) != digest:
        raise ValueError(f"checkpoint {path.parent} is damaged: {path.name} is not the file that its manifest lists")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"checkpoint {path.parent} is damaged: {path.name}: {error}") from None
    return tensors


def _by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parts.setdefault(part_of(name.split("@")[0]), {})[name] = tensor.detach().contiguous()
    return parts


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state as `parameter@entry`; parameters never updated have none."""
    return {
        f"{name}@{entry}": value
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def _fill_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, read: Mapping[str, Tensor]) -> None:
    state: dict[str, dict[str, Tensor]] = {}
    for key, value in read.items():
        if "@" in key:
            name, entry = key.split("@")
            state.setdefault(name, {})[entry] = value
    for name, parameter in model.named_parameters():
        if name in state:
            moved: dict[str, Any] = {entry: value.to(parameter.device) for entry, value in state[name].items()}
            optimizer.state[parameter] = moved
