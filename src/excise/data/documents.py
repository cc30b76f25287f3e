"""Documents as they come: a text, what it is truly about, and the label that training sees.

Readers yield documents one at a time, so that memory stays flat however large a source is. A row that cannot be used is
yielded as a `BadRow`, for whoever reads to count; a damaged file is an error.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from excise.extras import needs
from excise.labels import UNLABELED, why_no_label

try:  # it comes with the `data` extra, and nothing depends on it but speed
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Span:
    """A stretch of a text, in characters, with a label of its own."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Document:
    """One text. `category` is the truth, for evaluation; `label` is what a classifier said, for training."""

    id: str
    text: str
    category: str
    label: str = UNLABELED
    spans: tuple[Span, ...] = ()
    """Sentences or words that are labelled otherwise than the document; in order, without overlap."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used, and why."""

    where: str
    reason: str
    lacks: Literal["", "text", "category"] = ""
    """The field that it would need and does not have at all."""


N_FIELDS = 10
"""Of a row that are named where it lacks another."""
Rows = Iterator[Document | BadRow]


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The names that a source gives to what is read from it."""

    text: str = "text"
    category: str = "category"
    """Empty ('') where the source has none: the label, its own or from --labels, then stands for it."""
    label: str = "label"
    """Read where a row has it; other rows are unlabeled."""
    id: str = ""
    """Empty: the name of the file and the number of the row."""


@dataclass(frozen=True)
class Lines:
    """Whole lines of a .jsonl file that nobody has parsed yet, so that whoever wants the documents can."""

    file: str
    first: int
    """The number of the first line."""
    content: bytes
    fields: Fields

    def rows(self) -> Rows:
        for number, line in enumerate(self.content.split(b"\n"), self.first):
            if line.strip():
                yield _row_of(line, self.fields, f"{self.file}:{number}")


Piece = Document | BadRow | Lines
Pieces = Iterator[Piece]


def rows_of(pieces: Iterable[Piece]) -> Rows:
    """The rows of a source that comes in pieces."""
    for piece in pieces:
        if isinstance(piece, Lines):
            yield from piece.rows()
        else:
            yield piece


def read_file(path: Path, fields: Fields) -> Rows:
    """The documents of one file, whatever its format."""
    return rows_of(read_pieces(path, fields))


def read_pieces(path: Path, fields: Fields) -> Pieces:
    """What one file holds, not parsed yet where that can wait."""
    for ending, read in READERS.items():
        if path.name.endswith(ending):
            return read(path, fields)
    raise ValueError(f"{path} is in no format that can be read, which are {', '.join(READERS)}")


def is_readable(path: Path) -> bool:
    return path.name.endswith(tuple(READERS))


def read_jsonl(path: Path, fields: Fields) -> Pieces:
    """Lines of a .jsonl, .jsonl.gz or .jsonl.zst file."""
    first = 1
    rest = b""
    for chunk in _chunks(path):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield Lines(path.name, first, whole, fields)
            first += whole.count(b"\n") + 1
    if rest:
        yield Lines(path.name, first, rest, fields)


def _row_of(line: bytes, fields: Fields, where: str) -> Document | BadRow:
    try:
        row = _parse(line)
    except UnicodeDecodeError:
        return BadRow(where, "is not UTF-8")
    except UnicodeEncodeError:
        return BadRow(where, "has half of a surrogate pair, which is not Unicode")
    except json.JSONDecodeError:
        return BadRow(where, "is not JSON")
    return document_of(row, fields, where) if isinstance(row, dict) else BadRow(where, "is not a JSON object")


def _parse(line: bytes) -> Any:
    if orjson is not None:
        try:
            return orjson.loads(line)
        except json.JSONDecodeError:
            pass  # the reader below takes more, and tells encodings from syntax
    row = json.loads(line)
    json.dumps(row, ensure_ascii=False).encode()
    return row


def read_parquet(path: Path, fields: Fields) -> Rows:
    """Documents of a parquet file, a few hundred rows in memory at a time."""
    parquet = needs("pyarrow.parquet", "data")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        read = [name for name in (*vars(fields).values(), "spans") if name in names]
        rows = (
            row
            for batch in file.iter_batches(batch_size=256, columns=read if fields.text in read else names)
            for row in batch.to_pylist()
        )
        for number, row in enumerate(rows, 1):
            yield document_of(row, fields, f"{path.name}:{number}")
    except (OSError, needs("pyarrow", "data").ArrowException) as error:
        raise ValueError(f"{path} is truncated or damaged ({first_line(error)})") from None


def read_text(path: Path, fields: Fields) -> Rows:
    """The one document of a .txt file, whose category is the name of its folder."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        yield BadRow(path.name, "is not UTF-8")
        return
    yield document_of({fields.text: text, fields.category: path.parent.name}, fields, f"{path.parent.name}/{path.name}")


READERS: Mapping[str, Callable[[Path, Fields], Pieces]] = {
    ".jsonl": read_jsonl,
    ".jsonl.gz": read_jsonl,
    ".jsonl.zst": read_jsonl,
    ".parquet": read_parquet,
    ".txt": read_text,
}


def read_huggingface(name: str, split: str, fields: Fields) -> Rows:
    """Documents of one split of a HuggingFace dataset, streamed, by its name on the Hub or a local path."""
    load_dataset = needs("datasets", "hf").load_dataset
    name, _, configuration = name.partition(":")
    for number, row in enumerate(load_dataset(name, configuration or None, split=split, streaming=True), 1):
        yield document_of(row, fields, f"{split}:{number}")


def document_of(row: Mapping[str, Any], fields: Fields, where: str) -> Document | BadRow:
    """The document in a row, or what is wrong with it."""
    text, label = row.get(fields.text), row.get(fields.label)
    label = UNLABELED if label is None or label == "" else label
    if not isinstance(text, str) or not text.strip():
        others = _without(fields.text, row, fields)
        return BadRow(where, f"has no text in {fields.text!r}{others}", "text" if others else "")
    if not isinstance(label, str):
        return BadRow(where, f"has the label {label!r}, which is not a word")
    if why := why_no_label(label):
        return BadRow(where, f"has the label {label!r}: {why}")
    category = row.get(fields.category) if fields.category else label
    if not isinstance(category, str) or not category:
        others = _without(fields.category, row, fields)
        return BadRow(where, f"has no category in {fields.category!r}{others}", "category")
    identity = str(row.get(fields.id, where)) if fields.id else where
    given = row.get("spans")
    if not given:
        return Document(identity, text, category, label)
    try:
        triples = (one.values() if isinstance(one, dict) else one for one in given)
        spans = tuple(Span(int(start), int(end), str(name)) for start, end, name in triples)
    except (TypeError, ValueError):
        return BadRow(where, "has spans that are not triples of start, end and label")
    if why := next(filter(None, (why_no_label(span.label) for span in spans)), ""):
        return BadRow(where, f"has a span with a label that cannot be one: {why}")
    ends = [0, *(span.end for span in spans)]
    if any(span.start < end or span.end <= span.start for span, end in zip(spans, ends, strict=False)):
        return BadRow(where, "has spans that overlap or are out of order")
    if ends[-1] > len(text):
        return BadRow(where, "has a span beyond the end of its text")
    return Document(identity, text, category, label, spans)


def _without(name: str, row: Mapping[str, Any], fields: Fields) -> str:
    """The fields that a row has instead of one; nothing where the format names them, whose readers look for no label."""
    if name in row or not row or not fields.label:
        return ""
    return f", only the fields {', '.join(map(repr, list(row)[:N_FIELDS]))}"


@dataclass
class BadRows:
    """Counts what cannot be used, and stops when it is too much."""

    limit: float = 1.0
    n_rows: int = 0
    n_bad: int = 0
    first: list[str] = field(default_factory=list)
    lacks: Literal["", "text", "category"] = ""
    """The field that the first of them lacks."""
    remedy: str = "mend them"
    """What would do."""
    category_remedy: str = "give --source.fields.category '' if the data has none, or the name of its field"
    """What would do where the first of them lacks a category."""
    text_remedy: str = "name the field that holds the text: --source.fields.text NAME"
    """What would do where the first of them lacks that field."""

    def skip(self, pieces: Iterable[Piece]) -> Iterator[Document]:
        """The documents among the rows; more than the limit of bad rows is an error, at the end at the latest."""
        for row in rows_of(pieces):
            self.n_rows += 1
            if isinstance(row, Document):
                yield row
                continue
            self.n_bad += 1
            self.lacks = self.lacks if self.first else row.lacks
            if len(self.first) < 5:
                self.first.append(f"{row.where} {row.reason}")
            self.check(at_least=1000)
        self.check()

    def add(self, others: "BadRows") -> None:
        self.n_rows += others.n_rows
        self.n_bad += others.n_bad
        self.lacks = self.lacks if self.first else others.lacks
        self.first += others.first
        self.check(at_least=1000)

    def check(self, at_least: int = 1) -> None:
        if self.n_bad > self.limit * max(self.n_rows, at_least):
            raise ValueError(
                f"{self.n_bad} of {self.n_rows} rows cannot be used, more than the limit of {self.limit:.1%} "
                f"(the first: {self.first[0]}); "
                + {"": self.remedy, "text": self.text_remedy, "category": self.category_remedy}[self.lacks]
            )


class DamagedError(Exception):
    pass


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        if path.suffix == ".zst":
            yield from zstd_chunks(path)
        else:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                while chunk := file.read(1 << 16):
                    yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error, DamagedError) as error:
        raise ValueError(f"{path} is truncated or damaged ({first_line(error)})") from None


def zstd_chunks(path: Path) -> Iterator[bytes]:
    """What the frames of a file hold; the library itself would take a file that was cut short for a whole one."""
    zstandard = needs("zstandard", "data")
    frame = None
    with path.open("rb") as file:
        try:
            while data := file.read(1 << 16):
                while data:
                    frame = frame or zstandard.ZstdDecompressor().decompressobj(write_size=1 << 20)
                    yield frame.decompress(data)
                    data = frame.unused_data if frame.eof else b""
                    frame = None if frame.eof else frame
        except zstandard.ZstdError as error:
            raise DamagedError(error) from None
    if frame is not None:
        raise DamagedError("its last frame has no end")


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".")
