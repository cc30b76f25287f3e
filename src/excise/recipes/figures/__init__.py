"""The figures and tables of the paper, by the name that `excise reproduce` takes.

To add some, write a module with a tuple FIGURES, as `bilingual` is, and name it here.
"""

import re
from collections.abc import Mapping

from excise.recipes.figures import (
    batches,
    beyond,
    bilingual,
    dials,
    frontier,
    frontier_attacks,
    gradient_norms,
    leakage,
    surface,
    tables,
    topics,
    topics_attacks,
    topics_frontier,
    topics_penalty,
)
from excise.recipes.figures.planned import Figure


def _place(figure: Figure) -> tuple[str, int, str]:
    """Figures before tables, each by number, and then whatever has another name."""
    found = re.fullmatch(r"(figure|table)-(\d+)(\w?)", figure.name)
    return (found[1], int(found[2]), found[3]) if found else ("then", 0, "")


MODULES = (
    bilingual,
    gradient_norms,
    leakage,
    surface,
    tables,
    topics,
    topics_attacks,
    topics_penalty,
    dials,
    frontier,
    frontier_attacks,
    topics_frontier,
    batches,
    beyond,
)
FIGURES: Mapping[str, Figure] = {
    figure.name: figure for figure in sorted((figure for module in MODULES for figure in module.FIGURES), key=_place)
}
