"""A figure or a table of the paper as data: its panels, what is claimed of it, and the runs behind it.

`excise reproduce` writes one of these for each figure as JSON; plots and the report are drawn from these files only.
"""

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from excise.labels import nearest

Scale = Literal["smoke", "small", "paper"]
LEARNED = 0.7
"""Where the no-filter run ends above this share of its first loss, a figure checks the pipeline and no more."""


@dataclass(frozen=True)
class Estimate:
    """A number, with its interval where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Point:
    x: Estimate
    y: Estimate
    text: str = ""
    """What stands beside the point or in its tool tip: a share of training, a model size."""


@dataclass(frozen=True)
class Series:
    """The points of one method, in the order in which a line joins them."""

    method: str
    """A key that gives colour and marker, the same in every figure: sgtm, no_filter, weak_filter, rmu."""
    label: str
    points: Sequence[Point]
    line: bool = True
    markers: bool = True
    star: bool = False
    """Whether its last point is the end of a training, which is drawn as a star."""
    dashed: bool = False
    """Whether its line is, so that two series can share a colour."""


@dataclass(frozen=True)
class Plot:
    """Series over numeric axes: trade-offs, curves, densities."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)
    """Horizontal lines to compare with, by name."""
    x_levels: Mapping[str, float] = field(default_factory=dict)
    """Vertical ones."""
    x_ticks: Mapping[str, float] = field(default_factory=dict)
    """What stands at the axis, and where, if not round numbers."""
    kind: Literal["plot"] = "plot"


@dataclass(frozen=True)
class Bars:
    """Groups of bars: for each group, one estimate for every method; a missing bar is null."""

    title: str
    y_label: str
    groups: Sequence[str]
    bars: Mapping[str, Sequence[Estimate | None]]
    """By method, one for each group."""
    labels: Mapping[str, str]
    """By method."""
    kind: Literal["bars"] = "bars"

    def __post_init__(self) -> None:
        _same_keys(self.title, "bars", self.bars, "labels", self.labels)
        for method, bars in self.bars.items():
            _as_many(self.title, f"bars of {method}", bars, "groups", self.groups)


@dataclass(frozen=True)
class Heat:
    """Numbers by row and column, shown as a coloured table."""

    title: str
    row_label: str
    column_label: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    kind: Literal["heat"] = "heat"

    def __post_init__(self) -> None:
        _as_many(self.title, "values", self.values, "rows", self.rows)
        for row in self.values:
            _as_many(self.title, "values of a row", row, "columns", self.columns)


@dataclass(frozen=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    kind: Literal["table"] = "table"

    def __post_init__(self) -> None:
        for row in self.rows:
            _as_many(self.title, "cells of a row", row, "columns", self.header)


@dataclass(frozen=True)
class Split:
    """Which parameters of a model are in which part (figure 2): for each matrix, the size of each part along the split."""

    title: str
    matrices: Sequence[str]
    """In the order of the data's way through a block."""
    parts: Mapping[str, Sequence[int]]
    """By part, its size in each matrix, in heads or units or whole tensors."""
    unit: Sequence[str]
    """What is counted in each matrix: heads, units, vectors."""
    kind: Literal["split"] = "split"

    def __post_init__(self) -> None:
        for name, sizes in (*self.parts.items(), ("unit", self.unit)):
            _as_many(self.title, f"entries of {name}", sizes, "matrices", self.matrices)


def _as_many(title: str, name: str, values: Sequence[Any], of: str, others: Sequence[Any]) -> None:
    if len(values) != len(others):
        raise ValueError(f"{title!r} has {len(values)} {name} and {len(others)} {of}; give as many of both")


def _same_keys(title: str, name: str, values: Mapping[str, Any], of: str, others: Mapping[str, Any]) -> None:
    if odd := sorted(set(values) ^ set(others)):
        raise ValueError(f"{title!r} has {odd[0]!r} in only one of {name} and {of}; name it in both")


Panel = Plot | Bars | Heat | Table | Split
PANELS: Mapping[str, type[Panel]] = {"plot": Plot, "bars": Bars, "heat": Heat, "table": Table, "split": Split}


NOT_IN_PAPER = "not in the paper"


@dataclass(frozen=True)
class PaperClaim:
    """A statement of the paper about a figure, its number there and ours; or one of our own."""

    text: str
    paper: str
    """The paper's number, or its words, with the section."""
    ours: Estimate | None
    unit: str
    holds: bool | None
    """Null where our intervals do not decide."""
    why: str = ""
    """What was compared with what."""
    check: bool = False
    """Whether it is about what was built and not about what was found: it holds wherever the code is right."""

    @property
    def is_ours(self) -> bool:
        """Whether the paper says nothing of it."""
        return self.paper == NOT_IN_PAPER


@dataclass(frozen=True)
class RunLine:
    """A run behind a figure."""

    name: str
    steps: int
    tokens: int
    parameters: int
    seed: int
    first_loss: float | None
    """The loss of its first step, before it has learned anything; null where the training was that of another run, of which
    this one was made."""
    last_loss: float | None
    checkpoint_sha256: str


@dataclass(frozen=True)
class FigureResults:
    """A figure with all that is needed to draw and to judge it."""

    name: str
    """As on the command line: figure-3, table-1."""
    title: str
    section: str
    """Of the paper; `beyond` for what it does not have."""
    scale: Scale | None
    """Null for runs that belong to no recipe of the paper."""
    caption: str
    panels: Sequence[Panel]
    claims: Sequence[PaperClaim]
    runs: Sequence[RunLine]
    pipeline_check_only: bool
    """Whether the runs learned too little for the figure to mean anything (`LEARNED`)."""
    configurations: Mapping[str, Any] = field(default_factory=dict)
    """By method, how it was trained, in plain values."""
    samples: Sequence[Mapping[str, str]] = ()
    """Openings and how models continue them: language, prompt, and a text for each model."""


def read_figure(path: Path) -> FigureResults:
    """The figure in a file; what is missing, unknown or of another kind is an error that names its place."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        figure: FigureResults = _read(FigureResults, values, "")
        return figure
    except ValueError as error:
        raise ValueError(f"{path} holds no figure: {str(error).rstrip('.')}; reproduce the figure again") from None


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of the annotated type from plain ones."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or (origin is Literal and value in inner):
        return value
    if origin in (Union, types.UnionType):
        return _read(_choice(inner, value, where), value, where)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _read_fields(kind, value, where)
    if origin is Sequence and isinstance(value, list):
        return tuple(_read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _read(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    expected = " or ".join(map(repr, inner)) if origin is Literal else getattr(origin or kind, "__name__", str(kind))
    raise ValueError(f"{where.lstrip('.') or 'the file'} is {str(value)[:40]!r} and must be {expected}")


def _read_fields(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    hints, known = get_type_hints(kind), {one.name: one for one in fields(kind)}
    for name in values:
        if name not in known:
            raise ValueError(f"{f'{where}.{name}'.lstrip('.')} is unknown; {nearest(name, known)}")
    for name, one in known.items():
        if name not in values and one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{f'{where}.{name}'.lstrip('.')} is missing")
    return kind(**{name: _read(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def _choice(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """The one of several types that a value is meant to be: panels say so themselves."""
    if all(is_dataclass(kind) for kind in kinds):
        name = str(value.get("kind") if isinstance(value, Mapping) else value)
        if name not in PANELS:
            raise ValueError(f"{where.lstrip('.')} is of the unknown kind {name!r}; {nearest(name, PANELS)}")
        return PANELS[name]
    if value is None:
        return types.NoneType if types.NoneType in kinds else kinds[0]
    fitting = [kind for kind in kinds if kind is type(value) or (kind is float and type(value) is int)]
    return next(iter(fitting or [kind for kind in kinds if kind is not types.NoneType]))
