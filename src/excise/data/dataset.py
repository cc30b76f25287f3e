"""The data of a run: documents from a source, labelled, filtered, tokenised, in train, calibration and test splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from excise.data.documents import Document, read_split
from excise.data.noise import simulate_labels
from excise.data.packing import Corpus
from excise.data.stories import stories
from excise.data.tokens import Tokenizer, story_tokenizer
from excise.labels import RETAIN, label_id

STORIES = "stories"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the text comes from and what training sees of it."""

    source: str = STORIES
    """`stories` for the embedded corpus, or a folder with train.jsonl and test.jsonl (or .jsonl.gz)."""
    tokenizer: str = STORIES
    """`stories` for the embedded tokenizer, or the path of a tokenizer.json."""
    n_stories: int = 4000
    """Embedded training stories; each comes in both languages."""
    n_test_stories: int = 400
    """Embedded stories for calibration and test together."""
    labels: Literal["simulated", "given"] = "simulated"
    """Labels drawn from the categories with the shares below, or the documents' own."""
    undiscovered_share: float = 0.0
    """Share of each domain's documents that is not labelled as such."""
    retain_share: float = 0.25
    """Share of the other documents that is labelled retain."""
    filter: Literal["none", "weak", "perfect"] = "none"
    """Documents not trained on: none, those labelled with a domain, or those that truly belong to one."""
    calibration_share: float = 0.25
    """Share of the test documents that calibration may see, and the test then does not."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("undiscovered_share", "retain_share", "calibration_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"data.{name}={getattr(self, name):g} is a share, from 0 to 1")
        for name in ("n_stories", "n_test_stories"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)} leaves that split empty; set it to at least 1")


@dataclass(frozen=True)
class Data:
    """Everything a run reads."""

    train: Corpus
    calibration: Mapping[str, Corpus]
    """By set: `retain`, and each domain."""
    test: Mapping[str, Corpus]
    tokenizer: Tokenizer


def load_data(config: DataConfig, domains: Sequence[str]) -> Data:
    """The splits of a source; a domain without documents or an empty split is an error."""
    tokenizer = load_tokenizer(config)
    train, held_out = _documents(config, "train"), _documents(config, "test")
    if config.labels == "simulated":
        train = simulate_labels(
            train,
            domains,
            undiscovered_share=config.undiscovered_share,
            retain_share=config.retain_share,
            seed=config.seed,
        )
    _check_domains_seen(train, domains)
    kept = [document for document in train if not _filtered(document, config.filter, domains)]
    if not kept:
        raise ValueError(f"the train split is empty once data.filter={config.filter!r} is applied")
    calibration, test = {}, {}
    for name, documents in _sets(held_out, domains).items():
        calibration[name], test[name] = _halves(name, documents, config, domains, tokenizer)
    return Data(tokenise(kept, domains, tokenizer), calibration, test, tokenizer)


def load_tokenizer(config: DataConfig) -> Tokenizer:
    return story_tokenizer() if config.tokenizer == STORIES else Tokenizer.load(Path(config.tokenizer))


def tokenise(documents: Sequence[Document], domains: Sequence[str], tokenizer: Tokenizer) -> Corpus:
    """Documents as tokens, each closed by the end-of-text token."""
    labels = [_label_of(document, domains) for document in documents]
    tokens = tokenizer.encode_batch([document.text for document in documents])
    return Corpus.of([[*text, tokenizer.end_of_text] for text in tokens], labels)


def _label_of(document: Document, domains: Sequence[str]) -> int:
    try:
        return label_id(document.label, domains)
    except ValueError as error:
        raise ValueError(f"{document.id}: {error}") from None


def _documents(config: DataConfig, split: Literal["train", "test"]) -> list[Document]:
    if config.source != STORIES:
        return read_split(Path(config.source), split)
    n = config.n_stories if split == "train" else config.n_test_stories
    drawn = stories(n, seed=config.seed, split=split)
    return [
        Document(f"{split}-{i}-{language}", getattr(story, language), language)
        for i, story in enumerate(drawn)
        for language in ("english", "spanish")
    ]


def _filtered(document: Document, which: str, domains: Sequence[str]) -> bool:
    truth = {"none": "", "weak": document.label, "perfect": document.category}
    return truth[which] in domains


def _check_domains_seen(documents: Sequence[Document], domains: Sequence[str]) -> None:
    for domain in domains:
        if not any(domain in (document.label, document.category) for document in documents):
            seen = sorted({document.category for document in documents})
            raise ValueError(
                f"domain {domain!r} is never seen in the training data, whose categories are {', '.join(seen)}"
            )


def _sets(documents: Sequence[Document], domains: Sequence[str]) -> dict[str, list[Document]]:
    """Held-out documents by the set they are evaluated in, with their true label."""
    sets: dict[str, list[Document]] = {name: [] for name in (RETAIN, *domains)}
    for document in documents:
        name = document.category if document.category in domains else RETAIN
        sets[name].append(replace(document, label=name))
    return sets


def _halves(
    name: str, documents: Sequence[Document], config: DataConfig, domains: Sequence[str], tokenizer: Tokenizer
) -> tuple[Corpus, Corpus]:
    order = np.random.default_rng([config.seed, *name.encode()]).permutation(len(documents))
    n = round(config.calibration_share * len(documents))
    if not 0 < n < len(documents):
        raise ValueError(
            f"the {len(documents)} test documents of {name!r} leave an empty calibration or test split "
            f"at data.calibration_share={config.calibration_share:g}"
        )
    first, second = [documents[i] for i in order[:n]], [documents[i] for i in order[n:]]
    return tokenise(first, domains, tokenizer), tokenise(second, domains, tokenizer)
