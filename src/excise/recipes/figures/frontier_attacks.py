"""What fine-tuning brings back in the runs of the frontier, beyond the paper: a high loss is not yet knowledge that is gone.

Runs of equal steps: what the undiscovered documents taught the core of SGTM, they taught the data filter's model too, and
the perfect filter's never saw them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from excise.baselines.unlearning import UnlearningConfig
from excise.evals.attacks import attack_for
from excise.evals.figure import NOT_IN_PAPER, PaperClaim, Scale
from excise.evals.relearning import AttackConfig
from excise.labels import RETAIN
from excise.recipes.figures.bilingual_runs import DOMAIN
from excise.recipes.figures.dials import SECTION, planned
from excise.recipes.figures.estimates import LOSS, is_above, over_seeds
from excise.recipes.figures.frontier import CONTROL, LEAST, at_equal_steps, described, frontier_configs
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedAttack, PlannedRun, Sources
from excise.recipes.figures.topics_attacks import Relearned, edge_told, relearned, relearning_plot
from excise.recipes.figures.topics_runs import ATTACKS as TOPICS_ATTACKS
from excise.recipes.paper import tinystories

ATTACKS: Mapping[Scale, AttackConfig] = {
    "smoke": TOPICS_ATTACKS["smoke"],
    "small": replace(TOPICS_ATTACKS["small"], context=512),
    "paper": attack_for(tinystories("64m")),
}
OURS = "tenth 0.6"
"""The configuration of the frontier that is attacked."""
LOOK = "gradient_routing"
"""A method that is not in this figure, whose colour and marker ours has."""
Attacks = Sequence[Relearned]
"""One for each seed."""


def relearning_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = at_equal_steps(frontier_configs(scale, sources), scale)
    attack = PlannedAttack(config=ATTACKS[scale], baseline=configs["no_filter"])
    attacked = {name: configs[name] for name in ("data_filter", "perfect_filter", "sgtm", OURS)}
    control, baseline = {CONTROL: configs["data_filter"]}, {"no_filter": configs["no_filter"]}
    return (
        planned(attacked, scale, attacks=(attack,))
        | planned(control, scale, attacks=(attack,), unlearning=UnlearningConfig(method=CONTROL))
        | planned(baseline, scale)
    )


def draw_relearning(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    keys = {"sgtm": "sgtm", LOOK: OURS} | {name: name for name in ("data_filter", "perfect_filter", CONTROL)}
    labels = {look: described(scale)[key] for look, key in keys.items()} | {
        LOOK: "Token vectors, a tenth of the documents"
    }
    attacks = {look: [relearned(run, ATTACKS[scale]) for run in runs[key]] for look, key in keys.items()}
    plot = relearning_plot("Adversarial fine-tuning", attacks, labels, DOMAIN)
    ours = {labels[look]: attacks[look] for look in ("sgtm", LOOK)}
    filters = attacks["data_filter"], attacks["perfect_filter"]
    lower = [less_relearned(label, of, filters[0]) for label, of in ours.items()]
    left = [left_under_attack(label, of, *filters) for label, of in ours.items()]
    beyond = [more_than_words(label, of, attacks[CONTROL]) for label, of in ours.items()]
    return Drawing([plot], [*lower, *left, *beyond])


def less_relearned(label: str, ours: Attacks, data_filter: Attacks) -> PaperClaim:
    """A claim that an attacker gets less back than from the data filter's model."""
    margin = over_seeds([mine.lowest_loss - data.lowest_loss for mine, data in zip(ours, data_filter, strict=True)])
    text = f"{label}: fine-tuning brings back less Spanish than in the data filter's model"
    why = f"lowest Spanish loss under attack, against the data filter's{edge_told(ours, data_filter)}"
    return PaperClaim(text, NOT_IN_PAPER, margin, LOSS, is_above(margin), why)


def left_under_attack(label: str, ours: Attacks, data_filter: Attacks, perfect_filter: Attacks) -> PaperClaim:
    """A claim that an attack leaves most of the way from the data filter to the perfect filter, over all its steps: in the
    end an attacker has everything back from any model, and that way is none."""
    text = f"{label}: of the perfect filter's forgetting {LEAST[0]:g} is left under attack"
    why = f"sums of Spanish losses after the start, less the data filter's; holds above {LEAST[0]:g}"
    sums = [sums_under_attack(of) for of in zip(ours, data_filter, perfect_filter, strict=True)]
    if any(perfect <= data for _, data, perfect in sums):
        return PaperClaim(text, NOT_IN_PAPER, None, "recovered", None, "the perfect filter's model relearned as much")
    share = over_seeds([(mine - data) / (perfect - data) for mine, data, perfect in sums])
    why += edge_told(ours, data_filter, perfect_filter)
    return PaperClaim(text, NOT_IN_PAPER, share, "recovered", is_above(share, LEAST[0]), why)


def more_than_words(label: str, ours: Attacks, control: Attacks) -> PaperClaim:
    """A claim that more withstands an attack than a model whose Spanish words alone were set back."""
    text = f"{label}: more is left under attack than where Spanish words are set back in the data filter's model"
    pairs = [(sums_under_attack(pair), n_evaluated(pair) - 1) for pair in zip(ours, control, strict=True)]
    if any(n == 0 for _, n in pairs):
        return PaperClaim(text, NOT_IN_PAPER, None, LOSS, None, "an attack diverged before its first evaluation")
    margin = over_seeds([(mine - theirs) / n for (mine, theirs), n in pairs])
    why = (
        "Spanish loss against that control's, the mean over the attack after its start; English losses at its end "
        f"{_english(ours)} and {_english(control)}{edge_told(ours, control)}"
    )
    return PaperClaim(text, NOT_IN_PAPER, margin, LOSS, is_above(margin), why)


def _english(attacks: Attacks) -> str:
    """The mean at the end of attacks, which one that diverges does not come to."""
    ends = [losses[RETAIN] for one in attacks for _, losses in one.losses[-1:] if RETAIN in losses]
    return f"{np.mean(ends):.2f}" if len(ends) == len(attacks) else "unknown"


def n_evaluated(attacks: Attacks) -> int:
    """Evaluated steps that all of these attacks have come to."""
    return min(len(one.losses) for one in attacks)


def sums_under_attack(attacks: Attacks) -> list[float]:
    """Of each attack, the sum of forget losses at the evaluated steps after the start that all of them have come to."""
    n = n_evaluated(attacks)
    return [sum(losses[DOMAIN] for _, losses in one.losses[1:n]) for one in attacks]


FIGURES = (
    Figure(
        name="frontier-relearning",
        title="Relearning of Spanish in runs of the frontier",
        section=SECTION,
        caption="Forget loss, not calibrated, while an attacker trains all parameters on as much Spanish as English; of "
        "several learning rates the strongest. 5 % of the Spanish is undiscovered, steps are equal. The control is the data "
        "filter's model with the vectors of Spanish words set back. The line is the loss of training without a filter.",
        runs=relearning_runs,
        draw=draw_relearning,
    ),
)
