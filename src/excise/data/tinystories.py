"""TinyStories in English and Spanish (paper, section 4 and appendix I).

Every row of the dataset is a story, `text`, and its translation, `text_es`; they become two documents, each a training
example of its own.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from excise.data.documents import BadRow, Document, Fields, Rows, document_of, read_file
from excise.extras import needs

HUB_NAME = "ffuuugor/tinystories-spanish"
"""The dataset that the paper's authors published."""

LANGUAGES = {"english": "text", "spanish": "text_es"}
"""Category and column of each document of a row."""

FIELDS = tuple(Fields(text=column, category="", label="") for column in LANGUAGES.values())
ENDINGS = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst")


def read_tinystories(path_or_name: Path | str, split: str) -> Rows:
    """The English and the Spanish document of every story of a split, in the order of the dataset.

    Reads a folder, whose files have the split in their names, one file, or a dataset on the HuggingFace Hub, streamed.
    """
    pairs = _folder_pairs(Path(path_or_name), split) if _is_path(path_or_name) else _hub_pairs(str(path_or_name), split)
    return _documents(pairs, split)


def _documents(pairs: Iterator[tuple[Document | BadRow, ...]], split: str) -> Rows:
    for number, pair in enumerate(pairs, 1):
        for category, row in zip(LANGUAGES, pair, strict=True):
            if isinstance(row, Document):
                yield replace(row, id=f"{split}-{number}-{category}", category=category)
            else:
                yield row


def _is_path(path_or_name: Path | str) -> bool:
    """Whether this is on disk; what looks like a path and is not there is an error, not a name to look up."""
    if Path(path_or_name).exists():
        return True
    if isinstance(path_or_name, Path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?", path_or_name):
        raise ValueError(f"{path_or_name} does not exist; give a folder, a file or the name of a dataset ({HUB_NAME})")
    return False


def _folder_pairs(path: Path, split: str) -> Iterator[tuple[Document | BadRow, ...]]:
    """Both columns of every row; each column is read on its own, side by side."""
    for file in _files(path, split):
        yield from zip(*(read_file(file, fields) for fields in FIELDS), strict=True)


def _files(path: Path, split: str) -> list[Path]:
    """The files of a split, by name; the split is a word of the name, so that `train` is not in `retrained.jsonl`."""
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.name.endswith(ENDINGS))
    files = [file for file in found if split in re.split(r"[^A-Za-z0-9]+", str(file.relative_to(path)))]
    if not files:
        names = ", ".join(str(file.relative_to(path)) for file in found[:5]) or f"no {' or '.join(ENDINGS)} file"
        raise ValueError(f"{path} has no file with {split!r} in its name; it holds {names}")
    return files


def _hub_pairs(name: str, split: str) -> Iterator[tuple[Document | BadRow, ...]]:
    """Both columns of every row of a dataset on the Hub, by its name or `name:configuration`."""
    name, _, configuration = name.partition(":")
    try:
        rows = needs("datasets", "hf").load_dataset(name, configuration or None, split=split, streaming=True)
    except (FileNotFoundError, ConnectionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{name!r} is no folder here, and the HuggingFace Hub does not give it ({reason})") from None
    for number, row in enumerate(rows, 1):
        yield tuple(document_of(row, fields, f"{split}:{number}") for fields in FIELDS)
