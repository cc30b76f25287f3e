"""The attacks on a run that `excise attack` makes: fine-tuning of several kinds, and forget text in the context."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from excise.config import from_dict
from excise.data.dataset import true_sets
from excise.evals.in_context import InContext, in_context
from excise.evals.losses import evaluate
from excise.evals.measures import check_standard, results_on_same_data, some
from excise.evals.relearning import Attack, AttackConfig, AttackPoint, Relearning, judged, relearn, retain_matched
from excise.evals.results import Results, add_measures, losses_in, plain, read_results, same_source
from excise.evals.run import Subject, open_run
from excise.labels import GROUPS, RETAIN, nearest
from excise.model.ablation import ablate
from excise.model.gpt import GPT
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


def baseline_of(baseline: Path, subject: Subject) -> Results:
    """The results of a run trained with no filter, whose forget loss an attack tries to reach."""
    check_standard(baseline, "an attack")
    if RunDirectory(baseline).config().data.filter != "none":
        raise ValueError(f"{baseline} was trained with a filter; an attack tries to reach a run without one")
    return results_on_same_data(baseline, subject)


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
    subject: Subject, domain: str, baseline: Results, attacks: Sequence[AttackConfig], listener: Listener
) -> Iterator[Relearning]:
    """Attacks on a run, with all its training documents of the domain and all others in the attacker's hands."""
    forget, retain = true_sets(subject.config.data, subject.config.routing.domains, [domain])
    if too_many := [attack.n_documents for attack in attacks if attack.n_documents > len(forget)]:
        raise ValueError(
            f"there are {len(forget)} documents of {domain!r}, fewer than the {too_many[0]} to attack with"
        )
    goal = goal_of(baseline, domain)
    for attack in attacks:
        show = partial(_show, listener, attack)
        yield relearn(subject.model, forget, retain, subject.data.test, domain, attack, goal, show, subject.autocast)


def goal_of(baseline: Results, domain: str) -> float:
    """The forget loss that an attack tries to reach."""
    return losses_in(baseline).sets[domain].ablated


def judged_by(baseline: Results, record: dict[str, Any]) -> dict[str, Any]:
    """The record of an attack with its steps counted to the loss of this baseline; what the attacker did stays."""
    if baseline.provenance.evaluated_on_sha256 != record["baseline"]["evaluated_on_sha256"]:
        raise ValueError(
            f"{baseline.provenance.run} was evaluated on other data than the attack was made on; attack again"
        )
    config, domain = from_dict(AttackConfig, record["config"]), record["domain"]
    attacks = [Attack(**{**of, "points": [AttackPoint(**point) for point in of["points"]]}) for of in record["attacks"]]
    again = judged(config, domain, record["ablation"], attacks, goal_of(baseline, domain))
    return {**record, **plain(again), "baseline": plain(baseline.provenance)}


def _show(listener: Listener, attack: AttackConfig, _: GPT, rate: float, point: AttackPoint) -> None:
    listener(attack, rate, point)


def in_context_run(subject: Subject, domain: str, n_documents: int = 256) -> InContext:
    """Forget text in front of test documents of the domain, with all modules removed."""
    model, test = subject.model, subject.data.test
    for module in subject.removed:
        model = ablate(model, module)
    with subject.autocast:
        return in_context(
            model,
            some(test[domain], n_documents),
            some(test[RETAIN], n_documents),
            context=subject.context,
            target_tokens=min(64, subject.context // 2),
        )


def save_attack(subject: Subject, attack: Relearning, baseline: Results, matched_to: Path | None) -> Results:
    """Write an attack beside earlier ones on the same checkpoint, in the place of one of the same kind."""
    new = plain(attack) | {"baseline": plain(baseline.provenance), "matched_to": matched_to and matched_to.name}
    file, source = subject.results_file, subject.provenance
    before = read_results(file) if file.exists() else Results(source, {})
    kept = before.measures.get("relearning", []) if same_source(before.provenance, source) else []
    return add_measures(file, source, {"relearning": [*(old for old in kept if _kind(old) != _kind(new)), new]})


def _kind(attack: dict[str, Any]) -> tuple[Any, ...]:
    return attack["config"], attack["domain"], attack["baseline"]["checkpoint_sha256"], attack["matched_to"]
