"""excise bench"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from excise.bench import BenchConfig, BenchResults, Timing
from excise.cli.arguments import parse
from excise.cli.tables import FittedTable
from excise.extras import needs

NOTES = (
    "tokens/s, ms: of a step, medians over rounds",
    "to plain: time per token against plain training; on a CPU the median of ratios",
    "    within rounds, which need not agree with tokens/s on a busy machine",
    "of peak: six FLOPs for every parameter and token, as a share of the matrix peak",
    "in quarters: a step in four micro-batches, so that one label each can mix",
    "set-up: what the first steps took beyond that, with compilation if there is any",
)

REFERENCE_HINT = "--reference: GPT-Neo of transformers too, as the field trains it (extra hf)"


@dataclass(frozen=True)
class BenchArguments:
    """Time training steps of all kinds side by side on this machine."""

    config: Annotated[BenchConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """A JSON file for the results."""


def main(args: Sequence[str]) -> int:
    arguments = parse(BenchArguments, args, "bench", BenchArguments(BenchConfig()))
    from excise.bench import bench
    from excise.cli.progress import spinner
    from excise.evals.results import write_json

    console, config = Console(soft_wrap=True, markup=False), arguments.config

    def keep(results: BenchResults) -> None:
        if arguments.out:
            write_json(results, arguments.out)

    if config.reference:
        needs("transformers", "hf")
    if config.size == "tiny":
        console.print("A round of all kinds takes about 20 s on two cores.", highlight=False)
    with spinner(console) as bar:
        bar.add_task(f"timing {config.size}, rounds: {config.rounds}", total=None)
        results = bench(config, keep)
    console.print(timings_table(results))
    console.print("\n".join([*NOTES, *([] if config.reference else [REFERENCE_HINT])]), highlight=False)
    if arguments.out:
        console.print(f"wrote {arguments.out}", highlight=False)
    return 0


def timings_table(results: BenchResults) -> FittedTable:
    columns: dict[str, Callable[[Timing], str]] = {
        "variant": lambda timing: timing.name,
        "tokens/s": lambda timing: f"{timing.tokens_per_second:,.0f}",
        "ms": lambda timing: f"{timing.milliseconds:,.1f}",
        "to plain": lambda timing: f"{timing.ratio:.3f}",
        "of peak": lambda timing: f"{timing.matrix_share:.1%}",
        "set-up, s": lambda timing: f"{timing.set_up_seconds:,.1f}",
    }
    if any(timing.memory_gb is not None for timing in results.timings):
        columns["GB"] = lambda timing: f"{timing.memory_gb:.1f}"
        columns["in use"] = lambda timing: f"{timing.memory_in_use_gb:.1f}"
    rows = [[cell(timing) for cell in columns.values()] for timing in results.timings]
    title = (
        f"{results.config.size}, {results.parameters / 1e6:,.1f} M parameters, {results.precision}, {results.device}, "
        f"matrix peak {results.peak_tflops:,.2f} TFLOP/s"
    )
    return FittedTable(title, list(columns), rows)
