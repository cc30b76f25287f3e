"""A classifier from examples: TF-IDF of words, a linear model, and scores that are calibrated probabilities.

What the model says of examples that it was not trained on turns its margins into probabilities: those of validation
examples, or of each tenth of the examples by a model of the other nine. A sentence is scored by the same model from its
own words and those of its two neighbours, with a calibration of its own, for which the truth about a sentence is that of
its document.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from excise.data import engines
from excise.data.documents import Document
from excise.data.thresholds import LARGEST_ODDS, Floats
from excise.extras import needs

BATCH = 128
CHARACTERS = 20_000
"""How much of a document is looked at for its own score."""
LARGEST_VOCABULARY = 2**18
N_FOLDS = 10
EVERY_SENTENCE = 4
"""Of the sentences of an example, one in so many is kept for their calibration."""
SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s++|[。！？]++[」』”’）]*+\s*+|\n\s*+")
OPENING = re.compile(r"[\"'“‘«(\[¿¡]*+")
ABBREVIATION = re.compile(
    r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|Hon|Sra|Srta|Ud|Uds|No|Nos|Fig|Vol|vs|ca|cf"
    r"|e\.g|i\.e|approx|et al)\Z"
)

Ints = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Example:
    """A text of which it is known whether it is of the domain."""

    text: str
    is_domain: bool


@dataclass(frozen=True)
class Known:
    """Scores of documents, or of sentences, of which the truth is known."""

    scores: Floats
    truth: Floats
    """1 for the domain, 0 for the others."""


@dataclass(frozen=True)
class Scored:
    """A document's score and, where they are known or asked for, its truth and the scores of its sentences."""

    id: str
    score: float
    truth: float = np.nan
    spans: tuple[tuple[int, int], ...] = ()
    span_scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """Turns a margin into a probability (Platt, 1999)."""

    slope: float
    intercept: float

    def __call__(self, margins: Floats) -> Floats:
        odds = np.clip(self.slope * margins + self.intercept, -LARGEST_ODDS, LARGEST_ODDS)
        return np.asarray(1 / (1 + np.exp(-odds)))


@dataclass(frozen=True)
class Classifier:
    """Texts in, probabilities of the domain out."""

    words: Any
    linear: Any
    calibration: Calibration
    sentence_calibration: Calibration | None = None

    def score(self, texts: Sequence[str]) -> Floats:
        return self.calibration(
            self.linear.decision_function(self.words.transform(text[:CHARACTERS] for text in texts))
        )

    def score_sentences(self, texts: Sequence[str]) -> list[Floats]:
        """The scores of the sentences of each text."""
        assert self.sentence_calibration is not None
        counts, owners = sentence_words(self.words, texts)
        scores = self.sentence_calibration(self.linear.decision_function(counts))
        return np.split(scores, np.flatnonzero(np.diff(owners)) + 1)


@dataclass(frozen=True)
class Trained:
    """A classifier, and its scores of the examples that it was calibrated on."""

    classifier: Classifier
    documents: Known
    sentences: Known | None

    @property
    def prior(self) -> float:
        """The share of the domain for which scores are probabilities."""
        return float(self.documents.truth.mean())


def train(examples: Sequence[Example], validation: Sequence[Example], *, per_sentence: bool, seed: int) -> Trained:
    """A classifier that is trained on examples, and calibrated on others or, without any, by cross-validation."""
    vectorizer = needs("sklearn.feature_extraction.text", "data").CountVectorizer
    words = vectorizer(min_df=2, max_features=LARGEST_VOCABULARY, dtype=np.float32)
    counts = words.fit_transform(example.text for example in examples)
    truth = truth_of(examples)
    linear = fit_linear(counts, truth)
    held_out = [example.text for example in validation or examples]
    known = truth_of(validation or examples)
    documents = words.transform(held_out) if validation else counts
    units, owners = _with_sentences(words, documents, held_out if per_sentence else [])
    margins = linear.decision_function(units) if validation else _out_of_fold(counts, truth, units, owners, seed)
    calibration, scores = calibrate(margins[: len(known)], known)
    own_calibration, own_scores = None, None
    if per_sentence:
        own_calibration, own_scores = calibrate(margins[len(known) :], known[owners[len(known) :]])
    return Trained(Classifier(words, linear, calibration, own_calibration), scores, own_scores)


def truth_of(examples: Sequence[Example]) -> Floats:
    return np.array([float(example.is_domain) for example in examples])


def fit_linear(counts: Any, truth: Floats) -> Any:
    """A model of word counts whose margin is above 0 for the domain."""
    tfidf = needs("sklearn.feature_extraction.text", "data").TfidfTransformer(sublinear_tf=True)
    logistic = needs("sklearn.linear_model", "data").LogisticRegression(C=10, max_iter=1000)
    return needs("sklearn.pipeline", "data").make_pipeline(tfidf, logistic).fit(counts, truth)


def _with_sentences(words: Any, documents: Any, texts: Sequence[str]) -> tuple[Any, Ints]:
    """Documents, then some sentences of the texts, as counts of words, and the document that each belongs to."""
    numbers = np.arange(documents.shape[0])
    if not texts:
        return documents, numbers
    own, owners = sentence_words(words, texts)
    stacked = needs("scipy.sparse", "data").vstack([documents, own[::EVERY_SENTENCE]], format="csr")
    return stacked, np.append(numbers, owners[::EVERY_SENTENCE])


def _out_of_fold(counts: Any, truth: Floats, units: Any, owners: Ints, seed: int) -> Floats:
    """The margin of each unit by a model that was not trained on its example."""
    folds = needs("sklearn.model_selection", "data").StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    margins = np.zeros(len(owners))
    for others, mine in folds.split(counts, truth):
        here = np.isin(owners, mine)
        margins[here] = fit_linear(counts[others], truth[others]).decision_function(units[here])
    return margins


def calibrate(margins: Floats, truth: Floats) -> tuple[Calibration, Known]:
    """The calibration that fits margins whose truth is known, and the scores that it gives them.

    A weak penalty keeps the slope finite where the classes are told apart fully. Platt's own remedy, softer truths, is
    not for a rare domain: a little of it in each of very many others adds up.
    """
    scale = float(margins.std()) or 1.0
    logistic = needs("sklearn.linear_model", "data").LogisticRegression(C=100, tol=1e-8, max_iter=1000)
    logistic.fit(margins[:, None] / scale, truth)
    calibration = Calibration(float(logistic.coef_[0, 0]) / scale, float(logistic.intercept_[0]))
    if calibration.slope <= 0:
        raise ValueError("the scores are no higher for the domain than for the others; is the category the right one?")
    return calibration, Known(calibration(margins), truth)


def draw(categories: Sequence[str], n: int, n_further: int, seed: int) -> tuple[Ints, Ints]:
    """Numbers of n rows, and of further ones, in which every category has its share to within one row."""
    if n + n_further > len(categories):
        raise ValueError(
            f"n_examples={n} and n_validation={n_further} cannot be drawn from {len(categories)} examples; lower them"
        )
    random = np.random.default_rng(seed)
    shuffled = random.permutation(len(categories))
    by_category = shuffled[np.argsort(np.array(categories)[shuffled], kind="stable")]
    drawn = by_category[_spread(len(by_category), n, random)]
    rest = by_category[~np.isin(by_category, drawn)]
    return np.sort(drawn), np.sort(rest[_spread(len(rest), n_further, random)])


def _spread(n: int, k: int, random: np.random.Generator) -> Ints:
    """k of n positions at equal distances."""
    return ((np.arange(k) + random.random()) * n / max(k, 1)).astype(np.int64)


def score_examples(classifier: Classifier, examples: Sequence[Example]) -> tuple[Known, Known | None]:
    """The scores of examples and, where they are asked for, of their sentences."""
    texts, truth = [example.text for example in examples], truth_of(examples)
    documents = Known(classifier.score(texts), truth)
    if classifier.sentence_calibration is None:
        return documents, None
    own = classifier.score_sentences(texts)
    return documents, Known(np.concatenate(own), np.repeat(truth, [len(scores) for scores in own]))


def score_documents(
    documents: Iterable[Document], classifier: Classifier, engine: engines.Engine, processes: int
) -> Iterator[Scored]:
    """The scores of documents in their order, whatever the order in which an engine is done with them."""
    waiting: dict[int, list[Scored]] = {}
    wanted = 0
    work = partial(score_share, classifier)
    for number, scored in engines.run(engine, work, enumerate(batches(documents)), processes):
        waiting[number] = scored
        while wanted in waiting:
            yield from waiting.pop(wanted)
            wanted += 1


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def score_share(classifier: Classifier, share: tuple[int, list[Document]]) -> tuple[int, list[Scored]]:
    """The scores of some documents, with the number of their share."""
    number, documents = share
    texts = [document.text for document in documents]
    scored = [Scored(one.id, score) for one, score in zip(documents, classifier.score(texts).tolist(), strict=True)]
    if classifier.sentence_calibration is None:
        return number, scored
    own = zip(scored, texts, classifier.score_sentences(texts), strict=True)
    return number, [
        replace(one, spans=tuple(sentences(text)), span_scores=tuple(scores.tolist())) for one, text, scores in own
    ]


def sentence_words(words: Any, texts: Sequence[str]) -> tuple[Any, Ints]:
    """How often each word occurs in each sentence and its two neighbours, and the number of the sentence's text."""
    spans = [sentences(text) for text in texts]
    counts = words.transform(text[start:end] for text, own in zip(texts, spans, strict=True) for start, end in own)
    owners = np.repeat(np.arange(len(texts)), [len(own) for own in spans])
    beside = (owners[1:] == owners[:-1]).astype(np.float32)
    itself = np.ones(len(owners), np.float32)
    neighbours = needs("scipy.sparse", "data").diags([beside, itself, beside], [-1, 0, 1], format="csr")
    return neighbours @ counts, owners


def sentences(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence; together they cover the text.

    A sentence ends after . ! ? or … (and closing quotes or brackets) before white space, after 。！？, or at the end of a
    line, unless a small letter follows. No sentence ends after an initial or one of the usual abbreviations.
    """
    ends = SENTENCE_END.finditer(text, len(text) - len(text.lstrip()))
    starts = [0, *(end.end() for end in ends if end.end() < len(text) and not _goes_on(text, end))]
    return list(zip(starts, [*starts[1:], len(text)], strict=True))


def _goes_on(text: str, end: re.Match[str]) -> bool:
    """Whether the sentence goes on after what looks like its end."""
    opening = OPENING.match(text, end.end())
    assert opening is not None
    if text[opening.end() : opening.end() + 1].islower():
        return True
    is_full_stop = end[0].rstrip() == "." and "\n" not in end[0]
    return is_full_stop and ABBREVIATION.search(text, max(0, end.start() - 8), end.start()) is not None
