"""excise sample RUN --prompt TEXT"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from excise.cli.arguments import parse


@dataclass(frozen=True)
class SampleArguments:
    """Continue a prompt with the full model of a run, and with its modules removed."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    prompt: str
    tokens: int = 60
    temperature: float = 0.7
    """0 takes the likeliest token."""
    top_k: int = 40
    seed: int = 0


def main(args: Sequence[str]) -> int:
    arguments = parse(SampleArguments, args, "sample")
    from excise.evals.samples import continuations
    from excise.train.release import load_run
    from excise.train.run import RunDirectory

    model, _ = load_run(arguments.run)
    tokenizer = RunDirectory(arguments.run).tokenizer()
    domains = model.partition.domains
    (sample,) = continuations(
        {"full": model, "ablated": model} if domains else {"model": model},
        tokenizer,
        [arguments.prompt],
        removed={"ablated": domains} if domains else {},
        n_tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )
    console = Console(soft_wrap=True, markup=False)
    for name, written in sample.written.items():
        console.print(f"{name:<8} ", style="bold", end="")
        console.print(arguments.prompt, style="cyan", markup=False, highlight=False, end="")
        console.print(written, markup=False, highlight=False)
    return 0
