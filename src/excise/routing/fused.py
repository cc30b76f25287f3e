"""What stands between matrix products, compiled for a GPU: an addition with the norm after it, and units with their bias.

Forward a compiler does well with both. Back each is one kernel, with the sums over rows for gains and biases. Elsewhere layers
add their own biases, and everything is done step by step.

Shapes: B rows of a batch, T positions, D d_model, U units.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from excise.routing.kernels import GELU_CUBE, GELU_SLOPE, HALVES, HAS_KERNELS
from excise.routing.linear import hide
from excise.routing.precision import product_dtype
from excise.routing.route import Rows

if HAS_KERNELS:
    from excise.routing.fused_kernels import norm_backward, units_backward

EPSILON = 1e-5
"""Of layer norms."""
Run = tuple[Tensor, int, int]
"""Some rows (B T 1) of units that follow one another, from the first to the end."""


class Added(NamedTuple):
    """What a layer adds to the stream (B T D)."""

    value: Tensor
    bias: Tensor | None = None
    """What is still to be added to that (D)."""
    frozen: Rows = False
    """Rows that give the bias no gradient."""


def fuses(x: Tensor) -> bool:
    """Whether layers that read this are fused with what follows them."""
    return torch.compiler.is_compiling() and HAS_KERNELS and x.is_cuda and product_dtype(x) in HALVES


def gelu(x: Tensor) -> Tensor:
    """The form with a tanh, which is a sigmoid in other words, and compiled takes less time as one."""
    if torch.compiler.is_compiling():
        return x * torch.sigmoid(GELU_SLOPE * (x + GELU_CUBE * x**3))
    return torch.nn.functional.gelu(x, approximate="tanh")


def add_and_norm(x: Tensor, added: Added, gain: Tensor, shift: Tensor, frozen: Rows) -> tuple[Tensor, Tensor]:
    """The stream with something added to it, and its norm; frozen rows give gain and shift no gradient."""
    assert added.bias is not None
    total, normed = _AddAndNorm.apply(x, added.value, added.bias, gain, shift, added.frozen, frozen)  # type: ignore[no-untyped-call]
    return total, normed


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        value: Tensor,
        bias: Tensor,
        gain: Tensor,
        shift: Tensor,
        still_bias: Rows,
        still_norm: Rows,
    ) -> tuple[Tensor, Tensor]:
        total = x + (value + bias)
        if x.dtype in HALVES:  # never an identity here: compiled, torch 2.11 lost the stream's gradient by one
            total = total.to(x.dtype)
            normed, mean, rstd = torch.native_layer_norm(total.float(), gain.shape, gain, shift, EPSILON)
        else:
            normed, mean, rstd = torch.native_layer_norm(total, gain.shape, gain, shift, EPSILON)
        ctx.save_for_backward(total, mean, rstd, gain, _mask(still_norm), _mask(still_bias))
        ctx.still_bias, ctx.still_norm = still_bias is True, still_norm is True
        return total, normed.to(product_dtype(x))

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor, dnormed: Tensor) -> tuple[Tensor | None, ...]:
        dx, dadded, shares = norm_backward(dtotal, dnormed, *ctx.saved_tensors)
        dgain, dshift, dbias = shares.sum(0)
        if ctx.still_norm:
            dgain = dshift = None
        return dx, dadded if len(dadded) else dx, None if ctx.still_bias else dbias, dgain, dshift, None, None


def activate(x: Tensor, bias: Tensor, hidden: Sequence[Run], frozen: Sequence[Run]) -> Tensor:
    """Units (B T U) through their bias and GELU, zero where they are hidden; frozen rows give the bias no gradient."""
    runs = [*hidden, *frozen]
    masks = torch.stack([rows.squeeze(-1) for rows, _, _ in runs]) if runs else None
    places = [place for i, (_, *bounds) in enumerate(runs) for place in (i, *bounds)]
    end = 3 * len(hidden)
    y: Tensor = _Activate.apply(x, bias, masks, places[:end], places[end:])  # type: ignore[no-untyped-call]
    return y


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, masks: Tensor | None, hidden: list[int], frozen: list[int]
    ) -> Tensor:
        ctx.save_for_backward(x, bias, masks)
        ctx.hidden, ctx.frozen = hidden, frozen
        y, unit = gelu(x + bias), torch.arange(x.shape[-1], device=x.device)
        for i, start, end in zip(hidden[::3], hidden[1::3], hidden[2::3], strict=True):
            assert masks is not None
            y = hide(y, masks[i].unsqueeze(-1) & (unit >= start) & (unit < end))
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, shares = units_backward(dy, *ctx.saved_tensors, ctx.hidden, ctx.frozen)
        return dx, shares.sum(0), None, None, None


def _mask(rows: Rows) -> Tensor | None:
    """Rows that a kernel is to leave out; where they are all or none it need not look."""
    return rows.squeeze(-1) if isinstance(rows, Tensor) else None
