"""Tokenised documents, and rows packed with them.

A document of n tokens, its end-of-text token counted, is n - 1 predictions: pairs of an input and a target. A row holds
the pairs of several documents. Attention stays inside a document and positions restart with each, so a packed row
gives every document the loss that it has alone. No target crosses a document, and every end of text is predicted once.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, is_tensor

from excise.data.tokenised import Column, Slices
from excise.labels import UNLABELED_ID

IGNORED = -100
"""The target of a padded position."""
NO_CATEGORIES = Column((), np.zeros(0, np.uint8))


@dataclass(frozen=True)
class Corpus:
    """Documents as tokens, each with a label."""

    tokens: Slices
    starts: NDArray[np.int64]
    """Where each document begins in the tokens."""
    lengths: NDArray[np.int64]
    labels: NDArray[np.int8]
    """One per document."""
    token_labels: Slices | None = None
    """One per token, where some documents mix labels."""
    categories: Column = NO_CATEGORIES
    """What each document is truly about, where that is known."""

    @staticmethod
    def of(documents: Sequence[Sequence[int]], labels: Sequence[int | Sequence[int]]) -> "Corpus":
        """A corpus from token lists that close with the end-of-text token, each with one label or one per token."""
        lengths = np.array([len(document) for document in documents], np.int64)
        per_token = [np.broadcast_to(np.asarray(label, np.int8), n) for label, n in zip(labels, lengths, strict=True)]
        mixed = any(label.min() != label.max() for label in per_token)
        return Corpus(
            np.concatenate([np.asarray(document, np.uint32) for document in documents] or [np.zeros(0, np.uint32)]),
            np.cumsum(lengths) - lengths,
            lengths,
            np.array([label[0] for label in per_token], np.int8),
            np.concatenate(per_token) if mixed else None,
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, chosen: NDArray[Any]) -> "Corpus":
        """Some of the documents; no token is copied."""
        categories = self.categories[chosen] if self.categories.names else self.categories
        return replace(
            self,
            starts=self.starts[chosen],
            lengths=self.lengths[chosen],
            labels=self.labels[chosen],
            categories=categories,
        )

    @property
    def n_predicted(self) -> int:
        """Pairs of an input and a target."""
        return int(self.lengths.sum()) - len(self)


@dataclass(frozen=True)
class Pieces:
    """Runs of pairs that stay together in a row: whole documents, or parts of a document longer than a row."""

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    """Position of the first input in the corpus."""
    length: NDArray[np.int64]

    def __getitem__(self, index: NDArray[Any]) -> "Pieces":
        return Pieces(self.document[index], self.start[index], self.length[index])

    def __len__(self) -> int:
        return len(self.document)

    def joined(self, more: "Pieces") -> "Pieces":
        return Pieces(
            np.concatenate([self.document, more.document]),
            np.concatenate([self.start, more.start]),
            np.concatenate([self.length, more.length]),
        )


def cut(corpus: Corpus, context: int) -> Pieces:
    """All pairs of all documents, long documents cut into several pieces."""
    n_pairs = corpus.lengths - 1
    n_pieces = -(-n_pairs // context)
    document = np.repeat(np.arange(len(corpus)), n_pieces)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    length = np.minimum(context, n_pairs[document] - nth * context)
    return Pieces(document, corpus.starts[document] + nth * context, length)


def empty_shares(lengths: NDArray[np.int64], context: int) -> tuple[float, float]:
    """The share of positions that stays empty with documents packed for training, and with one a row."""
    starts = np.cumsum(lengths) - lengths
    pieces = cut(Corpus(starts, starts, lengths, np.zeros(len(lengths), np.int8)), context)
    _, rows = pack_tightly(pieces, context)
    n_pairs = int(pieces.length.sum())
    return 1 - n_pairs / (len(rows) * context), 1 - n_pairs / (len(pieces) * context)


def truncate(corpus: Corpus, context: int) -> Pieces:
    """The first pairs of each document, as the paper trains on them."""
    length = np.minimum(corpus.lengths - 1, context)
    kept = np.flatnonzero(length)
    return Pieces(kept, corpus.starts[kept], length[kept])


def pack(lengths: NDArray[np.int64], context: int) -> list[list[int]]:
    """Rows of at most `context` pairs, each a list of pieces: longest piece first, into the fullest row it fits.

    How many rows come out depends on the lengths alone, never on their order.
    """
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(context + 1)]
    rooms = 0  # bit r is set while some row has room for r more pairs
    for piece in np.argsort(-lengths, kind="stable"):
        n = int(lengths[piece])
        fitting = rooms >> n
        if fitting:
            room = n + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, row = context, len(rows)
            rows.append([])
        rows[row].append(int(piece))
        if room > n:
            with_room[room - n].append(row)
            rooms |= 1 << (room - n)
    return rows


SLACK = 0.01
"""Share of positions that may stay empty before documents are cut to fill them."""


def pack_tightly(pieces: Pieces, context: int) -> tuple[Pieces, list[list[int]]]:
    """Rows for training: packed whole, and where that leaves too much empty, the pieces of the emptiest rows are cut up
    to fill the largest gaps of the others. A piece keeps its label; what is cut off begins anew, as a document does.
    """
    rows = pack(pieces.length, context)
    n_rows = math.ceil(pieces.length.sum() / context * (1 + SLACK))
    if len(rows) <= n_rows:
        return pieces, rows
    room = context - np.array([pieces.length[row].sum() for row in rows])
    kept = np.argsort(room, kind="stable")
    cut_up = sorted((piece for row in kept[n_rows:] for piece in rows[row]), key=lambda piece: -pieces.length[piece])
    new: list[tuple[int, int, int]] = []
    gaps = iter(kept[:n_rows][::-1])
    gap = next(gaps)
    for piece in cut_up:
        start, left = int(pieces.start[piece]), int(pieces.length[piece])
        while left:
            if not room[gap]:
                gap = next(gaps)
            n = min(left, int(room[gap]))
            rows[gap].append(len(pieces) + len(new))
            new.append((int(pieces.document[piece]), start, n))
            room[gap], start, left = room[gap] - n, start + n, left - n
    columns = np.array(new, np.int64).reshape(-1, 3).T
    return pieces.joined(Pieces(*columns)), [rows[row] for row in sorted(kept[:n_rows])]


@dataclass(frozen=True)
class Batch:
    """Rows for one forward and backward pass (tensors B T)."""

    tokens: Tensor
    targets: Tensor
    positions: Tensor
    documents: Tensor
    """Equal within a document, whose positions follow one another; -1 where nothing stands."""
    labels: Tensor
    """The label of each row's target, which is the label of its loss."""
    n_by_label: Mapping[int, int]
    """Predictions of each label that occurs, known without looking at the tensors."""
    mixed_documents: bool
    """Whether a document in it has several labels."""

    @property
    def label_ids(self) -> frozenset[int]:
        return frozenset(self.n_by_label)

    @property
    def n_predicted(self) -> int:
        return sum(self.n_by_label.values())

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What a model reads."""
        return {name: getattr(self, name) for name in ("tokens", "positions", "documents")}

    def to(self, device: torch.device) -> "Batch":
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """In memory that a GPU copies from while it computes."""
        return self._with(Tensor.pin_memory)

    def copied(self) -> "Batch":
        return self._with(Tensor.clone)

    def overwrite(self, other: "Batch") -> None:
        """Put the tensors of a batch of the same shape into those of this one."""
        for name, tensor in self._tensors().items():
            tensor.copy_(getattr(other, name), non_blocking=True)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if is_tensor(value)}


def collate(corpus: Corpus, pieces: Pieces, rows: Sequence[Sequence[int]], context: int) -> Batch:
    """The batch of some rows, each a list of pieces."""
    order = np.fromiter((piece for row in rows for piece in row), np.int64)
    mine, in_row = pieces[order], np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    before = np.cumsum(mine.length) - mine.length  # pairs of all pieces in front of each
    nth = np.arange(mine.length.sum()) - np.repeat(before, mine.length)
    row_length = np.bincount(in_row, mine.length, len(rows)).astype(np.int64)
    gaps = np.cumsum(context - row_length) - (context - row_length)  # positions left empty in front of each row
    place = np.repeat(before + gaps[in_row], mine.length) + nth
    first = np.repeat(before + np.arange(len(mine)), mine.length) + nth  # a piece has one token more than pairs

    def tokens_of(column: Slices) -> NDArray[Any]:
        return np.concatenate([column[a : a + n + 1] for a, n in zip(mine.start, mine.length, strict=True)])

    def laid_out(values: NDArray[Any], dtype: type, empty: int) -> Tensor:
        flat: NDArray[Any] = np.full(len(rows) * context, empty, dtype)
        flat[place] = values
        return torch.from_numpy(flat.reshape(len(rows), context))

    tokens = tokens_of(corpus.tokens)
    labels = np.repeat(corpus.labels[mine.document], mine.length)
    mixed_documents = False
    if corpus.token_labels is not None:
        labels = tokens_of(corpus.token_labels)[first + 1]
        mixed_documents = bool((labels != np.repeat(labels[before], mine.length)).any())
    return Batch(
        tokens=laid_out(tokens[first], np.int64, 0),
        targets=laid_out(tokens[first + 1], np.int64, IGNORED),
        positions=laid_out(nth, np.int64, 0),
        documents=laid_out(np.repeat(order, mine.length), np.int64, -1),
        labels=laid_out(labels, np.int8, UNLABELED_ID),
        n_by_label=dict(zip(*(of.tolist() for of in np.unique(labels, return_counts=True)), strict=True)),
        mixed_documents=mixed_documents,
    )


def evaluation_batches(corpus: Corpus, context: int, rows_per_batch: int) -> Iterator[Batch]:
    """Every pair of a corpus once, packed; `documents` are the pieces of the corpus cut to this context."""
    pieces = cut(corpus, context)
    rows = pack(pieces.length, context)
    for i in range(0, len(rows), rows_per_batch):
        yield collate(corpus, pieces, rows[i : i + rows_per_batch], context)
