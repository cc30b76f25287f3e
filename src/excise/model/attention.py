"""Attention inside documents: causal, unscaled, everywhere or within a window.

In half precision on a GPU these are kernels that compute nothing between documents. Elsewhere, and where a document
mixes labels, it is a mask built once per batch.

Shapes: B rows, T positions, H heads, K head size; S is T, or 2 T where documents mix labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from excise.routing.kernels import HALVES, HAS_KERNELS
from excise.routing.linear import chooses_rows

if HAS_KERNELS:
    from excise.model.attention_kernels import attend_inside

LARGEST_HEAD = 128
"""The largest head size of the kernels."""
BLOCK = 64
"""Queries that a CPU takes at a time, with only those keys that one of them may see."""


@dataclass(frozen=True)
class Span:
    """The first position that each position sees, and the last one that sees it (B T)."""

    first: Tensor
    last: Tensor


@dataclass(frozen=True)
class Pattern:
    """Who attends to whom in a batch: spans for the kernels, or else masks (B 1 T S)."""

    everywhere: Span | Tensor
    nearby: Span | Tensor
    """Within the window."""
    mixed_documents: bool = False
    """Whether edges between labels go to detached copies of keys and values."""

    @property
    def has_kernels(self) -> bool:
        return isinstance(self.everywhere, Span)


def pattern_of(documents: Tensor, window: int) -> Pattern:
    """The pattern for the kernels, of documents that are runs of equal numbers (B T)."""
    place = torch.arange(documents.shape[-1], device=documents.device)
    new = documents[:, 1:] != documents[:, :-1]
    first = place.where(nn.functional.pad(new, (1, 0), value=True), 0).cummax(-1).values
    past = place.where(nn.functional.pad(new, (0, 1), value=True), len(place))
    last = past.flip(-1).cummin(-1).values.flip(-1)
    nearby = Span(first.maximum(place - window + 1).int(), last.minimum(place + window - 1).int())
    return Pattern(Span(first.int(), last.int()), nearby)


def masked_pattern(documents: Tensor, window: int, same_label: Tensor | None = None) -> Pattern:
    """The pattern with masks, of documents that are runs of equal numbers (B T) and, where they mix labels, of pairs with the
    same label (B T T): edges within a label go to live keys, edges between labels to the detached copies behind them."""
    place = torch.arange(documents.shape[-1], device=documents.device)
    distance = place.unsqueeze(-1) - place  # T T
    inside = (documents.unsqueeze(-1) == documents.unsqueeze(-2)) & (distance >= 0)  # B T T

    def edges(mask: Tensor) -> Tensor:
        live = mask if same_label is None else torch.cat([mask & same_label, mask & ~same_label], -1)
        return live.unsqueeze(1)

    return Pattern(edges(inside), edges(inside & (distance < window)), same_label is not None)


def has_kernels(x: Tensor, head_size: int) -> bool:
    """Whether there are kernels for attention over this."""
    autocast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return HAS_KERNELS and x.is_cuda and dtype in HALVES and head_size <= LARGEST_HEAD


def attend(qkv: Tensor, pattern: Pattern, *, local: bool, hidden: Sequence[tuple[Tensor, int, int]] = ()) -> Tensor:
    """Unscaled attention (B T H K) of queries, keys and values (B T H 3 K), everywhere in a document or within the
    window. The kernels can hide heads: zeros in some rows (B T) of those from one number to another."""
    reach = pattern.nearby if local else pattern.everywhere
    if not qkv.shape[2]:
        return qkv[..., 0, :]  # every head is hidden
    if isinstance(reach, Span):
        rows = torch.stack([rows for rows, _, _ in hidden]) if hidden else None
        heads = [bound for _, *bounds in hidden for bound in bounds]
        y: Tensor = attend_inside(qkv.contiguous(), reach.first, reach.last, rows, heads)[0]
        return y
    assert not hidden
    if qkv.device.type == "cpu" and qkv.dtype in HALVES:
        # The backward pass of attention in bfloat16 is slower than in float32 on a CPU.
        with torch.autocast("cpu", enabled=False):
            return _masked(qkv.float(), reach, pattern.mixed_documents).to(qkv.dtype)
    return _masked(qkv, reach, pattern.mixed_documents)


def _masked(qkv: Tensor, mask: Tensor, mixed_documents: bool) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(3))  # B H T K each
    if mixed_documents:
        k, v = torch.cat([k, k.detach()], 2), torch.cat([v, v.detach()], 2)  # B H S K
    attention = partial(nn.functional.scaled_dot_product_attention, scale=1.0)
    if mixed_documents or not chooses_rows(qkv) or mask.shape[-1] <= BLOCK:
        return attention(q, k, v, attn_mask=mask).transpose(1, 2)
    blocks = [
        attention(q[:, :, queries], k[:, :, keys], v[:, :, keys], attn_mask=mask[:, :, queries, keys])
        for queries, keys in _blocks(mask)
    ]
    return torch.cat(blocks, 2).transpose(1, 2)


def _blocks(mask: Tensor) -> list[tuple[slice, slice]]:
    """Queries of a mask (B 1 T T) a block at a time, and the keys from the first that they see in any row to their own."""
    # As documents are runs of positions, the first query of a block sees what is furthest back.
    first = mask[:, 0, ::BLOCK].byte().argmax(-1).amin(0).tolist()
    return [
        (slice(start, start + BLOCK), slice(seen, start + BLOCK))
        for seen, start in zip(first, range(0, mask.shape[-1], BLOCK), strict=True)
    ]
