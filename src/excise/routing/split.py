"""Layers whose parameters are stored in parts: one matrix product, separate parameters.

Every parameter sits in a `ParameterDict` keyed by its part, so the last word of a parameter's name says where it
belongs. Initial values are drawn for the full tensor from a stream named after it, so that they depend on neither the
partition nor the rule.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from excise.labels import forget_part
from excise.routing.fused import EPSILON, Added, Run, activate, add_and_norm, fuses
from excise.routing.head import AddedRows
from excise.routing.linear import INPUT, OUTPUT, chooses_rows, hide, routed_linear, stop_gradient, without
from excise.routing.partition import Piece, Pieces
from excise.routing.precision import product_dtype
from excise.routing.route import Route, Rows


def normal(seed: int, name: str, shape: tuple[int, ...], std: float) -> Tensor:
    """Normal values for the full tensor of this name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator) * std


def stored(full: Tensor, pieces: Pieces, axis: int = 0) -> nn.ParameterDict:
    """A full tensor as one parameter per piece."""
    values = full.split_with_sizes([piece.size for piece in pieces], axis)
    parameters = nn.ParameterDict()  # filled one by one: given a dict, it would sort the parts
    for piece, value in zip(pieces, values, strict=True):
        parameters[piece.part] = nn.Parameter(value.clone())
    return parameters


class OutputSplit(nn.Module):
    """W_QKV, or W_1 and b_1: each piece computes the heads or units of one part, unless no row sees them."""

    def __init__(self, weight: Tensor, bias: Tensor | None, pieces: Pieces) -> None:
        super().__init__()
        self.weight = stored(weight, pieces)
        self.bias = None if bias is None else stored(bias, pieces)
        self.pieces = pieces

    def forward(self, x: Tensor, route: Route) -> Tensor:
        return self._linear(x, route, self.bias)

    def activated(self, x: Tensor, route: Route) -> Tensor:
        """Units through GELU and hidden, fused."""
        assert self.bias is not None
        seen = tuple(piece for piece in self.pieces if not route.gone(piece.part))
        if not seen:
            return self._linear(x, route, None)
        biases = ((self.bias[piece.part], route.freeze.get(piece.part) is True) for piece in seen)
        bias = torch.cat([stop_gradient(of_piece, frozen) for of_piece, frozen in biases])
        hidden, frozen = runs_of(route.hide, seen), runs_of(route.freeze, seen)
        return activate(self._linear(x, route, None), bias, hidden, frozen)

    def _linear(self, x: Tensor, route: Route, bias: nn.ParameterDict | None) -> Tensor:
        seen = [part for part in self.weight if not route.gone(part)]
        if not seen:
            return x.new_zeros(*x.shape[:-1], 0)
        frozen = [route.freeze.get(part, False) for part in seen]
        biases = [] if bias is None else [bias[part] for part in seen]
        return routed_linear(x, [self.weight[part] for part in seen], frozen, OUTPUT, biases, frozen if biases else [])


class InputSplit(nn.Module):
    """W_O and b_O, or W_2 and b_2: each piece adds up heads or units of one part, and hides or detaches them."""

    def __init__(self, weight: Tensor, bias: Tensor, pieces: Pieces, bias_part: str, units: Pieces) -> None:
        super().__init__()
        self.weight = stored(weight, pieces, axis=1)
        self.bias = stored(bias, (Piece(bias_part, bias.shape[0]),))
        self.units = units
        self.pieces = pieces

    def forward(self, x: Tensor, route: Route, *, already_hidden: bool = False) -> Added:
        """The sum of all units."""
        seen = [i for i, unit in enumerate(self.units) if not route.gone(unit.part)]
        x = gate(x, tuple(self.units[i] for i in seen), route, already_hidden)
        parts = [self.pieces[i].part for i in seen]
        weights, frozen = [self.weight[part] for part in parts], [route.freeze.get(part, False) for part in parts]
        bias_part, bias = next(iter(self.bias.items()))
        frozen_bias = route.freeze.get(bias_part, False)
        if not seen:
            return Added(stop_gradient(bias.expand(*x.shape[:-1], -1), frozen_bias))
        if fuses(x):
            return Added(routed_linear(x, weights, frozen, INPUT, [], []), bias, frozen_bias)
        return Added(routed_linear(x, weights, frozen, INPUT, [bias], [frozen_bias]))


def gate(x: Tensor, units: Pieces, route: Route, already_hidden: bool) -> Tensor:
    """Outputs of heads or units, zero where they are hidden, unless they are already, and constant where they are
    detached."""
    hides = {} if already_hidden else route.hide
    if torch.compiler.is_compiling():  # a mask over all columns costs nothing then, and joining pieces a pass
        return hide(stop_gradient(x, in_columns(route.detach, x, units)), in_columns(hides, x, units))
    if not any(unit.part in hides or unit.part in route.detach for unit in units):
        return x
    pieces = zip(units, x.split_with_sizes([unit.size for unit in units], -1), strict=True)
    return torch.cat(
        [
            hide(stop_gradient(piece, route.detach.get(unit.part, False)), hides.get(unit.part, False))
            for unit, piece in pieces
        ],
        -1,
    )


def in_columns(rows_of: Mapping[str, Rows], x: Tensor, units: Pieces) -> Rows:
    """Where in the outputs of all units (B T, and a column each) are the given rows of their parts."""
    found: Rows = False
    column = torch.arange(x.shape[-1], device=x.device)
    for rows, start, end in columns_of(rows_of, units):
        here = rows & ((column >= start) & (column < end))
        found = here if found is False else found | here
    return found


def columns_of(rows_of: Mapping[str, Rows], units: Pieces) -> list[tuple[Rows, int, int]]:
    """The rows that are given for the part of some units, and the columns of these units, from and to."""
    ends = list(accumulate(unit.size for unit in units))
    given = ((rows_of.get(unit.part, False), end - unit.size, end) for unit, end in zip(units, ends, strict=True))
    return [(rows, start, end) for rows, start, end in given if rows is not False]


def runs_of(rows_of: Mapping[str, Rows], units: Pieces) -> list[Run]:
    """Those of them that are given for some rows, not for all."""
    return [(rows, start, end) for rows, start, end in columns_of(rows_of, units) if isinstance(rows, Tensor)]


class _RoutedNorm(torch.autograd.Function):
    """A layer norm whose gain and shift are frozen in some rows, where the others can be chosen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, frozen: Tensor) -> Tensor:
        normed, mean, rstd = torch.native_layer_norm(x, gain.shape, gain, shift, EPSILON)
        ctx.save_for_backward(x, mean, rstd, gain, shift, frozen)
        return normed

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, rstd, gain, shift, frozen = ctx.saved_tensors
        back = torch.ops.aten.native_layer_norm_backward
        dx, _, _ = back(g, x, gain.shape, mean, rstd, gain, shift, [True, False, False])
        g, x, mean, rstd = without(frozen, g, x, mean, rstd)
        _, dgain, dshift = back(g, x, gain.shape, mean, rstd, gain, shift, [False, True, True])
        return dx, dgain, dshift, None


class Norm(nn.Module):
    """Layer norm whose gain and bias are in one part."""

    def __init__(self, d_model: int, part: str) -> None:
        super().__init__()
        whole = (Piece(part, d_model),)
        self.part = part
        self.weight = stored(torch.ones(d_model), whole)
        self.bias = stored(torch.zeros(d_model), whole)

    def forward(self, x: Tensor, route: Route) -> Tensor:
        weight, bias = self.weight[self.part], self.bias[self.part]
        frozen, x = route.freeze.get(self.part, False), x.to(weight.dtype)
        if frozen is True:
            weight, bias = weight.detach(), bias.detach()
        if isinstance(frozen, bool):
            normed = nn.functional.layer_norm(x, weight.shape, weight, bias, EPSILON)
        elif chooses_rows(x):
            normed = _RoutedNorm.apply(x, weight, bias, frozen)  # type: ignore[no-untyped-call]
        else:  # the same, over all rows
            normed = nn.functional.layer_norm(x, weight.shape, eps=EPSILON) * stop_gradient(weight.expand_as(x), frozen)
            normed = normed + stop_gradient(bias.expand_as(x), frozen)
        return normed.to(product_dtype(x)) if fuses(x) else normed

    def after(self, x: Tensor, added: Added, route: Route) -> tuple[Tensor, Tensor]:
        """The stream with something added to it, and its norm."""
        if added.bias is not None:
            frozen = route.freeze.get(self.part, False)
            return add_and_norm(x, added, self.weight[self.part], self.bias[self.part], frozen)
        x = (x + added.value).to(x.dtype)
        return x, self(x, route)


class TokenTable(nn.Module):
    """The vectors of all tokens, for looking up and for the output head, in the core; to those of some tokens a module
    adds its own, which are zero at first.

    In the head tokens have *places*: those with vectors of a module first, the tokens of each side by side.
    """

    def __init__(self, values: Tensor, part: str, own: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.part = part
        self.weight = stored(values, (Piece(part, len(values)),))
        self.modules_at: dict[str, slice] = {}
        order: list[int] = []
        for domain, tokens in own.items():
            module = forget_part(domain)
            self.weight[module] = nn.Parameter(values.new_zeros(len(tokens), values.shape[1]))
            self.modules_at[module] = slice(len(order), len(order) + len(tokens))
            order += tokens
        order += sorted(set(range(len(values))) - set(order))
        self.order: Tensor
        self.places: Tensor
        self.register_buffer("order", torch.tensor(order), persistent=False)
        self.register_buffer("places", self.order.argsort(), persistent=False)

    def forward(self, ids: Tensor, route: Route) -> Tensor:
        core = self.look_up(self.part, self.weight[self.part], ids)
        vectors = stop_gradient(core, route.freeze.get(self.part, False))
        for module in self._seen(route):
            own = stop_gradient(self.look_up(module, self.weight[module], ids), route.freeze.get(module, False))
            vectors = vectors + hide(own, route.hide.get(module, False))
        return vectors

    def look_up(self, part: str, table: Tensor, ids: Tensor) -> Tensor:
        """Rows of a table of a part's tokens, zero for tokens of which it has none."""
        if part == self.part:
            return nn.functional.embedding(ids, table)
        rows, n = self.places[ids] - self.modules_at[part].start, len(table)
        rows = rows.where((rows >= 0) & (rows < n), n)
        return nn.functional.embedding(rows, nn.functional.pad(table, (0, 0, 0, 1)), padding_idx=n)

    def tokens_of(self, part: str) -> Tensor:
        """The tokens that a module has vectors for."""
        return self.order[self.modules_at[part]]

    def by_place(self, of_tokens: Tensor) -> Tensor:
        """Values of all tokens in the order of their places."""
        return of_tokens.index_select(0, self.order) if self.modules_at else of_tokens

    def placed(self, ids: Tensor) -> Tensor:
        """Places of tokens; a negative number stays what it is."""
        return self.places[ids.clamp_min(0)].where(ids >= 0, ids) if self.modules_at else ids

    def added(self, route: Route) -> list[AddedRows]:
        """What modules add to the output head, by place."""
        return [
            AddedRows(
                self.modules_at[part], self.weight[part], route.hide.get(part, False), route.freeze.get(part, False)
            )
            for part in self._seen(route)
        ]

    def products(self, x: Tensor, route: Route) -> Tensor:
        """Each row times all vectors (... V)."""
        frozen = route.freeze.get(self.part, False)
        y = routed_linear(x, [self.weight[self.part]], [frozen], OUTPUT, [], [])
        for part in self._seen(route):
            added = routed_linear(x, [self.weight[part]], [route.freeze.get(part, False)], OUTPUT, [], [])
            y = y.index_add(-1, self.tokens_of(part), hide(added, route.hide.get(part, False)))
        return y

    def full(self, route: Route) -> Tensor:
        """All vectors (V D), where all rows see the same."""
        assert not self.differs(route)
        full: Tensor = self.weight[self.part]
        for part in self._seen(route):
            full = full.index_add(0, self.tokens_of(part), self.weight[part])
        return full

    def differs(self, route: Route) -> bool:
        """Whether some rows see other vectors than others."""
        return any(not isinstance(route.hide.get(part, False), bool) for part in self.modules_at)

    def _seen(self, route: Route) -> list[str]:
        """Modules that add vectors for some row."""
        return [part for part in self.modules_at if not route.gone(part)]


class Embedding(nn.Module):
    """A table of few vectors in one part."""

    def __init__(self, values: Tensor, part: str) -> None:
        super().__init__()
        self.part = part
        self.weight = stored(values, (Piece(part, values.shape[0]),))

    def forward(self, ids: Tensor, route: Route) -> Tensor:
        table = self.weight[self.part]
        # So that gradients of many rows for few vectors are added up in the same order every time: a GPU does so where
        # the table is indexed, and threads of a CPU where it is not.
        vectors = table[ids] if ids.is_cuda else nn.functional.embedding(ids, table)
        return stop_gradient(vectors, route.freeze.get(self.part, False))
