"""Typed results, written as JSON; every table, picture and page is made from these files only."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from excise.evals.losses import AblationLosses


@dataclass(frozen=True)
class RunResults:
    """What is known of one finished run."""

    losses: Mapping[str, AblationLosses]
    """By set: `retain`, and each domain."""
    removed: Sequence[str]
    """Modules that are gone in the ablated and calibrated losses."""
    step: int
    tokens: int
    """Predicted tokens trained on."""
    seconds: float
    parameters: int
    tokenizer_sha256: str


@dataclass(frozen=True)
class Claim:
    """A statement about results that can fail. Its name ends in the direction of its bound."""

    name: str
    value: float
    bound: float
    holds: bool

    @staticmethod
    def at_least(name: str, value: float, bound: float) -> "Claim":
        return Claim(f"{name}, at least", value, bound, value >= bound)

    @staticmethod
    def at_most(name: str, value: float, bound: float) -> "Claim":
        return Claim(f"{name}, at most", value, bound, value <= bound)


def recovered(loss: float, *, data_filter: float, perfect_filter: float) -> float:
    """How far a forget loss is on the way from the data filter's to the perfect filter's, at most 1.

    A method that does no more than filter scores 0.
    """
    return min(1.0, (loss - data_filter) / (perfect_filter - data_filter))


def write_json(results: Any, path: Path) -> None:
    """Write results; the file appears only when it is complete."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(asdict(results), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
