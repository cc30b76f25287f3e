"""Settings of our own when biology is removed, beyond the paper: what the frontier on two languages taught, on subjects.

The runs of figure 1, and beside them SGTM whose module has token vectors, at several weights of forget tokens; as the
control the weak filter's model, from which only the vectors of biology's words are taken; and all of these under attack.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from excise.baselines.unlearning import TOKEN_RESET, UnlearningConfig
from excise.config import override
from excise.evals.figure import NOT_IN_PAPER, PaperClaim, Plot, Point, Scale, Series
from excise.evals.tables import number
from excise.recipes.figures.bilingual_runs import FEW_SEEDS
from excise.recipes.figures.curves import lead_claim
from excise.recipes.figures.dials import SECTION, VECTORS
from excise.recipes.figures.estimates import LOSS, every, is_above, is_below, over_seeds
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.recipes.figures.topics import (
    ADJACENT,
    CAPTION,
    GENERAL,
    LABELS,
    axes_of,
    difference,
    followed,
    main_runs,
    tradeoff_plots,
)
from excise.recipes.figures.topics_attacks import Relearned, attack_of, edge_told, relearned, relearning_plot
from excise.recipes.figures.topics_runs import ATTACKS, setup
from excise.train.run import RunConfig

DOMAIN = "biology"
WEIGHTS: Mapping[Scale, Sequence[float]] = {"smoke": (0.3,), "small": (0.3, 1.0), "paper": (0.3, 1.0)}
"""Of forget tokens in the loss; the run with the first is attacked."""
BORROWED = ("gradient_routing", "activation_masking")
"""Methods that are not in this figure, whose colours and markers our own have."""
WORDS_SET_BACK = "Weak filter, vectors of biology's words set back"
RESET = UnlearningConfig(method=TOKEN_RESET)


def key_of(weight: float) -> str:
    return f"vectors {weight:g}"


def configs_of(scale: Scale, sources: Sources) -> dict[str, RunConfig]:
    base = setup(scale, sources)
    ours = {key_of(w): override(base, {**VECTORS, "routing.forget_weight": w}) for w in WEIGHTS[scale]}
    return main_runs(base) | ours


def runs_of(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = configs_of(scale, sources)
    control = PlannedRun(config=configs["weak_filter"], seeds=FEW_SEEDS[scale], unlearning=RESET)
    return followed(configs, scale) | {TOKEN_RESET: control}


def draw_topics(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    ours = {key_of(weight): f"Token vectors, weight {weight:g}" for weight in WEIGHTS[scale]}

    def leads(key: str, other: str) -> PaperClaim:
        text = f"{ours[key]}: a better trade-off than {LABELS[other]} on general knowledge"
        return lead_claim(text, NOT_IN_PAPER, runs[key], runs[other], axes_of(GENERAL, DOMAIN))

    looks, rivals = dict(zip(ours, BORROWED, strict=False)), ("sgtm", "weak_filter", "strict_filter")
    plots = tradeoff_plots(runs, DOMAIN, {**LABELS, **ours}, looks=looks)
    plots = [with_end(plot, runs[TOKEN_RESET], name) for plot, name in zip(plots, (GENERAL, ADJACENT), strict=True)]
    beyond = [more_than_words(label, runs[key], runs[TOKEN_RESET]) for key, label in ours.items()]
    return Drawing(plots, [*(leads(key, other) for key in ours for other in rivals), *beyond])


def with_end(plot: Plot, control: Group, retain: str) -> Plot:
    """A plot with where the control is, which has no training of its own."""
    axes = axes_of(retain, DOMAIN)
    x, y = (over_seeds([axes.end(run, name).calibrated for run in control]) for name in (retain, DOMAIN))
    return replace(plot, series=[*plot.series, Series(TOKEN_RESET, WORDS_SET_BACK, [Point(x, y)], line=False)])


def more_than_words(label: str, ours: Group, control: Group) -> PaperClaim:
    """A claim that a module takes more than vectors of words that are set back, and costs less, by the seeds of the control,
    of which there may be fewer."""
    taken, cost = (difference(ours[: len(control)], control, name) for name in (DOMAIN, GENERAL))
    return PaperClaim(
        f"{label}: more biology is taken than with its words set back in the weak filter's model, for less general loss",
        NOT_IN_PAPER,
        taken,
        LOSS,
        every([is_above(taken), is_below(cost)]),
        f"biology, ours - control; general {number(cost.value, cost.low, cost.high, digits=2)}; holds above 0 and below 0",
    )


FRONTIER_TOPICS = Figure(
    name="frontier-topics",
    title="Token vectors when biology is removed",
    section=SECTION,
    caption=f"{CAPTION} SGTM as in figure 1, and with norms and embeddings frozen for forget data and token vectors in "
    "the module. The control is the weak filter's model with the vectors of biology's words set back, and has no curve.",
    runs=runs_of,
    draw=draw_topics,
)


# --- Under attack ----------------------------------------------------------------------------------------------------


def attacked_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = configs_of(scale, sources)
    seeds, attacks = FEW_SEEDS[scale], (attack_of(configs, scale),)
    attacked = {
        name: PlannedRun(config=configs[name], seeds=seeds, attacks=attacks)
        for name in ("sgtm", "weak_filter", ours_of(scale))
    }
    return attacked | {
        TOKEN_RESET: replace(attacked["weak_filter"], unlearning=RESET),
        "no_filter": PlannedRun(config=configs["no_filter"], seeds=seeds),
    }


def ours_of(scale: Scale) -> str:
    return key_of(WEIGHTS[scale][0])


def draw_attacked(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    keys = {"sgtm": "sgtm", BORROWED[0]: ours_of(scale), "weak_filter": "weak_filter", TOKEN_RESET: TOKEN_RESET}
    labels = {name: LABELS[name] for name in ("sgtm", "weak_filter")} | {TOKEN_RESET: WORDS_SET_BACK}
    labels[BORROWED[0]] = f"Token vectors, weight {WEIGHTS[scale][0]:g}"
    attacks = {look: [relearned(run, ATTACKS[scale]) for run in runs[key]] for look, key in keys.items()}
    plot = relearning_plot("Adversarial fine-tuning", attacks, labels, DOMAIN)
    claims = [
        left_claim(labels[one], attacks[one], labels[other], attacks[other])
        for one in ("sgtm", BORROWED[0])
        for other in ("weak_filter", TOKEN_RESET)
    ]
    return Drawing([plot], claims)


def left_claim(label: str, ours: Sequence[Relearned], name: str, theirs: Sequence[Relearned]) -> PaperClaim:
    """A claim that more is left of what was removed while an attacker brings it back."""
    text = f"{label}: more is left under attack than of: {name}"
    leads = [leads_under_attack(*pair) for pair in zip(ours, theirs, strict=True)]
    if not all(leads):
        return PaperClaim(text, NOT_IN_PAPER, None, LOSS, None, "an attack diverged before its first evaluation")
    margin = over_seeds([float(np.mean(of)) for of in leads])
    why = f"biology loss above that model's, the mean over the attack after its start{edge_told(ours, theirs)}"
    return PaperClaim(text, NOT_IN_PAPER, margin, LOSS, is_above(margin), why)


def leads_under_attack(mine: Relearned, theirs: Relearned) -> list[float]:
    """How much higher a forget loss is than another's at the evaluated steps after the start that both have come to."""
    pairs = list(zip(mine.losses, theirs.losses, strict=False))[1:]
    return [losses[DOMAIN] - others[DOMAIN] for (_, losses), (_, others) in pairs]


FRONTIER_TOPICS_RELEARNING = Figure(
    name="frontier-topics-relearning",
    title="Relearning of biology with token vectors",
    section=SECTION,
    caption="Forget loss, not calibrated, while an attacker trains all parameters on as much biology as other text; of several "
    "learning rates the strongest. The control is the weak filter's model with the vectors of biology's words set back.",
    runs=attacked_runs,
    draw=draw_attacked,
)

FIGURES = (FRONTIER_TOPICS, FRONTIER_TOPICS_RELEARNING)
