"""Passes that a GPU replays instead of being told each kernel, because for a small model the telling takes longer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from excise.data.packing import Batch
from excise.routing.rules import Effect
from excise.train.step import Passes

WARM_UP_PASSES = 2
"""They compile, and let libraries settle on their kernels."""


@dataclass(frozen=True)
class Recording:
    """A pass over the batch that is in its memory at the time."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    share: Tensor
    total: Tensor

    def replay(self, batch: Batch, share: float | Tensor) -> Tensor:
        self.batch.overwrite(batch)
        self.share.fill_(share)
        self.graph.replay()
        return self.total


def passes_for(plain: Passes, compile_option: str, shape: tuple[int, int]) -> Passes:
    """Recorded passes for micro-batches of a shape on a GPU, unless nothing is to be compiled."""
    on_gpu = next(plain.model.parameters()).is_cuda
    return RecordedPasses(plain, shape) if on_gpu and compile_option != "off" else plain


class RecordedPasses(Passes):
    """Passes recorded as a CUDA graph once for each kind of micro-batch; those of another shape are done as usual."""

    def __init__(self, plain: Passes, shape: tuple[int, int]) -> None:
        super().__init__(plain.model, plain.routing, plain.autocast)
        self.shape = shape
        self.gradients = {parameter: torch.zeros_like(parameter) for parameter in self.model.parameters()}
        self.recordings: dict[Effect | None, Recording] = {}

    def clear(self) -> None:
        """Make all gradients zero, and put them where the recordings find them."""
        torch._foreach_zero_(list(self.gradients.values()))
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient

    def __call__(self, batch: Batch, share: float | Tensor) -> Tensor:
        if tuple(batch.tokens.shape) != self.shape or batch.mixed_documents:
            return super().__call__(batch, share)
        kind = self._kind(batch)
        if kind not in self.recordings:
            self._add(kind, batch)
        return self.recordings[kind].replay(batch, share)

    def _kind(self, batch: Batch) -> Effect | None:
        """What happens to all rows of a batch, or None where that differs: batches of a kind are the same work."""
        effects = {self.routing.effects[label] for label in batch.label_ids}
        return effects.pop() if len(effects) == 1 else None

    def _add(self, kind: Effect | None, batch: Batch) -> None:
        """Record another kind of micro-batch. Those that there are give up their memory to its first passes, which are not
        recorded, and are then recorded anew."""
        inputs = {known: (recording.batch, recording.share) for known, recording in self.recordings.items()}
        inputs[kind] = (batch.copied(), torch.ones((), device=batch.tokens.device))
        self._free()
        kept = [gradient.clone() for gradient in self.gradients.values()]
        self._warm_up(*inputs[kind])
        # Those that hide units come last: their tensors are narrower, and memory taken for them may not fit the others'.
        for known in sorted(inputs, key=lambda known: bool(known and known.hide)):
            self.recordings[known] = self._record(*inputs[known])
        torch._foreach_copy_(list(self.gradients.values()), kept)

    def _free(self) -> None:
        torch.cuda.synchronize()
        while self.recordings:
            self.recordings.popitem()[1].graph.reset()
        torch.cuda.empty_cache()

    def _warm_up(self, static: Batch, share: Tensor) -> None:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP_PASSES):
                super().__call__(static, share)
        torch.cuda.current_stream().wait_stream(aside)

    def _record(self, static: Batch, share: Tensor) -> Recording:
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the one that reads the next step, may go on with what they do on the GPU.
        with torch.cuda.graph(graph, pool=self._pool(), capture_error_mode="thread_local"):
            total = super().__call__(static, share)
        return Recording(graph, static, share, total)

    def _pool(self) -> Any:
        """The memory that all recordings share, as no two run at a time."""
        return next((recording.graph.pool() for recording in self.recordings.values()), None)
