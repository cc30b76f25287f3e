"""Documents as they come: a text, what it is truly about, and the label that training sees."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from excise.labels import UNLABELED


@dataclass(frozen=True)
class Document:
    """One text. `category` is the truth, for evaluation; `label` is what a classifier said, for training."""

    id: str
    text: str
    category: str
    label: str = UNLABELED


def read_jsonl(path: Path) -> Iterator[Document]:
    """Documents of a .jsonl or .jsonl.gz file with fields `text`, `category` and, where it is known, `label`."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            yield _document(line, f"{path.name}:{number}")


def _document(line: str, where: str) -> Document:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error.msg}") from None
    for field in ("text", "category"):
        if not isinstance(fields, dict) or not isinstance(fields.get(field), str):
            raise ValueError(f"{where} has no text field {field!r}")
    label = fields.get("label", UNLABELED)
    if not isinstance(label, str):
        raise ValueError(f"{where} has the label {label!r}; a label is a word")
    return Document(where, fields["text"], fields["category"], label)


def read_split(folder: Path, split: str) -> list[Document]:
    """The documents of `<split>.jsonl` or `<split>.jsonl.gz` in a folder."""
    for path in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz"):
        if path.exists():
            documents = list(read_jsonl(path))
            if not documents:
                raise ValueError(f"the {split} split is empty: {path} holds no document")
            return documents
    raise ValueError(f"there is no {split}.jsonl or {split}.jsonl.gz in {folder}")
