"""Seeded batches in which step k is a function of k alone, so that resuming needs no state but the step."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from excise.data.packing import Batch, Corpus, Pieces, collate, cut, pack_tightly, truncate

LabelMixing = Literal["rows", "micro_batches", "steps"]
MicroBatch = list[list[int]]
"""Rows, each a list of pieces."""
STEPS_AHEAD = 16
"""Steps read before they are wanted, so that the plan of an epoch is made while the last one is still trained on."""


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How documents become steps."""

    context: int = 512
    """Pairs of input and target in a row."""
    rows_per_step: int = 128
    rows_per_micro_batch: int = 32
    packing: Literal["packed", "padded"] = "packed"
    """Several documents in a row, or one a row, truncated and padded as in the paper."""
    label_mixing: LabelMixing = "rows"
    """All labels in a row, one label per micro-batch, or one label per step."""

    def __post_init__(self) -> None:
        for name in ("context", "rows_per_step", "rows_per_micro_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"batch.{name}={getattr(self, name)} must be at least 1")
        if self.rows_per_step % self.rows_per_micro_batch:
            raise ValueError(
                f"batch.rows_per_step={self.rows_per_step} must be a multiple of "
                f"batch.rows_per_micro_batch={self.rows_per_micro_batch}"
            )

    @property
    def micro_batches_per_step(self) -> int:
        return self.rows_per_step // self.rows_per_micro_batch


class Loader:
    """The steps of all epochs over one corpus."""

    def __init__(self, corpus: Corpus, config: BatchConfig, seed: int) -> None:
        self.corpus, self.config, self.seed = corpus, config, seed
        self.pieces = (cut if config.packing == "packed" else truncate)(corpus, config.context)
        if not len(self.pieces):
            raise ValueError("the training split is empty: no document has two tokens")
        self._epoch, (self._pieces, self._steps) = 0, self._plan(0)
        self.steps_per_epoch = len(self._steps)
        self.tokens_per_epoch = int(self.pieces.length.sum())

    @property
    def padding(self) -> float:
        """The share of positions that hold nothing."""
        rows = sum(len(micro_batch) for step in self._steps for micro_batch in step)
        return 1 - self.tokens_per_epoch / (rows * self.config.context)

    def step(self, number: int) -> Iterator[Batch]:
        """The micro-batches of one step, counted from 0."""
        epoch, within = divmod(number, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, (self._pieces, self._steps) = epoch, self._plan(epoch)
        for rows in self._steps[within]:
            yield collate(self.corpus, self._pieces, rows, self.config.context)

    def steps(self, numbers: Iterable[int], device: torch.device) -> Iterator[list[Batch]]:
        """The micro-batches of these steps on a device, read while the steps before them are trained on."""

        def read(number: int) -> list[Batch]:
            return [batch.pinned() if device.type == "cuda" else batch for batch in self.step(number)]

        pool, ahead = ThreadPoolExecutor(1), deque[Future[list[Batch]]]()
        try:
            for number in numbers:
                ahead.append(pool.submit(read, number))
                if len(ahead) > STEPS_AHEAD:
                    yield [batch.to(device) for batch in ahead.popleft().result()]
            yield from ([batch.to(device) for batch in future.result()] for future in ahead)
        finally:
            pool.shutdown(cancel_futures=True)

    def _plan(self, epoch: int) -> tuple[Pieces, list[list[MicroBatch]]]:
        """The pieces of an epoch, and all its steps, each a list of micro-batches."""
        random = np.random.default_rng([self.seed, epoch])
        pieces, groups = self.pieces, []
        for group in self._groups():
            pieces, rows = self._rows(pieces, random.permutation(group))
            groups.append(self._micro_batches(rows, random))
        return pieces, self._steps_of(groups, random)

    def _steps_of(self, groups: list[list[MicroBatch]], random: np.random.Generator) -> list[list[MicroBatch]]:
        n = self.config.micro_batches_per_step
        if self.config.label_mixing == "steps":
            steps = [group[i : i + n] for group in groups for i in range(0, len(group), n)]
            return [steps[i] for i in random.permutation(len(steps))]
        all_of_them = [micro_batch for group in groups for micro_batch in group]
        if len(groups) > 1:
            all_of_them = [all_of_them[i] for i in random.permutation(len(all_of_them))]
        return [all_of_them[i : i + n] for i in range(0, len(all_of_them), n)]

    def _groups(self) -> list[NDArray[Any]]:
        """Pieces that may share a row."""
        if self.config.label_mixing == "rows":
            return [np.arange(len(self.pieces))]
        if self.corpus.token_labels is not None:
            raise ValueError(
                f"documents that mix labels have no place in a batch of one label; "
                f"set batch.label_mixing to 'rows' instead of {self.config.label_mixing!r}"
            )
        labels = self.corpus.labels[self.pieces.document]
        return [np.flatnonzero(labels == label) for label in np.unique(labels)]

    def _micro_batches(self, rows: list[list[int]], random: np.random.Generator) -> list[MicroBatch]:
        rows = [rows[i] for i in random.permutation(len(rows))]
        n = self.config.rows_per_micro_batch
        rows += [[]] * (-len(rows) % n)  # so that all micro-batches have one shape
        return [rows[i : i + n] for i in range(0, len(rows), n)]

    def _rows(self, pieces: Pieces, shuffled: NDArray[Any]) -> tuple[Pieces, list[list[int]]]:
        """Rows of some pieces, and all pieces with those that came about by cutting."""
        if self.config.packing == "padded":
            return pieces, [[int(piece)] for piece in shuffled]
        mine, packed = pack_tightly(pieces[shuffled], self.config.context)
        number = np.concatenate([shuffled, len(pieces) + np.arange(len(mine) - len(shuffled))])
        new = mine[np.arange(len(shuffled), len(mine))]
        return pieces.joined(new), [[int(number[i]) for i in row] for row in packed]
