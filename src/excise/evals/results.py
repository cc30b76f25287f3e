"""Typed results, written as JSON; every table, picture and page is made from these files only.

A run's results.json holds where its numbers come from, and one entry for each measure taken of it:

    {"provenance": {...}, "measures": {"losses": {...}, "leakage": {...}}}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from excise.evals.losses import SetLosses
from excise.files import write_whole
from excise.train.run import RunDirectory


@dataclass(frozen=True)
class Provenance:
    """What every number of a run can be traced to."""

    run: str
    """The name of its directory."""
    method: str
    """The rule or filter that it was trained by, or the method by which it unlearned."""
    step: int
    checkpoint_sha256: str
    """Of the checkpoint's manifest, which lists the digests of all its files."""
    tokens: int
    """Predicted tokens trained on."""
    seconds: float
    """Spent on training."""
    parameters: int
    seed: int
    evaluated_on_sha256: str
    data_sha256: str
    """Of the data that it was trained on."""
    tokenizer_sha256: str
    precision: str
    excise: str
    torch: str


@dataclass(frozen=True)
class ForgetTokens:
    """Predictions in documents that truly belong to a domain, by whether these are labelled so."""

    labelled: int
    unlabeled: int


@dataclass(frozen=True)
class Losses:
    """The losses of a run, each before ablation, after it, and calibrated."""

    sets: Mapping[str, SetLosses]
    """By set: `retain`, each domain, and `adjacent` and `general` where there are adjacent categories."""
    categories: Mapping[str, SetLosses]
    category_means: Mapping[str, SetLosses]
    """By set, the mean over its categories."""
    removed: Sequence[str]
    """Modules that are gone in the ablated and calibrated losses."""
    calibration_weights: Mapping[str, float]
    """Of the sets that calibration was fitted on."""
    forget_tokens: Mapping[str, ForgetTokens]
    """Predictions of each domain seen in training, all epochs together."""
    doubt: str = ""
    """A sentence where the whole model is worse at retain documents than a guess, so that its losses mean little."""


@dataclass(frozen=True)
class RunResults:
    """What an evaluation without further wishes finds."""

    provenance: Provenance
    losses: Losses


@dataclass(frozen=True)
class Spread:
    """One number over several runs that differ only in their seeds."""

    mean: float
    standard_deviation: float
    n_runs: int


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
    """Write results; the file appears only when it is complete, and never with a number that is none."""
    text = json.dumps(asdict(results), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


@dataclass(frozen=True)
class Results:
    """All that is known of a run."""

    provenance: Provenance
    measures: Mapping[str, Any]
    """As plain values."""


def read_results(path: Path) -> Results:
    """The results in a file; what is not there or not whole is an error that says what to do."""
    if not path.exists():
        raise ValueError(f"{path.parent} has not been evaluated yet; do that first: excise evaluate {path.parent}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Results(Provenance(**_with_method(values["provenance"], path)), dict(values["measures"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it and evaluate the run again") from None


def _with_method(provenance: dict[str, Any], path: Path) -> dict[str, Any]:
    """Older results do not say the method of the run that they lie in."""
    return provenance if "method" in provenance else {**provenance, "method": RunDirectory(path.parent).method}


def losses_in(results: Results) -> Losses:
    """The losses among the results of a run."""
    if "losses" not in results.measures:
        raise ValueError(f"{results.provenance.run} has no losses among its results; evaluate it again")

    def sets(of: Mapping[str, Any]) -> dict[str, SetLosses]:
        return {name: SetLosses(**losses) for name, losses in of.items()}

    values = results.measures["losses"]
    tables = {name: sets(values[name]) for name in ("sets", "categories", "category_means")}
    seen = {domain: ForgetTokens(**of) for domain, of in values["forget_tokens"].items()}
    weights = dict(values["calibration_weights"])
    doubt = values.get("doubt", "")
    return Losses(
        **tables, removed=tuple(values["removed"]), calibration_weights=weights, forget_tokens=seen, doubt=doubt
    )


def add_measures(path: Path, provenance: Provenance, measures: Mapping[str, Any]) -> Results:
    """Write measures of a run beside those that were taken before of the same checkpoint on the same data."""
    before = read_results(path) if path.exists() else Results(provenance, {})
    kept = before.measures if same_source(before.provenance, provenance) else {}
    new = {name: plain(measured) for name, measured in measures.items()}
    results = Results(provenance, {**kept, **new})
    write_json(results, path)
    return results


def plain(measured: Any) -> Any:
    """A result, or a list of results, some of which may be plain already, as JSON has it."""
    if isinstance(measured, list):
        return [plain(one) for one in measured]
    return measured if isinstance(measured, dict) else json.loads(json.dumps(asdict(measured)))


def same_source(mine: Provenance, other: Provenance) -> bool:
    names = ("checkpoint_sha256", "evaluated_on_sha256")
    return all(getattr(mine, name) == getattr(other, name) for name in names)
