"""Which runs figures need: equal ones once, with all that is wanted of them, in the order in which they can be done."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from excise.config import override
from excise.evals.figure import Scale
from excise.identity import digest
from excise.labels import nearest
from excise.recipes.figures import FIGURES
from excise.recipes.figures.measured import ALL_MEASURES
from excise.recipes.figures.planned import Figure, PlannedAttack, PlannedRun, Sources
from excise.train.run import RunConfig

ALWAYS = ("losses", "first_loss")
"""Measures of every run."""


@dataclass(frozen=True)
class Run:
    """One run of a plan, of one seed, with all that any of the figures wants of it."""

    name: str
    """Of its directory."""
    planned: PlannedRun
    figures: frozenset[str]
    """That draw it themselves, or need it for one that they draw."""


@dataclass(frozen=True)
class Plan:
    """All runs of some figures, in the order in which they are done."""

    runs: Mapping[str, Run]
    """By name."""
    groups: Mapping[str, Mapping[str, Sequence[str]]]
    """By figure, then by the key of a run: names, one for each seed."""

    def of_figure(self, figure: str) -> list[Run]:
        return [run for run in self.runs.values() if figure in run.figures]


Shorten = Callable[[RunConfig], RunConfig]


def choose(names: Sequence[str], figures: Mapping[str, Figure] = FIGURES) -> list[str]:
    """The figures of these names, or all; a name that is none is an error."""
    for name in names:
        if name != "all" and name not in figures:
            raise ValueError(f"there is no figure {name!r}; {nearest(name, ['all', *figures])}")
    return [name for name in figures if name in names or "all" in names]


def plan(
    names: Sequence[str],
    scale: Scale,
    sources: Sources | None = None,
    *,
    seeds: int | None = None,
    shorten: Shorten = lambda config: config,
    figures: Mapping[str, Figure] = FIGURES,
) -> Plan:
    """The runs of some figures, equal ones merged. How often a run is evaluated and saved does not depend on which
    figures are asked for, so that it serves all of them later too."""
    merged: dict[str, PlannedRun] = {}
    wanted_by: dict[str, set[str]] = {}
    groups: dict[str, dict[str, list[str]]] = {}
    for name, figure in figures.items():
        for key, planned in figure.runs(scale, sources or Sources()).items():
            for seed in range(min(planned.seeds, seeds or planned.seeds)):
                one = _of_seed(planned, seed, shorten)
                if name in names:
                    groups.setdefault(name, {}).setdefault(key, []).append(name_of(one))
                    for needed in (one, *needs(one)):
                        wanted_by.setdefault(name_of(needed), set()).add(name)
                for needed in (one, *needs(one)):
                    asked = needed if name in names else replace(needed, measures=(), attacks=(), against=None)
                    merged[name_of(needed)] = merge(merged.get(name_of(needed), asked), asked)
    runs = [Run(name, merged[name], frozenset(of)) for name, of in wanted_by.items()]
    return Plan({run.name: run for run in _in_order(runs)}, groups)


def needs(run: PlannedRun) -> list[PlannedRun]:
    """The runs that must be done before this one, with their losses."""
    return [
        *_others(run, [config for attack in run.attacks for config in (attack.baseline, attack.match)]),
        *needs_weights(run),
    ]


def needs_weights(run: PlannedRun) -> list[PlannedRun]:
    """Of these, the runs whose checkpoints are read; of the others the results are enough."""
    return _others(run, [run.against, run.config if run.unlearning else None])


def _others(run: PlannedRun, configs: Sequence[RunConfig | None]) -> list[PlannedRun]:
    needed = [PlannedRun(config=config, measures=ALWAYS) for config in configs if config is not None]
    return [one for one in needed if name_of(one) != name_of(run)]


def merge(one: PlannedRun, other: PlannedRun) -> PlannedRun:
    """A run that has all that two figures want of it."""
    if one.against and other.against and digest(one.against) != digest(other.against):
        raise ValueError(f"two figures compare {name_of(one)} with different runs; let them agree on one")
    train = one.config.train, other.config.train
    kept = [config.checkpoint_every for config in train if config.keep_checkpoints]
    bookkeeping = {
        "train.evaluations": max(config.evaluations for config in train),
        "train.keep_checkpoints": bool(kept),
        "train.checkpoint_every": min(kept, default=max(config.checkpoint_every for config in train)),
    }
    return replace(
        one,
        config=override(one.config, bookkeeping),
        measures=tuple(name for name in ALL_MEASURES if name in {*one.measures, *other.measures}),
        against=one.against or other.against,
        attacks=tuple(dict.fromkeys((*one.attacks, *other.attacks))),
        documents=max(one.documents, other.documents),
        prompts=tuple(dict.fromkeys((*one.prompts, *other.prompts))),
    )


def name_of(run: PlannedRun) -> str:
    """A name to read, and a digest of all that decides the outcome; where the data lies does not."""
    data, seed = run.config.data, run.config.train.seed
    share = f"-u{data.undiscovered_share:g}" if data.undiscovered_share else ""
    return f"{run.method}-{Path(data.source).name}{share}-seed{seed}-{digest(run.config, run.unlearning)}"


def _of_seed(run: PlannedRun, seed: int, shorten: Shorten) -> PlannedRun:
    def seeded(config: RunConfig) -> RunConfig:
        return override(shorten(config), {"train.seed": seed, "data.seed": seed})

    def attack(of: PlannedAttack) -> PlannedAttack:
        return replace(of, baseline=seeded(of.baseline), match=seeded(of.match) if of.match else None)

    return replace(
        run,
        config=seeded(run.config),
        seeds=1,
        measures=tuple(dict.fromkeys((*ALWAYS, *run.measures))),
        against=seeded(run.against) if run.against else None,
        attacks=tuple(map(attack, run.attacks)),
    )


def _in_order(runs: Sequence[Run]) -> Iterator[Run]:
    """Runs that several figures need first, but none before those that it needs itself."""
    left = sorted(runs, key=lambda run: -len(run.figures))
    needed = {run.name: {name_of(one) for one in needs(run.planned)} for run in runs}
    done: set[str] = set()
    while left:
        ready = [run for run in left if needed[run.name] <= done]
        if not ready:
            raise ValueError(
                f"{left[0].name} is compared with a run that is compared with it; let one of them go first"
            )
        left.remove(ready[0])
        done.add(ready[0].name)
        yield ready[0]
