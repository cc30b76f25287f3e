"""Attention inside documents: causal, unscaled, everywhere or within a window.

In half precision on a GPU it is flash attention over documents laid end to end, which computes nothing between them.
Elsewhere, and where a document mixes labels, it is a mask built once per batch.

Shapes: B rows, T positions, H heads, K head size; S is T, or 2 T where documents mix labels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

HALVES = (torch.bfloat16, torch.float16)
SMALLEST_HEAD = 8
"""Flash attention takes head sizes that are multiples of this."""


@dataclass(frozen=True)
class Pattern:
    """Who attends to whom in a batch: boundaries for flash attention, or else masks (B 1 T S)."""

    boundaries: Tensor
    """Where each document begins in the batch laid end to end, and where the last ends."""
    window: int
    everywhere: Tensor | None = None
    nearby: Tensor | None = None
    """Within the window."""
    mixed_documents: bool = False
    """Whether edges between labels go to detached copies of keys and values."""


def masked_pattern(documents: Tensor, boundaries: Tensor, window: int, same_label: Tensor | None = None) -> Pattern:
    """The pattern with masks, of documents (B T numbers, equal within each) and, where they mix labels, of pairs with the
    same label (B T T): edges within a label go to live keys, edges between labels to the detached copies behind them."""
    place = torch.arange(documents.shape[-1], device=documents.device)
    distance = place.unsqueeze(-1) - place  # T T
    inside = (documents.unsqueeze(-1) == documents.unsqueeze(-2)) & (distance >= 0)  # B T T

    def edges(mask: Tensor) -> Tensor:
        live = mask if same_label is None else torch.cat([mask & same_label, mask & ~same_label], -1)
        return live.unsqueeze(1)

    return Pattern(boundaries, window, edges(inside), edges(inside & (distance < window)), same_label is not None)


def wants_masks(x: Tensor) -> bool:
    """Whether attention over this goes by masks: flash attention is for half precision on a GPU."""
    autocast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return not x.is_cuda or dtype not in HALVES


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
    mask = pattern.nearby if local else pattern.everywhere
    if mask is None:
        return _flash(q, k, v, pattern, local)
    if pattern.mixed_documents:
        k, v = torch.cat([k, k.detach()], 1), torch.cat([v, v.detach()], 1)  # B S H K
    if q.device.type == "cpu" and q.dtype != torch.float32:
        # The backward pass of attention in bfloat16 is slower than in float32 on a CPU.
        with torch.autocast("cpu", enabled=False):
            return _masked(q.float(), k.float(), v.float(), mask).to(q.dtype)
    return _masked(q, k, v, mask)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
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
