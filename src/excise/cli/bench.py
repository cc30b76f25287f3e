"""excise bench"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from excise.bench import BenchConfig
from excise.cli.arguments import parse
from excise.cli.tables import table


@dataclass(frozen=True)
class BenchArguments:
    """Time training steps of all kinds side by side on this machine."""

    config: Annotated[BenchConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """A JSON file for the results."""


def main(args: Sequence[str]) -> int:
    arguments = parse(BenchArguments, args, "bench", BenchArguments(BenchConfig()))
    from excise.bench import bench
    from excise.evals.results import write_json

    console = Console(soft_wrap=True)
    with console.status("timing"):
        results = bench(arguments.config)
    rows = [
        [
            timing.name,
            f"{timing.tokens_per_second:,.0f}",
            f"{timing.milliseconds:,.1f}",
            f"{timing.ratio:.3f}",
            f"{timing.matrix_share:.1%}",
            "" if timing.memory_gb is None else f"{timing.memory_gb:.1f}",
            f"{timing.first_step_seconds:,.1f}",
        ]
        for timing in results.timings
    ]
    columns = ("variant", "tokens/s", "ms a step", "time against plain", "of the matrix peak", "GB", "first step, s")
    title = (
        f"{results.config.size}, {results.parameters / 1e6:,.1f} M parameters, {results.precision}, {results.device}, "
        f"matrix peak {results.peak_tflops:,.2f} TFLOP/s"
    )
    console.print(table(title, columns, rows))
    if arguments.out:
        write_json(results, arguments.out)
        console.print(str(arguments.out), highlight=False)
    return 0
