"""Where documents come from: files, the embedded corpora, the paper's two corpora, any HuggingFace dataset.

A source is written as a path, `stories`, `topics`, or a kind and what it is of:
`hf:NAME[:CONFIGURATION]`, `tinystories:NAME-OR-FOLDER`, `wikipedia:FILE-OR-FOLDER`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from excise.data.documents import Document, Fields, Pieces, Rows, is_readable, read_huggingface, read_pieces, rows_of
from excise.data.stories import stories
from excise.data.tinystories import read_tinystories
from excise.data.topics import articles
from excise.data.wikipedia import Umbrella, read_topics, read_wikipedia_dump, read_wikipedia_parquet
from excise.extras import needs
from excise.files import sha256_of

Split = Literal["train", "test"]
TRAIN: Split = "train"
TEST: Split = "test"
EMBEDDED = ("stories", "topics")
SPLIT_WORDS: dict[str, Split] = {"train": TRAIN, "test": TEST, "validation": TEST, "valid": TEST}
CHECKSUMS = "SHA256SUMS"


def _own_group(document: Document) -> str:
    return document.id


@dataclass(frozen=True)
class Source:
    """Pieces by split, read anew at each call; a source without a test split has some of its documents held out."""

    splits: Mapping[Split, Callable[[], Pieces]]
    description: Mapping[str, Any]
    """What the manifest says of it."""
    group_of: Callable[[Document], str] = _own_group
    """Documents of a group are held out together or not at all."""

    def rows(self) -> Rows:
        """Every row, in the one order that labels and shards keep."""
        return rows_of(chain.from_iterable(read() for read in self.splits.values()))


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """How the documents of a source are read."""

    fields: Fields = field(default_factory=Fields)
    topics: str = ""
    """For Wikipedia: the article-topic table (CSV)."""
    umbrella: Umbrella = "highest"
    """For Wikipedia: whether a starred topic counts as any other, or only where an article has no other."""
    n_stories: int = 4000
    """Embedded training stories, each in both languages, or articles."""
    n_test_stories: int = 400
    seed: int = 0


def open_source(name: str, config: SourceConfig) -> Source:
    """The source of that name."""
    kind = kind_of(name)
    if kind in EMBEDDED:
        return _embedded(name, config)
    return KINDS[kind](name.partition(":")[2], config) if kind in KINDS else _files(Path(name), config.fields)


def kind_of(name: str) -> str:
    """`stories` or `topics`, `hf`, `tinystories`, `wikipedia`, or `files`."""
    kind, _, rest = name.partition(":")
    return name if name in EMBEDDED else kind if kind in KINDS and rest else "files"


OF_SOME: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("n_stories", "n_test_stories", "seed"), EMBEDDED),
    **dict.fromkeys(("topics", "umbrella"), ("wikipedia",)),
}
"""The kinds of sources that an option is for, where it is for some only."""


def check_source_options(name: str, config: SourceConfig) -> None:
    """Refuse an option that says nothing about this source."""
    for option, kinds in OF_SOME.items():
        if getattr(config, option) != getattr(SourceConfig(), option) and kind_of(name) not in kinds:
            raise ValueError(
                f"source.{option}={getattr(config, option)} would change nothing, as it is for {' and '.join(kinds)}; leave "
                f"out --source.{option.replace('_', '-')}"
            )


def _embedded(name: str, config: SourceConfig) -> Source:
    rows = {"stories": _story_rows, "topics": _topic_rows}[name]
    splits: dict[Split, int] = {TRAIN: config.n_stories, TEST: config.n_test_stories}
    sizes = {"n_stories": config.n_stories, "n_test_stories": config.n_test_stories}
    return Source(
        {split: partial(rows, n, config.seed, split) for split, n in splits.items()},
        {"source": name, "seed": config.seed, **sizes},
    )


def _topic_rows(n: int, seed: int, split: Split) -> Rows:
    for article in articles(n, seed=seed, split=split):
        yield Document(article.id, article.text, article.category)


def _story_rows(n: int, seed: int, split: Split) -> Rows:
    for i, story in enumerate(stories(n, seed=seed, split=split)):
        yield Document(f"{split}-{i}-english", story.english, "english")
        yield Document(f"{split}-{i}-spanish", story.spanish, "spanish")


def _huggingface(name: str, config: SourceConfig) -> Source:
    splits = {ours: partial(read_huggingface, name, its, config.fields) for ours, its in _hub_splits(name).items()}
    return Source(splits, {"source": f"hf:{name}"})


def _hub_splits(name: str) -> dict[Split, str]:
    """The names that a HuggingFace dataset has for our splits."""
    dataset, _, configuration = name.partition(":")
    found = needs("datasets", "hf").get_dataset_split_names(dataset, configuration or None)
    if "train" not in found:
        raise ValueError(f"the dataset {name!r} has no split called train, only {', '.join(found)}")
    return {SPLIT_WORDS[split]: split for split in reversed(found) if split in SPLIT_WORDS}


def _tinystories(name: str, config: SourceConfig) -> Source:
    """Both languages of a story; a story and its translation are held out together."""
    if Path(name).exists():
        files = _files(Path(name), config.fields)
        found: dict[Split, str] = {split: split for split in files.splits}
        description = files.description
    else:
        found, description = _hub_splits(name), {"source": name}
    return Source(
        {ours: partial(read_tinystories, name, its) for ours, its in found.items()},
        {**description, "kind": "tinystories"},
        group_of=_story,
    )


def _story(document: Document) -> str:
    return document.id.rpartition("-")[0]


def _wikipedia(name: str, config: SourceConfig) -> Source:
    """Articles that have a topic; a table older than the articles lacks some, which are left out."""
    path, table = Path(name), Path(config.topics)
    if not config.topics:
        raise ValueError("Wikipedia needs its article-topic table; give its path as --source.topics")
    read = read_wikipedia_dump if name.removesuffix(".bz2").endswith(".xml") else read_wikipedia_parquet
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise ValueError(f"there is no XML dump and no parquet file at {path}")

    def rows() -> Rows:
        topics = read_topics(table, umbrella=config.umbrella)
        return read(path, topics, without_topic="skip")

    digests = {file.name: _checked_digest(file) for file in (*files, table)}
    return Source(
        {TRAIN: rows}, {"source": path.name, "kind": "wikipedia", "files": digests, "umbrella": config.umbrella}
    )


KINDS: Mapping[str, Callable[[str, SourceConfig], Source]] = {
    "hf": _huggingface,
    "tinystories": _tinystories,
    "wikipedia": _wikipedia,
}


def _files(path: Path, fields: Fields) -> Source:
    if not path.exists():
        raise ValueError(f"there is no file or folder {path}; a source can also be 'stories', 'topics' or 'hf:NAME'")
    files = tuple(sorted(file for file in path.rglob("*") if is_readable(file)) if path.is_dir() else [path])
    if not files:
        raise ValueError(f"there is no .jsonl, .jsonl.gz, .jsonl.zst, .parquet or .txt file in {path}")
    by_split: dict[Split, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_of(file, path), []).append(file)
    if TRAIN not in by_split:
        raise ValueError(f"{path} has files for {', '.join(by_split)} but none for train")
    digests = {_relative(file, path): _checked_digest(file) for file in files}
    return Source(
        {split: partial(_read_files, by_split[split], fields) for split in (TRAIN, TEST) if split in by_split},
        {"source": path.name, "files": digests},
    )


def _relative(file: Path, path: Path) -> str:
    return file.relative_to(path).as_posix() if path.is_dir() else file.name


def _split_of(file: Path, path: Path) -> Split:
    """The split that a word of the file's name or folder says; training where none does, or where one file is all."""
    if path == file:
        return TRAIN
    for word in re.split(r"[^a-z]+", _relative(file, path).lower()):
        if word in SPLIT_WORDS:
            return SPLIT_WORDS[word]
    return TRAIN


def _read_files(files: Sequence[Path], fields: Fields) -> Pieces:
    for file in files:
        yield from read_pieces(file, fields)


def _checked_digest(file: Path) -> str:
    """The SHA-256 of a file, which must be the one in a SHA256SUMS beside it or above it, where there is one."""
    digest = sha256_of(file)
    for folder in file.parents[:2]:
        sums = folder / CHECKSUMS
        if not sums.is_file():
            continue
        for line in sums.read_text(encoding="utf-8").splitlines():
            expected, _, name = line.partition(" ")
            if folder / name.strip(" *") == file and expected != digest:
                raise ValueError(f"{file} is damaged: its SHA-256 is not the one in {sums}")
    return digest
