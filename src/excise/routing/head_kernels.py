"""The output head as Triton kernels, which read and write as little memory as they can: at these sizes memory is what the
head waits for.

A narrow head never writes a logit. The gradient of a row is a mean of the tokens' vectors by their probabilities, less the
vector of its target: attention to all tokens, whose vectors are both keys and values. So one kernel takes a block of rows
past all tokens, and finds their losses and their gradients; another takes a block of tokens past all rows, computes the
same probabilities anew, and finds the gradients of their vectors. A wide head, for which that would be too many products,
has its logits in memory, and their gradients are written in their place, in one pass.

Shapes: N rows, D d_model, V tokens, W the vocabulary with its padding, G tokens with vectors that only some rows see.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

NARROW = 128
"""The largest d_model of a narrow head."""
PROGRAMS = 256
"""That keep a GPU busy: few tokens are taken past shares of the rows, whose sums are added up."""
LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(-1e30)
LANES = tl.constexpr(8)  # sums that stay apart until the end, as threads would have to meet
# Exponentials are taken so many doublings below the target's, and the largest are cut off: sums are finite, and exact as long
# as no token is 190 doublings, 131 nats, ahead of the target; in bfloat16 gradients of weights lose digits above 120 nats.
BELOW, TARGETS, MOST = tl.constexpr(80.0), tl.constexpr(2.0**-80), tl.constexpr(110.0)


def is_narrow(d_model: int, dtype: torch.dtype) -> bool:
    """Whether there are kernels for a head without logits; in float32 they would round, and a probability by the weight of
    its row is too little for float16."""
    return d_model <= NARROW and dtype == torch.bfloat16


@dataclass(frozen=True)
class Gates:
    """Vectors that are added to those of the first tokens, for the rows that see them."""

    added: Tensor
    """G D."""
    bits: Tensor
    """The bit of the module that adds each, 0 where none does (G 1)."""
    seen: Tensor
    """The bits of the modules that each row sees (N 1)."""


@dataclass(frozen=True)
class NarrowHead:
    """Rows, what they are multiplied with, and the tokens that are to come of it."""

    hidden: Tensor
    """N D."""
    weight: Tensor
    """W D."""
    bias: Tensor
    """W."""
    targets: Tensor
    """N."""
    gates: Gates | None = None

    def losses(self, weights: Tensor | None = None, gradient: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The loss of each row, and the logarithm to base 2 of what its probabilities are divided by (N each); the gradient
        of the losses, weighted (N), is written where it is wanted (N D)."""
        (N, D), W = self.hidden.shape, len(self.weight)
        losses, lse = self.hidden.new_empty(2, N, dtype=torch.float32).unbind()
        tile = rows_tile(gradient is not None)
        _narrow_rows[(triton.cdiv(N, tile["ROWS"]),)](
            *(self.hidden, self.weight, self.bias, self.targets, *self._gates(), lse, losses),
            *(losses if weights is None else weights, losses if gradient is None else gradient),
            *(N, W, D, _padded(D), self._n_gated, W % tile["TOKENS"] == 0, gradient is not None),
            **tile,
        )
        return losses, lse

    def token_gradients(self, lse: Tensor, weights: Tensor, tokens: slice) -> tuple[Tensor, Tensor]:
        """The gradients of the losses, weighted (N), for the vectors and biases of some tokens (n D, n)."""
        (N, D), n, tile = self.hidden.shape, tokens.stop - tokens.start, tokens_tile()
        n_tiles = max(1, triton.cdiv(n, tile["TOKENS"]))
        n_shares = max(1, PROGRAMS // n_tiles)
        rows = triton.cdiv(triton.cdiv(N, n_shares), tile["ROWS"]) * tile["ROWS"]  # of a share
        dweight, dbias = lse.new_empty(n_shares, n, D), lse.new_empty(n_shares, n)
        # Probabilities are divided by their row's sum and multiplied with its weight, in one.
        divisors = lse - weights.flatten().float().log2()
        _narrow_tokens[n_tiles, n_shares](
            *(self.hidden, self.weight, self.bias, self.targets, *self._gates(), divisors, weights, dweight, dbias),
            *(N, tokens.start, tokens.stop, rows, D, _padded(D), self._n_gated, N % tile["ROWS"] == 0),
            **tile,
        )
        return _summed(dweight), _summed(dbias)

    def _gates(self) -> tuple[Tensor, Tensor, Tensor]:
        """Without gates, anything: the kernels do not look."""
        gates = self.gates
        return (gates.added, gates.bits, gates.seen) if gates else (self.hidden, self.hidden, self.hidden)

    @property
    def _n_gated(self) -> int:
        return len(self.gates.added) if self.gates else 0


def _summed(shares: Tensor) -> Tensor:
    return shares[0] if len(shares) == 1 else shares.sum(0)


def rows_tile(has_gradient: bool) -> dict[str, int]:
    """Rows that a program has, and tokens that it meets at a time."""
    if has_gradient:
        return {"ROWS": 64, "TOKENS": 128, "num_warps": 4, "num_stages": 3}
    return {"ROWS": 128, "TOKENS": 64, "num_warps": 8, "num_stages": 3}


def tokens_tile() -> dict[str, int]:
    """Tokens that a program has, and rows that it meets at a time."""
    return {"TOKENS": 64, "ROWS": 64, "num_warps": 4, "num_stages": 3}


def _padded(d_model: int) -> int:
    return max(16, int(triton.next_power_of_2(d_model)))


@triton.jit
def _vectors(base, places, n, D: tl.constexpr, P: tl.constexpr, INSIDE: tl.constexpr = False):
    """Vectors at some places (places P), zero from place n on, unless all are known to be before it."""
    d = tl.arange(0, P)
    inside = ((places < n) | INSIDE)[:, None] & (d < D)[None, :]
    return tl.load(base + places[:, None] * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, places, n, D: tl.constexpr, P: tl.constexpr, values):
    d = tl.arange(0, P)
    inside = (places < n)[:, None] & (d < D)[None, :]
    tl.store(base + places[:, None] * D + d[None, :], values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _past_tokens(
    most, total, y, h, sees, weight, bias, added, bits, begin, end, W,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr,
    TOKENS: tl.constexpr, EVEN: tl.constexpr, GRADIENT: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    for start in tl.range(begin, end, TOKENS, num_stages=1 if GATED else None):
        tokens = start + tl.arange(0, TOKENS)
        w = _vectors(weight, tokens, W, D, P, EVEN)
        b = tl.load(bias + tokens, mask=(tokens < W) | EVEN, other=float("-inf")).to(tl.float32) * LOG2_E
        s = tl.dot(h, tl.trans(w))
        if GATED:
            a = _vectors(added, tokens, G, D, P)
            seen = (sees[:, None] & tl.load(bits + tokens, mask=tokens < G, other=0)[None, :]) != 0
            s += tl.where(seen, tl.dot(h, tl.trans(a)), 0.0)
        s = s * LOG2_E + b[None, :]
        new = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(most - new)
        total = total * shrink[:, None] + tl.sum(p.reshape(h.shape[0], TOKENS // LANES, LANES), 1)
        if GRADIENT:
            y = tl.dot(p.to(w.dtype), w, y * shrink[:, None])
            if GATED:
                y = tl.dot(tl.where(seen, p, 0.0).to(w.dtype), a, y)
        most = new
    return most, total, y


@triton.jit
def _narrow_rows(
    hidden, weight, bias, targets, added, bits, seen, lses, losses, weights, gradient, N, W,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr, EVEN: tl.constexpr, GRADIENT: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    h = _vectors(hidden, rows, N, D, P)
    target = tl.load(targets + rows, mask=rows < N, other=0)
    own = _vectors(weight, target, W, D, P).to(tl.float32)
    most, total = tl.full([ROWS], NEVER, tl.float32), tl.zeros([ROWS, LANES], tl.float32)
    y = tl.zeros([ROWS, P], tl.float32)
    gated_end = (G + TOKENS - 1) // TOKENS * TOKENS
    if G > 0:
        sees = tl.load(seen + rows, mask=rows < N, other=0)
        most, total, y = _past_tokens(
            most, total, y, h, sees, weight, bias, added, bits, 0, gated_end, W,
            D, P, G, TOKENS, EVEN, GRADIENT, True,
        )  # fmt: skip
        sees_own = (sees & tl.load(bits + target, mask=target < G, other=0)) != 0
        own += tl.where(sees_own[:, None], _vectors(added, target, G, D, P).to(tl.float32), 0.0)
    most, total, y = _past_tokens(
        most, total, y, h, rows, weight, bias, added, bits, gated_end, W, W,
        D, P, G, TOKENS, EVEN, GRADIENT, False,
    )  # fmt: skip
    total = tl.sum(total, 1)
    lse = most + tl.log2(total)
    wanted = tl.sum(h.to(tl.float32) * own, 1) + tl.load(bias + target).to(tl.float32)
    tl.store(lses + rows, lse, mask=rows < N)
    tl.store(losses + rows, lse / LOG2_E - wanted, mask=rows < N)
    if GRADIENT:
        share = tl.load(weights + rows, mask=rows < N, other=0.0)
        _store(gradient, rows, N, D, P, (y * (1 / total)[:, None] - own) * share[:, None])


@triton.jit
def _past_rows(
    dw, db, w, b, a, bit, hidden, targets, seen, divisors, weights, tokens, begin, end, N,
    D: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < N) | EVEN
        h = _vectors(hidden, rows, N, D, P, EVEN)
        divisor = tl.load(divisors + rows, mask=inside, other=float("inf"))
        target = tl.load(targets + rows, mask=inside, other=-1)
        share = tl.load(weights + rows, mask=inside, other=0.0)
        s = tl.dot(w, tl.trans(h))
        if GATED:
            sees = tl.load(seen + rows, mask=inside, other=0)
            s += tl.where((bit[:, None] & sees[None, :]) != 0, tl.dot(a, tl.trans(h)), 0.0)
        g = tl.exp2(s * LOG2_E + (b[:, None] - divisor[None, :]))
        g = tl.where(tokens[:, None] == target[None, :], g - share[None, :], g)
        db += tl.sum(g.reshape(w.shape[0], ROWS // LANES, LANES), 1)
        dw = tl.dot(g.to(h.dtype), h, dw)
    return dw, db


@triton.jit
def _narrow_tokens(
    hidden, weight, bias, targets, added, bits, seen, divisors, weights, dweight, dbias, N, first, end, n_rows,
    D: tl.constexpr, P: tl.constexpr, G: tl.constexpr, EVEN: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    places, share = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    tokens = first + places
    w = _vectors(weight, tokens, end, D, P)
    b = tl.load(bias + tokens, mask=tokens < end, other=float("-inf")).to(tl.float32) * LOG2_E
    dw, db = tl.zeros([TOKENS, P], tl.float32), tl.zeros([TOKENS, LANES], tl.float32)
    begin, past = share * n_rows, tl.minimum((share + 1) * n_rows, N)
    gated_end = begin
    if G > 0:
        gated_end = tl.where(first + tl.program_id(0) * TOKENS < G, past, begin)
        a, bit = _vectors(added, tokens, G, D, P), tl.load(bits + tokens, mask=tokens < G, other=0)
        dw, db = _past_rows(
            dw, db, w, b, a, bit, hidden, targets, seen, divisors, weights, tokens, begin, gated_end, N,
            D, P, ROWS, EVEN, True,
        )  # fmt: skip
    dw, db = _past_rows(
        dw, db, w, b, w, tokens, hidden, targets, seen, divisors, weights, tokens, gated_end, past, N,
        D, P, ROWS, EVEN, False,
    )  # fmt: skip
    n = end - first
    _store(dweight + share * n * D, places, n, D, P, dw)
    tl.store(dbias + share * n + places, tl.sum(db, 1), mask=places < n)


def losses_and_gradients_in_place(
    logits: Tensor, targets: Tensor, n_tokens: int, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of each row, written to `losses`, and the gradient of its logits (N W), written in their memory, all of the
    row times a number, by whose inverse (N 1) it is still to be multiplied; beyond the tokens that there are it is 0."""
    inverses = torch.empty_like(losses)
    _in_place[(len(logits),)](logits, targets, losses, inverses, logits.shape[1], n_tokens, TILE=8192, num_warps=8)
    return logits, inverses.unsqueeze(-1)


def weigh(rows: Tensor, weights: Tensor, out: Tensor) -> None:
    """Rows (N D) times their weights (N 1), written to `out`."""
    N, D = rows.shape
    _weigh[triton.cdiv(N, 4), triton.cdiv(D, 512)](
        *(rows, weights, out, N, D, rows.stride(0), weights.stride(0), out.stride(0)),
        **{"ROWS": 4, "COLUMNS": 512, "num_warps": 4},
    )


@triton.jit
def _weigh(rows, weights, out, N, D, step, weight_step, out_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row, column = row.to(tl.int64)[:, None], column[None, :]
    here = (row < N) & (column < D)
    x = tl.load(rows + row * step + column, mask=here).to(tl.float32) * tl.load(
        weights + row * weight_step, mask=row < N
    )
    tl.store(out + row * out_step + column, x.to(out.dtype.element_ty), mask=here)


@triton.jit
def _in_place(logits, targets, losses, inverses, W, V, TILE: tl.constexpr):
    """Each logit is read once and its gradient written once: exponentials are taken relative to the target's, which is known
    before the others, and probabilities times the sum of all exponentials are these alone."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    base = logits + row * W
    wanted = tl.load(base + target).to(tl.float32) * LOG2_E + BELOW
    tl.debug_barrier()  # all threads have read it before one of them writes there
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, W, TILE):
        at = start + tl.arange(0, TILE)
        s = tl.load(base + at, mask=at < V, other=float("-inf")).to(tl.float32)
        # Where a logit is no number the loss must not be one either.
        e = tl.exp2(tl.minimum(s * LOG2_E - wanted, MOST, propagate_nan=tl.PropagateNan.ALL))
        total += e
        tl.store(base + at, e.to(logits.dtype.element_ty), mask=at < W)
    sum_of_all = tl.sum(total, 0)
    tl.debug_barrier()
    tl.store(base + target, (-(sum_of_all - TARGETS)).to(logits.dtype.element_ty))
    tl.store(inverses + row, 1 / sum_of_all)
    tl.store(losses + row, (tl.log2(sum_of_all) + BELOW) / LOG2_E)
