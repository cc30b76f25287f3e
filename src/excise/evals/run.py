"""Measure a run: open it once, with its data, and take any of the measures of this package."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
from torch import Tensor

from excise.config import override
from excise.data.dataset import Data, everything, load_data
from excise.data.shards import is_prepared
from excise.data.sources import EMBEDDED
from excise.evals.calibration import calibrate, default_weights, n_evaluated
from excise.evals.losses import STAGES, SetLosses, is_part, of_categories, stage_losses
from excise.evals.progress import evaluation_of
from excise.evals.results import (
    ForgetTokens,
    Losses,
    Provenance,
    RunResults,
    Spread,
    add_measures,
    losses_in,
    read_results,
)
from excise.files import sha256_of
from excise.labels import RETAIN, nearest
from excise.model.gpt import GPT, n_parameters
from excise.train.checkpoint import MANIFEST, Done
from excise.train.loop import autocast, doubt_of, pick_precision
from excise.train.release import find_checkpoint, load_run
from excise.train.run import Epoch, RunConfig, RunDirectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subject:
    """A run at one of its checkpoints, and the documents that it is measured on."""

    directory: Path
    config: RunConfig
    model: GPT
    done: Done
    data: Data
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of sets in the calibration, where they are not the paper's."""

    @property
    def removed(self) -> Sequence[str]:
        """The modules that ablation removes."""
        return self.model.partition.domains

    @property
    def context(self) -> int:
        return self.config.batch.context

    @property
    def autocast(self) -> AbstractContextManager[None]:
        """The precision that the run was trained in."""
        return autocast(self.config.train, next(self.model.parameters()).device)

    @cached_property
    def bias(self) -> Tensor:
        """The logit bias of the ablated model (appendix I)."""
        with self.autocast:
            return calibrate(
                self.model, self.data.calibration, self.removed, self.context, weights=self.weights or None
            )

    @property
    def results_file(self) -> Path:
        return results_file_of(self.directory, self.done.step, self.data)

    @property
    def provenance(self) -> Provenance:
        files = RunDirectory(self.directory)
        digests = files.digests()
        return Provenance(
            run=self.directory.resolve().name,
            method=files.method,
            step=self.done.step,
            checkpoint_sha256=sha256_of(find_checkpoint(self.directory, self.done.step) / MANIFEST),
            tokens=self.done.tokens,
            seconds=self.done.seconds,
            parameters=n_parameters(self.model),
            seed=self.config.train.seed,
            evaluated_on_sha256=self.data.held_out_sha256,
            data_sha256=digests.data_sha256,
            tokenizer_sha256=digests.tokenizer_sha256,
            precision=pick_precision(self.config.train.precision, next(self.model.parameters()).device),
            excise=version("excise"),
            torch=version("torch"),
        )


def results_file_of(directory: Path, step: int | None = None, data: Data | None = None) -> Path:
    """results.json, or a file of its own for a checkpoint other than the latest, and for data other than the run's."""
    files = RunDirectory(directory)
    name = files.results_file.stem
    if step is not None and find_checkpoint(directory) != find_checkpoint(directory, step):
        name += f"-step-{step}"
    if data is not None and data.sha256 != files.digests().data_sha256:
        name += f"-on-{data.sha256[:12]}"
    return files.results_file.with_stem(name)


def open_run(
    directory: Path,
    data: Data | None = None,
    *,
    source: str = "",
    step: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> Subject:
    """A run with its own data, with those of another source, or with data that are loaded already."""
    files = RunDirectory(directory)
    config = files.config()
    model, done = load_run(directory, step=step)
    if data is None:
        data = documents_in(source, files) if source else own_documents(files)
    if data.tokenizer.sha256 != files.digests().tokenizer_sha256:
        raise ValueError(f"{directory} was trained with another tokenizer than the one of {source or 'these data'}")
    for name in weights or ():
        if name not in data.test:
            raise ValueError(f"there is no set {name!r} to weigh in the calibration; {nearest(name, data.test)}")
    return Subject(directory, config, model, done, data, weights or {})


def own_documents(files: RunDirectory) -> Data:
    """The data that a run was trained on."""
    config = files.config()
    source = config.data.source
    if source not in EMBEDDED and not is_prepared(Path(source)):
        raise ValueError(
            f"the data of {files.path} are not at {source}; put them there, or evaluate it on others: "
            f"excise evaluate {files.path} --data FOLDER"
        )
    data = load_data(config.data, config.routing.domains)
    if data.sha256 != files.digests().data_sha256:
        raise ValueError(
            f"{source} holds other data than {files.path} was trained on; give those back, or name these: --data {source}"
        )
    return data


def documents_in(source: str, files: RunDirectory) -> Data:
    """Other data than a run's, whose labels decide nothing, or its own where they have moved."""
    config = files.config()
    moved = override(config.data, {"source": source})
    data = load_data(everything(moved), config.routing.domains)
    is_own = data.sha256 == files.digests().data_sha256
    return load_data(moved, config.routing.domains) if is_own else data


def losses(subject: Subject) -> Losses:
    """The losses on every set and category, before ablation, after it, and calibrated."""
    test = subject.data.test
    with evaluation_of(n_evaluated(subject.data.calibration, test, subject.removed, subject.weights)):
        found = stage_losses(subject.model, test, subject.removed, subject.bias, subject.context, subject.autocast)
    by_category = {name: of_categories(test[name], documents) for name, documents in found.items()}
    base = [name for name in test if not any(is_part(test[name], test[other]) for other in test if other != name)]
    sets = {name: SetLosses.of(documents) for name, documents in found.items()}
    doubt = doubt_of("the retain loss before ablation", sets[RETAIN].before, subject.data.tokenizer.vocabulary_size)
    if doubt:
        logger.warning("%s: %s", subject.directory, doubt)
    return Losses(
        sets=sets,
        categories={c: SetLosses.of(documents) for name in base for c, documents in by_category[name].items()},
        category_means={name: SetLosses.mean_over(list(parts.values())) for name, parts in by_category.items()},
        removed=subject.removed,
        calibration_weights=subject.weights or default_weights(test),
        forget_tokens=seen_in_training(RunDirectory(subject.directory).epoch(), subject.done.tokens),
        doubt=doubt,
    )


def trained_on(subject: Subject) -> Data:
    """What a run was trained on, which need not be what it is measured on."""
    files = RunDirectory(subject.directory)
    return subject.data if subject.data.sha256 == files.digests().data_sha256 else own_documents(files)


def seen_in_training(epoch: Epoch, tokens: int) -> dict[str, ForgetTokens]:
    """Predictions of each domain in so many tokens of training."""

    def seen(n: int) -> int:
        return round(tokens * n / epoch.n_predicted)

    return {of.domain: ForgetTokens(seen(of.labelled), seen(of.unlabeled)) for of in epoch.domains}


@dataclass(frozen=True)
class SeedSpreads:
    """The losses of runs that differ only in their seeds."""

    runs: Sequence[str]
    sets: Mapping[str, Mapping[str, Spread]]
    """By set, then by stage."""


def seed_spreads(directories: Sequence[Path], step: int | None = None) -> list[SeedSpreads]:
    """Mean and deviation over seeds of the evaluated runs among these, for every configuration with several."""
    groups: dict[tuple[str, ...], dict[tuple[int, int], Path]] = {}
    for directory in directories:
        file, files = results_file_of(directory, step), RunDirectory(directory)
        config = files.config()
        if file.exists() and "losses" in read_results(file).measures:
            of_seeds = groups.setdefault(files.but_for_seeds, {})
            of_seeds.setdefault((config.train.seed, config.data.seed), directory)
    return [_spread(list(group.values()), step) for group in groups.values() if len(group) > 1]


def _spread(directories: Sequence[Path], step: int | None) -> SeedSpreads:
    found = [losses_in(read_results(results_file_of(directory, step))).sets for directory in directories]

    def spread(name: str, stage: str) -> Spread:
        values = [getattr(of_run[name], stage) for of_run in found]
        return Spread(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))

    sets = {name: {stage: spread(name, stage) for stage in STAGES} for name in found[0]}
    return SeedSpreads([directory.name for directory in directories], sets)


def evaluate_run(directory: Path, data: Data) -> RunResults:
    """Losses of a run's latest checkpoint, also written to its results.json."""
    subject = open_run(directory, data)
    results = RunResults(subject.provenance, losses(subject))
    add_measures(RunDirectory(directory).results_file, results.provenance, {"losses": results.losses})
    return results
