"""The output head and its loss in one, so that the logits of a batch never exist at once.

The gradients are computed in the forward pass, where the logits are at hand; the backward pass scales them. A narrow head
in bfloat16 on a GPU has kernels that write no logits; any other goes a chunk of rows at a time.

Shapes: N rows, D d_model, V tokens, W the vocabulary with its padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from excise.routing.kernels import HALVES, HAS_KERNELS
from excise.routing.linear import hide, without
from excise.routing.precision import product_dtype
from excise.routing.route import Rows

if HAS_KERNELS:
    from excise.routing import head_kernels

CHUNK = {"cpu": 256, "cuda": 8192}
"""Rows whose logits are in memory at a time."""
MULTIPLE = {"cpu": 1, "cuda": 64}
"""The vocabulary is padded to a multiple of this, without which matrix products on a GPU are several times slower."""
BIAS_COLUMNS = {"cpu": 1, "cuda": 8}
"""Columns beside the head's inputs that its bias takes, for the same reason."""
MOST_GATED = 31
"""Modules of whose vectors the kernels of a narrow head can tell who sees them, a bit each."""
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

    Shapes: hidden ... D, weight V D, bias V, targets and weights ...; a row whose target is negative has no loss. Weights
    are never negative.
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
    dtype = product_dtype(rows)
    if _has_narrow_kernels(rows, dtype):
        inputs, head = rows.to(dtype).contiguous(), weight.to(dtype).contiguous()
        offset = weight.new_zeros(len(weight), dtype=torch.float32) if bias is None else bias.float()
        shifted = (offset if shift is None else offset + shift for shift in shifts)
        return torch.stack([head_kernels.NarrowHead(inputs, head, of, wanted).losses()[0] for of in shifted])
    chunks, chunk = [], CHUNK[rows.device.type]
    weight, bias = padded(weight, bias, weight.dtype)
    for first in range(0, len(rows), chunk):
        here = slice(first, first + chunk)
        logits = nn.functional.linear(rows[here], weight, bias)
        shifted = (logits if shift is None else logits + _as_wide(shift, logits) for shift in shifts)
        log_p = (x.log_softmax(-1, dtype=torch.float32).gather(-1, wanted[here].unsqueeze(-1)) for x in shifted)
        chunks.append(-torch.cat(list(log_p), -1).T)
    return torch.cat(chunks, -1)


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


@dataclass(frozen=True)
class _Given:
    """A head, how much each row counts in each gradient (N 1), and which gradients are wanted."""

    hidden: Tensor
    """N D."""
    head: Tensor
    """W D, in the precision of products, with what all rows see."""
    bias: Tensor | None
    """W."""
    targets: Tensor
    """N."""
    n_tokens: int
    added: Sequence[AddedRows]
    weights: Tensor
    """In the loss and in the gradient of `hidden`."""
    frozen: Rows
    """Rows that count nothing in the gradient of the head."""
    added_weights: Sequence[Tensor]
    needs_hidden: bool
    needs_head: bool
    needs_added: Sequence[bool]

    def gated(self, here: slice = slice(None)) -> list[AddedRows]:
        """What only some rows see, for some of the rows."""
        return [replace(of, hidden=of.hidden[here]) for of in self.added if not isinstance(of.hidden, bool)]


@dataclass(frozen=True)
class _Found:
    """The loss of each row, and the gradients that are wanted."""

    losses: Tensor
    dhidden: Tensor | None
    dweight: Tensor | None
    """V D."""
    dbias: Tensor | None
    """V."""
    dadded: Sequence[Tensor | None]


def _without_logits(given: _Given) -> _Found:
    """By the kernels of a narrow head."""
    hidden, gated = given.hidden.to(given.head.dtype).contiguous(), given.gated()
    bias = given.head.new_zeros(len(given.head)) if given.bias is None else given.bias
    gates = _gates(gated, hidden) if gated else None
    head = head_kernels.NarrowHead(hidden, given.head, bias, given.targets.int(), gates)
    dhidden = torch.empty_like(given.hidden, memory_format=torch.contiguous_format) if given.needs_hidden else None
    losses, lse = head.losses(given.weights, dhidden)
    dweight, dbias = (
        head.token_gradients(lse, hide(given.weights, given.frozen), slice(0, given.n_tokens))
        if given.needs_head
        else (None, None)
    )
    dadded = [
        head.token_gradients(lse, weights, of.tokens)[0] if needed else None
        for of, weights, needed in zip(given.added, given.added_weights, given.needs_added, strict=True)
    ]
    return _Found(losses, dhidden, dweight, dbias, dadded)


def _in_chunks(given: _Given) -> _Found:
    """From the logits of some rows at a time."""
    hidden, head, weights, (V, D) = given.hidden, given.head, given.weights, (given.n_tokens, given.hidden.shape[1])
    chunk, n_columns = CHUNK[hidden.device.type], D + BIAS_COLUMNS[hidden.device.type]
    exact = torch.promote_types(hidden.dtype, torch.float32)
    losses = torch.empty_like(weights.squeeze(-1))
    # One place for the probabilities of all chunks: a CPU takes longer to be given memory than to fill it.
    room = hidden.new_empty(min(chunk, len(hidden)), len(head), dtype=exact) if hidden.device.type == "cpu" else None
    dhidden = torch.empty_like(hidden) if given.needs_hidden else None
    dhead = hidden.new_zeros(len(head), n_columns, dtype=exact) if given.needs_head else None
    dadded = [
        torch.zeros_like(of.weight) if needed else None
        for of, needed in zip(given.added, given.needs_added, strict=True)
    ]
    for start in range(0, len(hidden), chunk):
        here = slice(start, start + chunk)
        rows, gated = hidden[here].to(head.dtype), given.gated(here)
        g, scale = _losses_and_gradients(rows, head, given.bias, given.targets[here], V, losses[here], gated, room)
        # Weights are applied to the narrow side, D, and never to the wide one, V.
        if dhead is not None:
            frozen = given.frozen if isinstance(given.frozen, bool) else given.frozen[here]
            counts, inputs, of_logits = without(frozen, weights[here] * scale, hidden[here], g)
            _add_product(dhead, of_logits.T, _with_ones(inputs, counts, head.dtype))
        for of, of_weights, total in zip(given.added, given.added_weights, dadded, strict=True):
            if total is not None:
                _add_product(total, g[:, of.tokens].T, (hidden[here] * (of_weights[here] * scale)).to(head.dtype))
        if dhidden is not None:
            of_hidden = g @ head
            for of in gated:
                of_hidden += hide(g[:, of.tokens] @ of.weight.to(head.dtype), of.hidden)
            _weigh(of_hidden, weights[here] * scale, dhidden[here])
    dweight, dbias = (None, None) if dhead is None else (dhead[:V, :D], dhead[:V, D])
    return _Found(losses, dhidden, dweight, dbias, dadded)


def _losses_and_gradients(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    n_tokens: int,
    losses: Tensor,
    gated: Sequence[AddedRows],
    room: Tensor | None,
) -> tuple[Tensor, Tensor | float]:
    """The loss of each row, written to `losses`, and the gradient of its logits, which is still to be multiplied by the
    second (N 1, or 1); the gated vectors only some rows see. Probabilities are written to `room` where there is one."""
    logits = nn.functional.linear(hidden, head, bias)
    for rows in gated:
        logits[:, rows.tokens] += hide(hidden, rows.hidden) @ rows.weight.to(hidden.dtype).T
    if HAS_KERNELS and logits.is_cuda and logits.dtype == torch.bfloat16:  # float16 would overflow
        return head_kernels.losses_and_gradients_in_place(logits, targets, n_tokens, losses)
    # In float32, as p - 1 of a confident prediction is lost in half precision.
    exact, t = torch.promote_types(logits.dtype, torch.float32), targets.unsqueeze(-1)
    p = torch.softmax(logits, -1, exact, out=None if room is None else room[: len(logits)])
    losses.copy_(-p.gather(-1, t).squeeze(-1).clamp_min(SMALLEST).log())
    p.scatter_add_(-1, t, torch.full_like(t, -1, dtype=p.dtype))
    return p if p.dtype == logits.dtype else logits.copy_(p), 1.0


def _gates(gated: Sequence[AddedRows], hidden: Tensor) -> "head_kernels.Gates":
    """The same for the kernels of a narrow head: a bit for each module."""
    end = max(of.tokens.stop for of in gated)
    added = hidden.new_zeros(end, hidden.shape[-1])
    bits, seen = (torch.zeros(n, 1, dtype=torch.int32, device=hidden.device) for n in (end, len(hidden)))
    for i, of in enumerate(gated):
        added[of.tokens], bits[of.tokens] = of.weight.to(hidden.dtype), 1 << i
        seen += hide(torch.full_like(seen, 1 << i), of.hidden)
    return head_kernels.Gates(added, bits, seen)


def _with_ones(hidden: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs of the head and beside them ones, times their weights: what the gradients of weight and bias are sums of.
    (N D+)"""
    N, D = hidden.shape
    wide = hidden.new_empty(N, D + BIAS_COLUMNS[hidden.device.type], dtype=dtype)
    _weigh(hidden, weights, wide[:, :D])
    wide[:, D:] = 0.0
    wide[:, D] = weights.squeeze(-1)
    return wide


def _weigh(rows: Tensor, weights: Tensor, out: Tensor) -> None:
    """Rows times their weights, which takes torch five times as long where precisions differ."""
    if HAS_KERNELS and rows.is_cuda and rows.dtype in HALVES:
        head_kernels.weigh(rows, weights, out)
    else:
        torch.mul(rows, weights, out=out)


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
        dtype, weights = product_dtype(hidden), weights.unsqueeze(-1)  # N 1
        head, offset = padded(_with_what_all_see(weight, added), bias, dtype)
        needs_tables = any(ctx.needs_input_grad[1:])
        given = _Given(
            hidden,
            head,
            offset,
            targets,
            len(weight),
            added,
            weights,
            frozen=frozen,
            added_weights=[hide(hide(weights, of.hidden), of.frozen) for of in added],
            needs_hidden=ctx.needs_input_grad[0],
            needs_head=needs_tables and frozen is not True,
            needs_added=[needs_tables and of.frozen is not True for of in added],
        )
        narrow = _has_narrow_kernels(hidden, dtype) and len(given.gated()) <= MOST_GATED
        found = _without_logits(given) if narrow else _in_chunks(given)
        dbias = None if bias is None else found.dbias
        ctx.save_for_backward(found.dhidden, found.dweight, dbias, *found.dadded)
        ctx.mark_non_differentiable(found.losses)
        return (found.losses * weights.squeeze(-1)).sum(), found.losses

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dweight, dbias, *dadded = (None if d is None else d * scale for d in ctx.saved_tensors)
        return dhidden, dweight, dbias, None, None, None, None, *dadded
