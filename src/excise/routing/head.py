"""The output head and its loss in one, a chunk of rows at a time, so that the logits of a batch never exist at once.

The gradients are computed in the forward pass, where each chunk's logits are at hand; the backward pass scales them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class AddedRows:
    """Vectors that a part adds to those of some tokens, which follow one another in the head."""

    tokens: slice
    weight: Tensor
    hidden: Rows
    """Rows of the batch that do not see them, never all."""
    frozen: Rows = False
    """Rows that give them no gradient."""


def head_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    frozen: Rows,
    added: Sequence[AddedRows],
    targets: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of the losses of all rows, for the backward pass, and each row's loss; rows that are frozen give
    weight and bias no gradient.

    Shapes: hidden ... D, weight V D, bias V, targets and weights ...; a row whose target is negative has no loss.
    """
    counted = targets >= 0
    total, losses = _HeadLosses.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2),
        weight,
        bias,
        _flat(frozen),
        [replace(rows, hidden=_flat(rows.hidden), frozen=_flat(rows.frozen)) for rows in added],
        targets.clamp_min(0).flatten(),
        (weights * counted).flatten(),
        *(rows.weight for rows in added),
    )
    return total, losses.view(targets.shape).where(counted, 0.0)


def _flat(rows: Rows) -> Rows:
    return rows if isinstance(rows, bool) else rows.reshape(-1, 1)


def losses_without_gradient(
    rows: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, shifts: Sequence[Tensor | None] = (None,)
) -> Tensor:
    """Each row's loss with each of these shifts of the logits (S x N), in float32 from the logits on."""
    dtype = _product_dtype(rows)
    if _has_narrow_kernels(rows, dtype):
        inputs, head = rows.to(dtype).contiguous(), weight.to(dtype).contiguous()
        offset = weight.new_zeros(len(weight), dtype=torch.float32) if bias is None else bias.float()
        losses = offset.new_empty(len(shifts), len(rows))
        for shift, of_shift in zip(shifts, losses, strict=True):
            head_kernels.narrow_losses(inputs, head, offset if shift is None else offset + shift, wanted, of_shift)
        return losses
    chunks, chunk = [], CHUNK[rows.device.type]
    weight, bias = padded(weight, bias, weight.dtype)
    for first in range(0, len(rows), chunk):
        here = slice(first, first + chunk)
        logits = nn.functional.linear(rows[here], weight, bias)
        shifted = (logits if shift is None else logits + _as_wide(shift, logits) for shift in shifts)
        log_p = (x.log_softmax(-1, dtype=torch.float32).gather(-1, wanted[here].unsqueeze(-1)) for x in shifted)
        chunks.append(-torch.cat(list(log_p), -1).T)
    return torch.cat(chunks, -1)


def _product_dtype(inputs: Tensor) -> torch.dtype:
    """The precision of the head's matrix products."""
    device = inputs.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype


def _has_narrow_kernels(inputs: Tensor, dtype: torch.dtype) -> bool:
    return HAS_KERNELS and inputs.is_cuda and head_kernels.is_narrow(inputs.shape[-1], dtype)


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
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    n_tokens: int,
    losses: Tensor,
    gated: Sequence[AddedRows],
) -> Tensor:
    """The loss of each row, written to `losses`, and the gradient of its logits; the gated vectors only some rows see."""
    has_kernels = HAS_KERNELS and hidden.is_cuda and hidden.dtype in HALVES
    if has_kernels and (not gated or (bias is not None and _has_narrow_kernels(hidden, hidden.dtype))):
        gates = _gates(gated, hidden) if gated else None
        return head_kernels.losses_and_gradients(hidden.contiguous(), head, bias, targets, n_tokens, losses, gates)
    logits = nn.functional.linear(hidden, head, bias)
    for rows in gated:
        logits[:, rows.tokens] += hide(hidden, rows.hidden) @ rows.weight.to(hidden.dtype).T
    if has_kernels:
        return head_kernels.losses_and_gradients_in_place(logits, targets, n_tokens, losses)
    # In float32, as p - 1 of a confident prediction is lost in half precision.
    p, t = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), targets.unsqueeze(-1)
    losses.copy_(-p.gather(-1, t).squeeze(-1).clamp_min(SMALLEST).log())
    return p.scatter_add_(-1, t, torch.full_like(t, -1, dtype=p.dtype)).to(logits.dtype)


def _gates(gated: Sequence[AddedRows], hidden: Tensor) -> "head_kernels.Gates":
    """The same for the kernels of a narrow head; a token that no gated vector belongs to has a column that no row sees."""
    end = max(of.tokens.stop for of in gated)
    added = hidden.new_zeros(end, hidden.shape[-1])
    columns = torch.zeros(end, dtype=torch.int32, device=hidden.device)
    seen = torch.zeros(len(hidden), 1 + len(gated), dtype=torch.uint8, device=hidden.device)
    for column, of in enumerate(gated, start=1):
        added[of.tokens], columns[of.tokens] = of.weight.to(hidden.dtype), column
        seen[:, column : column + 1] = ~of.hidden
    return head_kernels.Gates(added, columns, seen)


def _with_ones(hidden: Tensor, weights: Tensor) -> Tensor:
    """Inputs of the head and beside them ones, times their weights: what the gradients of weight and bias are sums of.
    (N D+)"""
    n_empty = BIAS_COLUMNS[hidden.device.type] - 1
    return torch.cat([hidden * weights, weights, weights.new_zeros(len(weights), n_empty)], -1)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a product in half precision to a sum in float32; a GPU never rounds it in between."""
    if total.is_cuda and total.dtype != a.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _with_what_all_see(weight: Tensor, added: Sequence[AddedRows]) -> Tensor:
    """The head with the vectors that all rows see added to it."""
    if all(of.hidden is not False for of in added):
        return weight
    weight = weight.clone()
    for of in (of for of in added if of.hidden is False):
        weight[of.tokens] += of.weight
    return weight


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        frozen: Rows,
        added: Sequence[AddedRows],
        targets: Tensor,
        weights: Tensor,
        *_: Tensor,
    ) -> tuple[Tensor, Tensor]:
        device, dtype = hidden.device.type, _product_dtype(hidden)
        gates = [(of, of.hidden) for of in added if not isinstance(of.hidden, bool)]
        head, offset = padded(_with_what_all_see(weight, added), bias, dtype)
        (V, D), chunk = weight.shape, NARROW_CHUNK if _has_narrow_kernels(hidden, dtype) else CHUNK[device]
        needs_hidden, needs_head = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        dhidden = torch.empty_like(hidden) if needs_hidden else None
        dhead = weight.new_zeros(len(head), D + BIAS_COLUMNS[device]) if needs_head and frozen is not True else None
        dadded = [torch.zeros_like(of.weight) if needs_head and of.frozen is not True else None for of in added]
        losses = torch.empty_like(weights)
        weights = weights.unsqueeze(-1)  # N 1
        head_weights = hide(weights, frozen)
        added_weights = [hide(hide(weights, of.hidden), of.frozen) for of in added]
        for start in range(0, len(targets), chunk):
            here = slice(start, start + chunk)
            gated = [replace(of, hidden=rows[here]) for of, rows in gates]
            g = _losses_and_gradients(hidden[here].to(dtype), head, offset, targets[here], V, losses[here], gated)
            # Weights are applied to the narrow side, D, and never to the wide one, V.
            if dhead is not None:
                _add_product(dhead, g.T, _with_ones(hidden[here], head_weights[here]).to(dtype))
            for of, of_weights, total in zip(added, added_weights, dadded, strict=True):
                if total is not None:
                    _add_product(total, g[:, of.tokens].T, (hidden[here] * of_weights[here]).to(dtype))
            if dhidden is not None:
                of_hidden = g @ head
                for of in gated:
                    of_hidden += hide(g[:, of.tokens] @ of.weight.to(dtype), of.hidden)
                torch.mul(of_hidden, weights[here], out=dhidden[here])
        dweight = None if dhead is None else dhead[:V, :D]
        dbias = None if dhead is None or bias is None else dhead[:V, D]
        ctx.save_for_backward(dhidden, dweight, dbias, *dadded)
        ctx.mark_non_differentiable(losses)
        return (losses * weights.squeeze(-1)).sum(), losses

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dweight, dbias, *dadded = (None if d is None else d * scale for d in ctx.saved_tensors)
        return dhidden, dweight, dbias, None, None, None, None, *dadded
