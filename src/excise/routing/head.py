"""The output head and its loss in one, a chunk of rows at a time, so that the logits of a batch never exist at once.

The gradients are computed in the forward pass, where each chunk's logits are at hand; the backward pass scales them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
class HeadPiece:
    """Consecutive tokens of the head that are in one part."""

    weight: Tensor
    frozen: Rows
    """Rows that give it no gradient."""
    hidden: Rows = False
    """Rows to which its vectors are zero; where that is all of them, so is the weight."""


def head_losses(
    hidden: Tensor,
    pieces: Sequence[HeadPiece],
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    frozen_bias: Rows,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of the losses of all rows, for the backward pass, and each row's loss.

    Shapes: hidden ... D, bias V, targets and weights ...; a row whose target is negative has no loss.
    """
    counted = targets >= 0
    if not torch.is_grad_enabled() and all(isinstance(piece.hidden, bool) for piece in pieces):
        weight = torch.cat([piece.weight for piece in pieces])
        losses = losses_without_gradient(hidden.flatten(0, -2), weight, bias, targets.clamp_min(0).flatten())[0]
        losses = losses.view(targets.shape).where(counted, 0.0)
        return (losses * weights).sum(), losses
    flat = [HeadPiece(piece.weight, _flat(piece.frozen), _flat(piece.hidden)) for piece in pieces]
    total, losses = _HeadLosses.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2),
        bias,
        targets.clamp_min(0).flatten(),
        (weights * counted).flatten(),
        _flat(frozen_bias),
        [piece.frozen for piece in flat],
        [piece.hidden for piece in flat],
        *(piece.weight for piece in flat),
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


Gated = Sequence[tuple[slice, Tensor]]
"""Columns of the head, and the rows (N 1) that they are hidden from."""


def _losses_and_gradients(
    hidden: Tensor, head: Tensor, bias: Tensor | None, targets: Tensor, n_tokens: int, losses: Tensor, gated: Gated
) -> Tensor:
    """The loss of each row, written to `losses`, and the gradient of its logits."""
    has_kernels = HAS_KERNELS and hidden.is_cuda and hidden.dtype in HALVES
    if has_kernels and not gated:
        return head_kernels.losses_and_gradients(hidden.contiguous(), head, bias, targets, n_tokens, losses)
    logits = nn.functional.linear(hidden, head, bias)
    for columns, rows in gated:
        logits[:, columns] = torch.where(rows, 0.0 if bias is None else bias[columns], logits[:, columns])
    if has_kernels:
        return head_kernels.losses_and_gradients_in_place(logits, targets, n_tokens, losses)
    # In float32, as p - 1 of a confident prediction is lost in half precision.
    p, t = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), targets.unsqueeze(-1)
    losses.copy_(-p.gather(-1, t).squeeze(-1).clamp_min(SMALLEST).log())
    return p.scatter_add_(-1, t, torch.full_like(t, -1, dtype=p.dtype)).to(logits.dtype)


def _with_ones(hidden: Tensor, weights: Tensor, bias_weights: Tensor) -> Tensor:
    """Inputs of the head times their weights, and beside them ones times theirs: what the gradients of weight and bias are
    sums of. (N D+)"""
    n_empty = BIAS_COLUMNS[hidden.device.type] - 1
    return torch.cat([hidden * weights, bias_weights, weights.new_zeros(len(weights), n_empty)], -1)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a product in half precision to a sum in float32; a GPU never rounds it in between."""
    if total.is_cuda and total.dtype != a.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        frozen_bias: Rows,
        frozen: Sequence[Rows],
        hidden_from: Sequence[Rows],
        *pieces: Tensor,
    ) -> tuple[Tensor, Tensor]:
        device, dtype = hidden.device.type, _product_dtype(hidden)
        weight = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        head, offset = padded(weight, bias, dtype)
        (V, D), chunk = weight.shape, NARROW_CHUNK if _has_narrow_kernels(hidden, dtype) else CHUNK[device]
        needs_hidden, needs_head = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        moves_bias = bias is not None and frozen_bias is not True
        moves = [a is not True and b is not True for a, b in zip(frozen, hidden_from, strict=True)]
        dhidden = torch.empty_like(hidden) if needs_hidden else None
        dhead = None
        if needs_head and (moves_bias or any(moves)):
            dhead = weight.new_zeros(len(head), D + BIAS_COLUMNS[device])
        losses = torch.empty_like(weights)
        weights = weights.unsqueeze(-1)  # N 1
        bias_weights = hide(weights, frozen_bias)
        piece_weights = [hide(hide(weights, a), b) for a, b in zip(frozen, hidden_from, strict=True)]
        columns = _columns([len(piece) for piece in pieces], len(head))
        gated = [(at, rows) for at, rows in zip(columns, hidden_from, strict=True) if not isinstance(rows, bool)]
        for start in range(0, len(targets), chunk):
            here = slice(start, start + chunk)
            gated_here = [(at, rows[here]) for at, rows in gated]
            g = _losses_and_gradients(hidden[here].to(dtype), head, offset, targets[here], V, losses[here], gated_here)
            # Weights are applied to the narrow side, D, and never to the wide one, V.
            if dhead is not None:
                for at, of_piece, moved in zip(columns, piece_weights, moves, strict=True):
                    if moved or moves_bias:
                        inputs = _with_ones(hidden[here], of_piece[here], bias_weights[here])
                        _add_product(dhead[at], g[:, at].T, inputs.to(dtype))
            if dhidden is not None:
                for at, rows in gated_here:
                    g[:, at].masked_fill_(rows, 0.0)
                torch.mul(g @ head, weights[here], out=dhidden[here])
        dbias = dhead[:V, D] if dhead is not None and moves_bias else None
        dpieces = [
            dhead[at.start : at.start + len(piece), :D] if dhead is not None and moved else None
            for at, piece, moved in zip(columns, pieces, moves, strict=True)
        ]
        ctx.save_for_backward(dhidden, dbias, *dpieces)
        ctx.mark_non_differentiable(losses)
        return (losses * weights.squeeze(-1)).sum(), losses

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dbias, *dpieces = (None if d is None else d * scale for d in ctx.saved_tensors)
        return dhidden, dbias, None, None, None, None, None, *dpieces


def _columns(sizes: Sequence[int], width: int) -> list[slice]:
    """The columns of each piece; the last one has those that pad the head."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], width], strict=True)]
