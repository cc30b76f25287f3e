"""The data of a run: prepared documents, labelled, filtered, in train, calibration and test sets."""

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from excise.config import override
from excise.data.documents import BadRows
from excise.data.noise import ADJACENT, OTHER, draw, simulate_labels
from excise.data.packing import Corpus
from excise.data.shards import LABELS_ARE_CATEGORIES, MANIFEST, load_prepared
from excise.data.sources import EMBEDDED, TEST, TRAIN, SourceConfig, open_source
from excise.data.tokenised import Column, Tokenised, tokenise
from excise.data.tokens import Tokenizer, story_tokenizer
from excise.files import sha256_of
from excise.labels import FIRST_DOMAIN_ID, GROUPS, RETAIN, RETAIN_ID, UNLABELED, label_id, label_names, nearest

SIMULATED = ("undiscovered_share", "false_positive_rate", "retain_share", "adjacent_retain_share")
SHARES = (*SIMULATED, "forget_share", "calibration_share")
FEWEST = 8
"""Documents of a category, for calibration and for the test each, that are read where there are so many."""
Labels = Literal["given", "simulated"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the text comes from and what training sees of it."""

    source: str = "stories"
    """`stories` or `topics` for an embedded corpus, or a folder written by `excise prepare`."""
    n_stories: int = 4000
    """Embedded training stories, each in both languages, or articles."""
    n_test_stories: int = 400
    """Embedded stories or articles for calibration and test together."""
    forget: tuple[str, ...] = ()
    """Categories that belong to a domain, as `domain=category`; a domain not named is the category of its name."""
    adjacent: tuple[str, ...] = ()
    """Categories near the domains: evaluated apart, and left out by the strict filter."""
    general: tuple[str, ...] = ()
    """Categories of general knowledge, evaluated apart; where none is named, all but domains and adjacent."""
    labels: Literal["auto", "given", "simulated"] = "auto"
    """The documents' own labels (given), labels drawn from the categories with the shares below (simulated), or `auto`: given
    where any document has one."""
    undiscovered_share: float = 0.0
    """Share of each domain's documents that is not labelled as such (1 - TPR)."""
    false_positive_rate: float = 0.0
    """Share of the other documents, once those labelled retain are drawn, that is labelled with a domain (FPR)."""
    retain_share: float = 0.25
    """Share of the documents outside domains and adjacent categories that is labelled retain."""
    adjacent_retain_share: float = 0.25
    """Share of the documents of adjacent categories that is labelled retain."""
    forget_share: float = 1.0
    """Share of the documents labelled with a domain that is trained on, drawn once; a module may need few of them."""
    filter: Literal["none", "weak", "strict", "perfect"] = "none"
    """Documents not trained on: none, those labelled with a domain, the adjacent categories as well, or those that truly
    belong to a domain."""
    calibration_share: float = 0.25
    """Share of the test documents that calibration may see, and the test then does not."""
    n_test_documents: int = 2000
    """How many of the test documents are read, those for calibration among them: each category's share of them, and a few at
    least; 0 means all."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"data.{name}={getattr(self, name):g} is a share, from 0 to 1")
        if not self.forget_share:
            raise ValueError("data.forget_share=0 leaves modules nothing to learn from; set it above 0")
        for name in ("n_stories", "n_test_stories"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)} leaves that split empty; set it to at least 1")
        if self.n_test_documents < 0:
            raise ValueError(f"data.n_test_documents={self.n_test_documents} cannot be negative; 0 means all")
        for entry in self.forget:
            if not all(entry.partition("=")):
                raise ValueError(f"data.forget has {entry!r}; write domain=category")


@dataclass(frozen=True)
class Data:
    """Everything a run reads."""

    train: Corpus
    calibration: Mapping[str, Corpus]
    """By set: `retain`, each domain, and `adjacent` and `general` where there are adjacent categories."""
    test: Mapping[str, Corpus]
    """The same sets."""
    tokenizer: Tokenizer
    truth: NDArray[np.int64]
    """The number of the domain that each training document truly belongs to, or a negative one."""
    sha256: str
    """Of the whole source, whatever of it is filtered or held out."""
    labels: Labels = "simulated"
    """Where those of the training documents come from."""
    n_labelled: Mapping[str, int] = field(default_factory=dict)
    """Training documents by label, those that are filtered out included."""

    @property
    def told(self) -> str:
        """A sentence on where the labels come from and how many documents have each."""
        origin = {"given": "of the documents themselves", "simulated": "simulated from the categories"}[self.labels]
        counts = ", ".join(f"{n:,} {label}" for label, n in self.n_labelled.items())
        within = "" if self.train.token_labels is None else ", and others within documents"
        left_out = sum(self.n_labelled.values()) - len(self.train)
        return f"labels {origin}: {counts}{within}" + (f"; {left_out:,} of all not trained on" if left_out else "")

    @cached_property
    def held_out_sha256(self) -> str:
        """Of the documents for calibration and test, and of how they are grouped."""
        digest = hashlib.sha256(self.sha256.encode())
        for split in (self.calibration, self.test):
            for name, corpus in split.items():
                digest.update(f"{name} {len(corpus)}".encode() + corpus.starts.tobytes())
        return digest.hexdigest()


def load_data(config: DataConfig, domains: Sequence[str]) -> Data:
    """The splits of a source; a domain without documents or an empty split is an error."""
    splits, tokenizer, sha256, more_tests = _splits(config)
    if TEST not in splits:
        raise ValueError(f"{config.source} has no test documents; {more_tests}")
    _check_categories(config, splits, domains)
    train = splits[TRAIN]
    truth = _truth(train.categories, config, domains)
    origin = origin_of_labels(config, train)
    corpus = _corpus(train, _labels(train, truth, config, domains, origin), domains, given=origin == "given")
    left = ~_filtered(corpus.labels, truth, config.filter) & _drawn(corpus.labels, config)
    kept = corpus[left]
    if not len(kept):
        raise ValueError(f"the train split is empty once data.filter={config.filter!r} is applied")
    calibration, test = _held_out(splits[TEST], config, domains, more_tests)
    n_labelled = {name: int((corpus.labels == number).sum()) for number, name in enumerate(label_names(domains))}
    return Data(kept, calibration, test, tokenizer, truth[left], sha256, origin, n_labelled)


def origin_of_labels(config: DataConfig, train: Tokenised) -> Labels:
    """Where the labels of training documents come from: where nothing else is said, from themselves if any has one."""
    if config.labels != "auto":
        return config.labels
    return "given" if has_labels(train) else "simulated"


def has_labels(documents: Tokenised) -> bool:
    """Whether any document, or a stretch of one, has a label."""
    columns = [documents.labels, *([documents.token_labels] if documents.token_labels else [])]
    return any(name != UNLABELED for column in columns for name in column.names)


@cache
def _warn_once(message: str) -> None:
    """A run may load its data several times."""
    logger.warning(message)


def everything(config: DataConfig) -> DataConfig:
    """The same source with nothing filtered and every document labelled as what it truly is."""
    true = {"undiscovered_share": 0.0, "false_positive_rate": 0.0, "retain_share": 1.0, "adjacent_retain_share": 1.0}
    return override(config, {"filter": "none", "forget_share": 1.0, "labels": "simulated", **true})


def with_true_labels(config: DataConfig, domains: Sequence[str], named: Sequence[str]) -> Corpus:
    """All training documents, labelled as what they truly are; an error where a named domain is not among the domains."""
    for domain in named:
        if domain not in domains:
            raise ValueError(f"there is no domain {domain!r}; {nearest(domain, domains)}")
    return load_data(everything(config), domains).train


def true_sets(config: DataConfig, domains: Sequence[str], forget: Sequence[str]) -> tuple[Corpus, Corpus]:
    """All training documents that truly belong to some of the domains, and all others."""
    corpus = with_true_labels(config, domains, forget)
    members = np.isin(corpus.labels, [label_id(domain, domains) for domain in forget])
    return corpus[members], corpus[~members]


def _splits(config: DataConfig) -> tuple[Mapping[str, Tokenised], Tokenizer, str, str]:
    """The documents of each split, their tokenizer, a digest of all, and what gives more test documents."""
    if config.source not in EMBEDDED:
        prepared = load_prepared(Path(config.source))
        if prepared.manifest.labels_are_categories:
            _warn_once(f"{config.source} {LABELS_ARE_CATEGORIES}")
        digest = sha256_of(Path(config.source) / MANIFEST)
        return prepared.splits, prepared.tokenizer, digest, prepared.manifest.more_tests
    sizes = SourceConfig(n_stories=config.n_stories, n_test_stories=config.n_test_stories, seed=config.seed)
    source = open_source(config.source, sizes)
    tokenizer, bad = story_tokenizer(), BadRows(limit=0)
    splits: dict[str, Tokenised] = {
        split: tokenise(list(bad.skip(read())), tokenizer) for split, read in source.splits.items()
    }
    digest = hashlib.sha256(b"".join(split.tokens[:].tobytes() for split in splits.values())).hexdigest()
    return splits, tokenizer, digest, "set a higher data.n_test_stories"


def _domain_of(config: DataConfig, domains: Sequence[str]) -> dict[str, str]:
    """The domain of each category that belongs to one."""
    named = {category: domain for domain, _, category in (entry.partition("=") for entry in config.forget)}
    return named | {domain: domain for domain in domains if domain not in named.values()}


def _check_categories(config: DataConfig, splits: Mapping[str, Tokenised], domains: Sequence[str]) -> None:
    """Every category and domain that is named must be in the data, or named by one of its labels."""
    seen = sorted({name for split in splits.values() for name in split.categories.names})
    for category in (*config.adjacent, *config.general, *(entry.partition("=")[2] for entry in config.forget)):
        if category not in seen:
            raise ValueError(f"category {category!r} is not in the data; {nearest(category, seen)}")
    for domain in (entry.partition("=")[0] for entry in config.forget):
        if domains and domain not in domains:
            raise ValueError(f"data.forget names the domain {domain!r}; {nearest(domain, domains)}")
    known = {*splits[TRAIN].categories.names, *splits[TRAIN].labels.names}
    of_category = _domain_of(config, domains)
    for domain in domains:
        if not known & ({domain} | {category for category, of in of_category.items() if of == domain}):
            categories = splits[TRAIN].categories.names
            remedy = f"say which of them are of it: --data.forget {domain}=CATEGORY"
            if categories == (UNLABELED,):
                remedy = "label the source with excise label, then prepare it with --labels"
            raise ValueError(
                f"domain {domain!r} is never seen in the training data, whose categories are {', '.join(categories)}; {remedy}"
            )
        if not {category for category, of in of_category.items() if of == domain} & set(seen):
            raise ValueError(
                f"domain {domain!r} is a label and no category, so no test document can be of it; say which categories are: "
                f"--data.forget {domain}=CATEGORY (there are {', '.join(seen)})"
            )


def _truth(categories: Column, config: DataConfig, domains: Sequence[str]) -> NDArray[np.int64]:
    """For each document the number of the domain it truly belongs to, ADJACENT or OTHER."""
    of_category = _domain_of(config, domains)

    def truth(category: str) -> int:
        if of_category.get(category) in domains:
            return list(domains).index(of_category[category])
        return ADJACENT if category in config.adjacent else OTHER

    of_documents: NDArray[np.int64] = np.array([truth(name) for name in categories.names], np.int64)[categories.index]
    return of_documents


def _labels(
    train: Tokenised, truth: NDArray[np.int64], config: DataConfig, domains: Sequence[str], origin: Labels
) -> NDArray[np.int8]:
    if origin == "given":
        return train.labels.translate([_given_label(train.labels, name, domains) for name in train.labels.names])
    shares = {name: getattr(config, name) for name in SIMULATED}
    return simulate_labels(truth, domains, seed=config.seed, **shares)


def _given_label(labels: Column, name: str, domains: Sequence[str]) -> int:
    try:
        return label_id(name, domains)
    except ValueError as error:
        first = int(np.argmax(labels.index == labels.names.index(name))) + 1
        raise ValueError(f"document {first} of the train split: {error}") from None


def _corpus(data: Tokenised, labels: NDArray[np.int8], domains: Sequence[str], *, given: bool) -> Corpus:
    token_labels = None
    if given and data.token_labels:
        token_labels = data.token_labels.translate([label_id(name, domains) for name in data.token_labels.names])
    starts = np.cumsum(data.lengths) - data.lengths
    return Corpus(data.tokens, starts, data.lengths, labels, token_labels, data.categories)


def _filtered(labels: NDArray[np.int8], truth: NDArray[np.int64], which: str) -> NDArray[np.bool_]:
    """Whether each document is left out."""
    labelled: NDArray[np.bool_] = labels >= FIRST_DOMAIN_ID
    left_out: dict[str, NDArray[np.bool_]] = {
        "none": np.zeros_like(labelled),
        "weak": labelled,
        "strict": labelled | (truth == ADJACENT),
        "perfect": truth >= 0,
    }
    return left_out[which]


def _drawn(labels: NDArray[np.int8], config: DataConfig) -> NDArray[np.bool_]:
    """Whether each document is trained on: all but those of the domains, of each of which a share is."""
    drawn: NDArray[np.bool_] = labels < FIRST_DOMAIN_ID
    for label in np.unique(labels[~drawn]):
        drawn[draw(np.flatnonzero(labels == label), config.forget_share, [config.seed, int(label)])] = True
    return drawn


def _held_out(
    data: Tokenised, config: DataConfig, domains: Sequence[str], more_tests: str
) -> tuple[dict[str, Corpus], dict[str, Corpus]]:
    """Calibration and test sets, with true labels."""
    truth = _truth(data.categories, config, domains)
    labels = np.where(truth >= 0, truth + FIRST_DOMAIN_ID, RETAIN_ID).astype(np.int8)
    corpus = _corpus(data, labels, domains, given=False)
    for_calibration = np.zeros(len(corpus), bool)
    sets = {RETAIN: truth < 0} | {domain: truth == number for number, domain in enumerate(domains)}
    for name, members in sets.items():
        for_calibration[_first_share(name, np.flatnonzero(members), config, more_tests)] = True
    if config.adjacent:
        of_category = np.array([name in config.general for name in data.categories.names])[data.categories.index]
        sets |= dict(zip(GROUPS, (truth == ADJACENT, of_category if config.general else truth == OTHER), strict=True))
    # A document's split does not depend on how many are read, or raising that number would test what was calibrated on.
    read = _read(2 * data.categories.index.astype(np.int64) + for_calibration, config)
    calibration = {name: corpus[members & read & for_calibration] for name, members in sets.items()}
    test = {name: corpus[members & read & ~for_calibration] for name, members in sets.items()}
    _check_test(test, config, more_tests)
    return calibration, test


def _read(groups: NDArray[np.int64], config: DataConfig) -> NDArray[np.bool_]:
    """Whether each test document is read: of each group its share, and a few at least."""
    limit, n = config.n_test_documents, len(groups)
    if not limit or n <= limit:
        return np.ones(n, bool)
    counts = np.bincount(groups)
    least = np.minimum(counts, max(1, min(FEWEST, limit // int(np.count_nonzero(counts)))))
    rare = counts * limit < least * n
    share = (limit - least[rare].sum()) / max(1, counts[~rare].sum())
    wanted = np.maximum(least, np.floor(counts * share))
    shuffled = np.random.default_rng(config.seed).permutation(n)
    in_groups = shuffled[np.argsort(groups[shuffled], kind="stable")]
    nth = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    read = np.zeros(n, bool)
    read[in_groups] = nth < np.repeat(wanted, counts)
    _warn_once(
        f"{read.sum():,} of the {n:,} test documents of {config.source} are read "
        f"(data.n_test_documents={limit}; 0 reads all)"
    )
    return read


def _check_test(test: Mapping[str, Corpus], config: DataConfig, more_tests: str) -> None:
    counts = Counter[str]()
    for corpus in test.values():
        counts.update(corpus.categories.counts())
    named = (*config.adjacent, *config.general, *(entry.partition("=")[2] for entry in config.forget))
    empty = [name for name, tested in test.items() if not len(tested)] or [c for c in named if not counts[c]]
    if empty:
        raise ValueError(f"no test document of {empty[0]!r} is left; {more_tests}")


def _first_share(name: str, members: NDArray[np.int64], config: DataConfig, more_tests: str) -> NDArray[np.int64]:
    n = round(config.calibration_share * len(members))
    if not 0 < n < len(members):
        raise ValueError(
            f"the {len(members)} test documents of {name!r} leave an empty calibration or test split "
            f"at data.calibration_share={config.calibration_share:g}; {more_tests}, or change that share"
        )
    return np.random.default_rng([config.seed, *name.encode()]).permutation(members)[:n]
