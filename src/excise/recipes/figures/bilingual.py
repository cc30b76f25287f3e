"""Removing Spanish from a bilingual model (paper, section 4): figures 3 and 4a."""

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
SETS = (RETAIN, DOMAIN)
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


def draw_shares(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    def of(method: str, share: float) -> Group:
        return runs[key(method, share)]

    methods, shares = ("sgtm", "gradient_routing", "data_filter"), SHARES[scale]

    def plot(title: str, name: str) -> Plot:
        series = [
            Series(m, LABELS[m], [Point(Estimate(100 * share), loss(of(m, share), name)) for share in shares])
            for m in methods
        ]
        return Plot(title, "undiscovered forget data, %", f"{title.lower()} loss, calibrated", series)

    def differences(method: str, name: str, among: Sequence[float]) -> list[Estimate]:
        return [loss_difference(of("sgtm", share), of(method, share), name) for share in among]

    between = [share for share in shares if 0 < share < 1]
    first = loss_difference(of("data_filter", between[0]), runs["perfect_filter"], DOMAIN)
    return Drawing(
        [plot("Retain", RETAIN), plot("Forget", DOMAIN)],
        [
            claim_all_below(
                "SGTM has a lower retain loss than Gradient Routing at every undiscovered share",
                "lower at all rates (figure 3a)",
                differences("gradient_routing", RETAIN, shares),
                LOSS,
                "the largest difference, SGTM - Gradient Routing",
            ),
            claim_all_above(
                "SGTM has a higher forget loss than Gradient Routing at every undiscovered share below 100 %",
                "higher at all rates (figure 3b)",
                differences("gradient_routing", DOMAIN, [share for share in shares if share < 1]),
                LOSS,
                "the smallest difference, SGTM - Gradient Routing",
            ),
            claim_all_above(
                "SGTM forgets more than the data filter wherever labels are wrong",
                "higher forget loss at all non-zero rates (figure 3b)",
                differences("data_filter", DOMAIN, between),
                LOSS,
                f"the smallest difference, SGTM - filter, at {', '.join(f'{100 * s:g}' for s in between)} %",
            ),
            claim_all_above(
                "SGTM has a higher retain loss than the data filter",
                "higher (section 4.2)",
                differences("data_filter", RETAIN, between),
                LOSS,
                "the smallest difference, SGTM - filter",
            ),
            PaperClaim(
                "The data filter's forget loss drops when even a few forget documents are not filtered out",
                "drops quickly (section 4.2)",
                first,
                LOSS,
                is_below(first),
                f"filter with {100 * between[0]:g} % undiscovered - perfect filter",
            ),
        ],
    )


FIGURE_3 = Figure(
    name="figure-3",
    title="Losses by the share of forget data that is not labelled",
    section="4.2",
    caption="Calibrated losses after ablation when Spanish is removed from a bilingual model.",
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
    series = [tradeoff_series(method, LABELS[method], group, SETS) for method, group in of.items()]
    series += equal_share_lines({name: group for name, group in of.items() if name != "gradient_routing"}, SETS)
    pairs = list(zip(of["sgtm"], of["data_filter"], strict=True))
    when = over_seeds([share_of_training(curve_of(b, SETS), a.losses.sets[RETAIN].calibrated) for a, b in pairs])
    regained = recovered_by(of["sgtm"], of["data_filter"], of["perfect_filter"], DOMAIN)
    return Drawing(
        [Plot("Trade-off", "retain loss (English)", "forget loss (Spanish)", series)],
        [
            lead_claim(
                "SGTM has a better trade-off than the filter with 1 % undiscovered",
                "higher forget loss at any fixed retain loss (figure 4a)",
                of["sgtm"],
                of["data_filter"],
                SETS,
            ),
            lead_claim(
                "SGTM has a better trade-off than Gradient Routing",
                "higher forget loss at any fixed retain loss (figure 4a)",
                of["sgtm"],
                of["gradient_routing"],
                SETS,
            ),
            PaperClaim(
                "SGTM ends at the retain loss that the filter has late in its training",
                "at 80 % of training (section 4.2)",
                Estimate(100 * when.value, *(None if x is None else 100 * x for x in (when.low, when.high))),
                "% of the filter's training",
                is_above(when, 0.7),
                "holds where it is above 70 %",
            ),
            PaperClaim(
                "SGTM ends with almost the forget loss of the perfect filter",
                "almost equivalent (section 4.2)",
                regained,
                "of the way from the filter's loss to the perfect filter's, at most 1",
                is_above(regained, 0.9) if regained else None,
                "holds where it is above 0.9",
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
