"""Checkpoints in parts: a file per part for parameters and one for their optimizer state, a manifest written last.

    retain.safetensors  joint.safetensors  forget-<domain>.safetensors
    optimizer-retain.safetensors  ...
    manifest.json       how far the run has come, and the SHA-256 of every file

The safe model is the folder without a module's files: `without` loads it so, and never reads them.
Everything else that a model has must be there, and nothing more.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise.config import from_dict
from excise.files import sha256_of
from excise.labels import forget_part, part_of

MANIFEST = "manifest.json"
OPTIMIZER = "optimizer-"


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


def optimizer_file_name(part: str) -> str:
    return OPTIMIZER + file_name(part)


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, done: Done) -> None:
    """Write a checkpoint; the folder appears only when it is complete."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for part, tensors in _by_part(model).items():
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, partial / file_name(part))
        if optimizer is not None:
            save_file(_optimizer_tensors(tensors, optimizer), partial / optimizer_file_name(part))
    files = {path.name: sha256_of(path) for path in sorted(partial.iterdir())}
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
    parameters, parts = dict(model.named_parameters()), _by_part(model)
    values: dict[str, Tensor] = {}
    moments: dict[str, Tensor] = {}
    for part in parts:
        values |= _read(folder, file_name(part), manifest)
        if optimizer is not None:
            moments |= _read(folder, optimizer_file_name(part), manifest)
    known = {file_name(part) for part in (*parts, *map(forget_part, without))}
    if more := [name for name in manifest.files if name.removeprefix(OPTIMIZER) not in known]:
        raise ValueError(f"checkpoint {folder} belongs to another model: it holds {more[0]}, which the model has not")
    _check(folder, values, parameters)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
    if optimizer is not None:
        _fill_optimizer(parameters, optimizer, moments)
    return manifest.done


def read_manifest(folder: Path) -> Manifest:
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return Manifest(from_dict(Done, fields["done"]), dict(fields["files"].items()))
    except FileNotFoundError:
        raise ValueError(f"checkpoint {folder} has no {MANIFEST}, so it is incomplete or none") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"checkpoint {folder} is damaged: its {MANIFEST} cannot be read") from None


def checkpoint_at(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step}"


def latest_checkpoint(checkpoints: Path) -> Path | None:
    """The checkpoint with the highest step, or None before the first."""
    return max(_checkpoints(checkpoints), key=_step, default=None)


def saved_steps(checkpoints: Path) -> list[int]:
    return sorted(map(_step, _checkpoints(checkpoints)))


def drop_earlier(checkpoints: Path) -> None:
    """Delete all checkpoints but the latest."""
    for path in sorted(_checkpoints(checkpoints), key=_step)[:-1]:
        shutil.rmtree(path)


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.is_dir()]


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _read(folder: Path, name: str, manifest: Manifest) -> dict[str, Tensor]:
    path = folder / name
    if name not in manifest.files:
        raise ValueError(f"checkpoint {folder} is incomplete: its {MANIFEST} lists no {name}")
    if not path.exists():
        raise ValueError(f"checkpoint {path.parent} is damaged: {path.name}, which its manifest lists, is missing")
    if sha256_of(path) != manifest.files[name]:
        raise ValueError(f"checkpoint {path.parent} is damaged: {path.name} is not the file that its manifest lists")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"checkpoint {path.parent} is damaged: {path.name}: {error}") from None
    return tensors


def _check(folder: Path, values: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse values that are not exactly those of the model."""
    other = f"checkpoint {folder} belongs to another model:"
    for name in values:
        if name not in parameters:
            raise ValueError(f"{other} it holds {name}, which the model has not")
    for name, parameter in parameters.items():
        if name not in values:
            raise ValueError(f"{other} it lacks {name}")
        if values[name].shape != parameter.shape:
            shapes = f"{list(values[name].shape)} there and {list(parameter.shape)} here"
            raise ValueError(f"{other} {name} has shape {shapes}")


def _by_part(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    parts: dict[str, dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        parts.setdefault(part_of(name), {})[name] = parameter
    return parts


def _optimizer_tensors(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state as `parameter@entry`; parameters never updated have none."""
    return {
        f"{name}@{entry}": value.contiguous()
        for name, parameter in parameters.items()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def _fill_optimizer(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]
) -> None:
    for key, value in moments.items():
        name, entry = key.split("@")
        optimizer.state[parameters[name]][entry] = value.to(parameters[name].device)
