"""The output head and its loss in one, a chunk of rows at a time, so that the logits of a batch never exist at once.

The gradients are computed in the forward pass, where each chunk's logits are at hand; the backward pass scales them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from excise.routing.kernels import HALVES, HAS_KERNELS
from excise.routing.linear import hide
from excise.routing.route import Rows

if HAS_KERNELS:
    from excise.routing import head_kernels

CHUNK = {"cpu": 256, "cuda": 8192}
"""Rows whose logits are in memory at a time."""
NARROW_CHUNK = 32768
"""The same for a narrow head on a GPU, whose kernel takes 128 rows at a time on each of its processors."""
MULTIPLE = {"cpu": 1, "cuda": 64}
"""The vocabulary is padded to a multiple of this, without which matrix products on a GPU are several times slower."""
BIAS_COLUMNS = {"cpu": 1, "cuda": 8}
"""Columns beside the head's inputs that its bias takes, for the same reason."""
SMALLEST = torch.finfo(torch.float32).tiny
"""A probability below this counts as this in the loss that is reported; the gradient knows no such limit."""


def head_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor, frozen: Rows
) -> tuple[Tensor, Tensor]:
    """The weighted sum of the losses of all rows, for the backward pass, and each row's loss.

    Shapes: hidden ... D, weight V D, targets and weights ...; a row whose target is negative has no loss. The head gets
    no gradient from frozen rows.
    """
    counted = targets >= 0
    rows, wanted = hidden.flatten(0, -2), targets.clamp_min(0).flatten()
    if torch.is_grad_enabled():
        frozen_rows = frozen if isinstance(frozen, bool) else frozen.reshape(-1, 1)
        row_weights = (weights * counted).flatten()
        total, losses = _HeadLosses.apply(  # type: ignore[no-untyped-call]
            rows, weight, bias, wanted, row_weights, frozen_rows
        )
        return total, losses.view(targets.shape).where(counted, 0.0)
    losses = losses_without_gradient(rows, weight, bias, wanted)[0].view(targets.shape).where(counted, 0.0)
    return (losses * weights).sum(), losses


def losses_without_gradient(
    rows: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, shifts: Sequence[Tensor | None] = (None,)
) -> Tensor:
    """Each row's loss with each of these shifts of the logits (S x N), in float32 from the logits on."""
    chunks, chunk = [], CHUNK[rows.device.type]
    weight, bias = padded(weight, bias, weight.dtype)
    for first in range(0, len(rows), chunk):
        here = slice(first, first + chunk)
        logits = nn.functional.linear(rows[here], weight, bias)
        shifted = (logits if shift is None else logits + _as_wide(shift, logits) for shift in shifts)
        log_p = (x.log_softmax(-1, dtype=torch.float32).gather(-1, wanted[here].unsqueeze(-1)) for x in shifted)
        chunks.append(-torch.cat(list(log_p), -1).T)
    return torch.cat(chunks, -1)


def _as_wide(shift: Tensor, logits: Tensor) -> Tensor:
    return nn.functional.pad(shift, (0, logits.shape[-1] - len(shift)))


def logits(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The logits of rows (... V), where no gradient is wanted."""
    V = len(weight)
    return nn.functional.linear(rows, *padded(weight, bias, weight.dtype))[..., :V]


def padded(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The head in this precision, with more tokens at its end that are never predicted, where the device wants them."""
    n_more = -len(weight) % MULTIPLE[weight.device.type]
    if not n_more:
        return weight.to(dtype), None if bias is None else bias.to(dtype)
    if bias is None:
        bias = weight.new_zeros(len(weight))
    never = torch.finfo(dtype).min / 2
    return nn.functional.pad(weight.to(dtype), (0, 0, 0, n_more)), nn.functional.pad(
        bias.to(dtype), (0, n_more), value=never
    )


def _losses_and_gradients(
    hidden: Tensor, head: Tensor, bias: Tensor | None, targets: Tensor, n_tokens: int, losses: Tensor
) -> Tensor:
    """The loss of each row, written to `losses`, and the gradient of its logits."""
    if HAS_KERNELS and hidden.is_cuda and hidden.dtype in HALVES:
        return head_kernels.losses_and_gradients(hidden.contiguous(), head, bias, targets, n_tokens, losses)
    p, t = nn.functional.linear(hidden, head, bias).softmax(-1), targets.unsqueeze(-1)
    losses.copy_(-p.gather(-1, t).squeeze(-1).float().clamp_min(SMALLEST).log())
    return p.scatter_add_(-1, t, torch.full_like(t, -1, dtype=p.dtype))


def _with_ones(hidden: Tensor, weights: Tensor) -> Tensor:
    """Inputs of the head with a one beside them, all times their weights: what the gradients of weight and bias are sums
    of. (N D+)"""
    n_empty = BIAS_COLUMNS[hidden.device.type] - 1
    return torch.cat([hidden * weights, weights, weights.new_zeros(len(weights), n_empty)], -1)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a product in half precision to a sum in float32; a GPU never rounds it in between."""
    if total.is_cuda and total.dtype != a.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor, frozen: Rows
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        head, offset = padded(weight, bias, dtype)
        (V, D), chunk = weight.shape, CHUNK[device]
        if HAS_KERNELS and device == "cuda" and head_kernels.is_narrow(D, dtype):
            chunk = NARROW_CHUNK
        needs_hidden, needs_head = ctx.needs_input_grad[0], ctx.needs_input_grad[1] and frozen is not True
        dhidden = torch.empty_like(hidden) if needs_hidden else None
        dhead = weight.new_zeros(len(head), D + BIAS_COLUMNS[device]) if needs_head else None
        losses = torch.empty_like(weights)
        weights = weights.unsqueeze(-1)  # N 1
        head_weights = hide(weights, frozen)
        for start in range(0, len(targets), chunk):
            here = slice(start, start + chunk)
            g = _losses_and_gradients(hidden[here].to(dtype), head, offset, targets[here], V, losses[here])
            # Weights are applied to the narrow side, D, and never to the wide one, V.
            if dhidden is not None:
                torch.mul(g @ head, weights[here], out=dhidden[here])
            if dhead is not None:
                _add_product(dhead, g.T, _with_ones(hidden[here], head_weights[here]).to(dtype))
        dweight = None if dhead is None else dhead[:V, :D]
        dbias = None if dhead is None or bias is None else dhead[:V, D]
        ctx.save_for_backward(dhidden, dweight, dbias)
        ctx.mark_non_differentiable(losses)
        return (losses * weights.squeeze(-1)).sum(), losses

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if gradient is None else gradient * scale for gradient in ctx.saved_tensors), None, None, None
