"""Removing a subject from a model of Wikipedia (paper, section 5.2, appendices A and H): figures 1, 7 and 13."""

from collections.abc import Mapping, Sequence

from excise.evals.figure import Estimate, PaperClaim, Plot, Scale
from excise.recipes.figures.bilingual_runs import FEW_SEEDS, SEEDS
from excise.recipes.figures.curves import (
    Axes,
    curve_of,
    equal_share_lines,
    lead_claim,
    leads,
    share_of_training,
    tradeoff_series,
    with_curve,
)
from excise.recipes.figures.estimates import (
    LOSS,
    LossTable,
    claim_all_above,
    claim_all_below,
    is_below,
    loss_difference,
    over_seeds,
)
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.recipes.figures.topics_runs import EVALUATIONS, Filter, setup, standard, variant
from excise.routing.rules import RuleName
from excise.train.run import RunConfig

ADJACENT, GENERAL, BIOLOGY = "adjacent", "general", "biology"
MEANS: LossTable = "category_means"
FILTERS: Mapping[str, Filter] = {"weak_filter": "weak", "strict_filter": "strict", "no_filter": "none"}
LABELS = {"sgtm": "SGTM", "weak_filter": "Weak filter", "strict_filter": "Strict filter", "no_filter": "No filter"}
LOOKS_LIKE = {"sgtm_joint_down_projection": "sgtm_joint_projection"}
"""Methods that share a colour, of which the second is dashed."""
SMALL_PENALTY = 10.0
"""In percent: what counts as a small compute penalty."""


def main_runs(base: RunConfig) -> dict[str, RunConfig]:
    """SGTM, both filters, and no filter."""
    return {"sgtm": base} | {name: standard(base, which) for name, which in FILTERS.items()}


def followed(
    configs: Mapping[str, RunConfig], scale: Scale, seeds: Mapping[Scale, int] = SEEDS
) -> dict[str, PlannedRun]:
    """Runs with a trade-off curve."""
    measures = ("losses", "tradeoff")
    return {
        name: with_curve(PlannedRun(config=config, seeds=seeds[scale], measures=measures), EVALUATIONS[scale])
        for name, config in configs.items()
    }


def axes_of(name: str, domain: str) -> Axes:
    """Losses as the paper has them for Wikipedia, means over subcategories."""
    return Axes(name, domain, MEANS)


def difference(group: Group, other: Group, name: str) -> Estimate:
    """How much higher a calibrated loss ends than another's."""
    return loss_difference(group, other, name, table=MEANS)


def tradeoff_plots(
    of: Mapping[str, Group],
    domain: str,
    labels: Mapping[str, str],
    *,
    lines: bool = False,
    looks: Mapping[str, str] = LOOKS_LIKE,
) -> list[Plot]:
    """Forget loss over general and over adjacent loss; as in the paper, lines of equal compute are in the first alone."""

    def plot(name: str) -> Plot:
        series = [
            tradeoff_series(looks.get(method, method), label, of[method], axes_of(name, domain))
            for method, label in labels.items()
        ]
        if lines and name == GENERAL:
            series += equal_share_lines(of, axes_of(name, domain))
        return Plot(f"{name.capitalize()} knowledge", f"retain loss ({name})", f"forget loss ({domain})", series)

    return [plot(GENERAL), plot(ADJACENT)]


# --- Figures 1 and 13: SGTM against filters --------------------------------------------------------------------------


def lead_claims(of: Mapping[str, Group], domain: str, figure: str, others: Sequence[str]) -> list[PaperClaim]:
    """SGTM leads at equal general loss and at equal adjacent loss, all along the curves and at their ends."""
    paper = f"higher forget loss at any retain loss ({figure})"

    def claim(name: str, other: str, at_end: bool) -> PaperClaim:
        when = "at the end has" if at_end else "has"
        text = f"SGTM {when} a better trade-off than the {LABELS[other].lower()} on {name} knowledge"
        words = f"{paper}, so at the end too" if at_end else paper
        return lead_claim(text, words, of["sgtm"], of[other], axes_of(name, domain), at_end=at_end)

    return [claim(name, other, at_end) for at_end in (False, True) for name in (GENERAL, ADJACENT) for other in others]


def end_claims(of: Mapping[str, Group], domain: str, forget: str, general: str) -> list[PaperClaim]:
    """Where SGTM ends its training, with the paper's words on its forget and on its general loss."""
    raised = difference(of["sgtm"], of["no_filter"], GENERAL)
    return [
        claim_all_above(
            "SGTM ends with a higher forget loss than both filters",
            forget,
            [difference(of["sgtm"], of[other], domain) for other in ("weak_filter", "strict_filter")],
            LOSS,
            "the smaller difference, SGTM - filter",
        ),
        claim_all_above(
            "SGTM ends with a higher general loss than training without a filter",
            general,
            [raised],
            LOSS,
            "SGTM - no filter",
        ),
    ]


def penalty_on_curve(sgtm: Group, no_filter: Group, axes: Axes) -> Estimate:
    """The percentage of its training that the run without a filter did not need for SGTM's retain loss; 0 where it never
    had a loss as low. Its rate has not come down to zero by then, so a run of just that length needs less still: of a
    penalty this is a lower bound."""
    pairs = zip(sgtm, no_filter, strict=True)
    ends = [(curve_of(baseline, axes), axes.end(run, axes.retain).calibrated) for run, baseline in pairs]
    return over_seeds([100 * (1 - share_of_training(curve, end)) for curve, end in ends])


def penalty_claim(of: Mapping[str, Group]) -> PaperClaim:
    """A claim that SGTM costs little compute, which a lower bound can refute and not confirm."""
    penalty = penalty_on_curve(of["sgtm"], of["no_filter"], axes_of(GENERAL, BIOLOGY))
    return PaperClaim(
        "SGTM costs little compute on general knowledge (told by a lower bound)",
        "5 % (section 5.2), 6 % (section 1), by scaling laws",
        penalty,
        "% of the training without a filter, at least",
        False if is_below(penalty, SMALL_PENALTY) is False else None,
        "what was left of it when it had SGTM's general loss, its learning rate still high: the penalty is at least as "
        f"large; does not hold from {SMALL_PENALTY:g} %, below that undecided; figure 9 has it by scaling laws",
    )


def biology_claims(of: Mapping[str, Group]) -> list[PaperClaim]:
    """What section 5.2 says of biology beside."""
    domain = BIOLOGY

    return [
        penalty_claim(of),
        claim_all_above(
            "The strict filter forgets more than the weak one",
            "stronger forgetting (section 5.2)",
            [difference(of["strict_filter"], of["weak_filter"], domain)],
            LOSS,
            "strict - weak, biology",
        ),
        claim_all_below(
            "Both filters end with a lower general loss than training without a filter",
            "lower (section 5.2)",
            [difference(of[name], of["no_filter"], GENERAL) for name in ("weak_filter", "strict_filter")],
            LOSS,
            "the larger difference, filter - no filter",
        ),
        claim_all_above(
            "SGTM's loss on adjacent knowledge is between those of the weak and the strict filter",
            "between (section 5.2)",
            [
                difference(of["sgtm"], of["weak_filter"], ADJACENT),
                difference(of["strict_filter"], of["sgtm"], ADJACENT),
            ],
            LOSS,
            "the smaller of SGTM - weak and strict - SGTM",
        ),
        claim_all_above(
            "The weak filter costs some adjacent knowledge",
            "higher than no filter (section 5.2)",
            [difference(of["weak_filter"], of["no_filter"], ADJACENT)],
            LOSS,
            "weak - no filter",
        ),
        lead_claim(
            "The weak filter has a better trade-off than the strict one on adjacent knowledge",
            "better (section 5.2)",
            of["weak_filter"],
            of["strict_filter"],
            axes_of(ADJACENT, domain),
        ),
    ]


def draw_biology(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    claims = lead_claims(runs, BIOLOGY, "figure 1", ("weak_filter", "strict_filter"))
    claims += end_claims(runs, BIOLOGY, "higher than both (section 5.2)", "slightly higher (section 5.2)")
    return Drawing(tradeoff_plots(runs, BIOLOGY, LABELS, lines=True), claims + biology_claims(runs))


def draw_military(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    domain = "military"
    claims = lead_claims(runs, domain, "figure 13", ("weak_filter", "strict_filter"))
    claims += end_claims(
        runs,
        domain,
        "stronger forgetting than either filtering strategy (appendix H)",
        "ends with higher retain loss (appendix H)",
    )
    return Drawing(tradeoff_plots(runs, domain, LABELS), claims)


CAPTION = (
    "Calibrated losses after ablation while each method trains, a point at equal intervals; stars are the ends. Losses of "
    "general and adjacent articles are means over their subcategories."
)

FIGURE_1 = Figure(
    name="figure-1",
    title="Trade-off when biology is removed",
    section="5.2",
    caption=f"{CAPTION} Grey lines join equal compute.",
    runs=lambda scale, sources: followed(main_runs(setup(scale, sources)), scale),
    draw=draw_biology,
)
FIGURE_13 = Figure(
    name="figure-13",
    title="Trade-off when military affairs are removed",
    section="appendix H",
    caption=CAPTION,
    runs=lambda scale, sources: followed(main_runs(setup(scale, sources, "military")), scale, FEW_SEEDS),
    draw=draw_military,
)

# --- Figure 7: variants of gradient routing --------------------------------------------------------------------------

VARIANTS: Mapping[RuleName, str] = {
    "gradient_routing": "Gradient Routing",
    "activation_masking": "Activation Masking",
    "sgtm_joint_projection": "SGTM, joint projection",
    "sgtm_joint_attention": "SGTM, joint attention",
    "sgtm_joint_down_projection": "SGTM, joint down-projection",
    "sgtm_joint_embeddings": "SGTM, joint embeddings",
}
BETTER = dict.fromkeys(VARIANTS, "better than other variants (appendix A)") | dict.fromkeys(
    ("sgtm_joint_down_projection", "sgtm_joint_embeddings"),
    "the default has the strongest trade-off after ablation (appendix C); not in the paper's figure 7",
)
"""What the paper says of SGTM beside each of them."""
RIVALS: Sequence[RuleName] = ("gradient_routing", "activation_masking")
JOINT: Sequence[RuleName] = ("sgtm_joint_projection", "sgtm_joint_attention")
EARLY = 50.0
SIMILAR = 25.0
"""In percent of what the weak filter forgets: how far from its trade-off curve a similar one may be."""


def variant_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    return followed(main_runs(base) | {rule: variant(base, rule, scale) for rule in VARIANTS}, scale)


def draw_variants(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    claims = [claim for rule in VARIANTS for claim in _better_claims(runs, "sgtm", rule, BETTER[rule])]
    return Drawing(
        tradeoff_plots(runs, BIOLOGY, LABELS | {str(rule): label for rule, label in VARIANTS.items()}),
        [*claims, *_rival_claims(runs), *_joint_claims(runs)],
    )


def _better_claims(runs: Mapping[str, Group], method: str, rule: RuleName, paper: str) -> list[PaperClaim]:
    """A method has a better trade-off than a variant on general and on adjacent knowledge."""
    named = LABELS[method] if method == "sgtm" else f"The {LABELS[method].lower()}"

    def claim(name: str) -> PaperClaim:
        text = f"{named} has a better trade-off than {VARIANTS[rule]} on {name} knowledge"
        return lead_claim(text, paper, runs[method], runs[rule], axes_of(name, BIOLOGY))

    return [claim(GENERAL), claim(ADJACENT)]


def _rival_claims(runs: Mapping[str, Group]) -> list[PaperClaim]:
    """Gradient Routing and Activation Masking forget like the weak filter and train more slowly."""
    gradient_routing, activation_masking = (runs[rule] for rule in RIVALS)
    retain = (GENERAL, ADJACENT)
    return [
        *(_similar_claim(runs, rule, name) for rule in RIVALS for name in retain),
        claim_all_above(
            "Gradient Routing and Activation Masking end with higher losses than the weak filter on general and adjacent "
            "knowledge",
            "less compute efficient, further right along the same curve (appendix A)",
            [difference(runs[rule], runs["weak_filter"], name) for rule in RIVALS for name in retain],
            LOSS,
            "the smallest difference, variant - weak filter",
        ),
        claim_all_above(
            "Gradient Routing costs more compute than Activation Masking",
            "most pronounced for Gradient Routing (appendix A)",
            [difference(gradient_routing, activation_masking, name) for name in retain],
            LOSS,
            "the smaller difference, Gradient Routing - Activation Masking, at the end on general and adjacent knowledge",
        ),
        *(_early_claim(runs, name) for name in (*retain, BIOLOGY)),
    ]


def _similar_claim(runs: Mapping[str, Group], rule: RuleName, name: str) -> PaperClaim:
    """A claim that a variant's trade-off is much like the weak filter's, on the scale of what that one forgets."""
    text = f"{VARIANTS[rule]} has a trade-off like the weak filter's on {name} knowledge"
    paper, unit = "similar to the weak filter (appendix A)", "% of what the weak filter forgets"
    groups = zip(runs[rule], runs["weak_filter"], runs["no_filter"], strict=True)
    curves = [[curve_of(run, axes_of(name, BIOLOGY)) for run in of_seed] for of_seed in groups]
    pairs = [(leads(mine, weak), leads(weak, no_filter)) for mine, weak, no_filter in curves]
    if not all(distances and forgotten and forgotten[0] > 0 for distances, forgotten in pairs):
        return PaperClaim(text, paper, None, unit, None, "curves have no retain loss in common, or it forgot nothing")
    furthest = over_seeds([100 * max(map(abs, distances)) / forgotten[0] for distances, forgotten in pairs])
    why = (
        "the largest difference of forget losses at equal retain loss, of that between the weak filter and no filter at the "
        f"lowest; holds below {SIMILAR:g} %"
    )
    return PaperClaim(text, paper, furthest, unit, is_below(furthest, SIMILAR), why)


def _early_claim(runs: Mapping[str, Group], name: str) -> PaperClaim:
    """A claim that the weak filter came to Gradient Routing's last loss on a test set early."""
    axes = axes_of(name, BIOLOGY)
    pairs = zip(runs["gradient_routing"], runs["weak_filter"], strict=True)
    ends = [(axes.end(run, name).calibrated, curve_of(weak, axes)) for run, weak in pairs]
    when = over_seeds([100 * share_of_training(curve, end) for end, curve in ends])
    return PaperClaim(
        f"Gradient Routing ends at the {name} loss that the weak filter has early in its training",
        "at 20 % of training, both forget and retain (appendix A)",
        when,
        "% of the weak filter's training",
        is_below(when, EARLY),
        f"holds below {EARLY:g} %",
    )


def _joint_claims(runs: Mapping[str, Group]) -> list[PaperClaim]:
    """What the joint variants gain and lose."""
    paper = "better than both joint variants (appendix A)"
    pairs = [(name, rule) for name in ("weak_filter", "strict_filter") for rule in JOINT]
    return [
        claim_all_below(
            "Joint projections and joint attention end with lower losses than SGTM on general and adjacent knowledge",
            "better final retain loss on both (appendix A)",
            [difference(runs[rule], runs["sgtm"], name) for rule in JOINT for name in (GENERAL, ADJACENT)],
            LOSS,
            "the largest difference, variant - SGTM",
        ),
        *(claim for name, rule in pairs for claim in _better_claims(runs, name, rule, paper)),
    ]


FIGURE_7 = Figure(
    name="figure-7",
    title="Variants of gradient routing when biology is removed",
    section="appendix A",
    caption=f"{CAPTION} Joint down-projections and joint embeddings are the configurations of appendix C; the "
    "paper's figure does not have them.",
    runs=variant_runs,
    draw=draw_variants,
)

FIGURES = (FIGURE_1, FIGURE_7, FIGURE_13)
