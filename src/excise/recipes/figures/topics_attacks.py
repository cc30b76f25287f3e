"""What is left of a removed subject (paper, sections 5.3 and 5.4, appendix E): figures 6a, 6b and 12.

Runs are compared in one direction only, so that none waits for one that waits for it: SGTM with no filter, and the filters
with SGTM. What is told of SGTM against a filter is therefore read the other way round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from excise.config import to_dict
from excise.evals.figure import Estimate, PaperClaim, Plot, Point, Scale, Series, Table
from excise.evals.relearning import AttackConfig, steps_to
from excise.evals.token_losses import Floats, smoothed
from excise.recipes.figures.bilingual_runs import SEEDS
from excise.recipes.figures.curves import Axes, curve_of, share_of_training, tradeoff_series
from excise.recipes.figures.estimates import (
    LOSS,
    at_least_0,
    at_most_1,
    every,
    in_percent,
    is_above,
    is_below,
    loss,
    over_seeds,
)
from excise.recipes.figures.planned import Drawing, Figure, FinishedRun, Group, PlannedAttack, PlannedRun, Sources
from excise.recipes.figures.topics import GENERAL, LABELS, followed, main_runs
from excise.recipes.figures.topics_runs import ATTACKS, CHECKPOINTS, RMU, setup
from excise.train.run import RunConfig

DOMAIN = "biology"
ATTACKED = {"sgtm": "SGTM", "weak_filter": "Weak filter", "strict_filter": "Strict filter", "rmu": "RMU"}
FILTERS = ("weak_filter", "strict_filter")
POSSESSIVES = {"rmu": "RMU's", "weak_filter": "the weak filter's", "strict_filter": "the strict filter's"}
UNDER_ATTACK = (
    "Losses under attack are means over tokens and not calibrated. A removed module is re-initialised before the attack; the "
    "paper sets it to zero. Each run has its own learning rate, the strongest of those tried."
)
Runs = Mapping[str, Group]

# --- Relearning ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relearned:
    """The strongest attack on a run."""

    losses: Sequence[tuple[int, Mapping[str, float]]]
    """At each evaluated step."""
    steps: float
    """Where the forget loss is down at the baseline's, on the line between evaluations, since seeds whose steps are counted in
    tens would seem to agree; the last one where it never is."""
    reached: bool
    lowest_loss: float
    baseline_loss: float
    at_edge: bool

    @property
    def forgot_nothing(self) -> bool:
        """Whether the forget loss is down at the baseline's before the first step."""
        return self.reached and self.steps == 0


Attacks = Mapping[str, Sequence[Relearned]]
"""By method, one for each seed."""


def relearned(run: FinishedRun, attack: AttackConfig, *, matched: bool = False) -> Relearned:
    """An attack on a run, at its end or at a matched checkpoint."""
    config = to_dict(attack)
    (found,) = [of for of in run.relearning if of["config"] == config and bool(of["matched_to"]) == matched]
    (strongest,) = [tried for tried in found["attacks"] if tried["learning_rate"] == found["strongest"]]
    losses = [(point["step"], point["losses"]) for point in strongest["points"]]
    baseline = found["baseline_loss"]
    _, steps = steps_to([(step, at[found["domain"]]) for step, at in losses], baseline)
    last = attack.steps if steps is None else steps
    return Relearned(losses, last, steps is not None, found["lowest_loss"], baseline, found["at_edge"])


def relearning_plot(title: str, attacks: Attacks, labels: Mapping[str, str], domain: str) -> Plot:
    series = []
    for method, of in attacks.items():
        at_steps = zip(*([(step, losses[domain]) for step, losses in one.losses] for one in of), strict=False)
        points = [
            Point(Estimate(seeds[0][0]), over_seeds([loss for _, loss in seeds])) for seeds in map(list, at_steps)
        ]
        series.append(Series(method, labels[method], points))
    level = float(np.mean([one.baseline_loss for of in attacks.values() for one in of]))
    return Plot(title, "fine-tuning steps", f"forget loss ({domain})", series, levels={"No filter": level})


def nothing_forgotten(attacks: Attacks, *methods: str) -> str:
    """Which of these start within the goal, so that their steps say nothing of them; empty where none does."""
    counts = {method: sum(one.forgot_nothing for one in attacks[method]) for method in methods}
    told = [
        f"{ATTACKED[method]} had forgotten nothing: in {n} of {len(attacks[method])} seeds its forget loss at the start is no "
        "higher than without a filter"
        for method, n in counts.items()
        if n
    ]
    return "; ".join(told)


def ratio_claim(text: str, paper: str, attacks: Attacks, other: str, bound: float) -> PaperClaim:
    """A claim that SGTM takes so many times the steps of another; of an attack that never arrives a bound is known."""
    unit = f"times {POSSESSIVES[other]} steps"
    if nothing := nothing_forgotten(attacks, "sgtm", other):
        return PaperClaim(text, paper, None, unit, None, nothing)
    pairs = list(zip(attacks["sgtm"], attacks[other], strict=True))
    ratio = over_seeds([mine.steps / theirs.steps for mine, theirs in pairs])
    holds = is_above(ratio, bound)
    if not all(theirs.reached for _, theirs in pairs):
        holds = False if holds is False and all(mine.reached for mine, _ in pairs) else None
    elif not all(mine.reached for mine, _ in pairs):
        holds = holds or None
    told = f"SGTM {steps_told(attacks['sgtm'])}, {ATTACKED[other]} {steps_told(attacks[other])} steps"
    why = f"{told}; holds above {bound:g}{edge_told(attacks['sgtm'], attacks[other])}"
    return PaperClaim(text, paper, ratio, unit, holds, why)


def edge_told(*attacks: Sequence[Relearned]) -> str:
    """A word of caution where the strongest attack has the highest or the lowest rate."""
    return "; a rate beyond those tried may be stronger" if any(one.at_edge for of in attacks for one in of) else ""


def steps_told(attacks: Sequence[Relearned]) -> str:
    mean = np.mean([one.steps for one in attacks])
    return f"{mean:.3g}" if all(one.reached for one in attacks) else f"more than {mean:.3g}"


def lead_steps(mine: Relearned, theirs: Relearned) -> int:
    """The last evaluated step up to which the forget loss is above another's throughout; 0 where it never is."""
    last = 0
    for (step, losses), (_, others) in zip(mine.losses, theirs.losses, strict=False):
        if losses[DOMAIN] <= others[DOMAIN]:
            break
        last = step
    return last


def lead_claim(text: str, paper: str, attacks: Attacks, bound: float) -> PaperClaim:
    """A claim that SGTM keeps above the strict filter for so many percent of its way to the baseline."""
    unit = "% of SGTM's steps"
    if nothing := nothing_forgotten(attacks, "sgtm"):
        return PaperClaim(text, paper, None, unit, None, nothing)
    pairs = list(zip(attacks["sgtm"], attacks["strict_filter"], strict=True))
    leads = [min(mine.steps, lead_steps(mine, theirs)) for mine, theirs in pairs]
    shares = over_seeds([lead / mine.steps for lead, (mine, _) in zip(leads, pairs, strict=True)])
    share = in_percent(at_least_0(at_most_1(shares)))
    of_seeds = ", ".join(f"{lead:.3g}" for lead in leads)
    why = f"of those to the loss without a filter, of which it is above for {of_seeds}; holds above {bound:g} %"
    return PaperClaim(text, paper, share, unit, is_above(share, bound), why)


# --- Figure 6a -------------------------------------------------------------------------------------------------------

SOON = 50
"""Steps."""


def attack_of(configs: Mapping[str, RunConfig], scale: Scale, match: RunConfig | None = None) -> PlannedAttack:
    return PlannedAttack(config=ATTACKS[scale], baseline=configs["no_filter"], match=match)


def relearning_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs, seeds = main_runs(setup(scale, sources)), SEEDS[scale]
    attacks = (attack_of(configs, scale),)
    planned = {name: PlannedRun(config=configs[name], seeds=seeds, attacks=attacks) for name in ("sgtm", *FILTERS)}
    baseline = configs["no_filter"]
    return planned | {
        "rmu": PlannedRun(config=baseline, seeds=seeds, attacks=attacks, unlearning=RMU[scale]),
        "no_filter": PlannedRun(config=baseline, seeds=seeds),
    }


def starts_table(attacks: Attacks, no_filter: Group) -> Table:
    """Losses before the first step, by which one sees what a method did to the model."""
    sets = (DOMAIN, GENERAL)
    rows: list[Sequence[str | float]] = [
        (ATTACKED[method], *(float(np.mean([one.losses[0][1][name] for one in of])) for name in sets))
        for method, of in attacks.items()
    ]
    rows.append((LABELS["no_filter"], *(loss(no_filter, name, "ablated").value for name in sets)))
    return Table("Where attacks start", ("", *(f"{name} loss" for name in sets)), rows)


def brittle_claim(attacks: Attacks, attack: AttackConfig) -> PaperClaim:
    """A claim that RMU is undone soon."""
    text = f"RMU's model is back at the loss without a filter within {SOON} steps"
    paper = "recovers within 50 steps, 13M forget tokens (section 5.3)"
    if nothing := nothing_forgotten(attacks, "rmu"):
        return PaperClaim(text, paper, None, "steps", None, nothing)
    steps, reached = over_seeds([one.steps for one in attacks["rmu"]]), all(one.reached for one in attacks["rmu"])
    late = is_above(steps, SOON)
    tokens = attack.rows_per_step * attack.context
    why = f"{steps_told(attacks['rmu'])} steps of {tokens:,} forget tokens, the paper's of 260k{edge_told(attacks['rmu'])}"
    holds = None if late is None or not (late or reached) else not late
    return PaperClaim(text, paper, steps, "steps", holds, why)


def draw_relearning(runs: Runs, scale: Scale) -> Drawing:
    attacks = {method: [relearned(run, ATTACKS[scale]) for run in runs[method]] for method in ATTACKED}
    return Drawing(
        [
            relearning_plot("Adversarial fine-tuning", attacks, ATTACKED, DOMAIN),
            starts_table(attacks, runs["no_filter"]),
        ],
        [
            brittle_claim(attacks, ATTACKS[scale]),
            ratio_claim(
                "SGTM withstands fine-tuning much longer than RMU",
                "7 times: 350 steps, 92M forget tokens; 50 steps, 13M (section 5.3)",
                attacks,
                "rmu",
                3.0,
            ),
            ratio_claim(
                "SGTM is as robust as the strict filter",
                "350 steps both (section 5.3)",
                attacks,
                "strict_filter",
                0.9,
            ),
            ratio_claim(
                "SGTM is a little more robust than the weak filter",
                "350 steps, 325 steps (section 5.3)",
                attacks,
                "weak_filter",
                1.0,
            ),
            lead_claim(
                "SGTM's forget loss is above the strict filter's at first",
                "for the first 150 of 350 steps (figure 6a)",
                attacks,
                30.0,
            ),
        ],
    )


FIGURE_6A = Figure(
    name="figure-6a",
    title="Relearning of biology by fine-tuning",
    section="5.3",
    caption="Forget loss while an attacker trains all parameters on as much biology as other text. The line is the loss of "
    f"training without a filter. {UNDER_ATTACK}",
    runs=relearning_runs,
    draw=draw_relearning,
)

# --- Figure 12: the same from equal retain losses --------------------------------------------------------------------

MATCHED = {"weak_filter": "88 %: 8500 of 9689 steps", "strict_filter": "83 %: 8000 of 9689 steps"}
LATE = 50.0
AXES = Axes(GENERAL, DOMAIN)
"""Means over tokens, as the losses under attack are."""
CONVERGED = 25.0
"""In percent of what SGTM's forget loss is above the weak filter's at the start."""


def matched_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = main_runs(setup(scale, sources))
    planned = followed(configs, scale)
    matched = (attack_of(configs, scale, match=configs["sgtm"]),)
    planned["sgtm"] = replace(planned["sgtm"], attacks=(attack_of(configs, scale),))
    return planned | {name: replace(_kept(planned[name], scale), attacks=matched) for name in FILTERS}


def _kept(run: PlannedRun, scale: Scale) -> PlannedRun:
    """The same run, with the checkpoints among which one is matched."""
    train = replace(run.config.train, keep_checkpoints=True, checkpoint_every=CHECKPOINTS[scale])
    return replace(run, config=replace(run.config, train=train))


def draw_matched(runs: Runs, scale: Scale) -> Drawing:
    attacks = {
        method: [relearned(run, ATTACKS[scale], matched=method != "sgtm") for run in runs[method]]
        for method in ("sgtm", *FILTERS)
    }
    curves = [tradeoff_series(m, LABELS[m], runs[m], AXES, "ablated") for m in attacks]
    starts = [Series(m, f"{LABELS[m]}, start", [_start(attacks[m])], line=False) for m in FILTERS]
    return Drawing(
        [
            Plot("Where attacks start", "retain loss (general)", "forget loss (biology)", [*curves, *starts]),
            relearning_plot("Adversarial fine-tuning", attacks, ATTACKED, DOMAIN),
        ],
        [
            ratio_claim(
                "SGTM is as robust as a weak filter of the same general loss",
                "approximately the same number of steps (appendix E)",
                attacks,
                "weak_filter",
                0.9,
            ),
            lead_claim(
                "SGTM's forget loss is above that of a strict filter of the same general loss at first",
                "for the first 100 steps or so (appendix E)",
                attacks,
                20.0,
            ),
            drop_claim(attacks),
            converging_claim(attacks),
            *(matched_claim(runs[method], attacks[method], method) for method in FILTERS),
        ],
    )


def drop_claim(attacks: Attacks) -> PaperClaim:
    """A claim that the forget loss of SGTM drops faster than the weak filter's by the first evaluation."""

    def drop(one: Relearned) -> float:
        return one.losses[0][1][DOMAIN] - one.losses[:2][-1][1][DOMAIN]

    text = "SGTM's forget loss drops faster than that of a weak filter of the same general loss at first"
    paper = "initially drops faster (appendix E)"
    if nothing := nothing_forgotten(attacks, "sgtm", "weak_filter"):
        return PaperClaim(text, paper, None, LOSS, None, nothing)
    pairs = zip(attacks["sgtm"], attacks["weak_filter"], strict=True)
    faster = over_seeds([drop(mine) - drop(theirs) for mine, theirs in pairs])
    why = f"the drop in the first {attacks['sgtm'][0].losses[:2][-1][0]} steps, SGTM - weak filter, each at its strongest "
    return PaperClaim(text, paper, faster, LOSS, is_above(faster), f"{why}rate; holds above 0")


def converging_claim(attacks: Attacks) -> PaperClaim:
    """A claim that what SGTM's forget loss is above the weak filter's is gone when SGTM arrives at the baseline."""
    text = "SGTM's forget loss then goes the way of the weak filter's"
    paper, unit = "converging to an equivalent trajectory (appendix E)", "% of the difference at the start"
    if nothing := nothing_forgotten(attacks, "sgtm"):
        return PaperClaim(text, paper, None, unit, None, nothing)
    of_seeds = [differences(*pair) for pair in zip(attacks["sgtm"], attacks["weak_filter"], strict=True)]
    if any(of[0] <= 0 for of in of_seeds):
        return PaperClaim(text, paper, None, unit, None, "SGTM's forget loss starts no higher than the weak filter's")
    left = over_seeds([100 * abs(of[-1]) / of[0] for of in of_seeds])
    why = f"when SGTM is at the loss without a filter, or at the end; holds below {CONVERGED:g} %"
    return PaperClaim(text, paper, left, unit, is_below(left, CONVERGED), why)


def differences(mine: Relearned, theirs: Relearned) -> list[float]:
    """By how much a forget loss is above another's, at the steps that both have until the first is at the baseline."""
    pairs = zip(mine.losses, theirs.losses, strict=False)
    above = [(step, losses[DOMAIN] - others[DOMAIN]) for (step, losses), (_, others) in pairs]
    n_before = sum(step < mine.steps for step, _ in above)
    return [difference for _, difference in above[: n_before + 1]]


def matched_claim(group: Group, attacks: Sequence[Relearned], method: str) -> PaperClaim:
    """A claim that a filter has SGTM's general loss late in its training."""
    pairs = zip(group, attacks, strict=True)
    starts = [(curve_of(run, AXES, "ablated"), one.losses[0][1][GENERAL]) for run, one in pairs]
    share = over_seeds([100 * share_of_training(*start) for start in starts])
    return PaperClaim(
        f"The {LABELS[method].lower()} has SGTM's general loss late in its training",
        f"{MATCHED[method]} (appendix E)",
        share,
        "% of its training",
        every([is_above(share, LATE), is_below(share, 100.0)]),
        "where its curve has the general loss at which the attack starts, 100 % also where it never had so low a loss; holds "
        f"above {LATE:g} % and below 100 %",
    )


def _start(attacks: Sequence[Relearned]) -> Point:
    first = [one.losses[0][1] for one in attacks]
    x, y = (over_seeds([losses[name] for losses in first]) for name in (GENERAL, DOMAIN))
    return Point(x, y, "start of the attack")


FIGURE_12 = Figure(
    name="figure-12",
    title="Relearning from equal retain losses",
    section="appendix E",
    caption="Attacks on filters start from the checkpoint whose general loss is next above SGTM's. Losses of training are "
    f"after ablation and not calibrated; stars are its ends. {UNDER_ATTACK}",
    runs=matched_runs,
    draw=draw_matched,
)

# --- Figure 6b: losses token by token --------------------------------------------------------------------------------

HARDLY_ANY = 0.005
"""Of the tokens: densities end where no more are left of any model."""
RANKS = (1, 10, 25, 50, 75, 90, 99)
"""In percent: those that are named at the axis."""


def token_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = main_runs(setup(scale, sources))
    against = {"sgtm": configs["no_filter"], **dict.fromkeys(FILTERS, configs["sgtm"])}
    measures = ("losses", "token_losses")
    planned = {
        name: PlannedRun(config=configs[name], seeds=SEEDS[scale], measures=measures, against=other)
        for name, other in against.items()
    }
    return planned | {"no_filter": PlannedRun(config=configs["no_filter"], seeds=SEEDS[scale])}


def shift_of(run: FinishedRun) -> Mapping[str, Any]:
    """The losses of a run on biology beside those of the run that it is compared with, calibrated."""
    found: Mapping[str, Any] = run.results.measures["token_losses"]["calibrated"][DOMAIN]
    return found


def density_plot(shifts: Mapping[str, Mapping[str, Any]]) -> Plot:
    """Densities of the losses of some models, and of no filter's, with which SGTM is compared."""
    counted = {name: (of["losses"]["counts"], of["edges"]) for name, of in shifts.items()}
    counted["no_filter"] = shifts["sgtm"]["reference"]["counts"], shifts["sgtm"]["edges"]
    grid = np.linspace(0, max(_last_edge(*of) for of in counted.values()), 80)
    series = [density(name, grid, smoothed(*of, grid)) for name, of in counted.items()]
    return Plot("Density", "loss of a token, calibrated", "density", series)


def _last_edge(counts: Sequence[int], edges: Sequence[float]) -> float:
    """Beyond which there is hardly any token."""
    beyond = 1 - np.cumsum(counts) / sum(counts)
    return float(np.array(edges[1:])[beyond < HARDLY_ANY][0])


def density(method: str, grid: Floats, heights: Floats) -> Series:
    points = [Point(Estimate(float(x)), Estimate(float(y))) for x, y in zip(grid, heights, strict=True)]
    return Series(method, LABELS[method], points, markers=False)


def lead_plot(runs: Runs) -> Plot:
    """By how much SGTM's losses are above others' of the same rank, over seeds."""

    def lead(method: str, run: FinishedRun, rank: str) -> float:
        mine, reference = (shift_of(run)[which]["quantiles"][rank] for which in ("losses", "reference"))
        return float(mine - reference if method == "no_filter" else reference - mine)

    def series(method: str, group: Group) -> Series:
        ranks = shift_of(group[0])["losses"]["quantiles"]
        leads = {rank: over_seeds([lead(method, run, rank) for run in group]) for rank in ranks}
        return Series(method, LABELS[method], [Point(Estimate(100 * float(rank)), of) for rank, of in leads.items()])

    compared = {name: runs[name] for name in FILTERS} | {"no_filter": runs["sgtm"]}
    return Plot(
        "SGTM above the others",
        "tokens with a lower loss, %",
        "SGTM's loss less that of the same rank",
        [series(method, group) for method, group in compared.items()],
        levels={"SGTM": 0.0},
        x_ticks={f"{rank}": rank for rank in RANKS},
    )


def draw_tokens(runs: Runs, scale: Scale) -> Drawing:
    return Drawing(
        [density_plot({name: shift_of(runs[name][0]) for name in ("sgtm", *FILTERS)}), lead_plot(runs)],
        [*(claim for name in FILTERS for claim in _broad_claims(name, runs[name])), _tail_claim(runs["sgtm"])],
    )


def _broad_claims(name: str, data_filter: Group) -> list[PaperClaim]:
    """SGTM against a filter: the filter's shift from SGTM, with its sign turned."""
    label, shifts = LABELS[name].lower(), [shift_of(run) for run in data_filter]
    low, high = shifts[0]["shift_interval"]
    mean = over_seeds([-of["shift"] for of in shifts], (high - low) / (2 * 1.96))
    low, high = shifts[0]["risen_interval"]
    risen = over_seeds([100 * (1 - of["risen"]) for of in shifts], 100 * (high - low) / (2 * 1.96))
    rose = all(of["shift"] < 0 for of in shifts)
    left = over_seeds([100 * of["trimmed_shift"]["0.1"] / of["shift"] for of in shifts]) if rose else None
    return [
        PaperClaim(
            f"SGTM shifts the losses of biology tokens up from the {label}'s",
            "toward higher loss values (figure 6b)",
            mean,
            LOSS,
            is_above(mean),
            f"SGTM - {label} on the same tokens; holds above 0",
        ),
        PaperClaim(
            f"Most biology tokens have a higher loss than with the {label}",
            "widespread (figure 6b)",
            risen,
            "% of the tokens",
            is_above(risen, 50.0),
            "holds above 50 %",
        ),
        PaperClaim(
            f"The higher loss than with the {label} is not that of a few extreme tokens",
            "not isolated extremely high-loss tokens (section 5.4)",
            left,
            "% of the difference in mean loss",
            None if left is None or is_above(mean) is None else is_above(left, 50.0),
            "what is left of it without the tenths of the tokens that rose and fell most; holds above 50 %",
        ),
    ]


def _tail_claim(sgtm: Group) -> PaperClaim:
    """How much of the rise from no filter the highest losses have."""
    text, paper = "SGTM's distribution has no heavy tail", "no explosion of extreme outliers (section 5.4)"
    tops = [of["rise_in_top"] for of in map(shift_of, sgtm)]
    if None in tops:
        return PaperClaim(text, paper, None, "", None, "losses did not rise from those without a filter")
    share = over_seeds([100 * of["0.01"] for of in tops])
    why = "what the highest hundredth of the losses has of it, by rank; holds below 10 %"
    return PaperClaim(text, paper, share, "% of the rise from no filter", is_below(share, 10.0), why)


FIGURE_6B = Figure(
    name="figure-6b",
    title="Losses of biology token by token",
    section="5.4",
    caption="Calibrated losses after ablation over the tokens of the biology test set. Densities are of seed 0, without "
    f"intervals, smoothed, and cut where at most {100 * HARDLY_ANY:g} % of any model's tokens are left. The second panel, which "
    "the paper does not have, ranks the tokens of each model by their losses and shows the mean over seeds. The claims are about "
    "all seeds.",
    runs=token_runs,
    draw=draw_tokens,
)

FIGURES = (FIGURE_6A, FIGURE_6B, FIGURE_12)
