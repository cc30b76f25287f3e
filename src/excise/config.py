"""Strict JSON <-> frozen dataclasses, and overrides by dotted name. The classes themselves live with their owners."""

import dataclasses
import json
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from excise.files import write_whole
from excise.labels import nearest

C = TypeVar("C")
N_NAMED = 8
"""Folders that an error message names."""


def to_dict(config: Any) -> dict[str, Any]:
    """The plain dictionary of a config, as it stands in config.json."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def from_dict(kind: type[C], values: Mapping[str, Any], where: str = "") -> C:
    """A config from plain values; unknown keys, missing keys and wrong types are refused."""
    hints = get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ValueError(f"unknown option {where}{name}; {nearest(name, known)}")
    for name in known:
        if name not in values:
            raise ValueError(f"option {where}{name} is missing")
    parsed = {name: parse(hints[name], value, f"{where}{name}") for name, value in values.items()}
    return kind(**parsed)


def parse(kind: Any, value: Any, where: str) -> Any:
    """A value of the annotated type, or one sentence on what was given and what would do."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return from_dict(kind, value, f"{where}.")
    elif get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(parse(get_args(kind)[0], item, where) for item in value)
    elif get_origin(kind) in (Union, types.UnionType):
        return parse_union(kind, value, where)
    elif get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{where}={value!r} is not known; {nearest(str(value), map(str, get_args(kind)))}")
    elif kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif kind in (int, str, bool) and type(value) is kind:
        return value
    raise ValueError(f"{where}={value!r} must be {getattr(kind, '__name__', kind)}")


def parse_union(kind: Any, value: Any, where: str) -> Any:
    for choice in get_args(kind):
        try:
            return parse(choice, value, where)
        except ValueError:
            continue
    raise ValueError(f"{where}={value!r} fits none of {kind}")


def override(config: C, changes: Mapping[str, Any], where: str = "") -> C:
    """The same config with some values changed, each named by its path: `{"train.budget": steps(10)}`.

    All changes are made at once, so that only the outcome has to be valid.
    """
    kind: Any = type(config)
    known, hints = [field.name for field in dataclasses.fields(kind)], get_type_hints(kind)
    values: dict[str, Any] = {}
    deeper: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        if name not in known:
            raise ValueError(f"unknown option {where}{path}; {nearest(name, known)}")
        if rest:
            deeper.setdefault(name, {})[rest] = value
        else:
            values[name] = parse(hints[name], value, f"{where}{name}")
    for name, inner in deeper.items():
        values[name] = override(values.get(name, getattr(config, name)), inner, f"{where}{name}.")
    return cast(C, dataclasses.replace(cast(Any, config), **values))


def save(config: Any, path: Path) -> None:
    write_whole(path, (json.dumps(to_dict(config), indent=2) + "\n").encode())


def load(
    kind: type[C], path: Path, read_on: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: values
) -> C:
    """The config in a file, whose values an older version may have written; a file that is not one, or not a whole one,
    is a ValueError that names it."""
    values = read_object(path)
    try:
        return from_dict(kind, read_on(values))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a file that holds none is a ValueError that names it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(_not_found(path)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold an object with the options of a run")
    return values


def _not_found(path: Path) -> str:
    """Where a file is not, and where it is instead."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    found = [str(file.parent) for inside in ("*", "*/*") for file in sorted(folder.glob(f"{inside}/{path.name}"))]
    more = [f"and {len(found) - N_NAMED} more"] if len(found) > N_NAMED else []
    instead = f"; name a folder inside it: {', '.join([*found[:N_NAMED], *more])}" if found else ""
    return f"there is no {path.name} in {folder}{instead}"
