"""excise train RECIPE"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from excise.cli.arguments import asked, parse
from excise.labels import nearest
from excise.train.run import RunConfig


@dataclass(frozen=True)
class TrainArguments:
    """Train a run to the end of its budget, or go on from its last checkpoint."""

    directory: Path
    """Where the run lives."""
    run: Annotated[RunConfig, tyro.conf.arg(name="")]
    continue_from: Path | None = None
    """The directory of a shorter run that this one begins as, where it has not begun: the same but for train.budget, with a
    train.schedule that does not depend on the length."""


def main(args: Sequence[str]) -> int:
    from excise.recipes import RECIPES

    if args and args[0] in ("-h", "--help"):
        print(
            f"usage: excise train RECIPE [--directory DIRECTORY] [OPTIONS]\nrecipes: {', '.join(RECIPES)}\n"
            "The directory is runs/RECIPE unless it is given; excise train RECIPE --help lists the options of a recipe."
        )
        return 0
    if not args or args[0].startswith("-"):
        raise ValueError(f"name a recipe first: excise train RECIPE [OPTIONS] (known: {', '.join(RECIPES)})")
    if args[0] not in RECIPES:
        raise ValueError(f"unknown recipe {args[0]!r}; {nearest(args[0], RECIPES)}")
    default = TrainArguments(Path("runs") / args[0], RECIPES[args[0]]())
    arguments = parse(TrainArguments, args[1:], f"train {args[0]}", default)

    from excise.cli.progress import ProgressBar
    from excise.data.dataset import load_data
    from excise.evals.tradeoff import Tradeoff
    from excise.train.idle import check_options
    from excise.train.loop import resolve, train
    from excise.train.run import RunDirectory

    files, console = RunDirectory(arguments.directory), Console(soft_wrap=True, markup=False)
    run = resolve(arguments.run, files)
    files.check(run)
    data = load_data(run.data, run.routing.domains)
    check_options(run, data, asked(args[1:]))
    with ProgressBar(console, args[0]) as bar:
        train(run, data, arguments.directory, [Tradeoff(run, data), bar], continue_from=arguments.continue_from)
    console.print(f"wrote {arguments.directory}", highlight=False)
    return 0
