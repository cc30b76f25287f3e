"""What a figure is made of: the runs that it wants, what is measured of them, and a function that draws it.

A figure names its runs by key. Each is one configuration with a number of seeds, and comes back as one finished run for
each seed, read from its files alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from excise.baselines.unlearning import UnlearningConfig
from excise.evals.figure import Panel, PaperClaim, Scale
from excise.evals.relearning import AttackConfig
from excise.evals.results import Losses, Results, losses_in
from excise.train.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Folders written by `excise prepare`; the smoke scale has its data built in. A plan can be made without them."""

    bilingual: str = ""
    """Documents of the categories `en` and `es`, or `english` and `spanish` at the paper's scale."""
    topics: str = ""
    """Articles with their subjects."""
    bilingual_sizes: str = ""
    """The bilingual documents for figures about model size, with a tokenizer of 4 to 8 thousand tokens."""
    topics_sizes: str = ""


@dataclass(frozen=True, kw_only=True)
class PlannedAttack:
    """A relearning attack on a run."""

    config: AttackConfig
    baseline: RunConfig
    """The run with no filter whose forget loss it tries to reach."""
    match: RunConfig | None = None
    """The attack starts from the checkpoint whose retain loss matches that of this run (appendix E)."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that a figure wants. Seeds and other runs that it is compared with are planned along with it."""

    config: RunConfig
    """With seeds 0, in place of which seeds 0, 1, 2 are put, in the configs below too."""
    seeds: int = 1
    measures: tuple[str, ...] = ("losses",)
    """Names of MEASURES, or of `measured.OWN_MEASURES`."""
    against: RunConfig | None = None
    """The run that `token_losses` and `samples` compare with."""
    attacks: tuple[PlannedAttack, ...] = ()
    unlearning: UnlearningConfig | None = None
    """The run unlearns after its training, which is a planned run of its own."""
    documents: int = 256
    """For `gradient_norms`."""
    prompts: tuple[str, ...] = ()
    """For `samples`."""

    @property
    def method(self) -> str:
        """As `Provenance.method` once the run is done."""
        return self.unlearning.method if self.unlearning else self.config.method


@dataclass(frozen=True)
class FinishedRun:
    """All that is known of a run once its checkpoints are gone."""

    name: str
    """Of its directory."""
    config: RunConfig
    results: Results
    metrics: Sequence[Mapping[str, Any]]
    relearning: Sequence[Mapping[str, Any]] = ()
    """The attacks on it that are planned, those on matched checkpoints too."""
    unlearned: bool = False
    """Whether it was made of another run, whose training its metrics tell."""

    @cached_property
    def losses(self) -> Losses:
        return losses_in(self.results)

    @property
    def first_loss(self) -> float:
        return float(self.results.measures["first_loss"]["loss"])

    @property
    def last_loss(self) -> float:
        return float(self.metrics[-1]["loss"])


Group = Sequence[FinishedRun]
"""One run over its seeds."""


@dataclass(frozen=True)
class Drawing:
    """What is to be seen in a figure, and what is claimed of it."""

    panels: Sequence[Panel]
    claims: Sequence[PaperClaim] = ()
    samples: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure or a table of the paper."""

    name: str
    """As on the command line: figure-3, table-1."""
    title: str
    section: str
    caption: str
    runs: Callable[[Scale, Sources], Mapping[str, PlannedRun]] = lambda scale, sources: {}
    draw: Callable[[Mapping[str, Group], Scale], Drawing]
    no_filter: str = "no_filter"
    """The key of the run that tells whether the runs learned enough for the figure to mean anything."""
    of_intervals: str = ""
    """What its caption says of intervals, where these are not over seeds or documents."""
