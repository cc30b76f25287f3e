"""Layers whose parameters are stored in parts: one matrix product, separate parameters.

Every parameter sits in a `ParameterDict` keyed by its part, so the last word of a parameter's name says where it
belongs. Initial values are drawn for the full tensor from a stream named after it, so that they depend on neither the
partition nor the rule.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from excise.labels import forget_part
from excise.routing.head import HeadPiece
from excise.routing.linear import INPUT, OUTPUT, hide, routed_linear, stop_gradient
from excise.routing.partition import Piece, Pieces
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

    def forward(self, x: Tensor, route: Route) -> Tensor:
        seen = [part for part in self.weight if not route.gone(part)]
        if not seen:
            return x.new_zeros(*x.shape[:-1], 0)
        frozen = [route.freeze.get(part, False) for part in seen]
        biases = [] if self.bias is None else [self.bias[part] for part in seen]
        return routed_linear(x, [self.weight[part] for part in seen], frozen, OUTPUT, biases, frozen if biases else [])


class InputSplit(nn.Module):
    """W_O and b_O, or W_2 and b_2: each piece adds up heads or units of one part, and hides or detaches them."""

    def __init__(self, weight: Tensor, bias: Tensor, pieces: Pieces, bias_part: str, units: Pieces) -> None:
        super().__init__()
        self.weight = stored(weight, pieces, axis=1)
        self.bias = stored(bias, (Piece(bias_part, bias.shape[0]),))
        self.units = units
        self.pieces = pieces

    def forward(self, x: Tensor, route: Route) -> Tensor:
        seen = [i for i, unit in enumerate(self.units) if not route.gone(unit.part)]
        x = gate(x, tuple(self.units[i] for i in seen), route)
        parts = [self.pieces[i].part for i in seen]
        bias_part, bias = next(iter(self.bias.items()))
        frozen_bias = route.freeze.get(bias_part, False)
        if not seen:
            return stop_gradient(bias.expand(*x.shape[:-1], -1), frozen_bias)
        return routed_linear(
            x,
            [self.weight[part] for part in parts],
            [route.freeze.get(part, False) for part in parts],
            INPUT,
            [bias],
            [frozen_bias],
        )


def gate(x: Tensor, units: Pieces, route: Route) -> Tensor:
    """Outputs of heads or units, zero where they are hidden and constant where they are detached."""
    if torch.compiler.is_compiling():  # a mask over all columns costs nothing then, and joining pieces a pass
        return hide(stop_gradient(x, in_columns(route.detach, x, units)), in_columns(route.hide, x, units))
    if not any(unit.part in route.hide or unit.part in route.detach for unit in units):
        return x
    pieces = zip(units, x.split_with_sizes([unit.size for unit in units], -1), strict=True)
    return torch.cat([_gate_piece(piece, unit.part, route) for unit, piece in pieces], -1)


def _gate_piece(piece: Tensor, part: str, route: Route) -> Tensor:
    return hide(stop_gradient(piece, route.detach.get(part, False)), route.hide.get(part, False))


def in_columns(rows_of: Mapping[str, Rows], x: Tensor, units: Pieces) -> Rows:
    """Where in the outputs of all units (B T, and a column each) are the given rows of their parts."""
    found: Rows = False
    column, start = torch.arange(x.shape[-1], device=x.device), 0
    for unit in units:
        rows, end = rows_of.get(unit.part, False), start + unit.size
        if rows is not False:
            here = rows & ((column >= start) & (column < end))
            found = here if found is False else found | here
        start = end
    return found


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
        frozen = route.freeze.get(self.part, False)
        if frozen is True:
            weight, bias = weight.detach(), bias.detach()
        if isinstance(frozen, bool):
            return nn.functional.layer_norm(x, weight.shape, weight, bias)
        x = nn.functional.layer_norm(x, weight.shape)
        return x * stop_gradient(weight.expand_as(x), frozen) + stop_gradient(bias.expand_as(x), frozen)


class TokenTable(nn.Module):
    """The vectors of all tokens, for looking up and for the output head: in the core, but for tokens that a module has as
    its own.

    Tokens have *places*, in the order of the parts that have their rows. Tokens of a module that was removed come last,
    and have zeros.
    """

    def __init__(self, values: Tensor, part: str, own: Mapping[str, Sequence[int]], domains: Sequence[str]) -> None:
        super().__init__()
        modules = {forget_part(domain): own[domain] for domain in own if domain in domains}
        removed = {forget_part(domain): own[domain] for domain in own if domain not in domains}
        others = sorted(set(range(len(values))).difference(*own.values()))
        tokens_of = {**modules, part: others, **removed}
        order = torch.tensor([*chain(*tokens_of.values())])
        self.part = part
        self.pieces = tuple(Piece(part, len(tokens)) for part, tokens in tokens_of.items())
        self.weight = stored(values[order], self.pieces)
        for absent in removed:
            del self.weight[absent]
        self.order: Tensor
        self.places: Tensor
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("places", order.argsort(), persistent=False)

    def forward(self, ids: Tensor, route: Route) -> Tensor:
        vectors = nn.functional.embedding(self.placed(ids), self._joined(route))
        for piece, (mine, _) in zip(self.pieces, self.owners(ids), strict=True):
            vectors = stop_gradient(vectors, both(mine, route.freeze.get(piece.part, False)))
            vectors = hide(vectors, both(mine, self._hidden(piece, route)))
        return vectors

    def owners(self, ids: Tensor) -> Iterator[tuple[Rows, Tensor]]:
        """For each piece: which of the tokens are its own, and at which of its rows these are."""
        places, start = self.placed(ids), 0
        for piece in self.pieces:
            rows = places - start
            yield len(self.pieces) == 1 or ((rows >= 0) & (rows < piece.size)).unsqueeze(-1), rows
            start += piece.size

    def placed(self, ids: Tensor) -> Tensor:
        """Places of tokens."""
        return ids if len(self.pieces) == 1 else self.places[ids]

    def by_place(self, of_tokens: Tensor) -> Tensor:
        """Values of all tokens, in the order of their places."""
        return of_tokens if len(self.pieces) == 1 else of_tokens[self.order]

    def by_token(self, of_places: Tensor) -> Tensor:
        """Values of all places, in the order of tokens."""
        return of_places if len(self.pieces) == 1 else of_places[self.places]

    def head(self, route: Route) -> list[HeadPiece]:
        """The output head, by place."""
        return [
            HeadPiece(self._rows(piece, route), route.freeze.get(piece.part, False), self._hidden(piece, route))
            for piece in self.pieces
        ]

    def products(self, x: Tensor, route: Route) -> Tensor:
        """Each row times all vectors, by token (... V)."""
        pieces = self.head(route)
        y = routed_linear(x, [piece.weight for piece in pieces], [piece.frozen for piece in pieces], OUTPUT, [], [])
        if len(pieces) == 1:
            return y
        columns = zip(pieces, y.split_with_sizes([piece.size for piece in self.pieces], -1), strict=True)
        return torch.cat([hide(of_piece, piece.hidden) for piece, of_piece in columns], -1)[..., self.places]

    def full(self, route: Route) -> Tensor:
        """All vectors by token (V D), where all rows see the same."""
        assert not self.differs(route)
        return self.by_token(self._joined(route))

    def differs(self, route: Route) -> bool:
        """Whether some rows see other vectors than others."""
        return any(not isinstance(self._hidden(piece, route), bool) for piece in self.pieces)

    def _joined(self, route: Route) -> Tensor:
        rows = [self._rows(piece, route) for piece in self.pieces]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _rows(self, piece: Piece, route: Route) -> Tensor:
        core: Tensor = self.weight[self.part]
        if piece.part == self.part:
            return core
        if piece.part not in self.weight or self._hidden(piece, route) is True:
            return core.new_zeros(piece.size, core.shape[1])
        return self.weight[piece.part]  # type: ignore[no-any-return]

    def _hidden(self, piece: Piece, route: Route) -> Rows:
        """A core that a rule hides has no heads and units, but its tokens stay."""
        return False if piece.part == self.part else route.hide.get(piece.part, False)


def both(a: Rows, b: Rows) -> Rows:
    """Rows that are in both."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


class Embedding(nn.Module):
    """A table of few vectors in one part, read by index, whose gradient a GPU adds up in the same order every time; that
    of `embedding` it does not where many rows want the same few vectors."""

    def __init__(self, values: Tensor, part: str) -> None:
        super().__init__()
        self.part = part
        self.weight = stored(values, (Piece(part, values.shape[0]),))

    def forward(self, ids: Tensor, route: Route) -> Tensor:
        vectors = self.weight[self.part][ids]
        return stop_gradient(vectors, route.freeze.get(self.part, False))
