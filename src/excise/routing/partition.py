"""Which parameter is in which part (paper, appendix F).

Heads add up through W_O and MLP units through W_2, so a module is a set of heads and units of its own in each block:
W_QKV, W_1 and b_1 split by output, W_O and W_2 split by input. Modules come first, in the order of their domains.
A module may have vectors of its own for some tokens too, beyond the paper: they are added to those of the table that
embeddings and output head share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from excise.labels import JOINT, RETAIN, forget_part
from excise.routing.rules import ATTENTION_IN, ATTENTION_OUT, BLOCK, MLP_IN, MLP_OUT, RULES, RoutingConfig


@dataclass(frozen=True)
class Piece:
    """Consecutive heads, units or tokens of one part."""

    part: str
    size: int

    def scaled(self, factor: int) -> "Piece":
        return replace(self, size=self.size * factor)


Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class BlockPartition:
    """The parts of one transformer block, in heads and MLP units."""

    heads: Pieces
    """W_QKV."""
    attention_out: Pieces
    """W_O: what stands behind the heads, in the same order."""
    attention_bias: str
    """b_O."""
    units: Pieces
    """W_1 and b_1."""
    mlp_out: Pieces
    """W_2: what stands behind the units, in the same order."""
    mlp_bias: str
    """b_2."""

    def without(self, part: str) -> "BlockPartition":
        def kept(pieces: Pieces) -> Pieces:
            return tuple(piece for piece in pieces if piece.part != part)

        return replace(
            self,
            heads=kept(self.heads),
            attention_out=kept(self.attention_out),
            units=kept(self.units),
            mlp_out=kept(self.mlp_out),
        )


@dataclass(frozen=True)
class Partition:
    """The parts of a whole model."""

    blocks: tuple[BlockPartition, ...]
    embeddings: str
    norms: str
    domains: tuple[str, ...]
    """Domains whose module the model has."""
    n_heads: int
    """Heads in each block, those of modules that were removed included."""
    d_mlp: int
    """MLP units in each block, counted alike."""
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By domain the tokens to whose vectors its module adds its own."""

    def without(self, domain: str) -> "Partition":
        """The same model with one module never built."""
        assert domain in self.domains
        return replace(
            self,
            blocks=tuple(block.without(forget_part(domain)) for block in self.blocks),
            domains=tuple(other for other in self.domains if other != domain),
            tokens={other: tokens for other, tokens in self.tokens.items() if other != domain},
        )


def whole(n_layers: int, n_heads: int, d_mlp: int, part: str = JOINT) -> Partition:
    """A model without modules, all in one part."""
    heads, units = (Piece(part, n_heads),), (Piece(part, d_mlp),)
    blocks = (BlockPartition(heads, heads, part, units, units, part),) * n_layers
    return Partition(blocks, part, part, (), n_heads, d_mlp)


def partition(
    routing: RoutingConfig,
    *,
    n_layers: int,
    n_heads: int,
    d_mlp: int,
    tokens: Mapping[str, Sequence[int]] | None = None,
) -> Partition:
    """The parts that a routing config gives to a model of this size, where modules have vectors for some tokens."""
    _check_room(routing, n_layers, n_heads, d_mlp)
    if not routing.modules:
        return whole(n_layers, n_heads, d_mlp)
    _check_tokens(routing, tokens or {})
    holding = range(n_layers) if routing.layers == "all" else routing.layers
    blocks = tuple(_block(routing, layer in holding, n_heads, d_mlp) for layer in range(n_layers))
    return Partition(blocks, routing.embeddings, routing.norms, routing.domains, n_heads, d_mlp, tokens or {})


def _block(routing: RoutingConfig, has_module: bool, n_heads: int, d_mlp: int) -> BlockPartition:
    rule = RULES[routing.rule]
    joint = rule.joint if has_module or rule.other_layers == RETAIN else BLOCK

    def core(slot: str) -> str:
        return JOINT if slot in joint else RETAIN

    def split(slot: str, total: int, per_module: int) -> Pieces:
        per_module = per_module if has_module else 0
        modules = [Piece(forget_part(domain), per_module) for domain in routing.domains if per_module]
        return (*modules, Piece(core(slot), total - per_module * len(routing.domains)))

    return BlockPartition(
        heads=split(ATTENTION_IN, n_heads, routing.module_heads),
        attention_out=split(ATTENTION_OUT, n_heads, routing.module_heads),
        attention_bias=core(ATTENTION_OUT),
        units=split(MLP_IN, d_mlp, routing.forget_units),
        mlp_out=split(MLP_OUT, d_mlp, routing.forget_units),
        mlp_bias=core(MLP_OUT),
    )


def _check_room(routing: RoutingConfig, n_layers: int, n_heads: int, d_mlp: int) -> None:
    _check_fits("forget_heads", routing.module_heads, "n_heads", n_heads, routing.modules)
    _check_fits("forget_units", routing.forget_units, "d_mlp", d_mlp, routing.modules)
    for layer in () if routing.layers == "all" else routing.layers:
        if not 0 <= layer < n_layers:
            raise ValueError(f"routing.layers names block {layer}, but the model has blocks 0 to {n_layers - 1}")
    if routing.layers == ():
        raise ValueError("routing.layers is empty, so no block holds a module; name blocks or set it to 'all'")


def _check_tokens(routing: RoutingConfig, tokens: Mapping[str, Sequence[int]]) -> None:
    every = [token for of_domain in tokens.values() for token in of_domain]
    if not set(tokens) <= set(routing.modules) or len(every) > len(set(every)):
        raise ValueError("tokens with vectors of a module must be of the run's domains, and each of one domain alone")


def _check_fits(option: str, size: int, total_name: str, total: int, domains: Sequence[str]) -> None:
    if domains and size * len(domains) >= total:
        raise ValueError(
            f"{option}={size} for {len(domains)} domain(s) leaves nothing for the retain data "
            f"({total_name}={total}); set routing.{option} to at most {(total - 1) // len(domains)}"
        )
