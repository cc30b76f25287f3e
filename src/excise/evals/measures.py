"""Every measure that `excise evaluate` can take of a run, by name, and what each asks for.

Measures that compare a run with others read those from their results.json, so that each run is evaluated once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from excise.data.packing import IGNORED, Corpus, cut
from excise.data.thresholds import Roc
from excise.evals.classifier_surface import (
    ClassifierSurface,
    LabelledPair,
    RocPoint,
    along_roc,
    classifier_surface,
    roc_of,
)
from excise.evals.compute_penalty import BaselineRun, ComputePenalty, ScalingLaw, compute_penalty, fit_law
from excise.evals.cross_domain import CrossDomain, cross_domain
from excise.evals.gradient_norms import GradientNorms, gradient_norms
from excise.evals.leakage import BaselineCurve, Leakage, LeakagePoint, baseline_curve, leakage
from excise.evals.losses import STAGES, SetLosses, batches_of, token_losses, without_modules
from excise.evals.multiple_choice import Accuracy, multiple_choice, read_questions
from excise.evals.options import MeasureOptions
from excise.evals.results import Losses, Provenance, Results, losses_in, read_results, same_source
from excise.evals.run import Subject, losses, open_run, results_file_of
from excise.evals.samples import Continuations, continuations
from excise.evals.token_losses import TokenLossShift, token_loss_shift
from excise.evals.tradeoff import CurvePoint, tradeoff_curve
from excise.labels import RETAIN, label_id
from excise.model.gpt import n_parameters
from excise.routing.rules import RULES, SGTM_EFFECTS
from excise.train.run import RunDirectory


@dataclass(frozen=True)
class LeakageOfRun:
    """The leakage of each domain."""

    domains: Mapping[str, Leakage]
    curves: Mapping[str, BaselineCurve]
    baselines: Sequence[Provenance]


@dataclass(frozen=True)
class ComputePenalties:
    """By set: the penalty of the model with all modules, and of the ablated and calibrated model."""

    before: Mapping[str, ComputePenalty]
    calibrated: Mapping[str, ComputePenalty]
    laws: Mapping[str, ScalingLaw]
    """Of the baselines' calibrated losses."""
    baselines: Sequence[Provenance]


@dataclass(frozen=True)
class TokenLosses:
    """Losses after ablation token by token, beside those of another run; by set, without and with calibration."""

    against: Provenance
    ablated: Mapping[str, TokenLossShift]
    calibrated: Mapping[str, TokenLossShift]


@dataclass(frozen=True)
class MultipleChoice:
    """Answers to questions, by model: `full`, and `ablated` where there is a module."""

    models: Mapping[str, Sequence[Accuracy]]


def measure_losses(subject: Subject, options: MeasureOptions) -> Losses:
    return losses(subject)


def measure_tradeoff(subject: Subject, options: MeasureOptions) -> list[CurvePoint]:
    """What was followed in training, with the run's end from its own losses where that was left to its evaluation."""
    records = [record for record in RunDirectory(subject.directory).metrics() if "losses" in record]
    if not records or records[-1]["step"] < subject.done.step:
        own = own_losses(subject)
        end = {"losses": _stages(own.sets), "category_means": _stages(own.category_means)}
        records.append({"step": subject.done.step, "tokens": subject.done.tokens, **end})
    return tradeoff_curve(records, n_parameters(subject.model))


def _stages(losses: Mapping[str, SetLosses]) -> dict[str, dict[str, float]]:
    return {name: {stage: getattr(of, stage) for stage in STAGES} for name, of in losses.items()}


def measure_gradient_norms(subject: Subject, options: MeasureOptions) -> GradientNorms:
    domains, train = subject.config.routing.domains, subject.data.train
    test = {name: some(subject.data.test[name], options.documents) for name in (RETAIN, *domains)}
    labelled = {domain: train[train.labels == label_id(domain, domains)] for domain in domains}
    # A filtered run has no labelled forget documents, and so no direction to compare with.
    references = {name: some(corpus, options.documents) for name, corpus in labelled.items() if len(corpus)}
    return gradient_norms(subject.model, test, references, subject.context)


def measure_token_losses(subject: Subject, options: MeasureOptions) -> TokenLosses:
    if options.against is None:
        raise ValueError("token_losses compares a run with another; name one with --against")
    other = open_run(options.against, subject.data, weights=subject.weights)

    def shifts(corpus: Corpus) -> list[TokenLossShift]:
        documents = np.repeat(np.arange(len(corpus)), corpus.lengths - 1)
        pairs = zip(*(token_losses_after_ablation(one, corpus) for one in (subject, other)), strict=True)
        return [token_loss_shift(mine, reference, documents) for mine, reference in pairs]

    found = {name: shifts(corpus) for name, corpus in subject.data.test.items()}
    ablated, calibrated = ({name: of[i] for name, of in found.items()} for i in range(2))
    return TokenLosses(other.provenance, ablated, calibrated)


@torch.no_grad()
def token_losses_after_ablation(subject: Subject, corpus: Corpus) -> NDArray[np.float64]:
    """The loss of every prediction of a corpus, in the order of its text, however that is packed; a row of losses
    without the calibration bias, and one with it."""
    route, pieces = without_modules(subject.model, subject.removed), cut(corpus, subject.context)
    n_predicted = corpus.lengths - 1
    in_front = np.cumsum(n_predicted) - n_predicted  # predictions of all documents before each
    first = (in_front - corpus.starts)[pieces.document] + pieces.start
    of_corpus = np.zeros((2, corpus.n_predicted))
    for batch in batches_of(subject.model, corpus, subject.context):
        with subject.autocast:
            losses = token_losses(subject.model, batch, route, [None, subject.bias])
        predicted = (batch.targets != IGNORED).cpu()
        documents, positions = (ids.cpu()[predicted].numpy() for ids in (batch.documents, batch.positions))
        of_corpus[:, first[documents] + positions] = losses.cpu()[:, predicted].numpy()
    return of_corpus


def measure_cross_domain(subject: Subject, options: MeasureOptions) -> CrossDomain:
    return cross_domain(subject.model, subject.data.test, context=subject.context, autocast=subject.autocast)


def measure_multiple_choice(subject: Subject, options: MeasureOptions) -> MultipleChoice:
    if options.questions is None:
        raise ValueError("multiple_choice needs questions; name a jsonl file with --questions")
    if not options.questions.is_file():
        raise ValueError(f"there are no questions at {options.questions}; name a jsonl file")
    asked = read_questions(options.questions)

    def answers(removed: Sequence[str]) -> list[Accuracy]:
        tokenizer = subject.data.tokenizer
        with subject.autocast:
            return multiple_choice(subject.model, tokenizer, asked, removed=removed, context=subject.context)

    return MultipleChoice({"full": answers(())} | ({"ablated": answers(subject.removed)} if subject.removed else {}))


def measure_samples(subject: Subject, options: MeasureOptions) -> list[Continuations]:
    if not options.prompts:
        raise ValueError("samples need prompts to continue; give some with --prompts")
    models, removed = {"full": subject.model}, {}
    if subject.removed:
        models["ablated"], removed["ablated"] = subject.model, subject.removed
    if options.against is not None:
        other = open_run(options.against, subject.data, weights=subject.weights)
        models[other.directory.name], removed[other.directory.name] = other.model, other.removed
    with subject.autocast:
        return continuations(models, subject.data.tokenizer, options.prompts, removed=removed)


def measure_leakage(subject: Subject, options: MeasureOptions) -> LeakageOfRun:
    """Uncalibrated losses after ablation, by tokens (DESIGN, section 6)."""
    mine, found = own_losses(subject), baselines_of(subject, options, "leakage")
    for path in options.baselines:
        other = RunDirectory(path).config()
        if (other.model, other.train.budget, other.data.source) != (
            subject.config.model,
            subject.config.train.budget,
            subject.config.data.source,
        ):
            raise ValueError(
                f"{path} has another model, budget or source than {subject.directory}, so no leakage is known"
            )
    curves = {domain: baseline_curve([_point(of, domain) for of in found]) for domain in subject.config.routing.domains}
    return LeakageOfRun(
        domains={
            domain: leakage(
                curve,
                mine.sets[domain].ablated,
                mine.forget_tokens[domain].unlabeled,
                loss_error=mine.sets[domain].error("ablated"),
            )
            for domain, curve in curves.items()
        },
        curves=curves,
        baselines=[of.provenance for of in found],
    )


def _point(results: Results, domain: str) -> LeakagePoint:
    of_run = losses_in(results)
    seen = of_run.forget_tokens[domain]
    return LeakagePoint(seen.labelled + seen.unlabeled, of_run.sets[domain].ablated, results.provenance.seed)


def measure_compute_penalty(subject: Subject, options: MeasureOptions) -> ComputePenalties:
    """By the mean over categories, as the paper reports its groups."""
    mine, found = own_losses(subject).category_means, baselines_of(subject, options, "compute_penalty")
    for path in options.baselines:
        if RunDirectory(path).config().data.filter != "none":
            raise ValueError(f"{path} was trained with a filter; the compute penalty is relative to runs without one")
    before = {name: _penalty(found, subject, name, "before", mine[name]) for name in mine}
    calibrated = {name: _penalty(found, subject, name, "calibrated", mine[name]) for name in mine}
    laws = {name: fit_law(_baseline_runs(found, name, "calibrated")) for name in mine}
    return ComputePenalties(before, calibrated, laws, [of.provenance for of in found])


def _penalty(found: Sequence[Results], subject: Subject, name: str, stage: str, mine: SetLosses) -> ComputePenalty:
    runs, parameters = _baseline_runs(found, name, stage), n_parameters(subject.model)
    same_size = [run for run in runs if run.parameters == parameters]
    if not same_size:
        sizes = sorted({run.parameters for run in runs})
        raise ValueError(f"no baseline has the {parameters:,} parameters of {subject.directory}, only {sizes}")
    losses = [run.loss for run in same_size]
    mean, error = replace(same_size[0], loss=float(np.mean(losses))), None
    if len(losses) > 1:  # a run scatters as one seed does, and not as the means of several do about the law
        error = float(np.std(losses, ddof=1))
    return compute_penalty(fit_law(runs), getattr(mine, stage), mean, loss_error=error)


def _baseline_runs(found: Sequence[Results], name: str, stage: str) -> list[BaselineRun]:
    return [
        BaselineRun(of.provenance.parameters, of.provenance.tokens, getattr(losses_in(of).category_means[name], stage))
        for of in found
    ]


@dataclass(frozen=True)
class SurfaceOfRuns:
    """SGTM against the data filter over all classifiers, and along one of them."""

    surface: ClassifierSurface
    on_roc: Sequence[RocPoint]


COMPARED: Mapping[str, str] = {
    "weak_filter": "filter",
    **{name: "sgtm" for name, rule in RULES.items() if rule.effects == SGTM_EFFECTS},
}
"""Methods, by which of the two surfaces they are."""


def surface_of(directories: Sequence[Path], roc: Path | None = None) -> SurfaceOfRuns:
    """The TPR x FPR surface of evaluated runs, an SGTM and a filter run at each point (appendix D)."""
    at: dict[tuple[float, float, int], dict[str, Losses]] = {}
    for directory in directories:
        files = RunDirectory(directory)
        data, results = files.config().data, read_results(files.results_file)
        method = COMPARED.get(results.provenance.method)
        if method is None or data.labels != "simulated" or files.alterations():
            raise ValueError(f"{directory} is neither SGTM nor the weak filter on simulated labels; leave it out")
        # A ROC curve's rate is of all other documents, not only of those that are not labelled retain.
        rate = data.false_positive_rate * (1 - data.retain_share)
        methods = at.setdefault((1 - data.undiscovered_share, rate, results.provenance.seed), {})
        if method in methods:
            raise ValueError(f"{directory} is a second {method} run at its point; leave it out")
        methods[method] = losses_in(results)
    if lonely := [point for point, methods in at.items() if len(methods) < 2]:
        raise ValueError(f"there are no two runs, SGTM and filter, at TPR {lonely[0][0]:g} and FPR {lonely[0][1]:g}")
    pairs = [_pair(recall, rate, of["sgtm"], of["filter"]) for (recall, rate, _), of in at.items()]
    surface = classifier_surface(pairs)
    return SurfaceOfRuns(surface, along_roc(surface, _read_roc(roc)) if roc else [])


def _read_roc(report: Path) -> Roc:
    try:
        return roc_of(json.loads(report.read_text(encoding="utf-8")))
    except (KeyError, TypeError, json.JSONDecodeError):
        raise ValueError(f"{report} is no report.json of `excise label`") from None


def _pair(recall: float, rate: float, sgtm: Losses, filter: Losses) -> LabelledPair:
    domain = next(iter(sgtm.forget_tokens))
    return LabelledPair(
        recall,
        rate,
        *(of.sets[name].calibrated for of in (sgtm, filter) for name in (RETAIN, domain)),
    )


Measure = Callable[[Subject, MeasureOptions], Any]
MEASURES: Mapping[str, Measure] = {
    "losses": measure_losses,
    "tradeoff": measure_tradeoff,
    "gradient_norms": measure_gradient_norms,
    "token_losses": measure_token_losses,
    "cross_domain": measure_cross_domain,
    "multiple_choice": measure_multiple_choice,
    "samples": measure_samples,
    "leakage": measure_leakage,
    "compute_penalty": measure_compute_penalty,
}
"""In the order in which they are taken: the last two read the losses of the run itself from its results.json."""


def some(corpus: Corpus, n: int) -> Corpus:
    """At most so many documents, drawn at random but always the same."""
    return corpus[np.sort(np.random.default_rng(0).permutation(len(corpus))[:n])]


def own_losses(subject: Subject) -> Losses:
    """The losses of the run, which must be those of this checkpoint."""
    results = read_results(subject.results_file)
    if not same_source(results.provenance, subject.provenance):
        raise ValueError(f"the losses of {subject.directory} are of another checkpoint or data; evaluate it again")
    return losses_in(results)


def baselines_of(subject: Subject, options: MeasureOptions, measure: str) -> list[Results]:
    """The results of the standard runs to compare with, evaluated on the same data as this one."""
    if not options.baselines:
        raise ValueError(f"{measure} compares a run with others; name them with --baselines")
    for path in options.baselines:
        check_standard(path, measure)
    return [results_on_same_data(path, subject) for path in options.baselines]


def check_standard(path: Path, measure: str) -> None:
    """Refuse a run that was not trained as anybody would."""
    config = RunDirectory(path).config()
    plain = config.routing.rule == "none" and config.routing.forget_weight == 1 and config.data.filter != "strict"
    if not plain or config.data.false_positive_rate or RunDirectory(path).alterations():
        raise ValueError(
            f"{path} is no standard run, which {measure} compares others with (rule none, forget_weight 1, no strict "
            "filter, no false positives, nothing ablated or unlearned)"
        )


def results_on_same_data(path: Path, subject: Subject) -> Results:
    """The results of another run, with losses on all sets that this one is measured on."""
    elsewhere = results_file_of(path, None, subject.data)
    results = read_results(elsewhere if elsewhere.exists() else RunDirectory(path).results_file)
    known = losses_in(results).sets
    if (
        results.provenance.evaluated_on_sha256 != subject.data.held_out_sha256
        or not subject.data.test.keys() <= known.keys()
    ):
        raise ValueError(f"{path} was evaluated on other data than {subject.directory}; evaluate both on the same")
    return results
