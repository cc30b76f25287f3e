"""Settings of our own when biology is removed, beyond the paper: what the frontier on two languages taught, on subjects.

The runs of figure 1, and beside them SGTM whose module has token vectors, at several weights of forget tokens.
"""

from collections.abc import Mapping, Sequence

from excise.config import override
from excise.evals.figure import NOT_IN_PAPER, PaperClaim, Scale
from excise.recipes.figures.curves import lead_claim
from excise.recipes.figures.dials import SECTION, VECTORS
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.recipes.figures.topics import CAPTION, GENERAL, LABELS, axes_of, followed, main_runs, tradeoff_plots
from excise.recipes.figures.topics_runs import setup

DOMAIN = "biology"
WEIGHTS: Mapping[Scale, Sequence[float]] = {"smoke": (0.3,), "small": (0.3, 1.0), "paper": (0.3, 1.0)}
"""Of forget tokens in the loss."""
BORROWED = ("gradient_routing", "activation_masking")
"""Methods that are not in this figure, whose colours and markers our own have."""


def key_of(weight: float) -> str:
    return f"vectors {weight:g}"


def runs_of(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    ours = {key_of(w): override(base, {**VECTORS, "routing.forget_weight": w}) for w in WEIGHTS[scale]}
    return followed(main_runs(base, scale) | ours, scale)


def draw_topics(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    ours = {key_of(weight): f"Token vectors, weight {weight:g}" for weight in WEIGHTS[scale]}

    def leads(key: str, other: str) -> PaperClaim:
        text = f"{ours[key]}: a better trade-off than {LABELS[other]} on general knowledge"
        return lead_claim(text, NOT_IN_PAPER, runs[key], runs[other], axes_of(GENERAL, DOMAIN))

    looks, rivals = dict(zip(ours, BORROWED, strict=False)), ("sgtm", "weak_filter", "strict_filter")
    plots = tradeoff_plots(runs, DOMAIN, {**LABELS, **ours}, looks=looks)
    return Drawing(plots, [leads(key, other) for key in ours for other in rivals])


FIGURES = (
    Figure(
        name="frontier-topics",
        title="Token vectors when biology is removed",
        section=SECTION,
        caption=f"{CAPTION} SGTM as in figure 1, and with norms and embeddings frozen for forget data and token vectors in "
        "the module.",
        runs=runs_of,
        draw=draw_topics,
    ),
)
