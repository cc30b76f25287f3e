"""`excise label`: a source in, its documents labelled forget, retain, or unlabeled in between, and a report of how well.

The source is scored in batches, and of each document only the score stays in memory. A target such as a recall is met on
the source itself: calibrated scores tell how many documents of the domain lie above a threshold, though not which. That
is far steadier than the same quantile of some dozen held-out examples. Sentences are many even among the examples, and
their thresholds are chosen there.
"""

import gzip
import json
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from excise.data import engines
from excise.data.classifier import (
    BATCH,
    CHARACTERS,
    Example,
    Known,
    Scored,
    Trained,
    calibrate,
    draw,
    score_documents,
    score_examples,
    train,
)
from excise.data.documents import BadRows, Document, Fields
from excise.data.sources import SourceConfig, check_source_options, open_source
from excise.data.thresholds import (
    Floats,
    HeldOut,
    Rates,
    Target,
    Thresholds,
    choose_thresholds,
    expected_domain,
    histogram,
    log_odds,
    measure,
    rates,
)
from excise.files import sha256_of
from excise.labels import RETAIN, UNLABELED, check_domains, nearest

LABELS, REPORT, PICTURE = "labels.jsonl.gz", "report.json", "report.png"
BAD_ROWS = 0.01
"""Share of rows without text, without category or in another encoding that is put up with."""
N_LEAST = 10
"""Examples of the domain, and of the others, without which nothing can be said."""
EXAMPLES_REMEDY = "examples need one, or give --domain-examples and --other-examples, which do not"
SENTENCE_TARGET = Target("threshold", 0.5)
"""Most sentences of a biology article could stand in any other; a high recall of them would label half of the corpus."""

Listener = Callable[[int], None]
"""Is told how many documents have been scored."""


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Which documents are examples, and how the scores are cut in three."""

    domain: str
    """The label of what is to be forgotten."""
    categories: tuple[str, ...] = ()
    """Categories that make up the domain; the one with its name where none is given."""
    examples: str = ""
    """A file, folder or other source with categories, such as lines of {"text": "...", "category": "biology"}: those of
    the domain against all others."""
    domain_examples: str = ""
    """Instead of --examples: texts of the domain, with or without category."""
    other_examples: str = ""
    """With --domain-examples: texts that are not of the domain."""
    score_field: str = ""
    """Instead of examples: the field of the source that holds scores from 0 to 1. A category that is not `unlabeled`
    is then taken for the truth."""
    n_examples: int = 0
    """Examples to train on, drawn so that every category has its share; 0 for all."""
    n_validation: int = 0
    """Further examples, drawn likewise, to calibrate the scores on; 0 to use ten-fold cross-validation instead."""
    test: str = ""
    """A file with categories to report on; the examples for calibration where none is given."""
    recall: float | None = None
    """Share of the domain's documents to label as such; 0.9 where nothing else is asked for."""
    precision: float | None = None
    """Instead: share of what is labelled with the domain that truly is of it."""
    forget_threshold: float | None = None
    """Instead: the score from which on a document is labelled with the domain."""
    retain_share: float | None = None
    """Share of the other documents to label retain, surest first; 0.25 where nothing else is asked for."""
    retain_precision: float | None = None
    """Instead: share of what is labelled retain that truly is not of the domain."""
    retain_threshold: float | None = None
    """Instead: the score up to which a document is labelled retain."""
    per: Literal["document", "sentence"] = "document"
    """Whether every sentence gets a label of its own as well: the domain's from a score of 0.5 on."""
    source: SourceConfig = field(default_factory=SourceConfig)
    """Its fields are also those of the examples, which need a category even where the source has none: with an empty
    category field theirs is `category`."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_domains([self.domain])
        given = [bool(self.examples), bool(self.domain_examples and self.other_examples), bool(self.score_field)]
        if sum(given) != 1 or bool(self.domain_examples) != bool(self.other_examples):
            raise ValueError("give either --examples, or --domain-examples and --other-examples, or --score-field")
        if self.score_field and (self.per == "sentence" or self.test or self.n_examples or self.n_validation):
            raise ValueError("with --score-field nothing is trained: --per sentence, --test, --n-... do not apply")
        if min(self.n_examples, self.n_validation) < 0:
            raise ValueError(f"n_examples={self.n_examples} and n_validation={self.n_validation} cannot be below 0")
        for target in (self.forget, SENTENCE_TARGET) if self.per == "sentence" else (self.forget,):
            if target.by == self.retain.by == "threshold":
                Thresholds(target.value, self.retain.value)

    @property
    def forget(self) -> Target:
        return self._target({"recall": "recall", "precision": "precision", "forget_threshold": "threshold"}, 0.9)

    @property
    def retain(self) -> Target:
        by = {"retain_share": "share", "retain_precision": "precision", "retain_threshold": "threshold"}
        return self._target(by, 0.25)

    def _target(self, by: dict[str, Any], default: float) -> Target:
        """The one target that is given, or the default for the first."""
        given = {name: getattr(self, name) for name in by if getattr(self, name) is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; give one of them")
        name, value = next(iter(given.items()), (next(iter(by)), default))
        if not 0 < value <= 1:
            raise ValueError(f"{name}={value:g} must be above 0 and at most 1")
        return Target(by[name], value)

    @property
    def domain_categories(self) -> tuple[str, ...]:
        return self.categories or (self.domain,)

    def is_domain(self, document: Document) -> bool:
        return document.category in self.domain_categories


@dataclass(frozen=True)
class Split:
    """The three-way split of the source's documents, or of its sentences."""

    thresholds: Thresholds
    expected: Rates | None
    """On the source, as calibrated scores say; null for sentences, and where scores are given and no truth is."""
    held_out: HeldOut | None
    counts: tuple[int, ...] = ()
    """Of documents, by log-odds of the score, between the HISTOGRAM_EDGES."""
    labels: dict[str, int] = field(default_factory=dict)
    """How many have each label."""


@dataclass(frozen=True)
class LabelReport:
    """What `excise label` did, and how good it is."""

    source: str
    config: LabelConfig
    n_examples: int
    """Trained on; 0 where scores are given."""
    documents: Split
    sentences: Split | None
    n_rows: int
    n_bad_rows: int
    first_bad_rows: tuple[str, ...]
    labels_sha256: str


def label_corpus(
    source: str,
    to: Path,
    config: LabelConfig,
    *,
    engine: engines.Engine = "local",
    processes: int = 1,
    listener: Listener = lambda n_documents: None,
) -> LabelReport:
    """Write the labels of a source's documents, in its order, and return how they were found and how good they are.

    `excise.report.classifier_plots.write_label_report` writes what is returned beside them.
    """
    check_source_options(source, config.source)
    _start_folder(source, to)
    bad = BadRows(BAD_ROWS)
    documents = bad.skip(open_source(source, config.source).rows())
    n_examples, own_split = 0, None
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=to) as kept:
        if config.score_field:
            split = split_given(config, *_keep(_given_scores(source, documents, config), kept, listener))
        else:
            examples, validation = read_examples(config)
            trained = train(examples, validation, per_sentence=config.per == "sentence", seed=config.seed)
            scored = score_documents(documents, trained.classifier, engine, processes)
            split, own_split = split_classified(config, trained, _keep(scored, kept, listener)[0])
            n_examples = len(examples)
        split, own_split = _write_labels(kept, to / LABELS, config.domain, split, own_split)
    digest, first = sha256_of(to / LABELS), tuple(bad.first)
    return LabelReport(source, config, n_examples, split, own_split, bad.n_rows, bad.n_bad, first, digest)


def _start_folder(source: str, to: Path) -> None:
    """A folder without anything that looks finished, and that will not be taken for a part of the source."""
    if to.resolve().is_relative_to(Path(source).resolve()):
        raise ValueError(f"the labels cannot go to {to}, which is inside the source {source}")
    to.mkdir(parents=True, exist_ok=True)
    for name in (REPORT, PICTURE, LABELS):
        (to / name).unlink(missing_ok=True)


def read_examples(config: LabelConfig) -> tuple[list[Example], list[Example]]:
    """Examples to train on and examples to calibrate on, drawn so that every category has its share of both."""
    categories = [document.category for document in _examples(config)]
    for category in config.domain_categories:
        if config.examples and category not in categories:
            raise ValueError(f"no example has the category {category!r}; {nearest(category, sorted(set(categories)))}")
    n = config.n_examples or max(0, len(categories) - config.n_validation)
    numbers = draw(categories, n, config.n_validation, config.seed)
    wanted = set(np.concatenate(numbers).tolist())
    chosen = {i: _example(one, config) for i, one in enumerate(_examples(config)) if i in wanted}
    examples, validation = ([chosen[i] for i in which.tolist()] for which in numbers)
    _check_numbers(examples)
    if validation:
        _check_numbers(validation)
    return examples, validation


def _examples(config: LabelConfig) -> Iterator[Document]:
    """Every example; which of two files it comes from stands for its category."""
    if config.examples:
        return _with_category(config.examples, config)
    without = replace(config.source, fields=replace(config.source.fields, category=""))
    own, others = (_read(path, without) for path in (config.domain_examples, config.other_examples))
    category = config.domain_categories[0]
    return chain((replace(one, category=category) for one in own), (replace(one, category=RETAIN) for one in others))


def _with_category(path: str, config: LabelConfig) -> Iterator[Document]:
    """The documents of a file with the fields of the source; it has a category even where the source has none."""
    fields = config.source.fields
    return _read(path, replace(config.source, fields=replace(fields, category=fields.category or Fields().category)))


def _read(path: str, config: SourceConfig) -> Iterator[Document]:
    return BadRows(BAD_ROWS, category_remedy=EXAMPLES_REMEDY).skip(open_source(path, config).rows())


def _example(document: Document, config: LabelConfig) -> Example:
    return Example(document.text[:CHARACTERS], config.is_domain(document))


def _check_numbers(examples: Sequence[Example]) -> None:
    n_domain = sum(example.is_domain for example in examples)
    for n, what in ((n_domain, "the domain"), (len(examples) - n_domain, "anything else")):
        if n < N_LEAST:
            raise ValueError(f"there are only {n} examples of {what} to work with; give at least {N_LEAST}")


def _given_scores(source: str, documents: Iterable[Document], config: LabelConfig) -> Iterator[Scored]:
    """The scores that a source has. The readers know no score, so it is read once more with the score as the id."""
    as_id = replace(config.source, fields=replace(config.source.fields, id=config.score_field))
    with_score = (row for row in open_source(source, as_id).rows() if isinstance(row, Document))
    for document, other in zip(documents, with_score, strict=False):
        try:
            score = float(other.id)
        except ValueError:
            raise ValueError(f"{document.id} has no score in {config.score_field!r}") from None
        if not 0 <= score <= 1:
            raise ValueError(f"{document.id} has the score {score:g} in {config.score_field!r}; scores go from 0 to 1")
        yield Scored(document.id, score, np.nan if document.category == UNLABELED else config.is_domain(document))


def _keep(scored: Iterable[Scored], file: IO[str], listener: Listener) -> tuple[Floats, Floats]:
    """The scores and truths of all documents; the rest waits in a file until the thresholds are known."""
    scores, truth = array("d"), array("d")
    for one in scored:
        file.write(json.dumps(vars(one)) + "\n")
        scores.append(one.score)
        truth.append(one.truth)
        if len(scores) % BATCH == 0:
            listener(len(scores))
    listener(len(scores))
    if not scores:
        raise ValueError("there are no documents in the source")
    return np.array(scores), np.array(truth)


def split_given(config: LabelConfig, scores: Floats, truth: Floats) -> Split:
    """The truth counts where it is known; elsewhere the scores, calibrated on where it is."""
    counts, known = tuple(histogram(scores).tolist()), ~np.isnan(truth)
    if len(np.unique(truth[known])) < 2:
        if not config.forget.by == config.retain.by == "threshold":
            raise ValueError(
                f"the source has no category that tells {config.domain!r} from the others, so no target can be met; "
                "give --forget-threshold and --retain-threshold"
            )
        return Split(Thresholds(config.forget.value, config.retain.value), None, None, counts)
    calibration, _ = calibrate(log_odds(scores[known]), truth[known])
    expected = np.where(known, truth, calibration(log_odds(scores)))
    thresholds = choose_thresholds(scores, expected, config.forget, config.retain)
    held_out = measure("source documents with a category", scores[known], truth[known], thresholds)
    return Split(thresholds, rates(scores, expected, thresholds), held_out, counts)


def split_classified(config: LabelConfig, trained: Trained, scores: Floats) -> tuple[Split, Split | None]:
    """Documents are split as their own scores say, sentences as those of the examples."""
    expected = expected_domain(scores, trained.prior)
    thresholds = choose_thresholds(scores, expected, config.forget, config.retain)
    on, known, own = _held_out(config, trained)
    held_out = measure(on, known.scores, known.truth, thresholds)
    split = Split(thresholds, rates(scores, expected, thresholds), held_out, tuple(histogram(scores).tolist()))
    if trained.sentences is None or own is None:
        return split, None
    basis = trained.sentences
    own_thresholds = choose_thresholds(basis.scores, basis.truth, SENTENCE_TARGET, config.retain)
    return split, Split(own_thresholds, None, measure(on, own.scores, own.truth, own_thresholds))


def _held_out(config: LabelConfig, trained: Trained) -> tuple[str, Known, Known | None]:
    """What to report on, and the scores of its documents and sentences: the test, else what scores are calibrated on."""
    if not config.test:
        name = "validation examples" if config.n_validation else "out-of-fold examples"
        return name, trained.documents, trained.sentences
    test = [_example(document, config) for document in _with_category(config.test, config)]
    _check_numbers(test)
    return Path(config.test).name, *score_examples(trained.classifier, test)


def _write_labels(
    kept: IO[str], to: Path, domain: str, split: Split, own_split: Split | None
) -> tuple[Split, Split | None]:
    """Write the labels, and add to the splits how many there are of each."""
    labels, own_labels = Counter[str](), Counter[str]()
    temporary = to.with_name(to.name + ".part")
    kept.seek(0)
    with temporary.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for line in kept:
            row = _label_row(Scored(**json.loads(line)), domain, split, own_split)
            labels[row["label"]] += 1
            own_labels.update(label for _, _, label in row.get("spans", ()))
            packed.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    os.replace(temporary, to)
    return replace(split, labels=dict(labels)), own_split and replace(own_split, labels=dict(own_labels))


def _label_row(scored: Scored, domain: str, split: Split, own_split: Split | None) -> dict[str, Any]:
    label = split.thresholds.label(scored.score, domain)
    row = {"id": scored.id, "score": scored.score, "label": label}
    if own_split is None:
        return row
    labels = [own_split.thresholds.label(score, domain) for score in scored.span_scores]
    spans = [[*span, label] for span, label in zip(scored.spans, labels, strict=True)]
    return row | {"spans": spans, "span_scores": scored.span_scores}
