"""The dials beyond the paper, one at a time: what a batch mixes, the weight of forget tokens, and what forget data may
update; and what all figures of our own share.

The set-up is that of section 4 with 5 % of the Spanish undiscovered, and shares its runs.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from excise.config import override
from excise.evals.figure import NOT_IN_PAPER, Bars, Estimate, PaperClaim, Plot, Point, Scale, Series
from excise.labels import RETAIN
from excise.recipes.figures.bilingual_runs import DOMAIN, EVALUATIONS, FEW_SEEDS, setup, sgtm, standard
from excise.recipes.figures.curves import Axes, lead_claim, tradeoff_series, with_curve
from excise.recipes.figures.estimates import LOSS, claim_all_below, is_above, is_below, loss, loss_difference
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.train.run import RunConfig

SECTION = "beyond"
SHARE = 0.05
"""Of the Spanish documents, undiscovered."""
AXES = Axes(RETAIN, DOMAIN)
FILTERS = {"data_filter": "Data filter", "perfect_filter": "Perfect filter", "no_filter": "No filter"}
WEIGHTS: Mapping[Scale, Sequence[float]] = {
    "smoke": (0.05, 0.2, 1.0),
    "small": (0.05, 0.1, 0.2, 0.5, 1.0),
    "paper": (0.05, 0.1, 0.2, 0.5, 1.0),
}
"""Of forget tokens in the loss; 1 is the paper's."""
BORROWED = (
    *("gradient_routing", "strict_filter", "activation_masking"),
    *("sgtm_joint_attention", "sgtm_joint_projection", "sgtm_joint_embeddings"),
)
"""Methods of the paper that are in none of these figures, whose colours and markers our own have."""
Changes = Mapping[str, Any]
FROZEN: Changes = {"routing.embeddings": "retain", "routing.norms": "retain"}
VECTORS: Changes = {**FROZEN, "routing.forget_tokens": 0.9}


def filters(base: RunConfig, scale: Scale) -> dict[str, RunConfig]:
    """The runs without modules that the others are compared with."""
    return {
        "data_filter": standard(base, SHARE, scale),
        "perfect_filter": standard(base, 0.0, scale),
        "no_filter": standard(base, 1.0, scale),
    }


def one_label(base: RunConfig, mixing: str) -> Changes:
    """Micro-batches or steps of one label each; four micro-batches a step, so that a step can still mix."""
    rows = base.batch.rows_per_step
    return {"batch.label_mixing": mixing, "batch.rows_per_micro_batch": rows // 4 if rows % 4 == 0 else rows}


def planned(
    configs: Mapping[str, RunConfig], scale: Scale, seeds: Mapping[Scale, int] = FEW_SEEDS, **options: Any
) -> dict[str, PlannedRun]:
    return {name: PlannedRun(config=config, seeds=seeds[scale], **options) for name, config in configs.items()}


def end_point(method: str, label: str, group: Group, text: str = "") -> Series:
    """Where a method ends: its calibrated retain and forget losses."""
    return Series(method, label, [Point(loss(group, RETAIN), loss(group, DOMAIN), text)], line=False)


def end_plot(series: Sequence[Series]) -> Plot:
    return Plot("Trade-off", "retain loss (English)", "forget loss (Spanish)", series)


def filter_points(runs: Mapping[str, Group]) -> list[Series]:
    return [end_point(name, label, runs[name]) for name, label in FILTERS.items() if name in runs]


def lower(text: str, group: Group, other: Group, name: str, why: str, stage: str = "calibrated") -> PaperClaim:
    """A claim that a loss is lower in one run than in another."""
    difference = loss_difference(group, other, name, stage)
    return PaperClaim(text, NOT_IN_PAPER, difference, LOSS, is_below(difference), why)


def higher(text: str, group: Group, other: Group, name: str, why: str) -> PaperClaim:
    difference = loss_difference(group, other, name)
    return PaperClaim(text, NOT_IN_PAPER, difference, LOSS, is_above(difference), why)


# --- What a batch mixes ----------------------------------------------------------------------------------------------

MIXING = {
    "rows": "Rows of all labels",
    "micro_batches": "One label per micro-batch",
    "steps": "One label per step",
    "zeros": "One label per step, zeros to the optimizer",
}
"""The last is the paper's way."""
EQUAL_WITHIN = 0.05


def mixing_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    routed = sgtm(base, SHARE)
    mixed = {"rows": routed} | {name: override(routed, one_label(base, name)) for name in ("micro_batches", "steps")}
    mixed["zeros"] = override(mixed["steps"], {"train.paper_faithful_optimizer": True})
    curves = planned(mixed, scale, measures=("losses", "tradeoff"))
    return {name: with_curve(run, EVALUATIONS[scale]) for name, run in curves.items()} | planned(
        filters(base, scale), scale
    )


def draw_mixing(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    looks = zip(("sgtm", *BORROWED), MIXING.items(), strict=False)
    curves = [tradeoff_series(look, label, runs[name], AXES) for look, (name, label) in looks]
    apart = loss_difference(runs["micro_batches"], runs["rows"], RETAIN)
    return Drawing(
        [end_plot([*curves, *filter_points(runs)])],
        [
            lower(
                "Rows of all labels cost less on the retain side than one label per step",
                runs["rows"],
                runs["steps"],
                RETAIN,
                "rows - steps, at the end of training",
            ),
            lead_claim(
                "Rows of all labels have a better trade-off than one label per step",
                NOT_IN_PAPER,
                runs["rows"],
                runs["steps"],
                AXES,
            ),
            lower(
                "A frozen parameter that stands still costs less on the retain side than one that is handed zeros",
                runs["steps"],
                runs["zeros"],
                RETAIN,
                "one label per step, standing still - zeros",
            ),
            PaperClaim(
                "One label per micro-batch does as well as rows of all labels, as a step still mixes",
                NOT_IN_PAPER,
                apart,
                LOSS,
                is_below(apart, EQUAL_WITHIN),
                f"retain loss, micro-batches - rows; holds below {EQUAL_WITHIN:g}",
            ),
        ],
    )


# --- The weight of forget tokens -------------------------------------------------------------------------------------


def weight_key(weight: float) -> str:
    return f"weight {weight:g}"


def weighted(config: RunConfig, weight: float) -> RunConfig:
    return override(config, {"routing.forget_weight": weight})


def weight_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    dial = {weight_key(weight): weighted(sgtm(base, SHARE), weight) for weight in WEIGHTS[scale]}
    return planned(dial | filters(base, scale), scale)


def draw_weights(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    weights = WEIGHTS[scale]
    of = [runs[weight_key(weight)] for weight in weights]
    least, most = of[0], of[-1]
    dial = [Point(loss(group, RETAIN), loss(group, DOMAIN), f"{w:g}") for w, group in zip(weights, of, strict=True)]

    def by_weight(method: str, label: str, name: str, stage: str) -> Series:
        points = [Point(Estimate(w), loss(group, name, stage)) for w, group in zip(weights, of, strict=True)]
        return Series(method, label, points)

    lines = [
        by_weight(BORROWED[0], "Retain, calibrated", RETAIN, "calibrated"),
        by_weight(BORROWED[1], "Forget, calibrated", DOMAIN, "calibrated"),
        by_weight(BORROWED[2], "Forget, before ablation", DOMAIN, "before"),
    ]
    falls = [loss_difference(small, large, RETAIN) for small, large in pairwise(of)]
    ends = f"weight {weights[0]:g} - weight {weights[-1]:g}"
    return Drawing(
        [
            end_plot([Series("sgtm", "SGTM by weight", dial), *filter_points(runs)]),
            Plot("By weight", "weight of forget tokens", "loss", lines, x_log=True),
        ],
        [
            claim_all_below(
                "The smaller the weight, the lower the retain loss",
                NOT_IN_PAPER,
                falls,
                LOSS,
                "the largest difference between a weight and the next larger one",
            ),
            lower("A small weight forgets less: it is a dial", least, most, DOMAIN, ends),
            higher(
                "Even the smallest weight forgets more than the data filter",
                least,
                runs["data_filter"],
                DOMAIN,
                f"weight {weights[0]:g} - filter",
            ),
            lower(
                "A small weight makes the model before ablation better at Spanish", least, most, DOMAIN, ends, "before"
            ),
        ],
    )


# --- Embeddings and norms --------------------------------------------------------------------------------------------

UPDATED = {
    "joint": "Embeddings and norms joint (the paper's)",
    "embeddings": "Embeddings frozen for forget data",
    "norms": "Norms frozen",
    "both": "Both frozen",
}
UPDATED_CHANGES: Mapping[str, Changes] = {
    "joint": {},
    "embeddings": {"routing.embeddings": "retain"},
    "norms": {"routing.norms": "retain"},
    "both": FROZEN,
}


def embedding_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    variants = {name: override(sgtm(base, SHARE), dict(changes)) for name, changes in UPDATED_CHANGES.items()}
    if scale == "smoke":
        del variants["norms"]
    return planned(variants | filters(base, scale), scale)


def draw_embeddings(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    methods = {name: look for name, look in zip(UPDATED, ("sgtm", *BORROWED), strict=False) if name in runs}
    points = [end_point(method, UPDATED[name], runs[name]) for name, method in methods.items()]
    bars = Bars(
        "Spanish, before and after",
        "forget loss",
        ["before ablation", "ablated, calibrated"],
        {method: [loss(runs[name], DOMAIN, s) for s in ("before", "calibrated")] for name, method in methods.items()},
        {method: UPDATED[name] for name, method in methods.items()},
    )
    frozen, joint = runs["embeddings"], runs["joint"]
    return Drawing(
        [end_plot([*points, *filter_points(runs)]), bars],
        [
            higher("Embeddings that forget data cannot update forget more", frozen, joint, DOMAIN, "frozen - joint"),
            lower("And the retain loss is lower too", frozen, joint, RETAIN, "retain loss, frozen - joint"),
            higher(
                "Norms that forget data cannot update forget more still",
                runs["both"],
                frozen,
                DOMAIN,
                "both frozen - embeddings frozen",
            ),
        ],
    )


FIGURES = (
    Figure(
        name="mixed-batches",
        title="Labels mixed in a row, a step, or not at all",
        section=SECTION,
        caption="SGTM on the same data by the same rule, with 5 % of the Spanish undiscovered. Calibrated losses after "
        "ablation, a point at equal intervals of training.",
        runs=mixing_runs,
        draw=draw_mixing,
    ),
    Figure(
        name="forget-weight",
        title="The weight of forget tokens as a dial",
        section=SECTION,
        caption="SGTM with forget tokens that count less in the loss, 5 % of the Spanish undiscovered; the divisor stays "
        "the number of all tokens. Losses at the end of training.",
        runs=weight_runs,
        draw=draw_weights,
    ),
    Figure(
        name="embeddings",
        title="Embeddings and norms that forget data may or may not update",
        section=SECTION,
        caption="SGTM with 5 % of the Spanish undiscovered. Losses at the end of training.",
        runs=embedding_runs,
        draw=draw_embeddings,
    ),
)
