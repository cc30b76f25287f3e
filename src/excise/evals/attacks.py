"""The attacks on a run that `excise attack` makes: fine-tuning of several kinds, and forget text in the context."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from excise.data.dataset import true_sets
from excise.evals.in_context import InContext, in_context
from excise.evals.losses import evaluate
from excise.evals.measures import results_on_same_data, some
from excise.evals.relearning import AttackConfig, AttackPoint, Relearning, relearn, retain_matched
from excise.evals.results import Provenance, losses_in, plain, read_results, same_source
from excise.evals.run import Subject, open_run
from excise.labels import GROUPS, RETAIN, nearest
from excise.model.ablation import ablate
from excise.train.checkpoint import saved_steps
from excise.train.run import RunConfig, RunDirectory

Listener = Callable[[AttackConfig, float, AttackPoint], None]
"""Called after every evaluation with the attack, its learning rate and the losses."""


def attack_for(run: RunConfig, rows_per_step: int = 0) -> AttackConfig:
    """The paper's attack at the size of a run: where no number of rows is given, half of a training step is forget
    data (262,144 tokens there)."""
    rows = rows_per_step or max(1, run.batch.rows_per_step // 2)
    per_micro_batch = math.gcd(rows, run.batch.rows_per_micro_batch)
    return AttackConfig(rows_per_step=rows, rows_per_micro_batch=per_micro_batch, context=run.batch.context)


def the_domain(run: RunConfig, domain: str) -> str:
    """The domain of this name, or the only one where none is named."""
    known = run.routing.domains
    if domain in known or (not domain and len(known) == 1):
        return domain or known[0]
    raise ValueError(f"name the domain to bring back: {nearest(domain, known)}")


def baseline_loss(baseline: Path, subject: Subject, domain: str) -> float:
    """The forget loss of an evaluated run trained with no filter, which an attack tries to reach."""
    return losses_in(results_on_same_data(baseline, subject)).sets[domain].ablated


def matched_step(directory: Path, target: Path) -> int:
    """The checkpoint of a run whose loss on general data, ablated, is nearest above that of another (appendix E)."""
    latest, found = open_run(directory), []
    other = losses_in(results_on_same_data(target, latest)).sets
    name = GROUPS[1] if GROUPS[1] in latest.data.test else RETAIN
    for step in saved_steps(RunDirectory(directory).checkpoints):
        subject = open_run(directory, latest.data, step=step)
        loss = evaluate(
            subject.model,
            subject.data.test[name],
            removed=subject.removed,
            context=subject.context,
            autocast=subject.autocast,
        )
        found.append((step, loss.mean))
    return retain_matched(found, other[name].ablated)


def relearn_run(
    subject: Subject, domain: str, baseline: float, attacks: Sequence[AttackConfig], listener: Listener
) -> list[Relearning]:
    """Attacks on a run, with all its training documents of the domain and all others in the attacker's hands."""
    forget, retain = true_sets(subject.config.data, subject.config.routing.domains, [domain])
    return [
        relearn(
            subject.model,
            forget,
            retain,
            subject.data.test,
            domain,
            attack,
            baseline,
            lambda _, rate, point, attack=attack: listener(attack, rate, point),  # type: ignore[misc]
            subject.autocast,
        )
        for attack in attacks
    ]


def in_context_run(subject: Subject, domain: str, n_documents: int = 256) -> InContext:
    """Forget text in front of test documents of the domain, with all modules removed."""
    model, test = subject.model, subject.data.test
    for module in subject.removed:
        model = ablate(model, module)
    with subject.autocast:
        return in_context(model, some(test[domain], n_documents), some(test[RETAIN], n_documents))


def with_earlier(attacks: Sequence[Relearning], file: Path, provenance: Provenance) -> list[Any]:
    """These attacks and, before them, those of other kinds that were made on the same checkpoint earlier."""
    new = [plain(attack) for attack in attacks]
    if not file.exists():
        return new
    results = read_results(file)
    earlier = results.measures.get("relearning", []) if same_source(results.provenance, provenance) else []
    kinds = [(attack["config"], attack["domain"]) for attack in new]
    return [attack for attack in earlier if (attack["config"], attack["domain"]) not in kinds] + new
