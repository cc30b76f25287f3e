"""excise reproduce FIGURE..."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from excise.cli.arguments import parse
from excise.evals.figure import Scale

if TYPE_CHECKING:
    from excise.recipes.figures.plan import Run
    from excise.recipes.figures.planned import Sources


@dataclass(frozen=True)
class ReproduceArguments:
    """Train and measure the runs of figures and tables of the paper, and write each figure and one page about all; what
    is done is not done again, and runs are shared between figures."""

    figures: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names such as figure-3 and table-1, or all."""
    scale: Scale = "smoke"
    """Two CPU cores and built-in data, one GPU and prepared data, or the paper's own models and data."""
    directory: Path = Path("reproduction")
    bilingual: str = ""
    """A folder written by `excise prepare` with bilingual documents, for the scales small and paper."""
    topics: str = ""
    """The same with articles and their subjects."""
    bilingual_sizes: str = ""
    """The bilingual documents prepared with a tokenizer of 4096 tokens, for figures about model size at the scale small."""
    topics_sizes: str = ""
    """The articles prepared so."""
    seeds: int = 0
    """At most so many seeds of each run; 0 means as many as a figure wants."""
    keep_checkpoints: bool = True
    """Whether checkpoints stay when nothing needs them any more."""
    list: bool = False
    """Only show the figures, with their runs, tokens, FLOPs and time on this machine."""


def main(args: Sequence[str]) -> int:
    arguments = parse(ReproduceArguments, args, "reproduce")
    if not arguments.figures and not arguments.list:
        raise ValueError("name figures: excise reproduce figure-3 table-1, or all (--list shows what there is)")
    from excise.recipes.figures.planned import Sources
    from excise.recipes.reproduce import reproduce

    names = ("bilingual", "topics", "bilingual_sizes", "topics_sizes")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name)}
    sources, console = Sources(**given), Console(soft_wrap=True)
    if arguments.list:
        show_list(arguments, sources, console)
        return 0
    from excise.cli.progress import ProgressBar

    with ExitStack() as bars:
        written = reproduce(
            arguments.figures,
            arguments.scale,
            sources,
            arguments.directory,
            lambda title: [bars.enter_context(ProgressBar(console, title))],
            keep_checkpoints=arguments.keep_checkpoints,
            seeds=arguments.seeds or None,
        )
    from excise.report.reproduction import read_figures, write_reproduction

    page = arguments.directory / "report.html"
    write_reproduction(read_figures(arguments.directory), page)
    for path in (*written, page):
        console.print(str(path), highlight=False)
    return 0


def show_list(arguments: ReproduceArguments, sources: "Sources", console: Console) -> None:
    """A table of the figures and what each would take."""
    from excise.recipes.figures import FIGURES
    from excise.recipes.figures.costs import cost, speed_of
    from excise.recipes.figures.plan import choose, plan
    from excise.recipes.reproduce import done_of

    names = choose(arguments.figures or ("all",))
    planned = plan(names, arguments.scale, sources, seeds=arguments.seeds or None)
    speed, timed = speed_of(planned)
    done = done_of(planned, arguments.directory)

    def row(name: str, title: str, section: str, runs: "Sequence[Run]") -> list[str]:
        of = cost(runs, done, speed)
        if not runs:
            return [name, title, section, "none"]
        counts = [f"{n}" for n in (of.n_runs, of.n_shared, of.n_done)]
        return [name, title, section, *counts, f"{of.tokens:.1e}", f"{of.flops:.1e}", duration(of.seconds_left)]

    shown = Table("figure", "title", title=f"Figures at the scale {arguments.scale}", title_justify="left", box=SIMPLE)
    shown.columns[0].no_wrap = True
    for column in ("section", "runs", "shared", "done", "tokens", "FLOPs", "time left"):
        shown.add_column(column, justify="left" if column == "section" else "right", no_wrap=column != "section")
    for name in names:
        shown.add_row(*row(name, FIGURES[name].title, FIGURES[name].section, planned.of_figure(name)))
    shown.add_section()
    shown.add_row(*row("together", "each run once", "", list(planned.runs.values())))
    console.print(shown)
    console.print(
        "Shared runs serve several figures. FLOPs are 6 x parameters x tokens. Time is for training what is not done, at "
        f"{speed / 1e9:,.0f} GFLOP/s: the fastest of three steps of the model of {timed:,} parameters, just timed here. "
        "Evaluation comes on top.",
        highlight=False,
    )


def duration(seconds: float) -> str:
    """A time to read at a glance."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"
