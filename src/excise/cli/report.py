"""excise report DIRECTORY|RUN..."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console

from excise.cli.arguments import parse

if TYPE_CHECKING:
    from excise.evals.figure import FigureResults

logger = logging.getLogger(__name__)

PAGE = "report.html"


@dataclass(frozen=True)
class ReportArguments:
    """One page about a reproduction, or about any evaluated runs; it needs no network to be read."""

    sources: tyro.conf.Positional[tuple[Path, ...]]
    """What `excise reproduce` wrote, run directories, or folders of runs."""
    out: Path = Path("report")
    """A folder for report.html and figures."""
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ()
    """Write each figure to a file as well, in these formats."""


def main(args: Sequence[str]) -> int:
    arguments = parse(ReportArguments, args, "report")
    if not arguments.sources:
        raise ValueError("name what to report on: excise report DIRECTORY, or excise report RUN...")
    if arguments.out.suffix == ".html":
        raise ValueError(f"--out {arguments.out} must be a folder, for {PAGE} and figures")
    figures = figures_in(arguments.sources)
    from excise.report.reproduction import looks_in, write_reproduction

    arguments.out.mkdir(parents=True, exist_ok=True)
    console = Console(soft_wrap=True, markup=False)
    write_reproduction(figures, arguments.out / PAGE)
    console.print(f"wrote {arguments.out / PAGE}", highlight=False)
    if arguments.formats:
        from excise.report.figures import save_figure

        looks = looks_in(figures)
        (arguments.out / "figures").mkdir(exist_ok=True)
        for figure in figures:
            for suffix in dict.fromkeys(arguments.formats):
                path = arguments.out / "figures" / f"{figure.name}.{suffix}"
                save_figure(figure, path, looks)
                console.print(f"wrote {path}", highlight=False)
    return 0


def figures_in(sources: Sequence[Path]) -> list["FigureResults"]:
    """The figures of all reproductions, and one of all runs."""
    from excise.report.reproduction import in_order, read_figures
    from excise.report.runs import runs_figure

    reproductions = [source for source in sources if any((source / "figures").glob("*.json"))]
    runs = [run for source in sources if source not in reproductions for run in runs_in(source)]
    figures = [figure for directory in reproductions for figure in read_figures(directory)]
    return in_order([*figures, *([runs_figure(runs)] if runs else [])])


def runs_in(source: Path) -> list[Path]:
    """The run in a directory, or all evaluated runs of a folder or of its folder `runs`."""
    if not source.is_dir():
        raise ValueError(f"there is no folder {source}; name what excise reproduce or excise train wrote")
    if (source / "config.json").exists():
        return [source]
    runs = [file.parent for pattern in ("*", "runs/*") for file in sorted(source.glob(f"{pattern}/config.json"))]
    evaluated = [run for run in runs if (run / "results.json").exists()]
    if not evaluated:
        raise ValueError(f"{source} holds neither figures nor runs that were evaluated (excise evaluate RUN does that)")
    if left_out := [str(run) for run in runs if run not in evaluated]:
        logger.warning("left out, as they were not evaluated (excise evaluate RUN does that): %s", ", ".join(left_out))
    return evaluated
