"""SGTM against the data filter over the whole range of classifiers (paper, appendix D): figure 11."""

from collections.abc import Mapping, Sequence

import numpy as np

from excise.evals.classifier_surface import LabelledPair, classifier_surface
from excise.evals.figure import Estimate, Heat, PaperClaim, Scale
from excise.labels import RETAIN
from excise.recipes.figures.bilingual_runs import DOMAIN, setup, sgtm, standard
from excise.recipes.figures.estimates import LOSS
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources

RECALLS: Mapping[Scale, Sequence[float]] = {
    "smoke": (1.0, 0.6),
    "small": (1.0, 0.95, 0.8, 0.4),
    "paper": (1.0, 0.8, 0.6, 0.4, 0.2, 0.0),
}
RATES: Mapping[Scale, Sequence[float]] = {
    "smoke": (0.0, 0.4),
    "small": (0.0, 0.2, 0.5),
    "paper": (0.0, 0.2, 0.4, 0.6, 0.8),
}
"""False positives among the retain documents that are not labelled retain."""
RETAIN_SHARE = 0.1
MODERATE = (0.4, 0.8)


def key(method: str, recall: float, rate: float) -> str:
    return f"{method} TPR {recall:g} FPR {rate:g}"


def surface_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base, planned = setup(scale, sources), {}
    tenth = sgtm(base, 0.0, **{"data.retain_share": RETAIN_SHARE})
    for recall in RECALLS[scale]:
        share = round(1 - recall, 6)
        for rate in RATES[scale]:
            routed = sgtm(tenth, share, **{"data.false_positive_rate": rate})
            planned[key("sgtm", recall, rate)] = PlannedRun(config=routed)
            filtered = standard(tenth, share, scale, false_positive_rate=rate)
            planned[key("data_filter", recall, rate)] = PlannedRun(config=filtered)
    return planned | {"no_filter": PlannedRun(config=standard(base, 1.0, scale))}


def draw_surface(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    def losses(method: str, recall: float, rate: float) -> list[float]:
        (run,) = runs[key(method, recall, rate)]
        return [run.losses.sets[name].calibrated for name in (RETAIN, DOMAIN)]

    pairs = [
        LabelledPair(recall, rate, *losses("sgtm", recall, rate), *losses("data_filter", recall, rate))
        for recall in RECALLS[scale]
        for rate in RATES[scale]
    ]
    surface = classifier_surface(pairs)
    of_all = [f"{rate * (1 - RETAIN_SHARE):g}" for rate in surface.false_positive_rate]

    def heat(title: str, values: Sequence[Sequence[float]]) -> Heat:
        return Heat(title, "TPR", "FPR, of all retain data", [f"{x:g}" for x in surface.recall], of_all, values)

    retain, forget = np.array(surface.retain), np.array(surface.forget)
    panels = [heat("Retain loss, SGTM - filter", surface.retain), heat("Forget loss, SGTM - filter", surface.forget)]
    return Drawing(panels, _claims(np.array(surface.recall), retain, forget))


def _claims(recall: np.ndarray, retain: np.ndarray, forget: np.ndarray) -> list[PaperClaim]:
    """One run at each point: shares of the points, without intervals."""
    worse, noisy = float((retain > 0).mean()), (recall < 1) & (recall > 0)
    better = float((forget[noisy] > 0).mean())
    corner = float(retain[-1, 0] - np.delete(retain.ravel(), retain.shape[1] * (len(recall) - 1)).mean())
    claims = [
        PaperClaim(
            "SGTM has a higher retain loss than the filter across most classifiers",
            "most of the parameter space (figure 11a)",
            Estimate(worse),
            "of the grid",
            worse > 0.5,
            "points where the difference is above 0; holds above a half",
        ),
        PaperClaim(
            "The retain penalty is largest for a classifier with high TPR and low FPR",
            "most pronounced there (figure 11a)",
            Estimate(corner),
            LOSS,
            corner > 0,
            "the difference at the highest TPR and the lowest FPR, less the mean of all others",
        ),
        PaperClaim(
            "SGTM has a higher forget loss than the filter outside of perfect recall",
            "across most operating points (figure 11b)",
            Estimate(better),
            "of the grid with TPR below 1",
            better > 0.5,
            "points where the difference is above 0; holds above a half",
        ),
    ]
    moderate = noisy & (recall >= MODERATE[0]) & (recall <= MODERATE[1])
    if moderate.any() and not moderate.all():
        lead = float(forget[moderate].mean() - forget[~moderate].mean())
        text, paper = "SGTM's lead in forgetting is largest at moderate TPR", "at 0.4 to 0.8 (appendix D)"
        claims.append(PaperClaim(text, paper, Estimate(lead), LOSS, lead > 0, "its mean there, less that elsewhere"))
    return claims


FIGURE_11 = Figure(
    name="figure-11",
    title="SGTM against the data filter by TPR and FPR",
    section="appendix D",
    caption="Differences of calibrated losses, one pair of runs at each point; a tenth of the retain data is labelled so.",
    runs=surface_runs,
    draw=draw_surface,
)

FIGURES = (FIGURE_11,)
