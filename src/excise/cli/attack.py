"""excise attack RUN... --baseline RUN"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console
from rich.progress import Progress

from excise.cli.arguments import parse
from excise.cli.tables import shown

if TYPE_CHECKING:
    from excise.evals.relearning import AttackConfig, AttackPoint
    from excise.train.run import RunConfig


@dataclass(frozen=True)
class AttackArguments:
    """Bring removed knowledge back by fine-tuning, and see how many steps it takes; results go into results.json."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    baseline: Path
    """An evaluated run trained with no filter, whose forget loss the attack tries to reach."""
    domain: str = ""
    """The domain to bring back, where there are several."""
    methods: tuple[Literal["full", "lora"], ...] = ("full",)
    """Fine-tuning of all parameters, or of low-rank adapters."""
    documents: tuple[int, ...] = (0,)
    """Forget documents that the attacker has, each number an attack of its own; 0 means all."""
    ablations: tuple[Literal["zero", "reinitialise", "remove"], ...] = ("reinitialise",)
    """What becomes of the module: `zero` leaves the attacker dead units, `reinitialise` live ones."""
    learning_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Rates that the attacker tries; the strongest attack counts."""
    steps: int = 500
    rows_per_step: int = 0
    """Rows of forget data in a step, and as many of retain data; 0 means half of a training step."""
    evaluate_every: int = 25
    lora_rank: int = 16
    match: Path | None = None
    """An evaluated run: the attack starts from the checkpoint whose retain loss matches that run's (appendix E)."""
    in_context: bool = True
    """Whether forget text in the context is tried as well."""
    seed: int = 0


def main(args: Sequence[str]) -> int:
    arguments = parse(AttackArguments, args, "attack")
    if not arguments.runs:
        raise ValueError("name at least one run to attack: excise attack RUN... --baseline RUN")
    from excise.evals.attacks import (
        baseline_of,
        in_context_run,
        matched_step,
        relearn_run,
        save_attack,
        the_domain,
    )
    from excise.evals.results import add_measures
    from excise.evals.run import open_run

    console = Console(soft_wrap=True, markup=False)
    for directory in arguments.runs:
        step = matched_step(directory, arguments.match) if arguments.match else None
        subject = open_run(directory, step=step)
        domain = the_domain(subject.config, arguments.domain)
        baseline, attacks = baseline_of(arguments.baseline, subject), attacks_of(arguments, subject.config)
        title, has_modules = f"{directory}, step {subject.done.step}", bool(subject.model.partition.domains)
        with AttackBar(console, title, attacks, domain, has_modules) as bar:
            for attack in relearn_run(subject, domain, baseline, attacks, bar):
                results = save_attack(subject, attack, baseline, arguments.match)
        console.print(shown("relearning", results.measures["relearning"]))
        if arguments.in_context:
            found = in_context_run(subject, domain)
            results = add_measures(subject.results_file, subject.provenance, {"in_context": found})
            console.print(shown("in_context", results.measures["in_context"]))
        console.print(f"wrote {subject.results_file}", highlight=False)
    return 0


def attacks_of(arguments: AttackArguments, run: "RunConfig") -> "list[AttackConfig]":
    """Every combination of methods, documents and ablations, at the size of a run."""
    from excise.evals.attacks import attack_for

    config = attack_for(run, arguments.rows_per_step)
    wished = {
        name: getattr(arguments, name) for name in ("learning_rates", "steps", "evaluate_every", "lora_rank", "seed")
    }
    return [
        replace(config, **wished, method=method, n_documents=n, ablation=how)
        for method, n, how in product(arguments.methods, arguments.documents, arguments.ablations)
    ]


class AttackBar:
    """A listener that shows the forget loss of each attack as it goes; on a terminal as a bar, elsewhere as lines."""

    def __init__(
        self, console: Console, title: str, attacks: "Sequence[AttackConfig]", domain: str, has_modules: bool
    ) -> None:
        self.console, self.title, self.domain, self.has_modules = console, title, domain, has_modules
        self.bar = Progress(console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task(title, total=sum(len(a.learning_rates) * a.steps for a in attacks))
        self.before = 0

    def __enter__(self) -> "AttackBar":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, attack: "AttackConfig", rate: float, point: "AttackPoint") -> None:
        self.bar.advance(self.task, point.step - self.before if point.step else 0)
        self.before = point.step
        documents = f"{attack.n_documents} documents" if attack.n_documents else "all documents"
        module = f"{attack.ablation}, " if self.has_modules else ""
        what = f"{attack.method}, {documents}, {module}rate {rate:g}"
        loss = f"{self.domain} loss {point.losses[self.domain]:.3f}"
        self.bar.update(self.task, description=f"{self.title}: {what}, {loss}")
        if not self.console.is_terminal:
            self.console.print(f"{self.title}: {what}, step {point.step:>5}/{attack.steps}  {loss}", highlight=False)
