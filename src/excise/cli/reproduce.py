"""excise reproduce FIGURE..."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import TYPE_CHECKING

import tyro
from rich.console import Console

from excise.cli.arguments import parse
from excise.evals.figure import Scale

if TYPE_CHECKING:
    from excise.recipes.figures.plan import Run, Shorten
    from excise.recipes.figures.planned import Sources
    from excise.train.loop import Listener

    Listeners = Callable[[str], Sequence[Listener]]

logger = logging.getLogger(__name__)

GRACE = 60.0
"""Seconds for a process to end a step and save it."""


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
    jobs: int = 1
    """Runs side by side, in a process each: small models fill neither a GPU nor many cores."""
    search: bool = False
    """Instead of figures, find learning rates: every method of the figures at each rate of one grid, and beyond it where
    the best is the outermost, judged on the calibration split; writes rates.json."""
    grid: tuple[float, ...] = ()
    """Rates to search; those of the scale where none is given."""
    rates: Path | None = None
    """A rates.json from a search, whose rates take the place of the recipes'."""
    list: bool = False
    """Only show the figures, with their runs, tokens, FLOPs and time on this machine."""


def main(args: Sequence[str]) -> int:
    arguments = parse(ReproduceArguments, args, "reproduce")
    if not arguments.figures and not arguments.list:
        raise ValueError("name figures: excise reproduce figure-3 table-1, or all (--list shows what there is)")
    sources, adapt = settings(arguments)
    console = Console(soft_wrap=True, markup=False)
    if arguments.list:
        show_list(arguments, sources, console, adapt)
        return 0
    from excise.cli.progress import ProgressBar

    with ExitStack() as stack:
        stack.enter_context(helpers(args, arguments.jobs))

        def listeners(title: str) -> "Sequence[Listener]":
            return [stack.enter_context(ProgressBar(console, title))]

        written = (search if arguments.search else draw)(arguments, sources, adapt, listeners)
    if not arguments.search:
        written.append(write_page(arguments.directory))
    for path in written:
        console.print(f"wrote {path}", highlight=False)
    if not arguments.search:
        console.print(verdict(written), highlight=False)
    return 0


def settings(arguments: ReproduceArguments) -> "tuple[Sources, Shorten]":
    """Where the data are, and what a search has found about runs."""
    from excise.data.sources import EMBEDDED
    from excise.recipes.figures.planned import Sources
    from excise.recipes.search import at_searched_rates

    names = ("bilingual", "topics", "bilingual_sizes", "topics_sizes")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name)}
    # A folder may be called as built-in data are.
    given = {name: os.path.join(os.curdir, path) if path in EMBEDDED else path for name, path in given.items()}
    sources = Sources(**given)
    adapt = at_searched_rates(arguments.rates, arguments.scale, sources) if arguments.rates else lambda config: config
    return sources, adapt


@contextmanager
def helpers(args: Sequence[str], jobs: int) -> Iterator[None]:
    """The same command in more processes, which share the work; all have their part of the cores."""
    if jobs < 1:
        raise ValueError(f"--jobs {jobs} must be at least 1")
    if jobs == 1:
        yield
        return
    import torch

    threads = max(1, (os.cpu_count() or 1) // jobs)
    torch.set_num_threads(threads)
    command = [sys.executable, "-m", "excise.cli.main", "reproduce", *args, "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    others = [Popen(command, env=environment, stdout=DEVNULL) for _ in range(jobs - 1)]
    try:
        yield
        if failed := [other for other in others if other.wait()]:
            raise ValueError(
                f"{len(failed)} of the processes beside this one stopped with an error, which stands above"
            )
    except KeyboardInterrupt:  # which reaches all of them; they save what they are at
        stop(others)
        raise
    except BaseException:
        for other in others:
            other.send_signal(signal.SIGINT)
        stop(others)
        raise


def stop(others: Sequence["Popen[bytes]"]) -> None:
    """Wait for processes that are about to end, and end those that are not."""
    for other in others:
        try:
            other.wait(GRACE)
        except TimeoutExpired:
            other.kill()


def verdict(written: Sequence[Path]) -> str:
    """How many claims of the figures that were drawn hold, as the page counts them."""
    from excise.evals.figure import read_figure
    from excise.report.reproduction import counts_of

    figures = [read_figure(path) for path in written if path.suffix == ".json"]
    told = []
    for whose, ours in (("of the paper", False), ("of our own", True)):
        counts = counts_of(figures, ours=ours)
        if any(counts.values()) or not ours:
            told.append(f"{counts[True]} claims {whose} hold, {counts[False]} do not, {counts[None]} cannot be decided")
    return "; ".join(told)


def search(arguments: ReproduceArguments, sources: "Sources", adapt: "Shorten", listeners: "Listeners") -> list[Path]:
    from excise.recipes.search import search_rates

    if arguments.rates:
        raise ValueError("--search finds rates and --rates uses them; give one of the two")
    names, scale = arguments.figures, arguments.scale
    return [search_rates(names, scale, sources, arguments.directory, arguments.grid, listeners)]


def draw(arguments: ReproduceArguments, sources: "Sources", adapt: "Shorten", listeners: "Listeners") -> list[Path]:
    from excise.recipes.reproduce import reproduce
    from excise.recipes.search import unsearched

    if arguments.rates and (runs := unsearched(arguments.figures, arguments.scale, sources, arguments.rates)):
        logger.warning("%s has no rate for %s; such runs keep their recipe's", arguments.rates, ", ".join(runs))
    return reproduce(
        arguments.figures,
        arguments.scale,
        sources,
        arguments.directory,
        listeners,
        keep_checkpoints=arguments.keep_checkpoints,
        seeds=arguments.seeds or None,
        shorten=adapt,
    )


def write_page(directory: Path) -> Path:
    """The page about all figures that there are."""
    from excise.recipes.sharing import taken
    from excise.report.reproduction import read_figures, write_reproduction

    page = directory / "report.html"
    with taken(directory / "locks" / page.name, wait=True):
        write_reproduction(read_figures(directory), page)
    return page


def show_list(arguments: ReproduceArguments, sources: "Sources", console: Console, adapt: "Shorten") -> None:
    """The figures and what each would take, in columns that fit a narrow terminal, with the titles between them."""
    from excise.recipes.figures import FIGURES
    from excise.recipes.figures.beyond import origin_of
    from excise.recipes.figures.costs import cost, speed_of
    from excise.recipes.figures.plan import choose, plan
    from excise.recipes.reproduce import done_of, located

    names = choose(arguments.figures or ("all",))
    planned = plan(names, arguments.scale, sources, seeds=arguments.seeds or None, shorten=adapt)
    planned = located(planned, origin_of)  # mixed documents need not be made for an estimate
    speed, timed = speed_of(planned)
    done = done_of(planned, arguments.directory)
    width = max(map(len, (*names, "together")))

    def line(name: str, title: str, runs: "Sequence[Run]") -> str:
        numbers = f"{'none':>6}"
        if runs:
            of = cost(runs, done, speed)
            numbers = (
                f"{of.n_runs:>6}{of.n_shared:>8}{of.n_done:>6}{of.tokens:>10.1e}{of.flops:>10.1e}"
                f"{duration(of.seconds_left):>13}"
            )
        return f"{name:<{width}}{numbers}\n    {title}"

    heads = f"{'runs':>6}{'shared':>8}{'done':>6}{'tokens':>10}{'FLOPs':>10}{'time left':>13}"
    lines = [f"{arguments.scale:<{width}}{heads}"]
    for name in names:
        figure = FIGURES[name]
        lines.append(line(name, f"{figure.title} ({figure.section})", planned.of_figure(name)))
    lines.append(line("together", "each run once", list(planned.runs.values())))
    console.print("\n".join(lines), highlight=False)
    console.print(
        "\nShared runs serve several figures. FLOPs are 6 x parameters x tokens. Time is for training what is not done, at "
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
