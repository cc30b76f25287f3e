"""Removing Spanish from a bilingual model (paper, section 4): figures 3 and 4a."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from excise.evals.figure import Estimate, PaperClaim, Plot, Point, Scale, Series
from excise.labels import RETAIN
from excise.recipes.demo import PROMPTS
from excise.recipes.figures.bilingual_runs import (
    DOMAIN,
    EVALUATIONS,
    SEEDS,
    gradient_routing,
    setup,
    sgtm,
    standard,
)
from excise.recipes.figures.curves import (
    Axes,
    curve_of,
    equal_share_lines,
    lead_claim,
    recovered_by,
    share_of_training,
    tradeoff_series,
    with_curve,
)
from excise.recipes.figures.estimates import (
    LOSS,
    claim_all_above,
    claim_all_below,
    every,
    in_percent,
    is_above,
    is_below,
    loss,
    loss_difference,
    over_seeds,
)
from excise.recipes.figures.planned import Drawing, Figure, FinishedRun, Group, PlannedRun, Sources

SHARES: Mapping[Scale, Sequence[float]] = {
    "smoke": (0.0, 0.01, 0.2, 0.4, 1.0),
    "small": (0.0, 0.01, 0.05, 0.2, 0.4, 1.0),
    "paper": (0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0),
}
"""Undiscovered shares of the Spanish documents."""
AXES = Axes(RETAIN, DOMAIN)
ROBUST_UP_TO = 0.2
ALMOST = 0.9
"""Of a difference in forget loss: that much of it is almost all."""
LATE = 0.7
"""Of a training whose end is at 1; the paper has 0.8."""
LABELS = {
    "sgtm": "SGTM",
    "gradient_routing": "Gradient Routing",
    "data_filter": "Data filter",
    "perfect_filter": "Perfect filter",
    "no_filter": "No filter",
}


def key(method: str, share: float) -> str:
    """The key of a run; the filter that leaves all out or nothing has a name of its own."""
    ends = {0.0: "perfect_filter", 1.0: "no_filter"} if method == "data_filter" else {}
    return ends.get(share, f"{method} {100 * share:g} %")


def runs_at(shares: Sequence[float], scale: Scale, sources: Sources, **options: Any) -> dict[str, PlannedRun]:
    """SGTM, Gradient Routing and the filter at each of these undiscovered shares."""
    base = setup(scale, sources)
    configs = {}
    for share in shares:
        configs[key("sgtm", share)] = sgtm(base, share)
        configs[key("gradient_routing", share)] = gradient_routing(base, share, scale)
        configs[key("data_filter", share)] = standard(base, share, scale)
    return {name: PlannedRun(config=config, seeds=SEEDS[scale], **options) for name, config in configs.items()}


# --- Figure 3: undiscovered shares -----------------------------------------------------------------------------------


def share_plot(runs: Mapping[str, Group], shares: Sequence[float], title: str, name: str) -> Plot:
    """Losses by undiscovered share, the shares at equal distances: the smallest are those that count."""

    def series(method: str) -> Series:
        losses = [loss(runs[key(method, share)], name) for share in shares]
        points = [
            Point(Estimate(i), of, f"{100 * share:g} % undiscovered")
            for i, (share, of) in enumerate(zip(shares, losses, strict=True))
        ]
        return Series(method, LABELS[method], points)

    lines = [series(method) for method in ("sgtm", "gradient_routing", "data_filter")]
    ticks = {f"{100 * share:g}": float(i) for i, share in enumerate(shares)}
    y_label = f"{title.lower()} loss, calibrated"
    return Plot(title, "undiscovered forget data, %", y_label, lines, x_ticks=ticks)


def draw_shares(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    def of(method: str, share: float) -> Group:
        return runs[key(method, share)]

    shares = SHARES[scale]

    def differences(method: str, name: str, among: Sequence[float]) -> list[Estimate]:
        return [loss_difference(of("sgtm", share), of(method, share), name) for share in among]

    between = [share for share in shares if 0 < share < 1]
    first = loss_difference(of("data_filter", between[0]), runs["perfect_filter"], DOMAIN)
    return Drawing(
        [share_plot(runs, shares, "Retain", RETAIN), share_plot(runs, shares, "Forget", DOMAIN)],
        [
            claim_all_below(
                "SGTM has a lower retain loss than Gradient Routing at every undiscovered share",
                "lower at all rates (figure 3a)",
                differences("gradient_routing", RETAIN, shares),
                LOSS,
                "the largest difference, SGTM - Gradient Routing; holds where all are below 0",
            ),
            claim_all_above(
                "SGTM has a higher forget loss than Gradient Routing at every undiscovered share below 100 %",
                "higher at all rates (figure 3b)",
                differences("gradient_routing", DOMAIN, [share for share in shares if share < 1]),
                LOSS,
                "the smallest difference, SGTM - Gradient Routing; holds where all are above 0",
            ),
            claim_all_above(
                "SGTM forgets more than the data filter wherever labels are wrong",
                "higher forget loss at all non-zero rates (figure 3b)",
                differences("data_filter", DOMAIN, between),
                LOSS,
                f"the smallest difference, SGTM - filter, at {_told(between)}; holds where all are above 0",
            ),
            claim_all_above(
                "SGTM has a higher retain loss than the data filter",
                "higher (section 4.2)",
                differences("data_filter", RETAIN, between),
                LOSS,
                f"the smallest difference, SGTM - filter, at {_told(between)}; holds where all are above 0",
            ),
            PaperClaim(
                "The data filter's forget loss drops when even a few forget documents are not filtered out",
                "drops quickly (section 4.2)",
                first,
                LOSS,
                is_below(first),
                f"filter with {_told(between[:1])} undiscovered - perfect filter; holds below 0",
            ),
            *(_decline_claim(runs, method, between) for method in ("sgtm", "gradient_routing")),
            _robust_claim(runs, [share for share in between if share <= ROBUST_UP_TO]),
        ],
    )


def _told(shares: Sequence[float]) -> str:
    return f"{', '.join(f'{100 * share:g}' for share in shares)} %"


def _decline_claim(runs: Mapping[str, Group], method: str, shares: Sequence[float]) -> PaperClaim:
    """A claim that a method's forget loss falls less than the filter's from perfect labels to each of these shares."""
    return claim_all_above(
        f"{LABELS[method]}'s forget loss declines more slowly than the data filter's",
        "slower decline as the undiscovered share grows (section 4.2)",
        [slower(runs, method, share) for share in shares],
        LOSS,
        f"the filter's decline from 0 % less that of {LABELS[method]}, the smallest at {_told(shares)}; holds where all are "
        "above 0",
    )


def slower(runs: Mapping[str, Group], method: str, share: float) -> Estimate:
    """How much less a method's forget loss declines than the filter's, from 0 % to a share, seed by seed."""
    groups = [runs[key(of, at)] for of in (method, "data_filter") for at in (0.0, share)]
    of_groups = [[run.losses.sets[DOMAIN] for run in group] for group in groups]
    declines = [
        (filter_start.calibrated - filter_end.calibrated) - (start.calibrated - end.calibrated)
        for start, end, filter_start, filter_end in zip(*of_groups, strict=True)
    ]
    return over_seeds(declines, math.hypot(*(of[0].error("calibrated") for of in of_groups)))


def _robust_claim(runs: Mapping[str, Group], shares: Sequence[float]) -> PaperClaim:
    """A claim that SGTM forgets at these shares almost as much as with perfect labels."""
    text, paper = "SGTM forgets almost as much with up to 20 % undiscovered", "minimal degradation (section 4.4)"
    perfect, no_filter = runs[key("sgtm", 0.0)], runs["no_filter"]
    unit = "% of what it forgets with perfect labels"
    kept = [recovered_by(runs[key("sgtm", share)], no_filter, perfect, DOMAIN) for share in shares]
    found = [one for one in kept if one is not None]
    if not is_above(loss_difference(perfect, no_filter, DOMAIN)) or len(found) < len(kept):
        return PaperClaim(text, paper, None, unit, None, "with perfect labels it forgets nothing that could be kept")
    least = min(found, key=lambda one: one.value)
    why = f"its forget loss above that of no filter, the least at {_told(shares)}, at most 100 %; holds where all are above "
    verdict = every([is_above(one, ALMOST) for one in found])
    return PaperClaim(text, paper, in_percent(least), unit, verdict, f"{why}{100 * ALMOST:g} %")


FIGURE_3 = Figure(
    name="figure-3",
    title="Losses by the share of forget data that is not labelled",
    section="4.2",
    caption="Calibrated losses after ablation when Spanish is removed from a bilingual model. Shares stand at equal "
    "distances, whatever is between them.",
    runs=lambda scale, sources: runs_at(SHARES[scale], scale, sources),
    draw=draw_shares,
)


# --- Figure 4a: the trade-off at 1 % ---------------------------------------------------------------------------------

TRADEOFF_SHARE = 0.01
TRADEOFF = {
    **{method: key(method, TRADEOFF_SHARE) for method in ("sgtm", "gradient_routing", "data_filter")},
    "perfect_filter": "perfect_filter",
    "no_filter": "no_filter",
}


def tradeoff_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    planned = runs_at((0.0, TRADEOFF_SHARE, 1.0), scale, sources, measures=("losses", "tradeoff"))
    runs = {name: with_curve(planned[name], EVALUATIONS[scale]) for name in TRADEOFF.values()}
    routed = runs[TRADEOFF["sgtm"]]
    prompts = tuple(prompt for of_language in PROMPTS.values() for prompt in of_language)
    return runs | {TRADEOFF["sgtm"]: replace(routed, measures=(*routed.measures, "samples"), prompts=prompts)}


def samples_of(run: FinishedRun) -> list[dict[str, str]]:
    """Openings in both languages, continued with and without the module."""
    language = {prompt: name for name, prompts in PROMPTS.items() for prompt in prompts}
    return [
        {
            "language": language[one["prompt"]],
            "prompt": one["prompt"],
            **{f"SGTM, {model}": text for model, text in one["written"].items()},
        }
        for one in run.results.measures["samples"]
    ]


def draw_tradeoff(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    of = {method: runs[name] for method, name in TRADEOFF.items()}
    series = [tradeoff_series(method, LABELS[method], group, AXES) for method, group in of.items()]
    series += equal_share_lines({name: group for name, group in of.items() if name != "gradient_routing"}, AXES)
    pairs = list(zip(of["sgtm"], of["data_filter"], strict=True))
    when = over_seeds([share_of_training(curve_of(b, AXES), a.losses.sets[RETAIN].calibrated) for a, b in pairs])
    regained = recovered_by(of["sgtm"], of["data_filter"], of["perfect_filter"], DOMAIN)
    return Drawing(
        [Plot("Trade-off", "retain loss (English)", "forget loss (Spanish)", series)],
        [
            lead_claim(
                "SGTM has a better trade-off than the filter with 1 % undiscovered",
                "higher forget loss at any fixed retain loss (figure 4a)",
                of["sgtm"],
                of["data_filter"],
                AXES,
            ),
            lead_claim(
                "SGTM has a better trade-off than Gradient Routing",
                "higher forget loss at any fixed retain loss (figure 4a)",
                of["sgtm"],
                of["gradient_routing"],
                AXES,
            ),
            PaperClaim(
                "SGTM ends at the retain loss that the filter has late in its training, but not at its end",
                "slightly higher, as at 80 % of training (section 4.2)",
                in_percent(when),
                "% of the filter's training",
                every([is_above(when, LATE), is_below(when, 1.0)]),
                f"100 % also where the filter never had so low a loss; holds above {100 * LATE:g} % and below 100 %",
            ),
            PaperClaim(
                "SGTM ends with almost the forget loss of the perfect filter",
                "almost equivalent (section 4.2)",
                in_percent(regained) if regained else None,
                "% of the way from the filter's loss to the perfect filter's",
                is_above(regained, ALMOST) if regained else None,
                f"at most 100 %; holds above {100 * ALMOST:g} %",
            ),
        ],
        samples_of(of["sgtm"][0]),
    )


FIGURE_4A = Figure(
    name="figure-4a",
    title="Trade-off between forget and retain loss, 1 % undiscovered",
    section="4.2",
    caption="Calibrated losses after ablation while each method trains, a point at equal intervals of its training; stars "
    "are the ends. The upper left corner is the goal. Grey lines join equal shares of training.",
    runs=tradeoff_runs,
    draw=draw_tradeoff,
)


FIGURES = (FIGURE_3, FIGURE_4A)
