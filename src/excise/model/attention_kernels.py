"""Attention inside documents as Triton kernels, for the small heads of the paper's models on a GPU.

Each position sees a run of earlier ones that ends with itself: `first` is the first of them, and `last` is the last
position that sees it. Both grow along a row, so a block of positions knows from its ends which blocks it meets, and
which of those it meets without a mask. Libraries pad heads of 4 to 32 numbers to many more; here they stay small, and
queries, keys and values are read from where the projection wrote them.

Shapes: B rows, T positions, H heads, K head size; `first` and `last` B T.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(-1e30)
LANES = tl.constexpr(8)  # sums of a query's weights that stay apart until the end, as threads would have to meet


@triton.jit
def _place(M: tl.constexpr):
    """The row, the head and the first position of a program."""
    return tl.program_id(2).to(tl.int64), tl.program_id(1), tl.program_id(0) * M


@triton.jit
def _block(base, places, width: tl.constexpr, n, K: tl.constexpr, P: tl.constexpr, CHECKED: tl.constexpr = True):
    """Vectors of one head at some places (places P), zero beyond the head and, where this is checked, beyond the row."""
    k = tl.arange(0, P)
    inside = (k < K)[None, :]
    if CHECKED:
        inside = inside & (places < n)[:, None]
    return tl.load(base + places[:, None] * width + k[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, places, width: tl.constexpr, n, K: tl.constexpr, P: tl.constexpr, values):
    k = tl.arange(0, P)
    inside = (places < n)[:, None] & (k < K)[None, :]
    tl.store(base + places[:, None] * width + k[None, :], values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _met(firsts, start, T, M: tl.constexpr, N: tl.constexpr):
    """The keys that a block of queries meets, in steps of N: with a mask up to the second number and from the third on,
    without one between these."""
    begin = tl.load(firsts + start) // N * N
    end = tl.minimum(start + M, T)
    plain_end = tl.maximum(begin, start // N * N)
    plain_begin = tl.minimum(tl.cdiv(tl.load(firsts + end - 1), N) * N, plain_end)
    return begin, plain_begin, plain_end, end


@triton.jit
def _seen(keys, first, queries):
    return (keys >= first) ^ (keys > queries)  # `first` is never after its query; for an "and" LLVM selects twice


@triton.jit
def _attend(
    most, total, y, q, keys, queries, first, begin, end, T,
    width: tl.constexpr, K: tl.constexpr, P: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, N)
    keys += begin * width  # a pointer that advances: addresses made of `start` would turn it and the mask into 64 bits
    for start in range(begin, end, N):
        s = tl.dot(q, tl.trans(_block(keys, n, width, T - start, K, P, MASKED)))
        if MASKED:
            s = tl.where(_seen((start + n)[None, :], first[:, None], queries[:, None]), s, float("-inf"))
        new = tl.maximum(most, tl.max(s, 1) * LOG2_E)
        p = tl.exp2(s * LOG2_E - new[:, None])
        shrink = tl.exp2(most - new)
        total = total * shrink[:, None] + tl.sum(p.reshape(q.shape[0], N // LANES, LANES), 1)
        v = _block(keys + K, n, width, T - start, K, P, MASKED)
        y = tl.dot(p.to(v.dtype), v, y * shrink[:, None])
        most = new
        keys += N * width
    return most, total, y


@triton.jit
def _is_hidden(unseen, row, head, queries, T, HEADS: tl.constexpr):
    """Which queries a head does not exist for; `HEADS` has the first and the end of heads that some do not see."""
    found = queries < 0
    for i in tl.static_range(len(HEADS) // 2):
        here = (head >= HEADS[2 * i]) & (head < HEADS[2 * i + 1])
        rows = unseen + (i * tl.num_programs(2) + row) * T + queries
        found = found | (tl.load(rows, mask=(queries < T) & here, other=0) != 0)
    return found


@triton.jit
def _forward_kernel(
    qkv, firsts, unseen, out, lse, T, HEADS: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, P: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, head, start = _place(M)
    width: tl.constexpr = H * 3 * K
    base, firsts = qkv + row * T * width + head * 3 * K, firsts + row * T
    queries = start + tl.arange(0, M)
    q = _block(base, queries, width, T, K, P)
    first = tl.load(firsts + queries, mask=queries < T, other=0)
    a, b, c, d = _met(firsts, start, T, M, N)
    most, total, y = tl.full([M], NEVER, tl.float32), tl.zeros([M, LANES], tl.float32), tl.zeros([M, P], tl.float32)
    most, total, y = _attend(most, total, y, q, base + K, queries, first, a, b, T, width, K, P, N, True)
    most, total, y = _attend(most, total, y, q, base + K, queries, first, b, c, T, width, K, P, N, False)
    most, total, y = _attend(most, total, y, q, base + K, queries, first, c, d, T, width, K, P, N, True)
    total = tl.sum(total, 1)
    # Divided by infinity: what is hidden is 0, and so are its probabilities and gradients in the backward pass.
    total = tl.where(_is_hidden(unseen, row, head, queries, T, HEADS), float("inf"), total)
    _store(out + row * T * (H * K) + head * K, queries, H * K, T, K, P, y * (1 / total)[:, None])
    tl.store(lse + (row * H + head) * T + queries, most + tl.log2(total), mask=queries < T)


@triton.jit
def _query_gradient(
    dq, q, g, lse, delta, keys, queries, first, begin, end, T,
    width: tl.constexpr, K: tl.constexpr, P: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, N)
    keys += begin * width
    for start in range(begin, end, N):
        k = _block(keys, n, width, T - start, K, P, MASKED)
        v = _block(keys + K, n, width, T - start, K, P, MASKED)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * LOG2_E - lse[:, None])
        if MASKED:
            p = tl.where(_seen((start + n)[None, :], first[:, None], queries[:, None]), p, 0.0)
        ds = p * tl.dot(g, tl.trans(v), tl.broadcast_to(delta[:, None], p.shape))
        dq = tl.dot(ds.to(k.dtype), k, dq)
        keys += N * width
    return dq


@triton.jit
def _query_kernel(
    qkv, firsts, out, lse, dout, deltas, dqkv, T,
    H: tl.constexpr, K: tl.constexpr, P: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, head, start = _place(M)
    width: tl.constexpr = H * 3 * K
    at_head, at_output, at_row = row * T * width + head * 3 * K, row * T * (H * K) + head * K, (row * H + head) * T
    base, firsts = qkv + at_head, firsts + row * T
    queries = start + tl.arange(0, M)
    q, g = _block(base, queries, width, T, K, P), _block(dout + at_output, queries, H * K, T, K, P)
    y = _block(out + at_output, queries, H * K, T, K, P)
    delta = -tl.sum(g.to(tl.float32) * y.to(tl.float32), 1)  # negative, so that a product can start from it
    tl.store(deltas + at_row + queries, delta, mask=queries < T)  # the kernel below reads it
    own = tl.load(lse + at_row + queries, mask=queries < T, other=0.0)
    first = tl.load(firsts + queries, mask=queries < T, other=0)
    a, b, c, d = _met(firsts, start, T, M, N)
    dq = tl.zeros([M, P], tl.float32)
    dq = _query_gradient(dq, q, g, own, delta, base + K, queries, first, a, b, T, width, K, P, N, True)
    dq = _query_gradient(dq, q, g, own, delta, base + K, queries, first, b, c, T, width, K, P, N, False)
    dq = _query_gradient(dq, q, g, own, delta, base + K, queries, first, c, d, T, width, K, P, N, True)
    _store(dqkv + at_head, queries, width, T, K, P, dq)


@triton.jit
def _key_gradients(
    dk, dv, k, v, base, douts, lses, deltas, firsts, keys, begin, end, T,
    width: tl.constexpr, narrow: tl.constexpr, K: tl.constexpr, P: tl.constexpr, M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, M)
    base, douts, firsts = base + begin * width, douts + begin * narrow, firsts + begin
    lses, deltas = lses + begin, deltas + begin
    for start in range(begin, end, M):
        q = _block(base, m, width, T - start, K, P, MASKED)
        g = _block(douts, m, narrow, T - start, K, P, MASKED)
        inside = (m < T - start) | (not MASKED)
        lse, delta = tl.load(lses + m, mask=inside, other=float("inf")), tl.load(deltas + m, mask=inside, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * LOG2_E - lse[None, :])
        if MASKED:
            first = tl.load(firsts + m, mask=inside, other=T)
            p = tl.where(_seen(keys[:, None], first[None, :], (start + m)[None, :]), p, 0.0)
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = p * tl.dot(v, tl.trans(g), tl.broadcast_to(delta[None, :], p.shape))
        dk = tl.dot(ds.to(q.dtype), q, dk)
        base, douts, firsts = base + M * width, douts + M * narrow, firsts + M
        lses, deltas = lses + M, deltas + M
    return dk, dv


@triton.jit
def _key_kernel(
    qkv, firsts, lasts, lse, dout, deltas, dqkv, T,
    H: tl.constexpr, K: tl.constexpr, P: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, head, start = _place(N)
    width: tl.constexpr = H * 3 * K
    at_head, at_output, at_row = row * T * width + head * 3 * K, row * T * (H * K) + head * K, (row * H + head) * T
    base, g, firsts, lasts = qkv + at_head, dout + at_output, firsts + row * T, lasts + row * T
    lses, deltas = lse + at_row, deltas + at_row
    keys = start + tl.arange(0, N)
    k, v = _block(base + K, keys, width, T, K, P), _block(base + 2 * K, keys, width, T, K, P)
    a, d = start // M * M, tl.load(lasts + tl.minimum(start + N, T) - 1) + 1
    b = tl.cdiv(start + N - 1, M) * M
    c = tl.maximum(b, (tl.load(lasts + start) + 1) // M * M)
    b_or_end = tl.minimum(b, d)
    dk, dv = tl.zeros([N, P], tl.float32), tl.zeros([N, P], tl.float32)
    dk, dv = _key_gradients(
        dk, dv, k, v, base, g, lses, deltas, firsts, keys, a, b_or_end, T, width, H * K, K, P, M, True
    )
    dk, dv = _key_gradients(dk, dv, k, v, base, g, lses, deltas, firsts, keys, b, c, T, width, H * K, K, P, M, False)
    dk, dv = _key_gradients(dk, dv, k, v, base, g, lses, deltas, firsts, keys, c, d, T, width, H * K, K, P, M, True)
    _store(dqkv + at_head + K, keys, width, T, K, P, dk)
    _store(dqkv + at_head + 2 * K, keys, width, T, K, P, dv)


@torch.library.custom_op("excise::attend_inside", mutates_args=())
def attend_inside(
    qkv: Tensor, first: Tensor, last: Tensor, hidden: Tensor | None, heads: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Unscaled attention (B T H K) of qkv (B T H 3 K), and its log-sum-exp to base 2 (B H T).

    `heads` has the first and the end of heads that are hidden from the rows in `hidden` (B T for each such pair).
    """
    B, T, H, _, K = qkv.shape
    out, lse = qkv.new_empty(B, T, H, K), qkv.new_empty(B, H, T, dtype=torch.float32)
    tile = forward_tile(K)
    grid = (triton.cdiv(T, tile["M"]), H, B)
    rows = first if hidden is None else hidden.contiguous().view(torch.uint8)  # without any the kernel does not look
    _forward_kernel[grid](qkv, first, rows, out, lse, T, tuple(heads), H, K, padded(K), **tile)
    return out, lse


@attend_inside.register_fake
def _(qkv: Tensor, first: Tensor, last: Tensor, hidden: Tensor | None, heads: Sequence[int]) -> tuple[Tensor, Tensor]:
    B, T, H, _, K = qkv.shape
    return qkv.new_empty(B, T, H, K), qkv.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("excise::attend_inside_backward", mutates_args=())
def attend_inside_backward(qkv: Tensor, first: Tensor, last: Tensor, out: Tensor, lse: Tensor, dout: Tensor) -> Tensor:
    """The gradient of queries, keys and values in one tensor (B T H 3 K)."""
    B, T, H, _, K = qkv.shape
    dqkv, delta = torch.empty_like(qkv), torch.empty_like(lse)
    tile = query_tile(K)
    grid = (triton.cdiv(T, tile["M"]), H, B)
    _query_kernel[grid](qkv, first, out, lse, dout, delta, dqkv, T, H, K, padded(K), **tile)
    tile = key_tile(K)
    grid = (triton.cdiv(T, tile["N"]), H, B)
    _key_kernel[grid](qkv, first, last, lse, dout, delta, dqkv, T, H, K, padded(K), **tile)
    return dqkv


@attend_inside_backward.register_fake
def _(qkv: Tensor, first: Tensor, last: Tensor, out: Tensor, lse: Tensor, dout: Tensor) -> Tensor:
    return torch.empty_like(qkv)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, first, last, _, _ = inputs
    ctx.save_for_backward(qkv, first, last, *output)


def _backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
    qkv, first, last, out, lse = ctx.saved_tensors
    return attend_inside_backward(qkv, first, last, out, lse, dout.contiguous()), None, None, None, None


attend_inside.register_autograd(_backward, setup_context=_keep)


def padded(K: int) -> int:
    """A power of two that a matrix product takes."""
    return 1 << max(4, (K - 1).bit_length())


def forward_tile(K: int) -> dict[str, int]:
    """Queries that a program has, and keys that it meets at a time."""
    return {"M": 64, "N": 64 if K <= 4 else 32, "num_warps": 4, "num_stages": 1 if K <= 16 else 3}


def query_tile(K: int) -> dict[str, int]:
    return {"M": 64, "N": 32, "num_warps": 4, "num_stages": 1 if K <= 4 else 3}


def key_tile(K: int) -> dict[str, int]:
    """Keys that a program has, and queries that it meets at a time."""
    if K <= 4:
        return {"M": 32, "N": 128, "num_warps": 4, "num_stages": 1}
    if K <= 16:
        return {"M": 16, "N": 32, "num_warps": 1, "num_stages": 3}
    return {"M": 32, "N": 64, "num_warps": 4, "num_stages": 3}
