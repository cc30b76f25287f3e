"""The masked backward: a linear layer whose weight gradients leave out the rows that may not update them.

    y  = x W^T + b                  all rows, whatever their label
    dx = g W                        the usual one
    dW[piece] = g^T x               over the rows whose label may update that piece

A matrix split by output shares x between its pieces, one split by input shares g. The shared side is the smaller one
in a transformer, so that is where rows are masked; on a CPU, uncompiled, the product leaves them out.
"""

from typing import Any

import torch
from torch import Tensor

from excise.routing.precision import product_dtype
from excise.routing.route import Rows

OUTPUT, INPUT = 0, 1
"""The axis along which a weight (d_out d_in) is split."""
ALIGNED = 8
"""Columns that a GPU multiplies at a time."""


def stop_gradient(x: Tensor, rows: Rows) -> Tensor:
    """The same values, through which no gradient flows back in the given rows."""
    if rows is True:
        return x.detach()
    return x if rows is False else torch.where(rows, x.detach(), x)


def hide(x: Tensor, rows: Rows) -> Tensor:
    """Zeros in the given rows, and no gradient to what stood there."""
    if rows is True:
        return torch.zeros_like(x)
    return x if rows is False else x.masked_fill(rows, 0.0)


def chooses_rows(x: Tensor) -> bool:
    """Whether some rows of this can be taken alone: a GPU would be waited for to tell their number, and a compiled graph is
    of one shape."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def without(rows: Rows, first: Tensor, *others: Tensor) -> list[Tensor]:
    """These (... D), for a sum of products over rows, without some rows: the others alone (N D), or where rows cannot be
    chosen all of them, with zeros for those in the first."""
    if isinstance(rows, bool) or not chooses_rows(first):
        return [hide(first, rows), *others]
    counted = (~rows).flatten().nonzero().squeeze(-1)
    return [_flat(of).index_select(0, counted) for of in (first, *others)]


def routed_linear(
    x: Tensor, weights: list[Tensor], frozen: list[Rows], axis: int, biases: list[Tensor], frozen_biases: list[Rows]
) -> Tensor:
    """x W^T + b with W and b in pieces, each frozen in its own rows."""
    in_one_piece = len(weights) == 1 and all(rows is False for rows in (*frozen, *frozen_biases))
    if in_one_piece or not torch.is_grad_enabled():  # where no gradient is wanted, nothing is frozen
        return torch.nn.functional.linear(x, _join(weights, axis), _join(biases, 0) if biases else None)
    y: Tensor = _RoutedLinear.apply(x, axis, len(weights), frozen, frozen_biases, *weights, *biases)  # type: ignore[no-untyped-call]
    return y


def _join(pieces: list[Tensor], axis: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class _RoutedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, axis: int, n_weights: int, frozen: list[Rows], frozen_biases: list[Rows], *tensors: Tensor
    ) -> Tensor:
        dtype = product_dtype(x)  # autocast does not look inside a custom function
        x = x.to(dtype)
        # The pieces are saved, not the joined matrix, which would stay alive until the backward pass.
        ctx.save_for_backward(x, *tensors)
        ctx.axis, ctx.n_weights, ctx.frozen, ctx.frozen_biases = axis, n_weights, frozen, frozen_biases
        weights, biases = list(tensors[:n_weights]), list(tensors[n_weights:])
        bias = _join(biases, 0).to(dtype) if biases else None
        return torch.nn.functional.linear(x, _join(weights, axis).to(dtype), bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, *tensors = ctx.saved_tensors
        weights, biases = tensors[: ctx.n_weights], tensors[ctx.n_weights :]
        dx = g @ _join(weights, ctx.axis).to(g.dtype) if ctx.needs_input_grad[0] else None
        split = [weight.shape[ctx.axis] for weight in weights]
        dweights = _weight_gradients(x, g, split, ctx.axis, ctx.frozen)
        dbiases = _bias_gradients(g, [bias.shape[0] for bias in biases], ctx.frozen_biases)
        gradients = [
            None if d is None else d.to(tensor.dtype) for d, tensor in zip((*dweights, *dbiases), tensors, strict=True)
        ]
        return dx, None, None, None, None, *gradients


def _weight_gradients(x: Tensor, g: Tensor, sizes: list[int], axis: int, frozen: list[Rows]) -> list[Tensor | None]:
    """g^T x per piece, over the rows that may update it; None where none may."""
    shared, parted = (x, g) if axis == OUTPUT else (g, x)
    if all(rows is False for rows in frozen):
        return list(_piece(shared, parted, 0, sum(sizes), axis, False).split_with_sizes(sizes, axis))
    gradients: list[Tensor | None] = []
    start = 0
    for size, rows in zip(sizes, frozen, strict=True):
        gradients.append(None if rows is True else _piece(shared, parted, start, size, axis, rows))
        start += size
    return gradients


def _piece(shared: Tensor, parted: Tensor, start: int, size: int, axis: int, frozen: Rows) -> Tensor:
    """The weight gradient of some columns of the split side, computed for the columns up to the next multiples of
    `ALIGNED`, because products of other widths are slow on a GPU."""
    first, end = start // ALIGNED * ALIGNED, min(-(-(start + size) // ALIGNED) * ALIGNED, parted.shape[-1])
    others, mine = (_flat(side) for side in without(frozen, shared, parted[..., first:end]))
    wide = mine.T @ others if axis == OUTPUT else others.T @ mine
    return wide.narrow(axis, start - first, size)


def _bias_gradients(g: Tensor, sizes: list[int], frozen: list[Rows]) -> list[Tensor | None]:
    gradients: list[Tensor | None] = []
    for part, rows in zip(g.split_with_sizes(sizes, -1) if sizes else (), frozen, strict=True):
        if rows is True:
            gradients.append(None)
        elif rows is False:
            gradients.append(_flat(part).sum(0))
        else:
            gradients.append((~rows).reshape(-1).to(part.dtype) @ _flat(part))
    return gradients
