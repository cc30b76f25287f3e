"""Checkpoints in parts: a file per part for parameters and one for their optimizer state, in RUN/checkpoints/step-N.

    retain.safetensors  joint.safetensors  forget-<domain>.safetensors
    optimizer-retain.safetensors  ...
    manifest.json       how far the run has come, and the SHA-256 of every file above
    seal.json           written last: the SHA-256 of the manifest and of the run's config.json, tokens.json and so on

The safe model is the folder without a module's files: `without` loads it so, and never reads them.
Everything else that a model has must be there, and nothing more.

A folder has its name only once all of it is on the disk, and an earlier one is deleted only then.
"""

import hashlib
import json
import logging
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
from excise.files import flush, make_folder, move, remove_folder, sha256_of, write_whole
from excise.labels import forget_part, part_of
from excise.train.run import RunDirectory

logger = logging.getLogger(__name__)

MANIFEST, SEAL = "manifest.json", "seal.json"
OPTIMIZER = "optimizer-"
N_KEPT = 2
"""Checkpoints that a run keeps unless told to keep all: should the latest be damaged, there is the one before."""
ANEW = "bring it back from a copy, or make the run again in another directory"
"""What is left to do where no checkpoint is whole."""


class DamagedError(ValueError):
    """A checkpoint that is not as it was written."""


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


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, done: Done, sealed: Mapping[str, str]
) -> None:
    """Write a checkpoint, sealed with files of its run; the folder appears only when all of it is on the disk."""
    make_folder(folder.parent)
    for left_over in folder.parent.glob(".step-*"):
        shutil.rmtree(left_over)
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir()
    try:
        for part, tensors in _by_part(model).items():
            whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
            save_file(whole, partial / file_name(part))
            if optimizer is not None:
                save_file(_optimizer_tensors(tensors, optimizer), partial / optimizer_file_name(part))
    except SafetensorError as error:  # which it raises for a full disk too
        raise ValueError(
            f"checkpoint {folder} cannot be written ({error}); mend that, and give the same command again"
        ) from None
    files = {path.name: sha256_of(path) for path in sorted(partial.iterdir())}
    for name in files:
        flush(partial / name)
    write_whole(partial / MANIFEST, _json({"done": asdict(done), "files": files}))
    seal(partial, sealed)
    if folder.exists():
        remove_folder(folder)
    move(partial, folder)


def seal(folder: Path, sealed: Mapping[str, str]) -> None:
    """Note in a checkpoint the SHA-256 of its manifest and of files of its run, and one over them all."""
    files = {MANIFEST: sha256_of(folder / MANIFEST), **sealed}
    write_whole(folder / SEAL, _json({"files": files, "sha256": _digest(files)}))


def check_seal(folder: Path) -> None:
    """Refuse a checkpoint whose manifest, or whose run's config and the like, are not those that it was saved with."""
    run, files = RunDirectory(folder.parents[1]), _read_seal(folder)
    if files.pop(MANIFEST) != _sha256_of(folder, MANIFEST):
        raise DamagedError(f"checkpoint {folder} is damaged: its {MANIFEST} is not as it was written")
    there = run.sealed()
    for name in (name for name in {**files, **there} if files.get(name) != there.get(name)):
        was = "missing" if name not in there else "altered" if name in files else "new"
        raise ValueError(f"{run.path / name} is {was} since {folder.name} was saved; bring it back to what it was then")


def _read_seal(folder: Path) -> dict[str, str]:
    try:
        noted = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        files: dict[str, str] = noted["files"]
        if noted["sha256"] == _digest(files):
            return files
    except FileNotFoundError:
        raise DamagedError(
            f"checkpoint {folder} has no {SEAL}: it is damaged, or of an earlier Excise, whose checkpoints do not load "
            "(config and results do)"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DamagedError(f"checkpoint {folder} is damaged: its {SEAL} is not as it was written")


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, without: Sequence[str] = ()
) -> Done:
    """Fill a model, and an optimizer where one is given; damage is an error, and nothing is filled then.

    Files of the domains in `without` are neither needed nor read; the model must have been built without them.
    """
    check_seal(folder)
    manifest = read_manifest(folder)
    if folder.name != checkpoint_at(folder.parent, manifest.done.step).name:
        raise DamagedError(f"checkpoint {folder} is damaged: it is that of step {manifest.done.step} by another name")
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


def resume(checkpoints: Path, model: nn.Module, optimizer: torch.optim.Optimizer, n_steps: int) -> Done | None:
    """Fill a model, and its optimizer unless the run is done, from the latest checkpoint that is whole; None before the
    first. Those that are damaged are named and set aside."""
    damaged: dict[Path, DamagedError] = {}
    for folder in sorted(_checkpoints(checkpoints), key=_step, reverse=True):
        try:
            done = load_checkpoint(folder, model, optimizer if _step(folder) < n_steps else None)
        except DamagedError as error:
            damaged[folder] = error
            continue
        for other, why in damaged.items():
            aside = _set_aside(other)
            logger.warning("%s; it is kept as %s, and the run goes on from step %d", why, aside.name, done.step)
        return done
    if damaged:
        raise DamagedError(f"{next(iter(damaged.values()))}; no other is whole, so {ANEW}")
    return None


def _set_aside(folder: Path) -> Path:
    aside = folder.with_name(f"{folder.name}.damaged")
    if aside.exists():
        remove_folder(aside)
    move(folder, aside)
    return aside


def read_manifest(folder: Path) -> Manifest:
    fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return Manifest(from_dict(Done, fields["done"]), fields["files"])


def checkpoint_at(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step}"


def latest_checkpoint(checkpoints: Path) -> Path | None:
    """The checkpoint with the highest step, or None before the first."""
    return max(_checkpoints(checkpoints), key=_step, default=None)


def saved_steps(checkpoints: Path) -> list[int]:
    return sorted(map(_step, _checkpoints(checkpoints)))


def drop_earlier(checkpoints: Path) -> None:
    """Delete all checkpoints but the latest and the one before."""
    for step in saved_steps(checkpoints)[:-N_KEPT]:
        remove_folder(checkpoint_at(checkpoints, step))


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.is_dir()]


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _read(folder: Path, name: str, manifest: Manifest) -> dict[str, Tensor]:
    if name not in manifest.files:
        raise ValueError(f"checkpoint {folder} is incomplete: its {MANIFEST} lists no {name}")
    if _sha256_of(folder, name) != manifest.files[name]:
        raise DamagedError(f"checkpoint {folder} is damaged: {name} is not the file that its manifest lists")
    tensors: dict[str, Tensor] = load_file(folder / name)
    return tensors


def _sha256_of(folder: Path, name: str) -> str:
    try:
        return sha256_of(folder / name)
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DamagedError(f"checkpoint {folder} is damaged: its {name} {what}") from None


def _json(values: Mapping[str, object]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


def _digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


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
