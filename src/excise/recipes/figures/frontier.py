"""How far SGTM's trade-off can be pushed with all dials at once, under both budgets, and the controls that say what of it is
SGTM's (set-up and runs as in `dials`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from excise.baselines.unlearning import TOKEN_RESET, UnlearningConfig
from excise.config import override
from excise.evals.figure import NOT_IN_PAPER, Estimate, PaperClaim, Plot, Point, Scale, Series, Table
from excise.evals.tables import number
from excise.labels import RETAIN
from excise.recipes.figures.bilingual_runs import DOMAIN, RATES, SEEDS, in_batches, setup, sgtm
from excise.recipes.figures.curves import recovered_of_seeds
from excise.recipes.figures.dials import (
    BORROWED,
    FILTERS,
    FROZEN,
    SECTION,
    SHARE,
    VECTORS,
    Changes,
    filters,
    planned,
    weighted,
)
from excise.recipes.figures.estimates import at_most_1, every, is_above, is_below, loss, over_seeds, paired
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.train.run import RunConfig
from excise.train.schedule import steps

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
TOLD = (
    "configuration",
    *("recovered", ABOVE_FILTER, "Spanish before ablation", "above the midpoint of no filter and perfect filter"),
)
"""What is told of each configuration, in the order of `Place.told`."""


@dataclass(frozen=True)
class Family:
    """Configurations of our own that differ in the weight of forget tokens."""

    label: str
    changes: Changes


FAMILIES: Mapping[str, Family] = {
    "weighted": Family("As the paper, weighted", {}),
    "frozen": Family("Embeddings and norms frozen", FROZEN),
    "vectors": Family("Token vectors, all forget documents", VECTORS),
    "twentieth": Family("Token vectors, a twentieth of them", {**VECTORS, "data.forget_share": 0.05}),
    "tenth": Family("Token vectors, a tenth of them", {**VECTORS, "data.forget_share": 0.1}),
}
TRIED: Mapping[Scale, Mapping[str, Sequence[float]]] = {
    "smoke": {"weighted": (0.2,), "frozen": (0.2,), "vectors": (0.2,), "tenth": (0.6,)},
    "small": {"vectors": (0.1,), "twentieth": (0.6, 1.2), "tenth": (0.6,)},
    "paper": {
        **dict.fromkeys(("weighted", "frozen", "vectors"), (0.05, 0.1, 0.2)),
        **{"twentieth": (0.6, 1.2), "tenth": (0.3, 0.6)},
    },
}
"""Weights of each family; the fewer documents, the more each must weigh."""
CONTROL: Final = TOKEN_RESET
"""The data filter's model, from which only the vectors of Spanish words are taken."""
SMALL_STEPS: Final = "small_steps"
"""The data filter in batches half as large, so that it takes about as many in its epoch as training on both languages."""
AS_MUCH = 0.05
"""Of what is recovered: so much less is as much."""


def frontier_configs(scale: Scale, sources: Sources) -> dict[str, RunConfig]:
    base = setup(scale, sources)
    paper = sgtm(base, SHARE)
    configs = filters(base, scale) | {"sgtm": paper}
    for name, weights in TRIED[scale].items():
        rate = RATES[scale]["token_vectors" if "routing.forget_tokens" in FAMILIES[name].changes else "sgtm"]
        changed = override(paper, {**FAMILIES[name].changes, "train.learning_rate": rate})
        configs |= {f"{name} {weight:g}": weighted(changed, weight) for weight in weights}
    return configs


def frontier_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    configs = frontier_configs(scale, sources)
    by_budget = zip(BUDGETS, (configs, at_equal_steps(configs, scale)), strict=True)
    found = {f"{name}{budget}": config for budget, of in by_budget for name, config in of.items()}
    half = found["data_filter"].batch.rows_per_step // 2
    found[SMALL_STEPS] = in_batches(found["data_filter"], half, RATES[scale][SMALL_STEPS])
    controls = {f"{CONTROL}{budget}": found[f"data_filter{budget}"] for budget in BUDGETS}
    return planned(found, scale, SEEDS) | planned(controls, scale, SEEDS, unlearning=UnlearningConfig(method=CONTROL))


def at_equal_steps(configs: Mapping[str, RunConfig], scale: Scale) -> dict[str, RunConfig]:
    budget = {"train.budget": steps(EQUAL_STEPS[scale])}
    return {name: override(config, budget) for name, config in configs.items()}


@dataclass(frozen=True)
class Place:
    """Where a configuration stands."""

    recovered_of_seeds: Sequence[float]
    """Not cut at 1."""
    retain_of_seeds: Sequence[float]
    """Percent above the data filter's."""
    before: Estimate
    """Spanish loss before ablation."""
    gap: Estimate
    """The same, less the midpoint of no filter and perfect filter."""

    @property
    def recovered(self) -> Estimate:
        return at_most_1(over_seeds(self.recovered_of_seeds))

    @property
    def retain(self) -> Estimate:
        return over_seeds(self.retain_of_seeds)

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
    regained = recovered_of_seeds(group, data, perfect, DOMAIN)
    if regained is None:
        return None
    retain, theirs = ([run.losses.sets[RETAIN].calibrated for run in of] for of in (group, data))
    before, low, high = ([run.losses.sets[DOMAIN].before for run in of] for of in (group, none, perfect))
    return Place(
        regained,
        [100 * (mine / other - 1) for mine, other in zip(retain, theirs, strict=True)],
        loss(group, DOMAIN, "before"),
        over_seeds([mine - (a + b) / 2 for mine, a, b in zip(before, low, high, strict=True)]),
    )


def names_of(scale: Scale) -> dict[tuple[str, str], dict[str, str]]:
    """By look and label, the keys of runs and what stands beside their points."""
    fixed = {
        **FILTERS,
        SMALL_STEPS: "Data filter, batches half as large",
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
    plots: list[Plot] = []
    tables: list[Table] = []
    claims = []
    for budget, words in BUDGETS.items():
        here = [name for name in described(scale) if not (name == SMALL_STEPS and budget)]
        found = {name: place_of(runs[name + budget], runs, budget) for name in here}
        places = {name: place for name, place in found.items() if place}
        plots += [
            _recovered_plot(places, f"Recovered, {words}", scale),
            _recovered_plot(
                {name: of for name, of in places.items() if of.is_near()}, f"The same, magnified, {words}", scale
            ),
        ]
        rows = [[described(scale)[name], *of.told()] for name, of in places.items()]
        tables.append(Table(f"All configurations, {words}", TOLD, rows))
        theirs = (*FILTERS, SMALL_STEPS, CONTROL)
        ours = {described(scale)[name]: place for name, place in places.items() if name not in theirs}
        claims += [frontier_claim(ours, *bounds, words) for bounds in (LEAST, GOAL, KNOWN)]
        if CONTROL in places:
            claims += [claim(places[CONTROL], ours, words) for claim in (control_claim, cheaper_claim)]
        if SMALL_STEPS in places:
            claims.append(steps_claim(places[SMALL_STEPS], ours, words))
    return Drawing([*plots, *tables], claims)


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
    recovered, retain = ({"goal": GOAL[i], "least that counts": LEAST[i]} for i in range(2))
    drawn = [one for one in series if one.points]
    return Plot(title, ABOVE_FILTER, "recovered", drawn, levels=recovered, x_levels=retain)


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
    if not best and places:
        best, which = min(places, key=lambda name: places[name].retain.value), f"in retain loss, as none is {within}"
    ours = places[best].recovered if best else None
    why = f"{best}, the best {which}; its retain loss is {places[best].retain_told}" if best else "nothing to recover"
    return PaperClaim(text, NOT_IN_PAPER, ours, "recovered", verdict, why)


def best_in(places: Mapping[str, Place], names: Sequence[str]) -> str:
    return max(names, key=lambda name: places[name].recovered.value, default="")


def control_claim(control: Place, places: Mapping[str, Place], words: str) -> PaperClaim:
    """A claim that some configuration recovers more than vectors of words that are set back, at a retain loss that counts
    or is no higher than the control's."""
    text = f"Some configuration recovers more than the data filter's model with its Spanish words set back ({words})"
    able = {name: of for name, of in places.items() if of.retain.value <= max(control.retain.value, LEAST[1])}
    verdicts = {name: is_above(more_recovered(of, control)) for name, of in able.items()}
    verdict = any_of(list(verdicts.values()))
    best = best_in(able, [name for name, one in verdicts.items() if one is verdict])
    if not best:
        return PaperClaim(text, NOT_IN_PAPER, None, "recovered", None, "none has so low a retain loss")
    theirs = number(control.recovered.value, control.recovered.low, control.recovered.high, digits=2)
    why = (
        f"{best}, at a retain loss {able[best].retain_told}; the control has {theirs} at {control.retain_told}; holds where "
        "the difference is above 0, seed by seed"
    )
    return PaperClaim(text, NOT_IN_PAPER, able[best].recovered, "recovered", verdict, why)


def cheaper_claim(control: Place, places: Mapping[str, Place], words: str) -> PaperClaim:
    """A claim that some configuration recovers as much as vectors of words that are set back, at a lower retain loss."""
    text = f"Some configuration recovers as much as Spanish words set back, at a lower retain loss ({words})"
    which = f"the control's {control.recovered.value:.2f} or at most {AS_MUCH:g} less"
    margins = {name: more_recovered(of, control, -AS_MUCH) for name, of in places.items()}
    return _cheaper(text, places, margins, which, "the control", control)


def steps_claim(small_steps: Place, places: Mapping[str, Place], words: str) -> PaperClaim:
    """A claim that some configuration that recovers enough is better at the retain data not just for its many steps."""
    text = (
        f"Some configuration that recovers {LEAST[0]:g} has a lower retain loss than a data filter with about as many steps "
        f"as training on both languages ({words})"
    )
    margins = {name: over_seeds([of - LEAST[0] for of in place.recovered_of_seeds]) for name, place in places.items()}
    return _cheaper(text, places, margins, f"{LEAST[0]:g}", "the filter in batches half as large", small_steps)


def more_recovered(place: Place, other: Place, margin: float = 0.0) -> Estimate:
    """How much more a configuration recovers than another and a margin."""
    return paired(place.recovered_of_seeds, [of + margin for of in other.recovered_of_seeds])


def _cheaper(
    text: str, places: Mapping[str, Place], margins: Mapping[str, Estimate], which: str, whose: str, other: Place
) -> PaperClaim:
    """A claim that some configuration recovers enough, by these margins, at a lower retain loss than another."""
    unit, theirs = "% above the data filter's", other.retain
    able = {name: of for name, of in places.items() if margins[name].value >= 0}
    dearer = {name: paired(other.retain_of_seeds, of.retain_of_seeds) for name, of in able.items()}
    verdicts = {name: every([is_above(margins[name]), is_above(dearer[name])]) for name in able}
    verdict = any_of(list(verdicts.values()))
    told = [name for name, one in verdicts.items() if one is verdict]
    if not told:
        return PaperClaim(text, NOT_IN_PAPER, None, unit, None, f"none recovers {which}")
    best = min(told, key=lambda name: able[name].retain.value)
    why = f"{best}, of those that recover {which}; {whose} is at {number(theirs.value, theirs.low, theirs.high, digits=1)} %; "
    return PaperClaim(
        text,
        NOT_IN_PAPER,
        able[best].retain,
        unit,
        verdict,
        f"{why}holds where intervals of the differences of seeds say both",
    )


def any_of(verdicts: Sequence[bool | None]) -> bool | None:
    """True where one holds, False where none does, and otherwise not decided."""
    if True in verdicts:
        return True
    return None if None in verdicts or not verdicts else False


FIGURES = (
    Figure(
        name="frontier",
        title="The frontier at 5 % undiscovered",
        section=SECTION,
        caption="Recovered: how far the forget loss is on the way from the data filter's to the perfect filter's, at most "
        "1. A method that only filters scores 0; the upper left corner is the goal, with a model that still knows "
        "Spanish before ablation, that is below the midpoint of no filter and perfect filter (last column). Dashed lines are "
        f"bounds of our own: the goal, {GOAL[0]:g} recovered at {GOAL[1]:g} %, and the least that counts, {LEAST[0]:g} at "
        f"{LEAST[1]:g} %. The best of many "
        "configurations is chosen by the losses that are shown, which flatters it a little. In one epoch the more forget "
        "documents a configuration is trained on, the more steps it takes, which is worth something by itself: hence the "
        "data filter in smaller batches.",
        runs=frontier_runs,
        draw=draw_frontier,
    ),
)
