"""Passes that a GPU replays instead of being told each kernel, because for a small model the telling takes longer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
    totals: Tensor
    gradients: Mapping[nn.Parameter, Tensor]
    """Of this pass alone, for the parameters that get one."""

    def replay(self, batch: Batch, share: float | Tensor) -> Tensor:
        self.batch.overwrite(batch)
        self.share.fill_(share)
        self.graph.replay()
        return self.totals


def passes_for(plain: Passes, compile_option: str, shape: tuple[int, int]) -> Passes:
    """Recorded passes for micro-batches of a shape on a GPU, unless nothing is to be compiled."""
    on_gpu = next(plain.model.parameters()).is_cuda
    return RecordedPasses(plain, shape) if on_gpu and compile_option != "off" else plain


class RecordedPasses(Passes):
    """Passes recorded as a CUDA graph once for each kind of micro-batch; those of another shape are done as usual.

    The gradients of a step's first pass stay where its recording writes them. Where there is another pass, they are copied
    to sums of their own first.
    """

    def __init__(self, plain: Passes, shape: tuple[int, int]) -> None:
        super().__init__(plain.model, plain.routing, plain.autocast)
        self.shape = shape
        self.recordings: dict[Effect | None, Recording] = {}
        self.sums: dict[nn.Parameter, Tensor] = {}

    def __call__(self, batch: Batch, share: float | Tensor) -> Tensor:
        self._keep(self._gradients())
        if tuple(batch.tokens.shape) != self.shape or batch.mixed_documents:
            return super().__call__(batch, share)
        kind = self._kind(batch)
        if kind not in self.recordings:
            self._add(kind, batch)
        recording = self.recordings[kind]
        totals = recording.replay(batch, share)
        self._count(recording.gradients)
        return totals

    def _gradients(self) -> dict[nn.Parameter, Tensor]:
        return {parameter: parameter.grad for parameter in self.model.parameters() if parameter.grad is not None}

    def _keep(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Let the sums of these parameters be what their gradients are, wherever these have been."""
        moved = {parameter: x for parameter, x in gradients.items() if x is not self.sums.get(parameter)}
        if moved:
            self.sums |= {
                parameter: torch.empty_like(x) for parameter, x in moved.items() if parameter not in self.sums
            }
            torch._foreach_copy_([self.sums[parameter] for parameter in moved], list(moved.values()))
        for parameter in moved:
            parameter.grad = self.sums[parameter]

    def _count(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Add the gradients of a pass to those that there are; where there are none, they are the gradients."""
        before = self._gradients()
        if not before:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            return
        self._keep({parameter: gradient for parameter, gradient in gradients.items() if parameter not in before})
        again = [parameter for parameter in gradients if parameter in before]
        if again:
            torch._foreach_add_(
                [before[parameter] for parameter in again], [gradients[parameter] for parameter in again]
            )

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
        before = self._gradients()
        self._warm_up(*inputs[kind])
        # Those that hide units come last: their tensors are narrower, and memory taken for them may not fit the others'.
        for known in sorted(inputs, key=lambda known: bool(known and known.hide)):
            self.recordings[known] = self._record(*inputs[known])
        self.clear()
        for parameter, gradient in before.items():
            parameter.grad = gradient

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
                self.clear()
                super().__call__(static, share)
        torch.cuda.current_stream().wait_stream(aside)

    def _record(self, static: Batch, share: Tensor) -> Recording:
        graph = torch.cuda.CUDAGraph()
        self.clear()
        # Other threads, such as the one that reads the next step, may go on with what they do on the GPU.
        with torch.cuda.graph(graph, pool=self._pool(), capture_error_mode="thread_local"):
            totals = super().__call__(static, share)
        return Recording(graph, static, share, totals, self._gradients())

    def _pool(self) -> Any:
        """The memory that all recordings share, as no two run at a time."""
        return next((recording.graph.pool() for recording in self.recordings.values()), None)
