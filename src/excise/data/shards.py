"""Prepared data on disk: token shards that are mapped into memory, and a manifest that is written last.

    manifest.json                  counts, source, tokenizer, the SHA-256 of every file below, and of all this
    tokenizer.json                 the tokenizer
    train-00000.tokens.npy         tokens end to end, 16 or 32 bits each
    train-00000.documents.npy      per document its length, category and label
    train-00000.token_labels.npy   labels per token, only where some documents mix labels

While a folder is being prepared, each finished share of the source has its part of the manifest in a file of its own.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from excise.data.documents import BadRows, is_readable
from excise.data.tokenised import Column, Joined, Tokenised
from excise.data.tokens import Tokenizer
from excise.files import flush, sha256_of, write_whole
from excise.labels import UNLABELED

MANIFEST, TOKENIZER = "manifest.json", "tokenizer.json"
LABELS_ARE_CATEGORIES = "has no categories: its labels stand for them, in evaluation too"
INDEX = np.dtype([("length", "<u4"), ("category", "<u4"), ("label", "<u4")])


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One entry of the manifest."""

    name: str
    split: str
    n_documents: int
    n_tokens: int
    """End-of-text tokens not counted."""
    text_bytes: int
    categories: tuple[str, ...]
    labels: tuple[str, ...]
    token_labels: tuple[str, ...]
    """Empty where no document of the shard mixes labels."""
    sha256: Mapping[str, str]
    """By file."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What became of a share of the source: a shard for each split that it has documents of."""

    share: str
    shards: tuple[Shard, ...]
    bad: BadRows


@dataclass(frozen=True, kw_only=True)
class Manifest:
    source: Mapping[str, Any]
    """What the data was prepared from, with the SHA-256 of every file."""
    tokenizer_sha256: str
    vocabulary_size: int
    n_rows: int
    n_bad_rows: int
    first_bad_rows: tuple[str, ...]
    shards: tuple[Shard, ...] = field(default_factory=tuple)

    @property
    def more_tests(self) -> str:
        """What gives more test documents."""
        if not self.source.get("held_out", True):
            return "add documents to the test files of the source and prepare it again"
        return "prepare with a higher --test-share, or with --test-per-category, which takes at most half of a category"

    @property
    def labels_are_categories(self) -> bool:
        """Whether documents have labels, and nothing else that says what they are about."""
        from_fields = self.source.get("options", {}).get("fields", {}).get("category") == ""
        return from_fields and any(label != UNLABELED for shard in self.shards for label in shard.labels)


def is_prepared(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def write_shard(folder: Path, name: str, split: str, data: Tokenised, text_bytes: int) -> Shard:
    """Write the files of a shard."""
    index = np.zeros(len(data), INDEX)
    index["length"], index["category"], index["label"] = data.lengths, data.categories.index, data.labels.index
    arrays = {"tokens": data.tokens, "documents": index}
    if data.token_labels:
        arrays["token_labels"] = data.token_labels.index
    return Shard(
        name=name,
        split=split,
        n_documents=len(data),
        n_tokens=int(data.lengths.sum()) - len(data),
        text_bytes=text_bytes,
        categories=data.categories.names,
        labels=data.labels.names,
        token_labels=data.token_labels.names if data.token_labels else (),
        sha256={f"{name}.{what}.npy": _save(folder / f"{name}.{what}.npy", a) for what, a in arrays.items()},
    )


FINISHED = ".share.json"


def sealed(values: Mapping[str, Any]) -> bytes:
    """Values as JSON, closed by a digest of them."""
    return (json.dumps({**values, "sha256": _digest(values)}, indent=1) + "\n").encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """The values in what `sealed` made; anything else, or one of them edited, is a ValueError."""
    values = json.loads(content)
    if not isinstance(values, dict) or "sha256" not in values:
        raise ValueError("it has no digest of itself, as an earlier excise wrote it")
    if values.pop("sha256") != _digest(values):
        raise ValueError("its digest of itself is another")
    return values


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_finished(folder: Path, finished: Finished) -> None:
    """Written after the shards of a share, and so a sign that they are whole.

    Nobody waits for the disk: after a loss of power whatever is not as it should be is found, and done again.
    """
    temporary = folder / f"{finished.share}.part"
    temporary.write_bytes(sealed(asdict(finished)))
    os.replace(temporary, folder / (finished.share + FINISHED))


def read_finished(folder: Path, share: str) -> Finished | None:
    """What became of a share before an interruption; None where its shards are not there, or not whole."""
    file = folder / (share + FINISHED)
    if not file.exists():
        return None
    try:
        values = unsealed(file.read_bytes())
        shards = tuple(map(_shard, values["shards"]))
        for shard in shards:
            verify(folder, shard)
    except ValueError:
        return None
    return Finished(share=share, shards=shards, bad=BadRows(**values["bad"]))


def _shard(values: Mapping[str, Any]) -> Shard:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Shard(**fields)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """The last file of all, once the shards that it lists are on the disk; the parts that it gathers are then of no use."""
    for name in (TOKENIZER, *(name for shard in manifest.shards for name in shard.sha256)):
        flush(folder / name)
    write_whole(folder / MANIFEST, sealed(asdict(manifest)))
    for file in folder.glob("*" + FINISHED):
        file.unlink()


def read_manifest(folder: Path) -> Manifest:
    if not is_prepared(folder):
        is_source = any(map(is_readable, folder.glob("*")))
        source, out = (folder, "data") if is_source else ("SOURCE", folder)
        raise ValueError(f"{folder} holds no prepared data; make it with: excise prepare {source} --out {out}")
    try:
        values = unsealed((folder / MANIFEST).read_bytes())
        shards = tuple(map(_shard, values.pop("shards")))
        return Manifest(**values | {"shards": shards, "first_bad_rows": tuple(values["first_bad_rows"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MANIFEST} is damaged ({error}); prepare the data again") from None


@dataclass(frozen=True)
class Prepared:
    """Prepared data, checked and mapped into memory."""

    manifest: Manifest
    tokenizer: Tokenizer
    splits: Mapping[str, Tokenised]


def load_prepared(folder: Path) -> Prepared:
    """All splits of a folder; a missing or altered file is an error, so that it is never trained on."""
    manifest = read_manifest(folder)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    if tokenizer.sha256 != manifest.tokenizer_sha256:
        raise ValueError(f"{folder / TOKENIZER} is not the tokenizer that the data was made with; prepare it again")
    for shard in manifest.shards:
        verify(folder, shard)
    names = dict.fromkeys(shard.split for shard in manifest.shards)
    return Prepared(
        manifest,
        tokenizer,
        {split: _joined(folder, [s for s in manifest.shards if s.split == split]) for split in names},
    )


def count(folder: Path, manifest: Manifest, split: str, what: Literal["category", "label"]) -> Counter[str]:
    """How many documents of a split each category or label has."""
    n = Counter[str]()
    for shard in manifest.shards:
        if shard.split == split:
            names = shard.categories if what == "category" else shard.labels
            n += Counter(Column(names, _mapped(folder, shard, "documents")[what]).counts())
    return n


def count_within(folder: Path, manifest: Manifest, split: str) -> Counter[str]:
    """How many tokens of a split each label has in shards where some documents mix labels."""
    n = Counter[str]()
    for shard in manifest.shards:
        if shard.split == split and shard.token_labels:
            n += Counter(Column(shard.token_labels, _mapped(folder, shard, "token_labels")).counts())
    return n


def verify(folder: Path, shard: Shard) -> None:
    for file, digest in shard.sha256.items():
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file} is missing; prepare the data again")
        if sha256_of(folder / file) != digest:
            raise ValueError(f"{folder / file} is damaged (its SHA-256 is not the manifest's); prepare the data again")


def _joined(folder: Path, shards: Sequence[Shard]) -> Tokenised:
    indices = [_mapped(folder, shard, "documents") for shard in shards]
    mixed = any(shard.token_labels for shard in shards)
    return Tokenised(
        tokens=Joined([_mapped(folder, shard, "tokens") for shard in shards]),
        lengths=np.concatenate([index["length"] for index in indices]).astype(np.int64),
        categories=_column([shard.categories for shard in shards], [index["category"] for index in indices]),
        labels=_column([shard.labels for shard in shards], [index["label"] for index in indices]),
        token_labels=Column.join([_token_labels(folder, *pair) for pair in zip(shards, indices, strict=True)])
        if mixed
        else None,
    )


def _column(names: Sequence[tuple[str, ...]], indices: Sequence[NDArray[Any]]) -> Column:
    return Column.join([Column(*pair) for pair in zip(names, indices, strict=True)])


def _token_labels(folder: Path, shard: Shard, index: NDArray[Any]) -> Column:
    if shard.token_labels:
        return Column(shard.token_labels, _mapped(folder, shard, "token_labels"))
    return Column(shard.labels, np.repeat(index["label"], index["length"]))


def _mapped(folder: Path, shard: Shard, what: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(folder / f"{shard.name}.{what}.npy", mmap_mode="r")
    return array


def _save(path: Path, array: Any) -> str:
    """Write an array and return the SHA-256 of its file."""
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.save(file, array)
    digest = sha256_of(temporary)
    os.replace(temporary, path)
    return digest
