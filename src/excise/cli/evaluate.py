"""excise evaluate RUN..."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from excise.cli.arguments import parse
from excise.cli.tables import comparison, shown, spread_table
from excise.evals.options import MeasureOptions

MeasureName = Literal[
    "losses",
    "tradeoff",
    "gradient_norms",
    "token_losses",
    "cross_domain",
    "multiple_choice",
    "samples",
    "leakage",
    "compute_penalty",
]


@dataclass(frozen=True)
class EvaluateArguments:
    """Measure runs; what is found goes into the results.json of each, beside what was measured before."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    measures: tuple[MeasureName, ...] = ("losses",)
    """What to measure: losses before ablation, after it and calibrated, or any of the others."""
    data: str = ""
    """Other documents to evaluate on: a folder written by `excise prepare` with the tokenizer of the runs."""
    step: int | None = None
    """A checkpoint other than the latest."""
    options: Annotated[MeasureOptions, tyro.conf.arg(name="")] = field(default_factory=MeasureOptions)
    weights: tuple[str, ...] = ()
    """Weights of sets in the calibration, as set=weight, instead of 100 for retain and 1 for each domain."""
    surface: Path | None = None
    """A folder for the TPR x FPR surface of evaluated SGTM and filter runs (surface.json and surface.png)."""
    roc: Path | None = None
    """The report.json of `excise label`, whose ROC curve is drawn over the surface."""


def main(args: Sequence[str]) -> int:
    arguments = parse(EvaluateArguments, args, "evaluate")
    if not arguments.runs:
        raise ValueError("name at least one run to evaluate: excise evaluate RUN...")
    if not arguments.measures:
        raise ValueError("--measures names nothing to measure; name losses, or leave it out")
    if arguments.roc and not arguments.surface:
        raise ValueError("a ROC curve is drawn over a surface; name a folder for it with --surface")
    if unused := arguments.options.unused(arguments.measures):
        raise ValueError(unused)
    from excise.cli.progress import EvaluationBar
    from excise.evals.measures import MEASURES
    from excise.evals.results import Results, add_measures
    from excise.evals.run import open_run, seed_spreads
    from excise.train.run import RunDirectory

    runs = list(dict.fromkeys(arguments.runs))
    for directory in runs:
        RunDirectory(directory).config()  # so that a wrong name is told before hours of work
    weights = weights_of(arguments.weights)
    console = Console(soft_wrap=True, markup=False)
    chosen = [name for name in MEASURES if name in arguments.measures]
    # The losses of several runs are compared in one table at the end.
    printed = chosen if len(runs) == 1 else [name for name in chosen if name != "losses"]
    evaluated: dict[Path, Results] = {}
    with EvaluationBar(console) as bar:
        for directory in runs:
            with bar.of(f"{directory}: loading"):
                subject = open_run(directory, source=arguments.data, step=arguments.step, weights=weights)
            for name in chosen:
                with bar.of(f"{directory}: {name}"):
                    measured = MEASURES[name](subject, arguments.options)
                results = add_measures(subject.results_file, subject.provenance, {name: measured})
                if name in printed:
                    console.print(f"{directory}, step {subject.done.step}", highlight=False)
                    console.print(shown(name, results.measures[name]))
            console.print(f"wrote {subject.results_file}", highlight=False)
            evaluated[directory] = results
    if "losses" in chosen and len(runs) > 1:
        console.print(comparison(evaluated, {directory: method_of(directory) for directory in runs}))
    if not arguments.data:
        for spreads in seed_spreads(runs, arguments.step):
            console.print(spread_table(spreads))
    if arguments.surface:
        _write_surface(runs, arguments.surface, arguments.roc, console)
    return 0


def method_of(directory: Path) -> str:
    """How a run was trained, or what was done to it afterwards."""
    from excise.train.run import RunDirectory

    files = RunDirectory(directory)
    return f"{files.method}, ablated" if "ablation" in files.alterations() else files.method


def weights_of(given: Sequence[str]) -> dict[str, float]:
    """The weights written as set=weight."""
    try:
        pairs = [(name, float(weight)) for name, _, weight in (entry.partition("=") for entry in given)]
    except ValueError:
        raise ValueError(f"--weights {' '.join(given)} must be written as set=weight, as in adjacent=50") from None
    for name, weight in pairs:
        if not 0 <= weight < math.inf:
            raise ValueError(f"--weights {name}={weight:g} must be a number from 0 up")
    return dict(pairs)


def _write_surface(runs: Sequence[Path], out: Path, roc: Path | None, console: Console) -> None:
    from excise.evals.measures import surface_of
    from excise.evals.results import write_json
    from excise.report.surface_plot import save_surface

    surface = surface_of(runs, roc)
    out.mkdir(parents=True, exist_ok=True)
    write_json(surface, out / "surface.json")
    plain = asdict(surface)
    save_surface(plain["surface"], out / "surface.png", plain["on_roc"])
    for name in ("surface.json", "surface.png"):
        console.print(f"wrote {out / name}", highlight=False)
