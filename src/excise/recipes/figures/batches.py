"""Whether what is said of methods holds in smaller batches, that is with more steps over the same documents, beyond the
paper (set-up and runs as in `dials`).

At the small scale a corpus of tens of millions of tokens is hundreds of the steps that the frontier takes, where the paper's
models take thousands.
"""

from collections.abc import Mapping

from excise.config import override
from excise.evals.figure import NOT_IN_PAPER, PaperClaim, Plot, Point, Scale, Series, Table
from excise.labels import RETAIN
from excise.recipes.figures.bilingual_runs import DOMAIN, RATES, SEEDS, SMALL_BATCH_RATES, in_batches, setup, sgtm
from excise.recipes.figures.dials import BORROWED, FILTERS, SECTION, SHARE, VECTORS, filters, planned, weighted
from excise.recipes.figures.estimates import (
    LOSS,
    claim_all_below,
    is_above,
    is_below,
    loss,
    loss_difference,
    over_seeds,
)
from excise.recipes.figures.frontier import LEAST, TOLD, frontier_claim, place_of
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources

SMALLER: Mapping[Scale, int] = {"smoke": 4, "small": 8, "paper": 4}
"""How many of the small batches make a usual one."""
SMALL = ", small batches"
"""The end of a run's key."""
WEIGHTS: Mapping[Scale, float] = {"smoke": 0.2, "small": 0.1, "paper": 0.1}
"""Of forget tokens where the module has token vectors, as in the frontier."""
METHODS = FILTERS | {"sgtm": "SGTM, the paper's rule", "token_vectors": "Token vectors"}


def batch_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    routed = sgtm(base, SHARE)
    vectors = override(routed, {**VECTORS, "train.learning_rate": RATES[scale]["token_vectors"]})
    usual = filters(base, scale) | {"sgtm": routed, "token_vectors": weighted(vectors, WEIGHTS[scale])}
    rows = base.batch.rows_per_step // SMALLER[scale]
    small = {name + SMALL: in_batches(config, rows, SMALL_BATCH_RATES[scale][name]) for name, config in usual.items()}
    return planned(usual | small, scale, SEEDS)


def draw_batches(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    looks = {name: name for name in METHODS} | {"token_vectors": BORROWED[0]}

    def ends(name: str) -> Series:
        groups = [runs[name + end] for end in ("", SMALL)]
        points = [Point(loss(of, RETAIN), loss(of, DOMAIN), told(of)) for of in groups]
        return Series(looks[name], METHODS[name], points)

    plot = Plot(
        "In batches of two sizes", "retain loss (English)", "forget loss (Spanish)", [ends(name) for name in METHODS]
    )
    return Drawing([plot, *tables(runs)], batch_claims(runs))


def told(group: Group) -> str:
    n = group[0].config.batch.rows_per_step
    return f"{n} rows" if n > 1 else "1 row"


def tables(runs: Mapping[str, Group]) -> list[Table]:
    """Where each method stands among those in batches of its own size."""
    made = []
    for end in ("", SMALL):
        rows = [
            [label, *place.told()]
            for name, label in METHODS.items()
            if (place := place_of(runs[name + end], runs, end)) is not None
        ]
        made.append(Table(f"All methods, {told(runs['data_filter' + end])} a step", TOLD, rows))
    return made


def price(runs: Mapping[str, Group], end: str) -> list[float]:
    """How much higher SGTM's retain loss is than the data filter's, in percent, by seed."""
    pairs = zip(runs["sgtm" + end], runs["data_filter" + end], strict=True)
    return [
        100 * (mine.losses.sets[RETAIN].calibrated / theirs.losses.sets[RETAIN].calibrated - 1)
        for mine, theirs in pairs
    ]


def batch_claims(runs: Mapping[str, Group]) -> list[PaperClaim]:
    lead = loss_difference(runs["sgtm" + SMALL], runs["data_filter" + SMALL], DOMAIN)
    dearer = over_seeds([small - usual for small, usual in zip(price(runs, SMALL), price(runs, ""), strict=True)])
    place = place_of(runs["token_vectors" + SMALL], runs, SMALL)
    return [
        claim_all_below(
            "Every method has a lower retain loss in small batches",
            NOT_IN_PAPER,
            [loss_difference(runs[name + SMALL], runs[name], RETAIN) for name in METHODS],
            LOSS,
            "the largest difference of a method, small batches - usual ones",
        ),
        PaperClaim(
            "SGTM forgets more than the data filter in small batches too",
            NOT_IN_PAPER,
            lead,
            LOSS,
            is_above(lead),
            "forget loss, SGTM - data filter",
        ),
        PaperClaim(
            "SGTM's price in retain loss is no higher in small batches",
            NOT_IN_PAPER,
            dearer,
            "% of the data filter's loss",
            is_below(dearer),
            "retain loss above the data filter's, small batches - usual ones; holds below 0",
        ),
        frontier_claim({METHODS["token_vectors"]: place} if place else {}, *LEAST, "small batches"),
    ]


FIGURES = (
    Figure(
        name="batch-size",
        title="Batches of two sizes",
        section=SECTION,
        caption="Each method twice over the same documents, 5 % of the Spanish undiscovered, one epoch of what is left to it: "
        "in the batches of the frontier, and in smaller ones, of which it takes as many more. Recovered, and the retain loss "
        "above the data filter's, are against filters in batches of the same size. At the small scale every method has the rate "
        "that a search found for it in batches of that size; at the others batches of both sizes have the same.",
        runs=batch_runs,
        draw=draw_batches,
    ),
)
