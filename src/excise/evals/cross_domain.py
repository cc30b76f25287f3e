"""The cross-domain matrix: the loss on every domain with every subset of the modules removed, before calibration.

Beyond the paper, whose models have one module: it shows whether removing a domain (section 3.2, "Ablation") takes that
domain alone.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, combinations

from excise.data.packing import Corpus
from excise.evals.losses import NotFinite, evaluate
from excise.labels import RETAIN, nearest
from excise.model.gpt import GPT

MOST_DOMAINS = 8


@dataclass(frozen=True)
class Removal:
    """The loss on each set of documents with these modules removed."""

    removed: tuple[str, ...]
    losses: Mapping[str, float]


@dataclass(frozen=True)
class CrossDomain:
    rows: Sequence[Removal]


def cross_domain(
    model: GPT,
    sets: Mapping[str, Corpus],
    *,
    subsets: Sequence[Sequence[str]] | None = None,
    context: int | None = None,
    autocast: AbstractContextManager[None] | None = None,
) -> CrossDomain:
    """Losses on `retain`, every domain and any other set, for these subsets of the modules, or for all of them."""
    domains = model.partition.domains
    for name in (RETAIN, *domains, *sets):
        if name not in sets or not sets[name].n_predicted:
            raise ValueError(f"there is no text for the loss on {name!r}; give a set of that name with documents")
    chosen = all_subsets(domains) if subsets is None else subsets
    for domain in chain(*chosen):
        if domain not in domains:
            raise ValueError(f"the model has no module {domain!r}; {nearest(domain, domains)}")
    return CrossDomain([_removal(model, sets, removed, context, autocast) for removed in chosen])


def _removal(
    model: GPT,
    sets: Mapping[str, Corpus],
    removed: Sequence[str],
    context: int | None,
    autocast: AbstractContextManager[None] | None,
) -> Removal:
    losses = {
        name: evaluate(model, of, removed=removed, context=context, autocast=autocast).mean for name, of in sets.items()
    }
    if not all(map(math.isfinite, losses.values())):
        raise NotFinite(f"a loss is not finite with {', '.join(removed) or 'nothing'} removed: {losses}")
    return Removal(tuple(removed), losses)


def all_subsets(domains: Sequence[str]) -> list[tuple[str, ...]]:
    """Every subset, from none of the domains to all of them."""
    if len(domains) > MOST_DOMAINS:
        raise ValueError(
            f"{len(domains)} domains have {2 ** len(domains)} subsets, too many to measure all; "
            "pass those of interest as a list, subsets=[...]"
        )
    return [subset for size in range(len(domains) + 1) for subset in combinations(domains, size)]
