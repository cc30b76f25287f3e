"""Which parameters documents would update (paper, section 4.4): figure 4b."""

from collections.abc import Mapping, Sequence

import numpy as np

from excise.evals.figure import Estimate, Panel, PaperClaim, Plot, Point, Scale, Series
from excise.evals.gradient_norms import GradientNorms, Spread, densities
from excise.labels import RETAIN, forget_part
from excise.recipes.figures.bilingual import key
from excise.recipes.figures.bilingual_runs import DOMAIN, SEEDS, setup, sgtm, standard
from excise.recipes.figures.estimates import claim_all_above, every, is_above, is_below, over_seeds
from excise.recipes.figures.planned import Drawing, Figure, FinishedRun, Group, PlannedRun, Sources

DATA = {DOMAIN: "forget data", RETAIN: "retain data"}
PARTS = {forget_part(DOMAIN): "forget parameters", RETAIN: "retain parameters"}
METHODS = {forget_part(DOMAIN): "forget_parameters", RETAIN: "retain_parameters"}
"""The colour tells the part, as in the paper; lines of retain data are dashed."""
Values = Mapping[str, Mapping[str, Spread]]
Which = tuple[str, str]
"""Gradients of a test set on a part."""
SLIGHT = 0.5
"""In decades: norms of similar magnitude differ by a factor of 3 at most."""


def norm_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    documents = {"smoke": 64}.get(scale, 256)
    measures = ("losses", "gradient_norms")
    return {
        key("sgtm", 0.0): PlannedRun(
            config=sgtm(base, 0.0), measures=measures, documents=documents, seeds=SEEDS[scale]
        ),
        "no_filter": PlannedRun(config=standard(base, 1.0, scale), seeds=1),
    }


def norms_of(run: FinishedRun) -> Values:
    """Relative gradient norms by set, then by part, of forget and retain parameters only."""
    found = run.results.measures["gradient_norms"]["relative_gradient_norm"]
    return {name: {part: Spread(**found[name][part]) for part in PARTS} for name in DATA}


def norm_panels(norms: Values) -> list[Panel]:
    """Parts by data, then data by part: every density twice, and alike."""
    grid, curves = densities(GradientNorms(norms, {}), n_points=80)

    def series(name: str, part: str) -> Series:
        heights = zip(grid, curves[name][part], strict=True)
        points = [Point(Estimate(float(10**x)), Estimate(float(y))) for x, y in heights]
        label = f"{PARTS[part]}, {DATA[name]}"
        return Series(METHODS[part], label, points, markers=False, dashed=name == RETAIN)

    def plot(title: str, lines: Sequence[Series]) -> Plot:
        return Plot(title, "relative gradient norm", "density", lines, x_log=True)

    by_data = [plot(title, [series(name, part) for part in PARTS]) for name, title in DATA.items()]
    by_part = [plot(title, [series(name, part) for name in DATA]) for part, title in PARTS.items()]
    return [*by_data, *by_part]


def draw_norms(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    group = runs[key("sgtm", 0.0)]
    forget, retain = forget_part(DOMAIN), RETAIN

    def claim(text: str, paper: str, one: Which, other: Which, below: float = np.inf) -> PaperClaim:
        estimate = contrast(group, {one: 1, other: -1})
        why = f"mean log10 of the norm of {_told(one)} less that of {_told(other)}; holds above 0"
        why += f" and below {below:g}" if np.isfinite(below) else ""
        return PaperClaim(text, paper, estimate, "decades", every([is_above(estimate), is_below(estimate, below)]), why)

    return Drawing(
        norm_panels(norms_of(group[0])),
        [
            claim(
                "Unlabeled forget data mostly updates forget parameters",
                "predominantly (figure 4b, top left)",
                (DOMAIN, forget),
                (DOMAIN, retain),
            ),
            claim(
                "Unlabeled retain data mostly updates retain parameters",
                "predominantly (figure 4b, top right)",
                (RETAIN, retain),
                (RETAIN, forget),
            ),
            claim(
                "Forget parameters get stronger updates from forget data",
                "much stronger (figure 4b, bottom left)",
                (DOMAIN, forget),
                (RETAIN, forget),
            ),
            claim(
                "Retain parameters get slightly stronger updates from retain data",
                "similar magnitude, slightly stronger (figure 4b, bottom right)",
                (RETAIN, retain),
                (DOMAIN, retain),
                below=SLIGHT,
            ),
            _separation_claim(group, forget, retain),
        ],
    )


def _separation_claim(group: Group, forget: str, retain: str) -> PaperClaim:
    of_forget = {(DOMAIN, forget): 1, (RETAIN, forget): -1}
    either_way = [of_forget | {(RETAIN, retain): -sign, (DOMAIN, retain): sign} for sign in (1, -1)]
    return claim_all_above(
        "The kind of data makes less of a difference to retain parameters than to forget parameters",
        "considerably weaker, less pronounced (section 4.4)",
        [contrast(group, signs) for signs in either_way],
        "decades",
        "mean log10 of the norms: how far forget data is ahead on forget parameters, less how far apart the data are on "
        "retain parameters; holds above 0",
    )


def contrast(group: Group, signs: Mapping[Which, int]) -> Estimate:
    """A sum of mean log norms with these signs; of one seed, with the error over documents."""

    def by_set(run: FinishedRun) -> list[np.ndarray]:
        """For each set, the signed sum for each of its documents."""
        sums: dict[str, np.ndarray] = {}
        for (name, part), sign in signs.items():
            sums[name] = sums.get(name, 0) + sign * np.log10(norms_of(run)[name][part].values)
        return list(sums.values())

    of_runs = [by_set(run) for run in group]
    variance = sum(of.var() / len(of) for of in of_runs[0])
    return over_seeds([float(sum(of.mean() for of in sets)) for sets in of_runs], float(np.sqrt(variance)))


def _told(which: Which) -> str:
    return f"{DATA[which[0]]} on {PARTS[which[1]]}"


FIGURE_4B = Figure(
    name="figure-4b",
    title="Relative gradient norms of forget and retain parameters",
    section="4.4",
    caption="Densities over test documents of |gradient| / |parameters| in an SGTM model with perfect labels, with nothing "
    "masked. Drawn is seed 0, without intervals; the claims are about all seeds.",
    runs=norm_runs,
    draw=draw_norms,
)

FIGURES = (FIGURE_4B,)
