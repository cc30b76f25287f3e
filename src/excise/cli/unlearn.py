"""excise unlearn RUN --to DIRECTORY"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import Progress

from excise.baselines.unlearning import UnlearningConfig
from excise.cli.arguments import asked, parse

TRAINED = ("rmu", "npo", "gradient_difference")
METHODS_OF = {
    "rmu": ("rmu",),
    "npo": ("npo",),
    "token_share": ("token_reset",),
    **dict.fromkeys(("steps", "learning_rate", "batch_size"), TRAINED),
}
"""The methods that look at an option, where not all do."""


@dataclass(frozen=True)
class UnlearnArguments:
    """Write a copy of a run, by rights one trained with no filter, that has unlearned its domains after training."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    to: Path
    """Where the run that has unlearned goes."""
    config: Annotated[UnlearningConfig, tyro.conf.arg(name="")] = field(default_factory=UnlearningConfig)


def main(args: Sequence[str]) -> int:
    arguments = parse(UnlearnArguments, args, "unlearn")
    from excise.baselines.unlearning import unlearn_run

    config, console = arguments.config, Console(soft_wrap=True, markup=False)
    for option in asked(args):
        if config.method not in METHODS_OF.get(option.partition(".")[0], (config.method,)):
            raise ValueError(f"--{option} would change nothing, as --method is {config.method}; leave it out")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(config.method, total=config.steps)

        def show(step: int, loss: float) -> None:
            bar.update(task, completed=step, description=f"{config.method}, loss {loss:.3f}")

        checkpoint = unlearn_run(arguments.run, arguments.to, config, show)
    console.print(f"wrote {checkpoint}", highlight=False)
    return 0
