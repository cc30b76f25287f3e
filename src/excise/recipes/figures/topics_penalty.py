"""Losses on Wikipedia as compute (paper, appendices B and C): figures 8, 9 and 10.

Losses are means over categories, as the paper reports them; penalties are in percent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from excise.evals.compute_penalty import BaselineRun, ScalingLaw, compute_penalty, fit_law, seeds_by_size
from excise.evals.figure import Bars, Estimate, PaperClaim, Plot, Point, Scale, Series
from excise.recipes.figures.bilingual_runs import SEEDS, parameters_of
from excise.recipes.figures.estimates import (
    every,
    in_percent,
    is_above,
    is_below,
    loss_difference,
    losses_of,
    over_seeds,
)
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.recipes.figures.topics import ADJACENT, FILTERS, GENERAL, LABELS, MEANS, SMALL_PENALTY, main_runs
from excise.recipes.figures.topics_runs import SIZES, largest, of_size, setup, standard, variant

SETS = {"biology": "Biology", ADJACENT: "Adjacent", GENERAL: "General"}
METHODS = ("sgtm", "weak_filter", "strict_filter")
PENALTY, PERCENT = "compute penalty, %", "% of the compute without a filter"
ON_THE_LAW = 2.0
"""In percent: losses that bend away from a line by more follow no power law, however they fall. Set when runs of the small
scale were first seen to bend, by 3 to 4 %."""
OF_THE_LAW = (
    "Intervals of 95 % are those of a line through so few sizes, of each of which seeds are one point; those that reach "
    "further than the bars are cut off."
)
Runs = Mapping[str, Group]


def another_model() -> str:
    """What a caption says of the models at the small scale."""
    ours, other = largest("small", Sources()).model, setup("small", Sources()).model
    told = [f"{parameters_of(of) / 1e6:.1f}M parameters and {of.vocabulary_size:,} tokens" for of in (ours, other)]
    return (
        f"At the scale small this is not the model of figure 1: it has {told[0]} in its vocabulary, that one {told[1]}; in the "
        "paper both are the same."
    )


def keys(scale: Scale) -> dict[str, str]:
    """By size, the key of its run without a filter; the largest is the baseline."""
    *smaller, last = SIZES[scale]
    return {size: f"no_filter {size}" for size in smaller} | {last: "no_filter"}


def law_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    """Runs without a filter of every size."""
    configs = {key: standard(of_size(scale, sources, size), "none") for size, key in keys(scale).items()}
    return {name: PlannedRun(config=config, seeds=SEEDS[scale]) for name, config in configs.items()}


@dataclass(frozen=True)
class Penalties:
    """The scaling laws of runs without a filter, and what other runs cost by them."""

    runs: Runs
    scale: Scale

    def baselines(self, name: str, stage: str, among: Sequence[str] = ()) -> list[BaselineRun]:
        groups = [self.runs[key] for key in among or keys(self.scale).values()]
        return [
            BaselineRun(of.parameters, of.tokens, getattr(losses_of(run, name, MEANS), stage))
            for run in (run for group in groups for run in group)
            for of in (run.results.provenance,)
        ]

    def law(self, name: str, stage: str = "calibrated") -> ScalingLaw:
        return fit_law(self.baselines(name, stage))

    def of(self, method: str, name: str, stage: str = "calibrated") -> Estimate:
        """The penalty of a run's mean loss over seeds, in percent."""
        losses = [getattr(losses_of(run, name, MEANS), stage) for run in self.runs[method]]
        error = float(np.std(losses, ddof=1)) / math.sqrt(len(losses)) if len(losses) > 1 else None
        same_size = self.baselines(name, stage, ["no_filter"])
        baseline = replace(same_size[0], loss=float(np.mean([run.loss for run in same_size])))
        found = compute_penalty(self.law(name, stage), float(np.mean(losses)), baseline, loss_error=error)
        return in_percent(Estimate(found.compute_penalty, found.low, found.high))

    def by_law(self, verdict: bool | None, names: Sequence[str], stage: str = "calibrated") -> bool | None:
        """A verdict on penalties, which losses that follow no law do not give."""
        return verdict if all(self.law(name, stage).off < ON_THE_LAW for name in names) else None

    def higher(self, one: str, other: str, name: str, stage: str = "calibrated") -> bool | None:
        """Whether a run costs more than another: by their losses, since they share the law and its error."""
        return is_above(loss_difference(self.runs[one], self.runs[other], name, stage, table=MEANS))


def no_law(error: ValueError) -> Drawing:
    return Drawing([], [PaperClaim("Losses fall with compute as power laws", "figure 8", None, "", None, str(error))])


# --- Figure 8: scaling laws ------------------------------------------------------------------------------------------


def draw_laws(runs: Runs, scale: Scale) -> Drawing:
    penalties = Penalties(runs, scale)
    try:
        laws = {name: penalties.law(name) for name in SETS}
    except ValueError as error:
        return no_law(error)
    plots = [_law_plot(SETS[name], law, penalties.baselines(name, "calibrated")) for name, law in laws.items()]
    return Drawing(plots, [_law_claim(SETS[name], law) for name, law in laws.items()])


def _law_plot(title: str, law: ScalingLaw, runs: Sequence[BaselineRun]) -> Plot:
    sizes = seeds_by_size(runs)
    of_sizes = [
        Point(
            Estimate(seeds[0].compute),
            over_seeds([run.loss for run in seeds]),
            f"{seeds[0].parameters / 1e6:.2g}M",
        )
        for seeds in sizes
    ]
    ends = sizes[0][0].compute, sizes[-1][0].compute
    fitted = [Point(Estimate(x), Estimate(law.alpha * x**-law.beta)) for x in np.geomspace(*ends, 20).tolist()]
    series = [
        Series("no_filter", "No filter", of_sizes, line=False),
        Series("equal", f"{title}: {law.alpha:.3g} x C^-{law.beta:.3g}", fitted, markers=False),
    ]
    return Plot(title, "compute C, FLOPs", "loss, calibrated", series, x_log=True, y_log=True)


def _law_claim(title: str, law: ScalingLaw) -> PaperClaim:
    slope = Estimate(law.beta, law.beta_low, law.beta_high)
    return PaperClaim(
        f"{title}: the loss falls with compute as a power law",
        "alpha x C^-beta through four sizes (figure 8)",
        slope,
        "beta",
        every([is_above(slope), law.off < ON_THE_LAW]),
        f"sizes are off the law by {law.off:.2g} % (standard deviation); holds above 0 where that is below {ON_THE_LAW:g} %",
    )


FIGURE_8 = Figure(
    name="figure-8",
    title="Scaling laws of training without a filter",
    section="appendix B",
    caption="Calibrated losses, the mean over categories, and compute as 6 x parameters x tokens; tokens grow with "
    "parameters, which stand beside the points. Intervals of slopes are those of a line through so few sizes.",
    runs=law_runs,
    draw=draw_laws,
)

# --- Figure 9: compute penalty of each method ------------------------------------------------------------------------

FORGOTTEN = 94.5
"""In percent: the paper's lowest is 95, which is rounded."""


def penalty_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = main_runs(largest(scale, sources))
    methods = {name: PlannedRun(config=config, seeds=SEEDS[scale]) for name, config in configs.items()}
    return law_runs(scale, sources) | methods


def draw_penalties(runs: Runs, scale: Scale) -> Drawing:
    found = Penalties(runs, scale)
    try:
        bars = {method: [found.of(method, name) for name in SETS] for method in METHODS}
    except ValueError as error:
        return no_law(error)
    biology, adjacent, general = ({method: found.of(method, name) for method in METHODS} for name in SETS)
    labels = {method: LABELS[method] for method in METHODS}
    panel = Bars("Compute penalty", PENALTY, list(SETS.values()), bars, labels)
    return Drawing([panel], [*_forget_claims(found, biology), *_retain_claims(found, adjacent, general)])


def _told(found: Mapping[str, Estimate], *methods: str) -> str:
    return ", ".join(f"{LABELS[method].lower()} {found[method].value:.3g} %" for method in methods)


def _forget_claims(found: Penalties, biology: Mapping[str, Estimate]) -> list[PaperClaim]:
    least = min(biology.values(), key=lambda of: of.value)
    verdicts = [found.higher("sgtm", other, "biology") for other in ("weak_filter", "strict_filter")]
    return [
        PaperClaim(
            "All methods leave of biology what a twentieth of the compute would have given",
            "weak filter 95 %, strict filter 96 %, SGTM 99 % (figure 9)",
            least,
            PERCENT,
            found.by_law(every([is_above(of, FORGOTTEN) for of in biology.values()]), ["biology"]),
            f"the lowest penalty; holds where all are above {FORGOTTEN:g} %, as 95 % is rounded",
        ),
        PaperClaim(
            "SGTM's penalty on biology is the highest",
            "99 %, filters 95 % and 96 % (figure 9)",
            biology["sgtm"],
            PERCENT,
            every(verdicts),
            f"{_told(biology, 'weak_filter', 'strict_filter')}; decided by the losses: holds where SGTM's is the highest",
        ),
    ]


def _retain_claims(
    found: Penalties, adjacent: Mapping[str, Estimate], general: Mapping[str, Estimate]
) -> list[PaperClaim]:
    between = [found.higher("sgtm", "weak_filter", ADJACENT), found.higher("strict_filter", "sgtm", ADJACENT)]
    filters = [general["weak_filter"], general["strict_filter"]]
    sgtm, weak = general["sgtm"], adjacent["weak_filter"]
    return [
        PaperClaim(
            "SGTM's penalty on adjacent knowledge is between those of the filters",
            "38 %; weak filter 7 %, strict filter 67 % (figure 9)",
            adjacent["sgtm"],
            PERCENT,
            every(between),
            f"{_told(adjacent, 'weak_filter', 'strict_filter')}; decided by the losses: holds where SGTM's is between",
        ),
        PaperClaim(
            "Even the weak filter has a penalty on adjacent knowledge",
            "7 % (figure 9)",
            weak,
            PERCENT,
            found.by_law(is_above(weak), [ADJACENT]),
            "holds above 0",
        ),
        PaperClaim(
            "SGTM has a small penalty on general knowledge",
            "5 % (appendix B), 6 % (section 1)",
            sgtm,
            PERCENT,
            found.by_law(is_below(sgtm, SMALL_PENALTY), [GENERAL]),
            f"holds below {SMALL_PENALTY:g} %",
        ),
        PaperClaim(
            "Both filters have negative penalties on general knowledge",
            "weak filter -10 %, strict filter -15 % (figure 9)",
            max(filters, key=lambda of: of.value),
            PERCENT,
            found.by_law(every([is_below(of) for of in filters]), [GENERAL]),
            f"{_told(general, 'weak_filter', 'strict_filter')}; holds where both are below 0",
        ),
    ]


FIGURE_9 = Figure(
    name="figure-9",
    title="Compute penalty of three methods",
    section="appendix B",
    caption="How much less compute training without a filter would need for the same loss, by the laws of figure 8; "
    "negative where a method is better than that; where losses follow no law, only claims that the losses decide are judged. "
    f"{another_model()}",
    of_intervals=OF_THE_LAW,
    runs=penalty_runs,
    draw=draw_penalties,
)

# --- Figure 10: before ablation --------------------------------------------------------------------------------------

CONFIGURATIONS = {
    "sgtm": "SGTM",
    "sgtm_joint_down_projection": "Joint down-projection",
    "sgtm_joint_embeddings": "Joint embeddings",
}
RELAXED: Mapping[str, tuple[str, str, str]] = {
    "sgtm_joint_down_projection": (
        "substantially improved, SGTM 85 % (figure 10)",
        "minimal degradation (figure 10)",
        "strong forgetting (figure 10)",
    ),
    "sgtm_joint_embeddings": (
        "30 %, SGTM 85 % (appendix C)",
        "adjacent 3 %, general -1 % (appendix C)",
        "88 %, data filtering 95 % (appendix C)",
    ),
}
"""Configurations that mask less, and what the paper says of biology and the rest before ablation, and of biology after."""
INEFFICIENT, STILL_FORGOTTEN = 50.0, 80.0
STAGES = {"before_ablation": ("Before ablation", "before"), "after_ablation": ("After ablation", "calibrated")}
"""What bars are called, and the losses that they are of."""


def ablation_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base, planned = largest(scale, sources), penalty_runs(scale, sources)
    joint = [variant(base, rule, scale) for rule in ("sgtm_joint_down_projection", "sgtm_joint_embeddings")]
    return planned | {config.routing.rule: PlannedRun(config=config, seeds=SEEDS[scale]) for config in joint}


def draw_before_ablation(runs: Runs, scale: Scale) -> Drawing:
    found = Penalties(runs, scale)
    try:
        panels = [ablation_bars(found, name) for name in SETS]
    except ValueError as error:
        return no_law(error)
    return Drawing(panels, _before_claims(found))


def ablation_bars(found: Penalties, name: str) -> Bars:
    """On one test set, what each configuration and each filter costs before and after ablation."""
    methods = CONFIGURATIONS | {of: LABELS[of] for of in FILTERS if of != "no_filter"}
    bars = {key: [found.of(of, name, stage) for of in methods] for key, (_, stage) in STAGES.items()}
    labels = {key: label for key, (label, _) in STAGES.items()}
    return Bars(SETS[name], PENALTY, list(methods.values()), bars, labels)


def _before_claims(found: Penalties) -> list[PaperClaim]:
    default = found.of("sgtm", "biology", "before")
    inefficient = PaperClaim(
        "SGTM learns biology inefficiently before ablation",
        "85 % (appendix C)",
        default,
        PERCENT,
        found.by_law(is_above(default, INEFFICIENT), ["biology"], "before"),
        f"holds above {INEFFICIENT:g} %",
    )
    return [inefficient, *(claim for rule in RELAXED for claim in _relaxed_claims(found, rule, default))]


def _relaxed_claims(found: Penalties, rule: str, default: Estimate) -> list[PaperClaim]:
    """A configuration that masks less learns biology better, costs little elsewhere, and forgets all the same."""
    name, (better, unchanged, forgotten) = CONFIGURATIONS[rule], RELAXED[rule]
    before = [found.of(rule, of, "before") for of in (ADJACENT, GENERAL)]
    after, filtered = (found.of(method, "biology") for method in (rule, "weak_filter"))
    return [
        PaperClaim(
            f"{name}: a better model of biology before ablation than SGTM's",
            better,
            found.of(rule, "biology", "before"),
            PERCENT,
            found.higher("sgtm", rule, "biology", "before"),
            f"SGTM {default.value:.3g} %; decided by the losses: holds where SGTM's is higher",
        ),
        PaperClaim(
            f"{name}: retain capabilities nearly unchanged before ablation",
            unchanged,
            max(before, key=lambda of: of.value),
            PERCENT,
            found.by_law(every([is_below(of, SMALL_PENALTY) for of in before]), [ADJACENT, GENERAL], "before"),
            f"the higher of adjacent and general; holds where both are below {SMALL_PENALTY:g} %",
        ),
        PaperClaim(
            f"{name}: biology is still forgotten after ablation",
            forgotten,
            after,
            PERCENT,
            found.by_law(is_above(after, STILL_FORGOTTEN), ["biology"]),
            f"weak filter {filtered.value:.3g} %; holds above {STILL_FORGOTTEN:g} %",
        ),
    ]


FIGURE_10 = Figure(
    name="figure-10",
    title="Compute penalty before and after ablation",
    section="appendix C",
    caption="Three configurations of SGTM with modules of growing size, and filters, which have nothing to ablate: their bars "
    "are the same model, calibrated in the second (the paper has a diamond for both). Joint embeddings have a quarter of the "
    f"general data labelled retain, the others a tenth. {another_model()}",
    of_intervals=OF_THE_LAW,
    runs=ablation_runs,
    draw=draw_before_ablation,
)

FIGURES = (FIGURE_8, FIGURE_9, FIGURE_10)
