"""The backward passes of what stands between matrix products, as Triton kernels that go over memory once.

The gradients of gains and biases are sums over rows. A compiler makes passes of their own of these, which read again what was
just written, and memory is what all of this waits for. Here a program goes down a share of the rows and adds up as it goes; the
sums of all shares are added up in the end, always in the same order.

Shapes: N rows, D d_model, U units, S shares.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from excise.routing.kernels import GELU_CUBE, GELU_SLOPE, HALVES

SHARES = 1024
"""Of the rows, at the most: enough to keep a GPU busy, few enough for their sums to be little."""
# Of the exponent in powers of two, and of the derivative.
LINEAR_2, CUBIC_2 = (tl.constexpr(-c * GELU_SLOPE * math.log2(math.e)) for c in (1, GELU_CUBE))
LINEAR, CUBIC = (tl.constexpr(c * GELU_SLOPE) for c in (1, 3 * GELU_CUBE))


@triton.jit
def _norm_kernel(
    dsum, dnormed, total, mean, rstd, gain, still_norm, still_bias, dx, dadded, sums, N, n_rows,
    NORM_MASK: tl.constexpr, BIAS_MASK: tl.constexpr, HALF: tl.constexpr,
    D: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    share, d = tl.program_id(0), tl.arange(0, P)
    inside, begin = d < D, share.to(tl.int64) * n_rows
    w = tl.load(gain + d, mask=inside, other=0.0)[None, :]
    dgain, dshift, dbias = tl.zeros([P], tl.float32), tl.zeros([P], tl.float32), tl.zeros([P], tl.float32)
    for start in range(begin, tl.minimum(begin + n_rows, N), ROWS):
        rows = start + tl.arange(0, ROWS)
        at, here = rows[:, None] * D + d[None, :], (rows < N)[:, None] & inside[None, :]
        # Four numbers a thread, as of the others; it would have eight in half precision, and trade them for the others.
        at_half = at if HALF else tl.max_contiguous(at, [1, 4])
        g = tl.load(dnormed + at_half, mask=here, other=0.0).to(tl.float32)
        x = tl.load(total + at, mask=here, other=0.0).to(tl.float32)
        r = tl.load(rstd + rows, mask=rows < N, other=0.0)[:, None]
        x = (x - tl.load(mean + rows, mask=rows < N, other=0.0)[:, None]) * r
        gw = g * w
        a, b = tl.sum(gw, 1)[:, None] / D, tl.sum(gw * x, 1)[:, None] / D
        y = tl.load(dsum + at, mask=here, other=0.0).to(tl.float32) + (gw - a - x * b) * r
        tl.store(dx + at, y.to(dx.dtype.element_ty), mask=here)
        if not HALF:
            tl.store(dadded + at_half, y.to(dadded.dtype.element_ty), mask=here)
        if NORM_MASK:
            still = (tl.load(still_norm + rows, mask=rows < N, other=1) != 0)[:, None]
            g, x = tl.where(still, 0.0, g), tl.where(still, 0.0, x)
        if BIAS_MASK:
            y = tl.where((tl.load(still_bias + rows, mask=rows < N, other=1) != 0)[:, None], 0.0, y)
        dgain, dshift = dgain + tl.sum(g * x, 0), dshift + tl.sum(g, 0)
        dbias += tl.sum(tl.where(here, y, 0.0), 0)
    sums += share * 3 * D + d
    tl.store(sums, dgain, mask=inside)
    tl.store(sums + D, dshift, mask=inside)
    tl.store(sums + 2 * D, dbias, mask=inside)


@triton.jit
def _named(masks, rows, units, N, WHERE: tl.constexpr):
    """Which units of which rows are meant: `WHERE` has a mask of rows, and the first and the end of units, three numbers for
    each run of units."""
    found = (rows < 0)[:, None] & (units < 0)[None, :]
    for i in tl.static_range(len(WHERE) // 3):
        of_rows = tl.load(masks + WHERE[3 * i] * N + rows, mask=rows < N, other=0) != 0
        found = found | (of_rows[:, None] & ((units >= WHERE[3 * i + 1]) & (units < WHERE[3 * i + 2]))[None, :])
    return found


@triton.jit
def _units_kernel(
    dout, x, bias, masks, dx, sums, N, n_rows,
    STOPPED: tl.constexpr, FROZEN: tl.constexpr, U: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    share, units = tl.program_id(1), tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    inside, begin = units < U, share.to(tl.int64) * n_rows
    offset = tl.load(bias + units, mask=inside, other=0.0)[None, :]
    dbias = tl.zeros([UNITS], tl.float32)
    for start in range(begin, tl.minimum(begin + n_rows, N), ROWS):
        rows = start + tl.arange(0, ROWS)
        at, here = rows[:, None] * U + units[None, :], (rows < N)[:, None] & inside[None, :]
        u = tl.load(x + at, mask=here, other=0.0).to(tl.float32) + offset
        s = 1 / (1 + tl.exp2(u * (LINEAR_2 + CUBIC_2 * u * u)))
        g = tl.load(dout + at, mask=here, other=0.0).to(tl.float32)
        g = g * s * (1 + u * (1 - s) * (LINEAR + CUBIC * u * u))
        if len(STOPPED) > 0:
            g = tl.where(_named(masks, rows, units, N, STOPPED), 0.0, g)
        tl.store(dx + at, g.to(dx.dtype.element_ty), mask=here)
        if len(FROZEN) > 0:
            g = tl.where(_named(masks, rows, units, N, FROZEN), 0.0, g)
        dbias += tl.sum(g, 0)
    tl.store(sums + share * U + units, dbias, mask=inside)


@torch.library.custom_op("excise::norm_backward", mutates_args=())
def norm_backward(
    dsum: Tensor, dnormed: Tensor, total: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor,
    still_norm: Tensor | None, still_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of a sum (... D) and its norm: the gradient of what was added up, in the precision of the sum and in that of the norm
    (empty where they are the same), and, share by share of the rows, of gain, shift and a bias that was added too (S 3 D),
    without the rows that leave them still."""
    assert total.is_contiguous()
    D = total.shape[-1]
    N, tile = total.numel() // D, norm_tile(D)
    n_rows, n_shares = shares_of(N, tile["ROWS"])
    half = total.dtype in HALVES
    dx, dadded = (
        torch.empty_like(total),
        torch.empty_like(dnormed[:0] if half else dnormed, memory_format=torch.contiguous_format),
    )
    sums = gain.new_empty(n_shares, 3, D)
    _norm_kernel[(n_shares,)](
        *(dsum.contiguous(), dnormed.contiguous(), total, mean, rstd, gain, bytes_of(still_norm, gain)),
        *(bytes_of(still_bias, gain), dx, dadded, sums, N, n_rows, still_norm is not None, still_bias is not None),
        *(half, D, triton.next_power_of_2(D)),
        **tile,
    )
    return dx, dadded, sums


@norm_backward.register_fake
def _(
    dsum: Tensor, dnormed: Tensor, total: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor,
    still_norm: Tensor | None, still_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    D = total.shape[-1]
    _, n_shares = shares_of(total.numel() // D, norm_tile(D)["ROWS"])
    half = total.dtype in HALVES
    dadded = torch.empty_like(dnormed[:0] if half else dnormed, memory_format=torch.contiguous_format)
    return torch.empty_like(total), dadded, gain.new_empty(n_shares, 3, D)


@torch.library.custom_op("excise::units_backward", mutates_args=())
def units_backward(
    dout: Tensor, x: Tensor, bias: Tensor, masks: Tensor | None, stopped: Sequence[int], frozen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Of units through GELU after their bias (... U): the gradient of their inputs, and, share by share of the rows, of the bias
    (S U). No gradient goes back through units of rows that are stopped, and frozen ones count nothing for the bias; both
    are given by a number of `masks`, the first unit and the end, three numbers for each run of units."""
    assert x.is_contiguous()
    U = x.shape[-1]
    N, tile = x.numel() // U, units_tile(U)
    n_rows, n_shares = shares_of(N, tile["ROWS"])
    dx, sums = torch.empty_like(x), bias.new_empty(n_shares, U, dtype=torch.float32)
    _units_kernel[triton.cdiv(U, tile["UNITS"]), n_shares](
        *(dout.contiguous(), x, bias, bytes_of(masks, bias), dx, sums, N, n_rows, tuple(stopped), tuple(frozen), U),
        **tile,
    )
    return dx, sums


@units_backward.register_fake
def _(
    dout: Tensor, x: Tensor, bias: Tensor, masks: Tensor | None, stopped: Sequence[int], frozen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    _, n_shares = shares_of(x.numel() // x.shape[-1], units_tile(x.shape[-1])["ROWS"])
    return torch.empty_like(x), bias.new_empty(n_shares, x.shape[-1], dtype=torch.float32)


def bytes_of(mask: Tensor | None, anything: Tensor) -> Tensor:
    """A mask as the kernels read it; without one they do not look."""
    return anything if mask is None else mask.contiguous().view(torch.uint8)


def shares_of(n: int, rows: int) -> tuple[int, int]:
    """Rows of a share, in whole tiles, and the number of shares."""
    of_share: int = triton.cdiv(triton.cdiv(n, SHARES), rows) * rows
    return of_share, triton.cdiv(n, of_share)


def norm_tile(D: int) -> dict[str, int]:
    """Rows that a program has at a time."""
    return {"ROWS": 2 if D < 1024 else 1, "num_warps": warps_for(triton.next_power_of_2(D))}


def units_tile(U: int) -> dict[str, int]:
    """Rows and units that a program has at a time."""
    units = min(1024, triton.next_power_of_2(U))
    return {"ROWS": 2, "UNITS": units, "num_warps": warps_for(units)}


def warps_for(columns: int) -> int:
    """So many that a thread has eight of the columns, or more of very many."""
    return min(16, max(1, columns // 256))
