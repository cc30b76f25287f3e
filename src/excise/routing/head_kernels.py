"""The losses of the output head and the gradients of its logits as Triton kernels, which read and write as little memory
as they can: at these sizes memory is what the head waits for.

Shapes: N rows, D d_model, V tokens, W the vocabulary with its padding, G tokens with vectors that only some rows see,
C ways to see them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from excise.routing.kernels import HALVES

NARROW = 128
"""Up to this d_model the logits are computed twice, which takes less time than writing them once."""
LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(-1e30)


def is_narrow(d_model: int, dtype: torch.dtype) -> bool:
    """Whether a head computes its logits twice; in float32 these kernels would round."""
    return d_model <= NARROW and dtype in HALVES


@dataclass(frozen=True)
class Gates:
    """Vectors that are added to those of the first tokens, for the rows that see them."""

    added: Tensor
    """G D."""
    columns: Tensor
    """Which column of `seen` holds for each of these tokens (G)."""
    seen: Tensor
    """N C."""


def losses_and_gradients(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    n_tokens: int,
    losses: Tensor,
    gates: Gates | None = None,
) -> Tensor:
    """The loss of each row, written to `losses`, and the gradient of its logits (N W); beyond the tokens that there are it
    is 0. Gates are for narrow heads with a bias."""
    (N, D), W = hidden.shape, len(head)
    if bias is None or not is_narrow(D, hidden.dtype):
        assert gates is None
        return losses_and_gradients_in_place(torch.nn.functional.linear(hidden, head, bias), targets, n_tokens, losses)
    lse, gradients = narrow_losses(hidden, head, bias, targets, losses, gates), hidden.new_empty(N, W)
    _narrow_gradients[triton.cdiv(N, 128), triton.cdiv(W, 16 * 64)](
        *(hidden, head, bias, targets, lse, gradients, *_arguments(gates, hidden), N, W),
        *(D, _padded(D), *_sizes(gates), 128, 64, 16),
        num_warps=4,
        num_stages=4,
    )
    return gradients


def narrow_losses(
    hidden: Tensor, head: Tensor, bias: Tensor, targets: Tensor, losses: Tensor, gates: Gates | None = None
) -> Tensor:
    """Write the loss of each row of a narrow head to `losses`, and no logit anywhere; the logarithms to base 2 of what the
    rows are divided by (N)."""
    (N, D), lse = hidden.shape, torch.empty_like(losses)
    _narrow_losses[(triton.cdiv(N, 128),)](
        *(hidden, head, bias, targets, lse, losses, *_arguments(gates, hidden), N, len(head)),
        *(D, _padded(D), *_sizes(gates), 128, 128),
        num_warps=8,
        num_stages=2,
    )
    return lse


def _arguments(gates: Gates | None, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without gates, anything: the kernels do not look."""
    return (gates.added, gates.columns, gates.seen) if gates else (hidden, hidden, hidden)


def _sizes(gates: Gates | None) -> tuple[int, int]:
    return (len(gates.added), gates.seen.shape[1]) if gates else (0, 0)


def _padded(d_model: int) -> int:
    return max(16, int(triton.next_power_of_2(d_model)))


def losses_and_gradients_in_place(logits: Tensor, targets: Tensor, n_tokens: int, losses: Tensor) -> Tensor:
    """The same from logits (N W), in whose memory the gradient is written."""
    _in_place[(len(logits),)](logits, targets, losses, logits.shape[1], n_tokens, TILE=4096, num_warps=8)
    return logits


@triton.jit
def _in_place(logits, targets, losses, W, V, TILE: tl.constexpr):
    """Each logit is read once, twice where the cache has lost it, and its gradient written once."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    base = logits + row * W
    wanted = tl.load(base + target).to(tl.float32)
    most = NEVER
    total = 0.0
    for start in range(0, V, TILE):
        at = start + tl.arange(0, TILE)
        s = tl.load(base + at, mask=at < V, other=float("-inf")).to(tl.float32) * LOG2_E
        new = tl.maximum(most, tl.max(s, 0))
        total = total * tl.exp2(most - new) + tl.sum(tl.exp2(s - new), 0)
        most = new
    lse = most + tl.log2(total)
    tl.store(losses + row, lse / LOG2_E - wanted)
    for start in range(0, W, TILE):
        at = start + tl.arange(0, TILE)
        s = tl.load(base + at, mask=at < V, other=float("-inf")).to(tl.float32)
        g = tl.exp2(s * LOG2_E - lse) - tl.where(at == target, 1.0, 0.0)
        tl.store(base + at, g.to(logits.dtype.element_ty), mask=at < W)


@triton.jit
def _rows(base, places, n, D: tl.constexpr, P: tl.constexpr):
    d = tl.arange(0, P)
    return tl.load(
        base + places[:, None].to(tl.int64) * D + d[None, :], mask=(places < n)[:, None] & (d < D)[None, :], other=0.0
    )


@triton.jit
def _seen(seen, columns, rows, tokens, N, G: tl.constexpr, C: tl.constexpr):
    """Whether rows see what is added to tokens, of which only the first G have anything; both of one shape, or of shapes
    that fit."""
    column = tl.load(columns + tokens, mask=tokens < G, other=0)
    return tl.load(seen + rows * C + column, mask=(rows < N) & (tokens < G), other=0) != 0


@triton.jit
def _scores(
    h, head, bias, added, columns, seen, rows, at, N, W,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr, C: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """The logits of some rows and tokens."""
    b = tl.load(bias + at, mask=at < W, other=float("-inf")).to(tl.float32)
    s = tl.dot(h, tl.trans(_rows(head, at, W, D, P))) + b[None, :]
    if GATED:
        more = tl.dot(h, tl.trans(_rows(added, at, G, D, P)))
        s += tl.where(_seen(seen, columns, rows[:, None], at[None, :], N, G, C), more, 0.0)
    return s


@triton.jit
def _sums(
    most, total, h, head, bias, added, columns, seen, rows, begin, end, N, W,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    for start in tl.range(begin, end, TILE, num_stages=1 if GATED else None):
        at = start + tl.arange(0, TILE)
        s = _scores(h, head, bias, added, columns, seen, rows, at, N, W, D, P, G, C, GATED) * LOG2_E
        new = tl.maximum(most, tl.max(s, 1))
        total = total * tl.exp2(most - new) + tl.sum(tl.exp2(s - new[:, None]), 1)
        most = new
    return most, total


@triton.jit
def _narrow_losses(
    hidden, head, bias, targets, lses, losses, added, columns, seen, N, W,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    h = _rows(hidden, rows, N, D, P)
    target = tl.load(targets + rows, mask=rows < N, other=0)
    wanted = tl.sum(h.to(tl.float32) * _rows(head, target, W, D, P).to(tl.float32), 1)
    wanted += tl.load(bias + target).to(tl.float32)
    most = tl.full([ROWS], NEVER, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    gated_end = (G + TILE - 1) // TILE * TILE
    if G > 0:
        more = tl.sum(h.to(tl.float32) * _rows(added, target, G, D, P).to(tl.float32), 1)
        wanted += tl.where(_seen(seen, columns, rows, target, N, G, C), more, 0.0)
        most, total = _sums(
            most, total, h, head, bias, added, columns, seen, rows, 0, gated_end, N, W, D, P, G, C, TILE, True
        )
    most, total = _sums(
        most, total, h, head, bias, added, columns, seen, rows, gated_end, W, N, W, D, P, G, C, TILE, False
    )
    lse = most + tl.log2(total)
    tl.store(lses + rows, lse, mask=rows < N)
    tl.store(losses + rows, lse / LOG2_E - wanted, mask=rows < N)


@triton.jit
def _write_gradients(
    h, lse, target, head, bias, added, columns, seen, gradients, rows, begin, end, N, W,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    for start in tl.range(begin, end, TILE, num_stages=1 if GATED else None):
        at = start + tl.arange(0, TILE)
        s = _scores(h, head, bias, added, columns, seen, rows, at, N, W, D, P, G, C, GATED)
        g = tl.exp2(s * LOG2_E - lse[:, None]) - tl.where(at[None, :] == target[:, None], 1.0, 0.0)
        place = gradients + rows[:, None].to(tl.int64) * W + at[None, :]
        tl.store(place, g.to(gradients.dtype.element_ty), mask=(rows < N)[:, None] & (at < W)[None, :])


@triton.jit
def _narrow_gradients(
    hidden, head, bias, targets, lses, gradients, added, columns, seen, N, W,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    h = _rows(hidden, rows, N, D, P)
    target = tl.load(targets + rows, mask=rows < N, other=0)
    lse = tl.load(lses + rows, mask=rows < N, other=0.0)
    first = tl.program_id(1) * TILES * TILE
    end = tl.minimum(first + TILES * TILE, W)
    if G > 0:
        gated_end = tl.minimum(end, (G + TILE - 1) // TILE * TILE)
        _write_gradients(
            h, lse, target, head, bias, added, columns, seen, gradients, rows, first, gated_end,
            N, W, D, P, G, C, TILE, True,
        )  # fmt: skip
        first = tl.maximum(first, gated_end)
    _write_gradients(
        h, lse, target, head, bias, added, columns, seen, gradients, rows, first, end, N, W, D, P, G, C, TILE, False
    )
