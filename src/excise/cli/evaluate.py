"""excise evaluate RUN"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from excise.cli.arguments import parse


@dataclass(frozen=True)
class EvaluateArguments:
    """Losses of a run's latest checkpoint before ablation, after it, and calibrated."""

    run: tyro.conf.Positional[Path]
    """A run directory."""


def main(args: Sequence[str]) -> int:
    arguments = parse(EvaluateArguments, args, "evaluate")
    from excise.data.dataset import load_data
    from excise.evals.run import evaluate_run
    from excise.train.run import RunDirectory

    files = RunDirectory(arguments.run)
    run = files.config()
    results = evaluate_run(arguments.run, load_data(run.data, run.routing.domains))
    table = Table(title=f"Loss per token at step {results.step}")
    for column in ("set", "before ablation", "ablated", "calibrated"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for name, losses in results.losses.items():
        table.add_row(name, *(f"{loss:.4f}" for loss in (losses.before, losses.ablated, losses.calibrated)))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(str(files.results_file), highlight=False)
    return 0
