"""The same search of learning rates for every method, so that figures compare methods at their best (DESIGN, section 3).

Each method is trained once at every rate of one grid, and beyond it while its best rate is the outermost, and judged by
its retain loss, after ablation where it has modules, on the calibration split: documents that no run is trained on and no
figure is drawn from. The loss is that before calibration, so that nothing is judged on what was fitted to it. The rule
does not see forget loss, which would let a method choose its own trade-off.

Runs are of one method where they differ only in seeds, in how many documents are labelled, in the weight of those
labelled with a domain, in how long they train, and in the size of the model, for which the paper too has one rate, where
batches and warm-up are alike. The first that a figure names is searched for all of them or, of several sizes, the
largest. Runs of other methods keep the rates of the recipes. The runs of a search are those of the figures at other
rates, so that those at the chosen rates need not be done again, unless something else needs their checkpoints.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

from excise.config import override
from excise.evals.figure import Scale
from excise.evals.losses import NotFinite
from excise.evals.results import write_json
from excise.identity import SEEDS, SOURCE, digest
from excise.recipes.figures import FIGURES
from excise.recipes.figures.beyond import MixedSources, origin_of
from excise.recipes.figures.bilingual_runs import parameters_of
from excise.recipes.figures.plan import ALWAYS, Plan, Run, Shorten, choose, name_of, plan
from excise.recipes.figures.planned import Figure, PlannedRun, Sources
from excise.recipes.names import older_names
from excise.recipes.reproduce import Workshop, located
from excise.recipes.sharing import taken, work_through
from excise.train.loop import Listener
from excise.train.run import RunConfig, RunDirectory
from excise.train.step import Diverged

logger = logging.getLogger(__name__)

GRID: Mapping[Scale, Sequence[float]] = {
    "smoke": (1e-3, 3e-3, 9e-3),
    "small": (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2),
    "paper": (6e-4, 1.25e-3, 2.5e-3, 5e-3, 1e-2),
}
BEYOND = 3
"""Rates that are tried beyond either end of a grid at most."""
ALIKE = 0.005
"""Losses that differ by less than this share are taken as equal: in one epoch, seeds of one method mostly differ by more.
At the higher of two such rates one seed in three fell behind once (no filter on biology)."""
RATES = "rates.json"
VALIDATION = "validation"
MAY_DIFFER = {
    *SEEDS,
    "train.learning_rate",
    "train.budget.unit",
    "train.budget.amount",
    "routing.forget_weight",
    *(f"data.{name}" for name in ("undiscovered_share", "false_positive_rate", "retain_share")),
    "data.adjacent_retain_share",
    *(f"model.{name}" for name in ("n_layers", "d_model", "n_heads", "d_mlp")),
}
"""Fields in which runs that share a rate may differ."""
PERFECT: Mapping[str, Any] = {"data.filter": "weak"}
"""A perfect filter is a weak one that nothing escapes."""


@dataclass(frozen=True)
class MethodSearch:
    """What was found for one method."""

    run: str
    """The figure and the key of the run that was trained."""
    losses: dict[str, float | None]
    """On the retain documents of the calibration split, by rate; null where training diverged."""
    chosen: float | None = None
    """Null until all rates are tried."""
    at_edge: bool = False
    """Whether the one with the lowest loss is the outermost all the same, so that a better one may lie beyond."""


@dataclass(frozen=True)
class RateSearch:
    """All losses and the rate chosen for every method."""

    scale: Scale
    rates: tuple[float, ...]
    """The grid."""
    methods: dict[str, MethodSearch]
    """By `rate_key`."""


def rate_key(config: RunConfig) -> str:
    """What a search calls all runs that share the rate of this one: a method, a source and a digest of the other fields."""
    filtered = PERFECT if config.data.filter == "perfect" else {}
    one = override(origin_of(config), filtered)
    return f"{one.method}-{Path(one.data.source).name}-{digest(one, but={*MAY_DIFFER, SOURCE})}"


def _but_for_source(key: str) -> str:
    """The digest in a key."""
    return key.rpartition("-")[2]


def search_rates(
    names: Sequence[str],
    scale: Scale,
    sources: Sources | None = None,
    directory: Path = Path("reproduction"),
    rates: Sequence[float] = (),
    listeners: Callable[[str], Sequence[Listener]] = lambda title: (),
    *,
    shorten: Shorten = lambda config: config,
    figures: Mapping[str, Figure] = FIGURES,
) -> Path:
    """Train every method of some figures at each rate of a grid, and further ones where it needs them, and write all losses
    and the chosen rates; what is done is kept, and several processes may search in one directory."""
    file, grid, mixed = directory / RATES, tuple(rates or GRID[scale]), MixedSources(directory / "data")
    methods = methods_of(names, scale, sources, mixed, shorten, figures)
    locks = directory / "locks"
    if file.exists():
        of_figures = {name: figure.runs(scale, sources or Sources()) for name, figure in figures.items()}
        refuse_other_models(read_search(file, scale), methods, of_figures, shorten)

    def known() -> dict[str, MethodSearch]:
        return read_search(file, scale).methods if file.exists() else {}

    def next_jobs() -> dict[str, tuple[str, float]]:
        tried = known()
        wanted = {method: rates_to_try(losses_of(tried, method), grid) for method in methods}
        return {name_of(at_rate(methods[m][1], rate)): (m, rate) for m, of in wanted.items() for rate in of}

    def is_done(job: str) -> bool:
        method, rate = jobs[job]
        return _word(rate) in losses_of(known(), method)

    def add(more: Mapping[str, Mapping[str, float | None]]) -> None:
        with taken(locks / RATES, wait=True):
            before = known()
            runs = {name: of.run for name, of in before.items()} | {name: methods[name][0] for name in more}
            write_json(
                RateSearch(
                    scale,
                    grid,
                    {n: judged(run, {**losses_of(before, n), **more.get(n, {})}, grid) for n, run in runs.items()},
                ),
                file,
            )

    def do(job: str) -> None:
        method, rate = jobs[job]
        run, planned = methods[method]
        mixed.make(planned.config.data.source)
        title = f"{run} at {_word(rate)}"
        loss = validation_loss(at_rate(planned, rate), directory / "runs", listeners(title))
        logger.info("%s: %s", title, loss)
        add({method: {_word(rate): loss}})

    while jobs := next_jobs():
        work_through(list(jobs), locks, is_done=is_done, do=do)
    add({})  # the grid may be another one than before
    return file


def refuse_other_models(
    known: RateSearch,
    methods: Mapping[str, tuple[str, PlannedRun]],
    of_figures: Mapping[str, Mapping[str, PlannedRun]],
    shorten: Shorten,
) -> None:
    """Refuse losses of a model of another size, which say nothing of this one's."""
    for method in known.methods.keys() & methods.keys():
        (run, planned), (figure, _, key) = methods[method], known.methods[method].run.partition(": ")
        before = of_figures.get(figure, {}).get(key)
        if before and shorten(before.config).model != planned.config.model:
            raise ValueError(
                f"rates were searched with the model of {known.methods[method].run} before, and {run} has another; "
                "search in another directory"
            )


def at_rate(planned: PlannedRun, rate: float) -> PlannedRun:
    return replace(planned, config=override(planned.config, {"train.learning_rate": rate}))


def losses_of(methods: Mapping[str, MethodSearch], name: str) -> dict[str, float | None]:
    return dict(methods[name].losses) if name in methods else {}


def methods_of(
    names: Sequence[str],
    scale: Scale,
    sources: Sources | None,
    mixed: MixedSources,
    shorten: Shorten,
    figures: Mapping[str, Figure],
) -> dict[str, tuple[str, PlannedRun]]:
    """By key, the first run of each method with its largest model, and what can be measured of it alone; one that unlearns
    after training is no method of training."""
    names = choose(names, figures)
    planned = located(plan(names, scale, sources, seeds=1, shorten=shorten, figures=figures), mixed.locate)
    found: dict[str, tuple[str, PlannedRun]] = {}
    for figure, groups in planned.groups.items():
        for key, (name, *_) in groups.items():
            run = planned.runs[name].planned
            if run.unlearning is None:
                measures = (*(ALWAYS if run.against else run.measures), VALIDATION)
                alone = replace(run, measures=measures, against=None, attacks=())
                known = found.setdefault(rate_key(run.config), (f"{figure}: {key}", alone))[1]
                if parameters_of(run.config.model) > parameters_of(known.config.model):
                    found[rate_key(run.config)] = f"{figure}: {key}", alone
    return found


def validation_loss(planned: PlannedRun, folder: Path, listeners: Sequence[Listener] = ()) -> float | None:
    """Do a run with its validation loss, if it is not done, and return that; None where it diverged. It keeps no
    checkpoints but those that it had."""
    run = Run(name_of(planned), planned, frozenset())
    work = Workshop(Plan({run.name: run}, {}), folder)
    checkpoints = RunDirectory(work.directory(run)).checkpoints
    had_some = checkpoints.exists()
    try:
        if not work.is_done(run):
            work.do(run, listeners)
    except (Diverged, NotFinite):
        return None
    if not had_some:
        rmtree(checkpoints, ignore_errors=True)  # none where the run was done before and has lost them
    return float(work.finished(run).results.measures[VALIDATION]["loss"])


def rates_to_try(losses: Mapping[str, float | None], grid: Sequence[float]) -> list[float]:
    """Rates of the grid that are not tried yet or, where the best is the outermost, the next beyond it in the same ratio."""
    if missing := [rate for rate in grid if _word(rate) not in losses]:
        return missing
    tried = sorted(map(float, losses))
    best = lowest_of(losses)
    if best == tried[0]:
        end, beyond = tried[:2], sum(rate < min(grid) for rate in tried)
    elif best == tried[-1]:
        end, beyond = tried[:-3:-1], sum(rate > max(grid) for rate in tried)
    else:
        return []
    return [float(f"{end[0] ** 2 / end[1]:.3g}")] if len(end) == 2 and beyond < BEYOND else []


def known_losses(losses: Mapping[str, float | None]) -> dict[float, float]:
    """By rate; one that diverged is the worst."""
    return {float(rate): math.inf if loss is None else loss for rate, loss in losses.items()}


def lowest_of(losses: Mapping[str, float | None]) -> float:
    """The rate with the lowest loss."""
    known = known_losses(losses)
    return min(known, key=lambda rate: (known[rate], rate))


def best_of(losses: Mapping[str, float | None]) -> float:
    """The lowest of the rates whose losses are as good as the best."""
    known = known_losses(losses)
    good = (1 + ALIKE) * min(known.values())
    return min(rate for rate, loss in known.items() if loss <= good)


def judged(run: str, losses: Mapping[str, float | None], grid: Sequence[float]) -> MethodSearch:
    """The best rate, once all are tried."""
    search = MethodSearch(run, dict(losses))
    if rates_to_try(losses, grid):
        return search
    tried, chosen = sorted(map(float, losses)), best_of(losses)
    if losses[_word(chosen)] is None:
        raise ValueError(f"{run} diverges at every rate from {tried[0]:g} to {tried[-1]:g}; search smaller ones")
    return replace(search, chosen=chosen, at_edge=lowest_of(losses) in (tried[0], tried[-1]))


def _word(rate: float) -> str:
    return f"{rate:g}"


def read_search(file: Path, scale: Scale) -> RateSearch:
    """A search of this scale, finished or not."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        methods = {name: MethodSearch(**of) for name, of in values["methods"].items()}
        search = RateSearch(values["scale"], tuple(values["rates"]), methods)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} holds no search of rates ({error}); make one with excise reproduce --search"
        ) from None
    if search.scale != scale:
        raise ValueError(f"{file} is a search at the scale {search.scale}; give one at the scale {scale}")
    return replace(search, methods=_by_todays_keys(search.methods, file))


def _by_todays_keys(methods: Mapping[str, MethodSearch], file: Path) -> dict[str, MethodSearch]:
    older = older_names(file.parent).methods
    for key, before in older.items():
        if not {key, before} & methods.keys():
            raise ValueError(
                f"{file} has no rates for {before}, which names.json beside it calls {key}; take that line out"
            )
    today = {before: key for key, before in older.items()}
    return {today.get(key, key): of for key, of in methods.items()}


def at_searched_rates(
    file: Path,
    scale: Scale,
    sources: Sources | None = None,
    *,
    shorten: Shorten = lambda config: config,
    figures: Mapping[str, Figure] = FIGURES,
) -> Shorten:
    """Runs at the rates of a search, where it has one for their method; all that it has must be of runs of some figure."""
    search = read_search(file, scale)
    # A search may have been on more sources than are given here.
    planned = set(map(_but_for_source, methods_of(["all"], scale, sources, MixedSources(Path()), shorten, figures)))
    for key, method in search.methods.items():
        if _but_for_source(key) not in planned:
            raise ValueError(
                f"{file} has a rate for {key} ({method.run}), of which no figure has a run at the scale {scale}; take it out, "
                "or search again (rates older than their keys need the names.json that lay beside them)"
            )
    chosen = {name: method.chosen for name, method in search.methods.items()}
    for name, rate in chosen.items():
        if rate is None:
            raise ValueError(f"the search in {file} has not tried all rates for {name}; let it go on: --search")

    def at_its_rate(config: RunConfig) -> RunConfig:
        rate = chosen.get(rate_key(config))
        return override(config, {"train.learning_rate": rate}) if rate else config

    return at_its_rate


def unsearched(
    names: Sequence[str], scale: Scale, sources: Sources, file: Path, *, figures: Mapping[str, Figure] = FIGURES
) -> list[str]:
    """Runs of some figures that stand for methods of which a search knows no rate."""
    known = read_search(file, scale).methods
    methods = methods_of(names, scale, sources, MixedSources(Path()), lambda config: config, figures)
    return [run for name, (run, _) in methods.items() if name not in known]
