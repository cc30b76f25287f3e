"""excise translate SOURCE --out FOLDER"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.prompt import Confirm

from excise.cli.arguments import parse
from excise.data.translate import Plan, Progress, TranslateConfig, plan_translation, translate


@dataclass(frozen=True)
class TranslateArguments:
    """Translate English stories into Spanish with the paper's prompt, or go on with that. The key is read from
    ANTHROPIC_API_KEY. What was answered is never asked for again, even after kill -9; requests that were under way
    are, since their answers were lost."""

    source: tyro.conf.Positional[Path]
    """A file of stories in `text` (jsonl, parquet), or a folder of them."""
    out: Path
    """Where the corpus goes, with `text` and `text_es` in each row."""
    yes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Start without the question whether the estimated cost is right."""
    config: Annotated[TranslateConfig, tyro.conf.arg(name="")] = field(default_factory=TranslateConfig)


def main(args: Sequence[str]) -> int:
    arguments = parse(TranslateArguments, args, "translate")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    plan = plan_translation(arguments.source, arguments.out, arguments.config)
    console.print(estimate(plan))
    if plan.n_to_ask and not arguments.yes and not agreed(console):
        console.print("nothing was sent")
        return 0
    with TranslationBar(console, plan.n_to_ask) as bar:
        translated = translate(plan, bar.show)
    if translated.n_failed:
        console.print(f"{translated.n_failed:,} stories have no translation; --retry-failed asks again", style="yellow")
    console.print(f"{translated.n_translated:,} stories, ${translated.cost:,.2f}\n{plan.corpus}")
    return 0


def estimate(plan: Plan) -> str:
    """What is to be done and about what it costs, in one sentence."""
    stories = f"{plan.n_stories:,} stories"
    if plan.n_bad_rows:
        stories += f" ({plan.n_bad_rows:,} rows without one)"
    if not plan.n_to_ask:
        return f"{stories}, all of them done"
    input_price, output_price = plan.config.prices
    return (
        f"{stories}: {plan.n_to_ask:,} to translate with {plan.config.model}, about {plan.input_tokens:,} tokens in "
        f"and {plan.output_tokens:,} out, about ${plan.cost:,.2f} "
        f"(at ${input_price:g} and ${output_price:g} per million tokens)"
    )


def agreed(console: Console) -> bool:
    """The answer to the question; where nobody can be asked, an error."""
    if not (console.is_terminal and sys.stdin.isatty()):
        raise ValueError("nothing was sent, since nobody can be asked here; pass --yes to start at that cost")
    return Confirm.ask("Start?", console=console, default=False)


class TranslationBar(Bar):
    """Stories, cost so far and time left: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, n_to_ask: int) -> None:
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self.n_to_ask = n_to_ask
        self.stories = self.add_task("", total=n_to_ask)

    def show(self, progress: Progress) -> None:
        line = (
            f"{progress.n_answered:>9,}/{self.n_to_ask:,} stories  ${progress.cost:,.2f}  {progress.n_failed:,} failed"
        )
        self.update(self.stories, completed=progress.n_answered, description=line)
        if self.disable and progress.n_answered % max(1, min(1000, self.n_to_ask // 10)) == 0:
            self.console.print(f"{line}  {self.tasks[0].time_remaining or 0:,.0f} s left")
