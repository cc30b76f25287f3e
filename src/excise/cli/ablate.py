"""excise ablate RUN --to DIRECTORY"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from excise.cli.arguments import parse


@dataclass(frozen=True)
class AblateArguments:
    """Write a copy of a run without the knowledge in its modules."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    to: Path
    """Where the ablated run goes."""
    domains: tuple[str, ...] = ()
    """Modules to take out; all of them where none is named."""
    how: Literal["remove", "zero", "reinitialise"] = "remove"
    """Leave the module's file out, or keep its shape with zeros or with new random values."""


def main(args: Sequence[str]) -> int:
    arguments = parse(AblateArguments, args, "ablate")
    from excise.train.release import release, removed_modules
    from excise.train.run import RunDirectory

    modules = RunDirectory(arguments.run).config().routing.modules
    domains = arguments.domains or tuple(d for d in modules if d not in removed_modules(arguments.run))
    if not domains:
        raise ValueError(f"{arguments.run} has no module to take out")
    checkpoint = release(arguments.run, arguments.to, domains, arguments.how)
    print(f"wrote {checkpoint}")
    return 0
