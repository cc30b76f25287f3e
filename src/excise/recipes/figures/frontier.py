"""How far SGTM's trade-off can be pushed, beyond the paper: what a batch mixes, the weight of forget tokens, what forget
data may update, other modules, and the frontier of all these.

The set-up is that of section 4 with 5 % of the Spanish undiscovered, and shares its runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from excise.baselines.unlearning import UnlearningConfig
from excise.config import override
from excise.evals.figure import NOT_IN_PAPER, Bars, Estimate, PaperClaim, Plot, Point, Scale, Series, Table
from excise.evals.tables import number
from excise.labels import RETAIN
from excise.recipes.figures.bilingual_runs import DOMAIN, EVALUATIONS, SEEDS, setup, sgtm, standard
from excise.recipes.figures.curves import Axes, lead_claim, recovered_by, tradeoff_series, with_curve
from excise.recipes.figures.estimates import (
    LOSS,
    claim_all_below,
    every,
    is_above,
    is_below,
    loss,
    loss_difference,
    over_seeds,
)
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.train.run import RunConfig
from excise.train.schedule import steps

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
    *("gradient_routing", "strict_filter", "activation_masking", "rmu"),
    *("sgtm_joint_attention", "sgtm_joint_embeddings", "sgtm_joint_projection"),
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


def planned(configs: Mapping[str, RunConfig], scale: Scale, **options: Any) -> dict[str, PlannedRun]:
    return {name: PlannedRun(config=config, seeds=SEEDS[scale], **options) for name, config in configs.items()}


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


# --- The frontier ----------------------------------------------------------------------------------------------------

EQUAL_STEPS: Mapping[Scale, int] = {"smoke": 150, "small": 1100, "paper": 33120}
BUDGETS = {"": "one epoch on what is left", ", equal steps": "equal steps"}
"""By the end of a run's key."""
LEAST, GOAL = (0.75, 1.5), (0.95, 1.0)
"""Recovered, and the retain loss above the data filter's in percent."""
KNOWN = (0.57, 0.8)
"""The best of our first runs."""
NEAR = (0.5, 6.0)
"""What a panel shows from near: more recovered, and a retain loss less far from the data filter's."""
ABOVE_FILTER = "retain loss above the data filter's, %"


@dataclass(frozen=True)
class Family:
    """Configurations of our own that differ in the weight of forget tokens."""

    label: str
    changes: Changes


FAMILIES: Mapping[str, Family] = {
    "weighted": Family("As the paper, weighted", {}),
    "frozen": Family("Embeddings and norms frozen", FROZEN),
    "vectors": Family("Frozen, module has token vectors", VECTORS),
    "tenth": Family("Frozen, token vectors, a tenth of the forget documents", {**VECTORS, "data.forget_share": 0.1}),
    "twentieth": Family("Frozen, token vectors, a twentieth of them", {**VECTORS, "data.forget_share": 0.05}),
}
TRIED: Mapping[Scale, Mapping[str, Sequence[float]]] = {
    "smoke": {"weighted": (0.2,), "frozen": (0.2,), "vectors": (0.2,), "tenth": (0.6,)},
    "small": {"vectors": (0.1,), "tenth": (0.6,), "twentieth": (0.6, 1.2)},
    "paper": dict.fromkeys(FAMILIES, (0.05, 0.1, 0.2)),
}
"""Weights of each family."""
CONTROL: Final = "token_reset"
"""The data filter's model, from which only the vectors of Spanish words are taken."""
SMALL_STEPS: Final = "small_steps"
"""The data filter in steps half as large, so that it takes about as many in its epoch as training on both languages."""
AS_MUCH = 0.05
"""Of what is recovered: so much less is as much."""


def frontier_configs(scale: Scale, sources: Sources) -> dict[str, RunConfig]:
    base = setup(scale, sources)
    paper = sgtm(base, SHARE)
    configs = filters(base, scale) | {"sgtm": paper}
    for name, weights in TRIED[scale].items():
        changed = override(paper, dict(FAMILIES[name].changes))
        configs |= {f"{name} {weight:g}": weighted(changed, weight) for weight in weights}
    return configs


def frontier_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = frontier_configs(scale, sources)
    by_budget = zip(BUDGETS, (configs, at_equal_steps(configs, scale)), strict=True)
    found = {f"{name}{budget}": config for budget, of in by_budget for name, config in of.items()}
    found[SMALL_STEPS] = in_half_steps(found["data_filter"])
    controls = {f"{CONTROL}{budget}": found[f"data_filter{budget}"] for budget in BUDGETS}
    return planned(found, scale) | planned(controls, scale, unlearning=UnlearningConfig(method=CONTROL))


def in_half_steps(config: RunConfig) -> RunConfig:
    rows = config.batch.rows_per_step // 2
    micro = min(rows, config.batch.rows_per_micro_batch)
    return override(config, {"batch.rows_per_step": rows, "batch.rows_per_micro_batch": micro})


def at_equal_steps(configs: Mapping[str, RunConfig], scale: Scale) -> dict[str, RunConfig]:
    budget = {"train.budget": steps(EQUAL_STEPS[scale])}
    return {name: override(config, budget) for name, config in configs.items()}


@dataclass(frozen=True)
class Place:
    """Where a configuration stands."""

    recovered: Estimate
    retain: Estimate
    """Percent above the data filter's."""
    before: Estimate
    """Spanish loss before ablation."""
    gap: Estimate
    """The same, less the midpoint of no filter and perfect filter."""

    def is_near(self) -> bool:
        """Whether it is close to the goal, where most configurations of our own are."""
        return self.recovered.value > NEAR[0] and abs(self.retain.value) < NEAR[1]

    @property
    def retain_told(self) -> str:
        return f"{number(self.retain.value, self.retain.low, self.retain.high, digits=1)} % above the data filter's"

    def told(self) -> list[str]:
        return [
            number(of.value, of.low, of.high, digits=2) for of in (self.recovered, self.retain, self.before, self.gap)
        ]

    def reaches(self, recovered: float, retain: float) -> bool | None:
        """Whether it recovers so much at such a retain loss, and still knew Spanish before ablation."""
        return every([is_above(self.recovered, recovered), is_below(self.retain, retain), is_below(self.gap)])


def place_of(group: Group, runs: Mapping[str, Group], budget: str) -> Place | None:
    """None where the filters forget alike, so that there is nothing to recover."""
    data, perfect, none = (runs[name + budget] for name in FILTERS)
    regained = recovered_by(group, data, perfect, DOMAIN)
    if regained is None:
        return None
    retain, theirs = ([run.losses.sets[RETAIN].calibrated for run in of] for of in (group, data))
    before, low, high = ([run.losses.sets[DOMAIN].before for run in of] for of in (group, none, perfect))
    return Place(
        regained,
        over_seeds([100 * (mine / other - 1) for mine, other in zip(retain, theirs, strict=True)]),
        loss(group, DOMAIN, "before"),
        over_seeds([mine - (a + b) / 2 for mine, a, b in zip(before, low, high, strict=True)]),
    )


def names_of(scale: Scale) -> dict[tuple[str, str], dict[str, str]]:
    """By look and label, the keys of runs and what stands beside their points."""
    fixed = {
        **FILTERS,
        SMALL_STEPS: "Data filter, steps half as large",
        CONTROL: "Data filter, vectors of Spanish words set back",
        "sgtm": "SGTM, the paper's rule",
    }
    looks = dict(zip(FAMILIES, BORROWED, strict=False))
    found = {(name, label): {name: ""} for name, label in fixed.items()}
    for name, weights in TRIED[scale].items():
        look, label = looks[name], FAMILIES[name].label
        if len(weights) == 1:
            found[look, f"{label}, weight {weights[0]:g}"] = {f"{name} {weights[0]:g}": ""}
        else:
            found[look, label] = {f"{name} {weight:g}": f"weight {weight:g}" for weight in weights}
    return found


def draw_frontier(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    panels: list[Plot] = []
    rows: list[list[str | float]] = []
    claims = []
    for budget, words in BUDGETS.items():
        here = [name for name in described(scale) if not (name == SMALL_STEPS and budget)]
        found = {name: place_of(runs[name + budget], runs, budget) for name in here}
        places = {name: place for name, place in found.items() if place}
        panels += [
            _recovered_plot(places, f"Recovered, {words}", scale),
            _recovered_plot(
                {name: of for name, of in places.items() if of.is_near()}, f"The same from near, {words}", scale
            ),
        ]
        rows += [[words, described(scale)[name], *of.told()] for name, of in places.items()]
        theirs = (*FILTERS, SMALL_STEPS, CONTROL)
        ours = {described(scale)[name]: place for name, place in places.items() if name not in theirs}
        claims += [frontier_claim(ours, *bounds, words) for bounds in (LEAST, GOAL, KNOWN)]
        if CONTROL in places:
            claims += [claim(places[CONTROL], ours, words) for claim in (control_claim, cheaper_claim)]
        if SMALL_STEPS in places:
            claims.append(steps_claim(places[SMALL_STEPS], ours, words))
    header = [
        "budget",
        "configuration",
        "recovered",
        ABOVE_FILTER,
        "Spanish before ablation",
        "above the midpoint of no filter and perfect filter",
    ]
    return Drawing([*panels, Table("All configurations", header, rows)], claims)


def described(scale: Scale) -> dict[str, str]:
    """By key, what a configuration is."""
    return {
        key: f"{label}, {text}" if text else label
        for (_, label), keys in names_of(scale).items()
        for key, text in keys.items()
    }


def _recovered_plot(places: Mapping[str, Place], title: str, scale: Scale) -> Plot:
    """A line for each family, by weight."""
    series = [
        Series(
            look, label, [Point(places[key].retain, places[key].recovered, keys[key]) for key in keys if key in places]
        )
        for (look, label), keys in names_of(scale).items()
    ]
    levels = {"goal": GOAL[0], "least that counts": LEAST[0]}
    return Plot(title, ABOVE_FILTER, "recovered", [one for one in series if one.points], levels=levels)


def frontier_claim(places: Mapping[str, Place], recovered: float, retain: float, words: str) -> PaperClaim:
    """A claim that some configuration is beyond a point of the frontier, told by the best of those that decide it."""
    verdicts = {name: place.reaches(recovered, retain) for name, place in places.items()}
    verdict = any_of(list(verdicts.values()))
    text = f"Some configuration recovers {recovered:g} at a retain loss {retain:g} % above the data filter's ({words})"
    within = "within that retain loss and below the midpoint of no filter and perfect filter before ablation"
    if verdict is False:
        told = [name for name, of in places.items() if of.retain.value < retain and of.gap.value < 0]
        which = f"of those {within}"
    else:
        told = [name for name, one in verdicts.items() if one is verdict]
        which = f"of those whose intervals {'say so' if verdict else 'leave it open'}"
    best = best_in(places, told)
    ours = places[best].recovered if best else None
    why = f"{best}, the best {which}; its retain loss is {places[best].retain_told}" if best else f"none is {within}"
    return PaperClaim(text, NOT_IN_PAPER, ours, "recovered", verdict, why)


def best_in(places: Mapping[str, Place], names: Sequence[str]) -> str:
    return max(names, key=lambda name: places[name].recovered.value, default="")


def control_claim(control: Place, places: Mapping[str, Place], words: str) -> PaperClaim:
    """A claim that some configuration recovers more than vectors of words that are set back, at a retain loss that counts
    or is no higher than the control's."""
    text = f"Some configuration recovers more than the data filter's model with its Spanish words set back ({words})"
    able = {name: of for name, of in places.items() if of.retain.value <= max(control.retain.value, LEAST[1])}
    verdicts = {name: more(of.recovered, control.recovered) for name, of in able.items()}
    verdict = any_of(list(verdicts.values()))
    best = best_in(able, [name for name, one in verdicts.items() if one is verdict])
    if not best:
        return PaperClaim(text, NOT_IN_PAPER, None, "recovered", None, "none has so low a retain loss")
    theirs = number(control.recovered.value, control.recovered.low, control.recovered.high, digits=2)
    why = (
        f"{best}, at a retain loss {able[best].retain_told}; the control has {theirs} at {control.retain_told}; holds where "
        "the intervals are apart"
    )
    return PaperClaim(text, NOT_IN_PAPER, able[best].recovered, "recovered", verdict, why)


def cheaper_claim(control: Place, places: Mapping[str, Place], words: str) -> PaperClaim:
    """A claim that some configuration recovers as much as vectors of words that are set back, at a lower retain loss."""
    text = f"Some configuration recovers as much as Spanish words set back, at a lower retain loss ({words})"
    which = f"the control's {control.recovered.value:.2f} or at most {AS_MUCH:g} less"
    return _cheaper(text, places, control.recovered.value - AS_MUCH, which, "the control", control.retain)


def steps_claim(small_steps: Place, places: Mapping[str, Place], words: str) -> PaperClaim:
    """A claim that some configuration that recovers enough is better at the retain data not just for its many steps."""
    text = (
        f"Some configuration that recovers {LEAST[0]:g} has a lower retain loss than a data filter with about as many steps "
        f"as training on both languages ({words})"
    )
    return _cheaper(text, places, LEAST[0], f"{LEAST[0]:g}", "the filter in steps half as large", small_steps.retain)


def _cheaper(
    text: str, places: Mapping[str, Place], enough: float, which: str, whose: str, theirs: Estimate
) -> PaperClaim:
    """A claim that some configuration recovers enough, at a lower retain loss than another's."""
    unit = "% above the data filter's"
    able = {name: of for name, of in places.items() if of.recovered.value >= enough}
    verdicts = {name: every([is_above(of.recovered, enough), more(theirs, of.retain)]) for name, of in able.items()}
    verdict = any_of(list(verdicts.values()))
    told = [name for name, one in verdicts.items() if one is verdict]
    if not told:
        return PaperClaim(text, NOT_IN_PAPER, None, unit, None, f"none recovers {which}")
    best = min(told, key=lambda name: able[name].retain.value)
    why = f"{best}, of those that recover {which}; {whose} is at {number(theirs.value, theirs.low, theirs.high, digits=1)} %; "
    return PaperClaim(text, NOT_IN_PAPER, able[best].retain, unit, verdict, f"{why}holds where the intervals say both")


def more(one: Estimate, other: Estimate) -> bool | None:
    """Whether a number is above another; null where their intervals meet."""
    (low, high), (other_low, other_high) = (
        [of.value if end is None else end for end in (of.low, of.high)] for of in (one, other)
    )
    return True if low > other_high else False if high <= other_low else None


def any_of(verdicts: Sequence[bool | None]) -> bool | None:
    """True where one holds, False where none does, and otherwise not decided."""
    if True in verdicts:
        return True
    return None if None in verdicts or not verdicts else False


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
    Figure(
        name="frontier",
        title="The frontier at 5 % undiscovered",
        section=SECTION,
        caption="Recovered: how far the forget loss is on the way from the data filter's to the perfect filter's, at most "
        "1. A method that only filters scores 0; the upper left corner is the goal, with a model that still knows "
        "Spanish before ablation, that is below the midpoint of no filter and perfect filter (last column). The best of many "
        "configurations is chosen by the losses that are shown, which flatters it a little. In one epoch the more forget "
        "documents a configuration is trained on, the more steps it takes, which is worth something by itself: hence the "
        "data filter in smaller steps.",
        runs=frontier_runs,
        draw=draw_frontier,
    ),
)
