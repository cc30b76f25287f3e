"""Figures of the paper from runs of their own: which runs a figure needs, the runs themselves, and the drawing.

    reproduction/runs/no_filter-stories-seed0-1a2b3c4d/   a run as `excise train` and `excise evaluate` leave it
    reproduction/figures/figure-3.json                    drawn from the runs' results.json, metrics.jsonl, config.json
    reproduction/names.json                               where runs have other names than today's: what these are

A run that several figures want is trained once. It is done when its results.json has all that is wanted of it, and is
not opened again then, so that results travel without checkpoints. Processes that are given the same directory share
the work.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from excise.baselines.unlearning import unlearn_run
from excise.config import to_dict
from excise.data.dataset import Data, load_data
from excise.data.sources import EMBEDDED
from excise.evals.attacks import baseline_of, judged_by, matched_step, relearn_run, save_attack, the_domain
from excise.evals.figure import LEARNED, FigureResults, RunLine, Scale
from excise.evals.options import MeasureOptions
from excise.evals.results import Results, add_measures, read_results, same_source, write_json
from excise.evals.run import Subject, open_run
from excise.evals.tradeoff import Tradeoff
from excise.recipes.figures import FIGURES
from excise.recipes.figures.beyond import MixedSources
from excise.recipes.figures.measured import ALL_MEASURES
from excise.recipes.figures.plan import Plan, Run, Shorten, choose, name_of, needs, needs_weights, plan
from excise.recipes.figures.planned import Drawing, Figure, FinishedRun, Group, PlannedAttack, PlannedRun, Sources
from excise.recipes.names import older_runs
from excise.recipes.sharing import taken, work_through
from excise.train.checkpoint import latest_checkpoint
from excise.train.loop import Listener, train
from excise.train.run import RunConfig, RunDirectory

logger = logging.getLogger(__name__)


def reproduce(
    names: Sequence[str],
    scale: Scale,
    sources: Sources | None = None,
    directory: Path = Path("reproduction"),
    listeners: Callable[[str], Sequence[Listener]] = lambda title: (),
    *,
    keep_checkpoints: bool = True,
    seeds: int | None = None,
    shorten: Shorten = lambda config: config,
    figures: Mapping[str, Figure] = FIGURES,
) -> list[Path]:
    """Do all runs of some figures that are not done yet, and write each figure as soon as its runs are there; several
    processes may do so in one directory."""
    names = choose(names, figures)
    mixed = MixedSources(directory / "data")
    planned = located(plan(names, scale, sources, seeds=seeds, shorten=shorten, figures=figures), mixed.locate)
    work, locks = Workshop(planned, directory / "runs"), directory / "locks"
    work.check_sources(mixed)
    paths = {name: directory / "figures" / f"{name}.json" for name in names}
    drawn: set[str] = set()

    def draw_if_finished(name: str) -> None:
        if not all(work.is_done(run) for run in planned.of_figure(name)):
            return
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        with taken(locks / name, wait=True):
            write_json(draw(figures[name], scale, work.groups(name)), paths[name])
        drawn.add(name)
        logger.info("%s is drawn", name)

    def draw_finished() -> None:
        for name in (name for name in names if name not in drawn):
            with suppress(FileNotFoundError):  # of a run that another process has begun to do again
                draw_if_finished(name)

    def do(name: str) -> None:
        run = planned.runs[name]
        for lost in work.lost(run):
            logger.info("%s needs %s again, whose checkpoints are gone", name, lost.name)
            work.undo(lost)
            drawn.difference_update(lost.figures)
        if not work.is_ready(name):
            return  # until what was lost is done again, by whoever comes to it first
        number = left.index(name) + 1 if name in left else "+"
        work.do(run, listeners(f"{number:>{len(str(len(left)))}}/{len(left)} {name:<{width}}"))
        if not keep_checkpoints:
            work.drop_checkpoints(locks)
        draw_finished()

    draw_finished()
    left = [name for name, run in planned.runs.items() if not work.is_done(run)]
    width = max(map(len, left), default=0)
    work_through(list(planned.runs), locks, is_done=work.has_done, is_ready=work.is_ready, do=do)
    for name in (name for name in names if name not in drawn):
        draw_if_finished(name)
    return list(paths.values())


def located(planned: Plan, locate: Callable[[RunConfig], RunConfig]) -> Plan:
    """The same runs, their data in other places, of which their names do not tell."""

    def moved(run: Run) -> Run:
        return replace(run, planned=replace(run.planned, config=locate(run.planned.config)))

    return replace(planned, runs={name: moved(run) for name, run in planned.runs.items()})


class Workshop:
    """The directories of a plan's runs, and the work on them."""

    def __init__(self, planned: Plan, folder: Path) -> None:
        self.plan, self.folder = planned, folder
        self.older = older_runs(folder.parent)
        self.at = ""
        """The run that this process is at."""

    def directory(self, run: Run) -> Path:
        return self._called(run.name)

    def trained(self, config: RunConfig) -> Path:
        """The directory of the run with this configuration and nothing done to it after training."""
        return self._called(name_of(PlannedRun(config=config)))

    def _called(self, name: str) -> Path:
        return self.folder / self.older.get(name, name)

    def is_done(self, run: Run) -> bool:
        return not self.missing(run) and not self.missing_attacks(run)

    def has_done(self, name: str) -> bool:
        return self.is_done(self.plan.runs[name])

    def is_ready(self, name: str) -> bool:
        """Whether all that a run needs is done."""
        return all(self.has_done(name_of(one)) for one in needs(self.plan.runs[name].planned))

    def missing(self, run: Run, source: Subject | None = None) -> list[str]:
        """Measures that are wanted and not there, or of another checkpoint than this one."""
        file = RunDirectory(self.directory(run)).results_file
        known = read_results(file) if file.exists() else None
        if known and source and not same_source(known.provenance, source.provenance):
            known = None
        return [name for name in run.planned.measures if known is None or name not in known.measures]

    def missing_attacks(self, run: Run) -> list[PlannedAttack]:
        known = attacks_in(self.directory(run))
        return [attack for attack in run.planned.attacks if not self.records(attack, known)]

    def records(self, attack: PlannedAttack, known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of an attack, whatever its baseline was, of which nothing depends but the steps that are counted."""
        kind = to_dict(attack.config), self.trained(attack.match).name if attack.match else None
        return [of for of in known if (of["config"], of["matched_to"]) == kind]

    def judged(self, run: Run) -> list[dict[str, Any]]:
        """The attacks on a run that are planned, judged by the baselines that are."""
        known = attacks_in(self.directory(run))
        baselines = [RunDirectory(self.trained(attack.baseline)).results_file for attack in run.planned.attacks]
        return [
            judged_by(read_results(baseline), self.records(attack, known)[-1])
            for attack, baseline in zip(run.planned.attacks, baselines, strict=True)
        ]

    def check_sources(self, mixed: MixedSources) -> None:
        """Make the data that can be made, and say before any other work which are not there."""
        for run in (run for run in self.plan.runs.values() if not self.is_done(run)):
            source = mixed.make(run.planned.config.data.source)
            if source not in EMBEDDED and not Path(source).is_dir():
                raise ValueError(
                    f"there is no prepared data at {source!r}; write it with excise prepare and name the folder "
                    "(--bilingual, --topics, --bilingual-sizes, --topics-sizes)"
                )

    def lost(self, run: Run) -> list[Run]:
        """Runs whose weights this one needs, done long ago, whose checkpoints are gone."""
        needed = [self.plan.runs[name_of(one)] for one in needs_weights(run.planned)]
        return [one for one in needed if latest_checkpoint(RunDirectory(self.directory(one)).checkpoints) is None]

    def undo(self, run: Run) -> None:
        """Forget the results of a run, so that it is done again."""
        RunDirectory(self.directory(run)).results_file.unlink(missing_ok=True)

    def do(self, run: Run, listeners: Sequence[Listener] = ()) -> None:
        """Train a run, or go on with it, and take what is missing of it."""
        self.at, directory, config = run.name, self.directory(run), run.planned.config
        data = load_data(config.data, config.routing.domains)
        if run.planned.unlearning is None:
            self.begin_again_without_checkpoints(run)
            train(config, data, directory, [Tradeoff(config, data, at_end=False), *listeners])
        elif latest_checkpoint(RunDirectory(directory).checkpoints) is None:
            # It was left half-written by an interrupted one, or came without checkpoints.
            shutil.rmtree(directory, ignore_errors=True)
            unlearn_run(self.trained(config), directory, run.planned.unlearning)
        self.measure(run, data)
        for attack in self.missing_attacks(run):
            self.attack(run, attack, data)

    def begin_again_without_checkpoints(self, run: Run) -> None:
        """Forget what is known of a run that cannot go on, which may have come from a machine where its data lay elsewhere."""
        files = RunDirectory(self.directory(run))
        if latest_checkpoint(files.checkpoints) is None:
            for file in (files.metrics_file, *files.path.glob("results*.json")):
                file.unlink(missing_ok=True)

    def measure(self, run: Run, data: Data) -> None:
        subject = open_run(self.directory(run), data)
        against = self.trained(run.planned.against) if run.planned.against else None
        options = MeasureOptions(against=against, documents=run.planned.documents, prompts=run.planned.prompts)
        wanted = self.missing(run, subject)
        for name in (name for name in ALL_MEASURES if name in wanted):
            logger.info("%s: %s", run.name, name)
            add_measures(subject.results_file, subject.provenance, {name: ALL_MEASURES[name](subject, options)})

    def attack(self, run: Run, attack: PlannedAttack, data: Data) -> None:
        directory = self.directory(run)
        match = self.trained(attack.match) if attack.match else None
        subject = open_run(directory, data, step=matched_step(directory, match) if match else None)
        baseline = baseline_of(self.trained(attack.baseline), subject)
        logger.info("%s: relearning", run.name)
        for found in relearn_run(subject, the_domain(subject.config, ""), baseline, [attack.config], lambda *_: None):
            save_attack(subject, found, baseline, match)

    def drop_checkpoints(self, locks: Path) -> None:
        """Delete the checkpoints of runs that are done, that nothing of this plan needs any more, and that nobody is at."""
        left = [run for run in self.plan.runs.values() if not self.is_done(run)]
        needed = {name_of(one) for run in left for one in needs_weights(run.planned)} | {run.name for run in left}
        for name in (name for name in self.plan.runs if name not in needed):
            with taken(locks / name) as mine:
                if mine or name == self.at:
                    shutil.rmtree(RunDirectory(self._called(name)).checkpoints, ignore_errors=True)

    def groups(self, figure: str) -> dict[str, Group]:
        """The finished runs of a figure by key, a run for each seed."""
        found = self.plan.groups.get(figure, {})
        return {key: [self.finished(self.plan.runs[name]) for name in names] for key, names in found.items()}

    def finished(self, run: Run) -> FinishedRun:
        files = RunDirectory(self.directory(run))
        trained = RunDirectory(self.trained(run.planned.config))
        results = read_results(files.results_file)
        unlearned = run.planned.unlearning is not None
        return FinishedRun(files.path.name, files.config(), results, trained.metrics(), self.judged(run), unlearned)


def attacks_in(directory: Path) -> list[dict[str, Any]]:
    """All attacks on a run, at any of its checkpoints."""
    found: Iterable[Results] = (read_results(file) for file in sorted(directory.glob("results*.json")))
    return [attack for results in found for attack in results.measures.get("relearning", [])]


def done_of(planned: Plan, directory: Path) -> set[str]:
    """The names of a plan's runs that are done."""
    work = Workshop(planned, directory / "runs")
    return {name for name, run in planned.runs.items() if work.is_done(run)}


def draw(figure: Figure, scale: Scale, groups: Mapping[str, Group]) -> FigureResults:
    """A figure with its runs, from what is known of them."""
    drawing: Drawing = figure.draw(groups, scale)
    runs = {run.name: run for group in groups.values() for run in group}
    judged = groups.get(figure.no_filter, ())
    return FigureResults(
        name=figure.name,
        title=figure.title,
        section=figure.section,
        scale=scale,
        caption=f"{figure.caption} {figure.of_intervals or told(list(groups.values()))}".strip(),
        panels=drawing.panels,
        claims=drawing.claims,
        runs=[line(run) for run in runs.values()],
        pipeline_check_only=any(run.last_loss > LEARNED * run.first_loss for run in judged),
        configurations={key: to_dict(group[0].config) for key, group in groups.items()},
        samples=drawing.samples,
    )


def told(groups: Sequence[Group]) -> str:
    """What the intervals of a figure are over."""
    seeds = sorted({len(group) for group in groups})
    if not seeds:
        return ""
    if seeds == [1]:
        return "One seed; any intervals are over documents."
    fewer = f", or over documents where a run has {seeds[0]}" if len(seeds) > 1 else ""
    return f"Intervals of 95 % are over {seeds[-1]} seeds{fewer}."


def line(run: FinishedRun) -> RunLine:
    source = run.results.provenance
    return RunLine(
        run.name,
        source.step,
        source.tokens,
        source.parameters,
        source.seed,
        None if run.unlearned else run.first_loss,
        None if run.unlearned else run.last_loss,
        source.checkpoint_sha256,
    )
