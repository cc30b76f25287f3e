"""Options that do nothing for a run, said before it begins: what is asked for and has no effect is taken for one that has.

An option is idle only at another value than the default of its class. On the command line it is an error. What a recipe sets is
mentioned where a user might count on it, and passed over where it belongs to other runs of the recipe.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from excise.data.dataset import SIMULATED, Data
from excise.data.sources import EMBEDDED
from excise.labels import label_id
from excise.routing.rules import RULES
from excise.train.run import RunConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Idle:
    """An option, when it does nothing, and why."""

    option: str
    when: Callable[[RunConfig, Data], bool]
    why: str
    mentioned: bool = False
    """Whether that is worth a line where a recipe sets it."""


def has_given_labels(run: RunConfig, data: Data) -> bool:
    return data.labels == "given"


def has_no_adjacent(run: RunConfig, data: Data) -> bool:
    return not run.data.adjacent


def has_no_modules(run: RunConfig, data: Data) -> bool:
    return not run.routing.modules


def is_prepared(run: RunConfig, data: Data) -> bool:
    return run.data.source not in EMBEDDED


OWN = "these labels are the documents' own (--data.labels simulated draws some)"
WITHOUT = "routing.rule=none has no modules"
PREPARED = "it is of the embedded corpora, and data.source is a folder"
IDLE = (
    *(Idle(f"data.{name}", has_given_labels, OWN, mentioned=True) for name in SIMULATED),
    Idle(
        "data.undiscovered_share",
        lambda run, data: run.data.filter == "perfect",
        "data.filter=perfect goes by the truth, not by labels",
    ),
    Idle("data.adjacent_retain_share", has_no_adjacent, "data.adjacent names no category"),
    Idle("data.general", has_no_adjacent, "data.adjacent names no category", mentioned=True),
    Idle(
        "data.filter",
        lambda run, data: run.data.filter == "strict" and not run.data.adjacent,
        "it is no more than weak where data.adjacent names no category",
        mentioned=True,
    ),
    Idle(
        "data.filter",
        lambda run, data: sum(data.n_labelled.values()) == len(data.train),
        "there is no document that it would leave out",
        mentioned=True,
    ),
    Idle(
        "data.forget_share",
        lambda run, data: run.data.filter in ("weak", "strict"),
        "data.filter leaves out all that is labelled with a domain",
        mentioned=True,
    ),
    Idle("data.n_stories", is_prepared, PREPARED),
    Idle("data.n_test_stories", is_prepared, PREPARED),
    Idle(
        "routing.forget_weight",
        lambda run, data: not any(learns_from(domain, run, data) for domain in run.routing.domains),
        "nothing that is trained on is labelled with a domain",
    ),
    Idle(
        "routing.forget_heads",
        lambda run, data: not RULES[run.routing.rule].module_heads,
        "modules have no heads under this routing.rule",
    ),
    *(
        Idle(f"routing.{name}", has_no_modules, WITHOUT)
        for name in ("forget_heads", "forget_units", "forget_tokens", "layers", "embeddings", "norms")
    ),
    *(Idle(f"train.{name}", has_no_modules, WITHOUT) for name in ("module_rate", "paper_faithful_optimizer")),
)
"""All that is known; an option with two reasons has two rows."""


def idle_options(run: RunConfig, data: Data) -> Iterator[Idle]:
    """The options of a run that are set and do nothing."""
    for idle in IDLE:
        section, name = idle.option.split(".")
        default = getattr(type(getattr(run, section))(), name)
        if value_of(run, idle.option) != default and idle.when(run, data):
            yield idle


def value_of(run: RunConfig, option: str) -> Any:
    return reduce(getattr, option.split("."), run)


def check_options(run: RunConfig, data: Data, asked: Collection[str]) -> None:
    """Refuse an option that was asked for and does nothing."""
    for idle in idle_options(run, data):
        if idle.option in asked:
            said = f"{idle.option}={value_of(run, idle.option)}"
            raise ValueError(f"{said} would change nothing for this run, as {idle.why}; leave it out, or change that")


def mention_options(run: RunConfig, data: Data) -> None:
    """Warn of options that do nothing and that a user might count on."""
    for idle in (idle for idle in idle_options(run, data) if idle.mentioned):
        logger.warning("%s=%s changes nothing for this run, as %s", idle.option, value_of(run, idle.option), idle.why)


def check_modules(run: RunConfig, data: Data) -> None:
    """Refuse a module that would learn from nothing, unless labels are simulated to leave it nothing."""
    for domain in run.routing.modules:
        filtered = run.data.filter != "none" and data.n_labelled.get(domain)
        if not (filtered or data.labels == "given") or learns_from(domain, run, data):
            continue
        reason = (
            f"data.filter={run.data.filter} leaves out all that is labelled with it; set data.filter to none"
            if filtered
            else f"nothing is labelled {domain!r}; label it with excise label or excise prepare --label, or set "
            "data.labels to simulated"
        )
        raise ValueError(f"the module of {domain} would learn from nothing: {reason}, or routing.rule to none")


def learns_from(domain: str, run: RunConfig, data: Data) -> bool:
    """Whether anything that is trained on is labelled with a domain."""
    label = label_id(domain, run.routing.domains)
    within = data.train.token_labels
    return bool((data.train.labels == label).any() or (within is not None and (within[:] == label).any()))
