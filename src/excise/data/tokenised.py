"""Tokenised documents with what is known of each: a shard in memory, or many of them mapped from disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from excise.data.documents import Document
from excise.data.tokens import Tokenizer, smallest_type


class Slices(Protocol):
    """What can be read piece by piece: an array in memory, or files mapped into it."""

    def __getitem__(self, where: slice, /) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Column:
    """Words, each stored once, and which of them stands at each place."""

    names: tuple[str, ...]
    index: NDArray[Any]

    @staticmethod
    def of(words: Sequence[str]) -> "Column":
        names = tuple(dict.fromkeys(words))
        number = {name: i for i, name in enumerate(names)}
        return Column(names, np.fromiter((number[word] for word in words), smallest_type(len(names)), len(words)))

    @staticmethod
    def join(columns: Sequence["Column"]) -> "Column":
        names = tuple(dict.fromkeys(name for column in columns for name in column.names))
        number = {name: i for i, name in enumerate(names)}
        kind = smallest_type(len(names))
        indices = [np.array([number[name] for name in column.names], kind)[column.index] for column in columns]
        return Column(names, np.concatenate(indices) if indices else np.zeros(0, kind))

    def __getitem__(self, chosen: NDArray[Any]) -> "Column":
        return Column(self.names, self.index[chosen])

    def translate(self, numbers: Sequence[int]) -> NDArray[np.int8]:
        """The column with the numbers given for its names."""
        translated: NDArray[np.int8] = np.array(numbers, np.int8)[self.index]
        return translated

    def counts(self) -> dict[str, int]:
        n = np.bincount(self.index, minlength=len(self.names))
        return {name: int(n[i]) for i, name in enumerate(self.names)}


@dataclass(frozen=True)
class Tokenised:
    """Documents as tokens, end to end."""

    tokens: Slices
    lengths: NDArray[np.int64]
    categories: Column
    labels: Column
    """One per document."""
    token_labels: Column | None = None
    """One per token, where some documents mix labels."""

    def __len__(self) -> int:
        return len(self.lengths)


def tokenise(documents: Sequence[Document], tokenizer: Tokenizer) -> Tokenised:
    """Documents as tokens, each closed by the end-of-text token, which has the label of the document."""
    tokens, words = [], []
    end_of_text = np.array([tokenizer.end_of_text], tokenizer.dtype)
    mixed = any(document.spans for document in documents)
    for document in documents:
        if document.spans:
            ids, labels = _with_labels(document, tokenizer)
        else:
            ids = tokenizer.encode_array(document.text)
            labels = [document.label] * len(ids) if mixed else []
        tokens += [ids, end_of_text]
        words += [*labels, document.label] if mixed else []
    lengths = np.array([len(ids) + 1 for ids in tokens[::2]], np.int64)
    return Tokenised(
        tokens=np.concatenate(tokens or [end_of_text[:0]]),
        lengths=lengths,
        categories=Column.of([document.category for document in documents]),
        labels=Column.of([document.label for document in documents]),
        token_labels=Column.of(words) if mixed else None,
    )


def _with_labels(document: Document, tokenizer: Tokenizer) -> tuple[NDArray[Any], list[str]]:
    """Tokens, and for each the label of the span that its last character is in."""
    ids, offsets = tokenizer.encode_with_offsets(document.text)
    of_character = np.zeros(len(document.text), np.int64)
    for i, span in enumerate(document.spans, 1):
        of_character[span.start : span.end] = i
    names = [document.label, *(span.label for span in document.spans)]
    return np.array(ids, tokenizer.dtype), [names[of_character[end - 1]] for _, end in offsets]


class Joined:
    """Several arrays read as if they stood end to end; no read may cross from one to the next."""

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self.arrays = arrays
        self.ends = np.cumsum([len(array) for array in arrays])

    def __getitem__(self, where: slice) -> NDArray[Any]:
        nth = int(np.searchsorted(self.ends, where.start, side="right"))
        before = int(self.ends[nth]) - len(self.arrays[nth])
        return self.arrays[nth][where.start - before : where.stop - before]
