"""The output head and its loss in one, a chunk of rows at a time, so that the logits of a batch never exist at once.

The gradients are computed in the forward pass, where each chunk's logits are at hand; the backward pass scales them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from excise.routing.linear import hide
from excise.routing.route import Rows

CHUNK = {"cpu": 256, "cuda": 4096}
"""Rows whose logits are in memory at a time."""
MULTIPLE = {"cpu": 1, "cuda": 64}
"""The vocabulary is padded to a multiple of this, without which matrix products on a GPU are several times slower."""
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


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor, frozen: Rows
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        head, offset = padded(weight, bias, dtype)
        V, chunk = len(weight), CHUNK[device]
        needs_hidden, needs_head = ctx.needs_input_grad[0], ctx.needs_input_grad[1] and frozen is not True
        dhidden = torch.empty_like(hidden) if needs_hidden else None
        dweight = torch.zeros_like(weight) if needs_head else None
        dbias = torch.zeros_like(bias) if needs_head and bias is not None else None
        losses = torch.empty_like(weights)
        head_weights = hide(weights.unsqueeze(-1), frozen)  # N 1
        for start in range(0, len(targets), chunk):
            here = slice(start, start + chunk)
            h, t = hidden[here].to(dtype), targets[here].unsqueeze(-1)
            logits = nn.functional.linear(h, head, offset)
            p = logits.softmax(-1, dtype=dtype)
            losses[here] = -p.gather(-1, t).squeeze(-1).float().clamp_min(SMALLEST).log()
            g = p.scatter_add_(-1, t, torch.full_like(t, -1, dtype=dtype))
            # Weights are applied to the narrow side, D, and never to the wide one, V.
            if dhidden is not None:
                dhidden[here] = (g @ head) * weights[here].unsqueeze(-1)
            if dweight is not None:
                dweight += (g.T @ (h * head_weights[here]).to(dtype))[:V]
            if dbias is not None:
                dbias += (head_weights[here].squeeze(-1).to(dtype) @ g)[:V]
        ctx.save_for_backward(dhidden, dweight, dbias)
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if gradient is None else gradient * scale for gradient in ctx.saved_tensors), None, None, None
