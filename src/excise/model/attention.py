"""Attention inside documents: causal, unscaled, everywhere or within a window.

In half precision on a GPU it is flash attention over documents laid end to end, which computes nothing between them.
Elsewhere, and where a document mixes labels, it is a mask built once per batch.

Shapes: B rows, T positions, H heads, K head size; S is T, or 2 T where documents mix labels.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

HALVES = (torch.bfloat16, torch.float16)
SMALLEST_HEAD = 8
"""Flash attention takes head sizes that are multiples of this."""


@dataclass(frozen=True)
class Pattern:
    """Who attends to whom in a batch."""

    documents: Tensor
    """B T numbers, equal within a document."""
    boundaries: Tensor
    """Where each document begins in the batch laid end to end, and where the last ends."""
    window: int
    same_label: Tensor | None = None
    """B T T: which pairs share a label; given only where a document mixes labels."""

    @cached_property
    def everywhere(self) -> Tensor:
        """B 1 T S."""
        return self._edges(self._inside)

    @cached_property
    def nearby(self) -> Tensor:
        """The same within the window."""
        return self._edges(self._inside & (self._distance < self.window))

    @cached_property
    def _distance(self) -> Tensor:
        place = torch.arange(self.documents.shape[-1], device=self.documents.device)
        return place.unsqueeze(-1) - place  # T T

    @cached_property
    def _inside(self) -> Tensor:
        return (self.documents.unsqueeze(-1) == self.documents.unsqueeze(-2)) & (self._distance >= 0)  # B T T

    def _edges(self, mask: Tensor) -> Tensor:
        """Edges within a label go to live keys, edges between labels to the detached copies behind them."""
        if self.same_label is not None:
            mask = torch.cat([mask & self.same_label, mask & ~self.same_label], -1)
        return mask.unsqueeze(1)


def boundaries_of(documents: Tensor) -> Tensor:
    """The boundaries of documents that are runs of equal numbers (B T); a row is never continued in the next."""
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    (where,) = starts.flatten().nonzero(as_tuple=True)
    return nn.functional.pad(where, (0, 1), value=documents.numel()).int()


def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, *, local: bool) -> Tensor:
    """Unscaled attention (B T H K), everywhere in a document or within the window."""
    if not q.shape[2]:
        return q  # every head is hidden
    if q.is_cuda and q.dtype in HALVES and pattern.same_label is None:
        return _flash(q, k, v, pattern, local)
    if q.device.type == "cpu" and q.dtype != torch.float32:
        # The backward pass of attention in bfloat16 is slower than in float32 on a CPU.
        with torch.autocast("cpu", enabled=False):
            return _masked(q.float(), k.float(), v.float(), pattern, local).to(q.dtype)
    return _masked(q, k, v, pattern, local)


def _masked(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, local: bool) -> Tensor:
    if pattern.same_label is not None:
        k, v = torch.cat([k, k.detach()], 1), torch.cat([v, v.detach()], 1)  # B S H K
    mask = pattern.nearby if local else pattern.everywhere
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0).transpose(1, 2)


def _flash(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, local: bool) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # not on every platform

    B, T, H, K = q.shape
    missing = -K % SMALLEST_HEAD
    q, k, v = (nn.functional.pad(x, (0, missing)) if missing else x for x in (q, k, v))
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    window = (pattern.window - 1 if local else -1, 0)
    y = varlen_attn(q, k, v, pattern.boundaries, pattern.boundaries, T, T, scale=1.0, window_size=window)
    assert isinstance(y, Tensor)
    return y.view(B, T, H, K + missing)[..., :K]
