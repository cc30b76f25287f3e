"""Which runs are one and the same: what a configuration says of the outcome, and how older configurations read on.

A run is named by the fields that differ from their defaults, so that a new option at its default renames none. A default is
here what runs did before they could say it: the one of today's class, unless `BEFORE` has a line.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.config import to_dict


@dataclass(frozen=True)
class Was:
    """A field whose default today is not what runs did that do not name it."""

    value: Any


@dataclass(frozen=True)
class Removed:
    """A field that is gone; a configuration with one of `values` means the same without it."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Renamed:
    """A field that has another path today."""

    to: str


BEFORE: Mapping[str, Was | Removed | Renamed] = {
    "data.labels": Was("simulated"),
    "data.n_test_documents": Was(0),
}
"""What has become of the fields of `RunConfig`, by path, and of `UnlearningConfig`, after `unlearning.`. Lines stay for ever:

    "a.b": Was(0)              its default is another today, or it is new and runs before did not do as its default does
    "a.b": Removed((False,))   no run can have it any more
    "a.b": Renamed("a.c")      and names of runs go on to hold the path it had first
"""
NO_OUTCOME = frozenset(
    f"train.{name}"
    for name in (
        *("evaluations", "log_every", "keep_checkpoints", "checkpoint_every", "checkpoint_minutes"),
        *("compile", "device"),
    )
)
"""Fields that do not change what a run learns, rounding aside."""
SOURCE = "data.source"
"""Of which the last part of the path counts: where data lie is no matter, and a digest says whether they are the same."""
FIRST_SECTIONS = frozenset({"data", "model", "routing", "batch", "train"})
"""Without one of these a file is no config."""
SEEDS = frozenset({"train.seed", "data.seed"})


def digest(config: Any, unlearning: Any = None, but: Collection[str] = ()) -> str:
    """Eight hexadecimal digits for all that decides the outcome of a run, some fields left out."""
    text = json.dumps(identity(config, unlearning, but), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def identity(config: Any, unlearning: Any = None, but: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a run that decide its outcome and differ from their defaults, by path, some left out."""
    named = _differing(config)
    if unlearning is not None:
        named |= {"unlearning": True, **_differing(unlearning, "unlearning.")}
    return {path: value for path, value in named.items() if path not in but}


def differences(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """The fields in which two configs of one class ask for different outcomes, with both values."""
    a, b = (_outcome(to_dict(config)) for config in (one, other))
    return {path: (a[path], b[path]) for path in a if a[path] != b[path]}


def defaults(kind: type[Any], where: str = "") -> dict[str, Any]:
    """By path, what a run did that does not name a field; only fields that decide outcomes."""
    return _outcome(_unsaid(kind, where), where)


def read_on(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a config, of this version or an older one, with the fields of today."""
    today: dict[str, Any] = json.loads(json.dumps(values))
    for path, change in BEFORE.items():
        section, name = _place(today, path)
        if name not in section or isinstance(change, Was):
            continue
        value = section.pop(name)
        if isinstance(change, Renamed):
            _put(today, change.to, value)
        elif value not in change.values:
            raise ValueError(
                f"option {path}={value!r} is no more, and only runs with {' or '.join(map(repr, change.values))} read on; "
                "use the version of excise that this run was made with"
            )
    unsaid = _unsaid(kind)
    _fill(today, unsaid)
    return {name: value for name, value in today.items() if name in unsaid or value != {}}


def _differing(config: Any, where: str = "") -> dict[str, Any]:
    unsaid = defaults(type(config), where)
    return {path: value for path, value in _outcome(to_dict(config), where).items() if value != unsaid[path]}


def _outcome(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The fields that decide an outcome, by the paths that they had first."""
    first: dict[str, str] = {}
    for path, change in BEFORE.items():
        if isinstance(change, Renamed):
            first[change.to] = first.get(path, path)
    return {first.get(path, path): value for path, value in _flat(values, where).items() if path not in NO_OUTCOME}


def _flat(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{where}{name}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{path}.")
        else:
            flat[path] = Path(value).name if path == SOURCE else _number(value)
    return flat


def _number(value: Any) -> Any:
    """3.0 as 3, since some fields take both."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unsaid(kind: type[Any], where: str = "") -> dict[str, Any]:
    """The plain values of a config of which nothing was said."""
    values = to_dict(kind())
    for path, change in BEFORE.items():
        if isinstance(change, Was) and path.startswith(where):
            section, name = _place(values, path.removeprefix(where))
            if name in section:
                section[name] = json.loads(json.dumps(change.value))
    return values


def _place(values: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The section that a path leads to, an empty one where it leads nowhere, and the last word of the path."""
    *sections, name = path.split(".")
    for section in sections:
        inner = values.get(section)
        values = inner if isinstance(inner, dict) else {}
    return values, name


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    """Write a value where a path leads, through sections that are made, unless one stands there."""
    *sections, name = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values.setdefault(name, value)


def _fill(values: dict[str, Any], unsaid: Mapping[str, Any]) -> None:
    """Add the fields that are missing, and sections but for those that every version has had."""
    for name, default in unsaid.items():
        if isinstance(default, Mapping) and isinstance(values.get(name), dict):
            _fill(values[name], default)
        elif name not in FIRST_SECTIONS:
            values.setdefault(name, default)
