"""The paper's GPT (GPT-Neo family), built as a core plus removable modules.

Learned positions, pre-LayerNorm, GELU, alternating global and local attention, unscaled scores, tied embeddings, and a
bias on the logits, which the paper's parameter counts include.

Shapes: B rows, T positions, D d_model, H heads present, K head size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from excise.model.attention import Pattern, attend, has_kernels, masked_pattern, pattern_of
from excise.routing.fused import Added, fuses, gelu
from excise.routing.head import head_losses, losses_without_gradient
from excise.routing.head import logits as head_logits
from excise.routing.linear import stop_gradient
from excise.routing.partition import BlockPartition, Partition, Piece, Pieces, whole
from excise.routing.precision import stream_dtype
from excise.routing.route import PLAIN, Route
from excise.routing.split import Embedding, InputSplit, Norm, OutputSplit, TokenTable, normal, runs_of, stored

INITIAL_STD = 0.02
MOST_GRAPHS = 4096
"""That a process may compile: kinds of micro-batch times reaches of attention times shapes of all models that it trains."""


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Size of a model."""

    vocabulary_size: int = 50257
    context: int = 512
    """Longest sequence, and number of learned positions."""
    n_layers: int = 6
    d_model: int = 128
    n_heads: int = 32
    d_mlp: int = 512
    window: int = 256
    """Reach of the local attention in every second block."""
    output_bias: bool = True
    """A bias on the logits, in the part of the embeddings."""

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "context", "n_layers", "d_model", "n_heads", "d_mlp", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} must be at least 1")
        if self.d_model % self.n_heads:
            raise ValueError(f"model.d_model={self.d_model} must be a multiple of model.n_heads={self.n_heads}")

    @property
    def head_size(self) -> int:
        return self.d_model // self.n_heads


class Attention(nn.Module):
    """Heads that add up through W_O."""

    def __init__(self, config: GPTConfig, pieces: BlockPartition, local: bool, seed: int, name: str) -> None:
        super().__init__()
        self.local = local
        D, self.head_size = config.d_model, config.head_size
        per_head = scaled(pieces.heads, 3 * self.head_size)
        self.qkv = OutputSplit(normal(seed, f"{name}.qkv", (size(per_head), D), INITIAL_STD), None, per_head)
        self.out = InputSplit(
            normal(seed, f"{name}.out", (D, size(pieces.heads) * self.head_size), INITIAL_STD),
            torch.zeros(D),
            scaled(pieces.attention_out, self.head_size),
            pieces.attention_bias,
            scaled(pieces.heads, self.head_size),
        )

    def forward(self, x: Tensor, pattern: Pattern, route: Route) -> Added:
        B, T, _ = x.shape
        qkv = self.qkv(x, route)
        H = qkv.shape[-1] // (3 * self.head_size)
        qkv = qkv.view(B, T, H, 3, self.head_size)
        hidden = self._hidden_heads(route) if pattern.has_kernels else []
        y = attend(qkv, pattern, local=self.local, hidden=hidden)
        return self.out(y.flatten(2), route, already_hidden=pattern.has_kernels)  # type: ignore[no-any-return]

    def _hidden_heads(self, route: Route) -> list[tuple[Tensor, int, int]]:
        """Rows (B T) that do not see some heads, from one to another; heads that no row sees are gone."""
        K, units = self.head_size, tuple(unit for unit in self.out.units if not route.gone(unit.part))
        return [(rows.squeeze(-1), start // K, end // K) for rows, start, end in runs_of(route.hide, units)]


class MLP(nn.Module):
    """Units that add up through W_2."""

    def __init__(self, config: GPTConfig, pieces: BlockPartition, seed: int, name: str) -> None:
        super().__init__()
        D, units = config.d_model, size(pieces.units)
        self.up = OutputSplit(normal(seed, f"{name}.up", (units, D), INITIAL_STD), torch.zeros(units), pieces.units)
        self.down = InputSplit(
            normal(seed, f"{name}.down", (D, units), INITIAL_STD),
            torch.zeros(D),
            pieces.mlp_out,
            pieces.mlp_bias,
            pieces.units,
        )

    def forward(self, x: Tensor, route: Route) -> Added:
        fused = fuses(x)
        units = self.up.activated(x, route) if fused else gelu(self.up(x, route))
        return self.down(units, route, already_hidden=fused)  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(
        self, config: GPTConfig, pieces: BlockPartition, norms: str, local: bool, seed: int, name: str
    ) -> None:
        super().__init__()
        self.norm_1 = Norm(config.d_model, norms)
        self.attention = Attention(config, pieces, local, seed, f"{name}.attention")
        self.norm_2 = Norm(config.d_model, norms)
        self.mlp = MLP(config, pieces, seed, f"{name}.mlp")

    def forward(
        self, x: Tensor, normed: Tensor, next_norm: Norm, pattern: Pattern, route: Route
    ) -> tuple[Tensor, Tensor]:
        """The stream after this block, and its norm, which the next one begins with.

        A block begins after its norm and ends with the next one's, as an addition and the norm after it are one kernel.
        """
        x, normed = self.norm_2.after(x, self.attention(normed, pattern, route), route)
        return next_norm.after(x, self.mlp(normed, route), route)


class GPT(nn.Module):
    """A language model in parts; `route` says what each row sees and updates, nothing meaning plain training."""

    def __init__(self, config: GPTConfig, partition: Partition | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.partition = partition or whole(config.n_layers, config.n_heads, config.d_mlp)
        check_sizes(config, self.partition)
        V, D, part = config.vocabulary_size, config.d_model, self.partition.embeddings
        self.tokens = TokenTable(normal(seed, "tokens", (V, D), INITIAL_STD), part, self.partition.tokens)
        self.positions = Embedding(normal(seed, "positions", (config.context, D), INITIAL_STD), part)
        self.blocks = nn.ModuleList(
            Block(config, pieces, self.partition.norms, i % 2 == 1, seed, f"blocks.{i}")
            for i, pieces in enumerate(self.partition.blocks)
        )
        self.norm = Norm(D, self.partition.norms)
        self.output_bias = stored(torch.zeros(V), (Piece(part, V),)) if config.output_bias else None

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        route: Route = PLAIN,
    ) -> Tensor:
        """Logits (B T V) of tokens (B T); a row holds one document where `documents`, runs of equal numbers, does not say
        otherwise."""
        return self.logits(self.hidden(tokens, positions=positions, documents=documents, route=route), route)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        route: Route = PLAIN,
    ) -> Tensor:
        """What the output head reads (B T D)."""
        T = tokens.shape[-1]
        if T > self.config.context:
            raise ValueError(f"a sequence of {T} tokens is longer than the model's context={self.config.context}")
        if positions is None:
            positions = torch.arange(T, device=tokens.device).expand_as(tokens)
        if documents is None:
            documents = torch.zeros_like(tokens)
        x = self.tokens(tokens, route) + self.positions(positions, route)
        if has_kernels(x, self.config.head_size) and route.same_label is None:
            pattern = pattern_of(documents, self.config.window)
        else:
            pattern = masked_pattern(documents, self.config.window, route.same_label)
        x = x.to(stream_dtype(x))
        norms: list[Any] = [*(block.norm_1 for block in self.blocks), self.norm]
        normed: Tensor = norms[0](x, route)
        for block, next_norm in zip(self.blocks, norms[1:], strict=True):
            x, normed = block(x, normed, next_norm, pattern, route)
        return normed

    def logits(self, hidden: Tensor, route: Route = PLAIN, shift: Tensor | None = None) -> Tensor:
        """The tied output head (B T V), with a calibration bias added where one is given."""
        bias = self._bias(shift)
        if not torch.is_grad_enabled() and not self.tokens.differs(route):
            return head_logits(hidden, self.tokens.full(route), bias)
        logits = self.tokens.products(hidden, route)
        if bias is None:
            return logits
        return logits + stop_gradient(bias.expand_as(logits), route.freeze.get(self.tokens.part, False))

    def losses(
        self, hidden: Tensor, targets: Tensor, weights: Tensor, route: Route = PLAIN, shift: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum of the losses of all rows, for the backward pass, and each row's loss (B T).

        Equal to the cross-entropy of the logits, without ever holding all of them.
        """
        table, bias = self.tokens, self._bias(shift)
        if not torch.is_grad_enabled() and not table.differs(route):
            losses = self.losses_with(hidden, targets, [shift], route)[0]
            return (losses * weights).sum(), losses
        return head_losses(
            hidden,
            table.by_place(table.weight[table.part]),
            None if bias is None else table.by_place(bias),
            route.freeze.get(table.part, False),
            table.added(route),
            table.placed(targets),
            weights,
        )

    def losses_with(
        self, hidden: Tensor, targets: Tensor, shifts: Sequence[Tensor | None], route: Route = PLAIN
    ) -> Tensor:
        """Each row's loss with each of these calibration biases (S ...), where no gradient is wanted and all rows see the
        same tokens; a row whose target is negative has none."""
        rows, wanted = hidden.flatten(0, -2), targets.clamp_min(0).flatten()
        losses = losses_without_gradient(rows, self.tokens.full(route), self._bias(None), wanted, shifts)
        return losses.view(-1, *targets.shape).where(targets >= 0, 0.0)

    def _bias(self, shift: Tensor | None) -> Tensor | None:
        bias = None if self.output_bias is None else self.output_bias[self.tokens.part]
        if shift is None:
            return bias
        return shift if bias is None else bias + shift


def compile_blocks(model: GPT, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile the blocks, which all share one graph for each kind of micro-batch and reach of attention, and the first
    norm, for batches of one shape.

    Where no gradient is wanted they run as they are: evaluation has batches of many shapes, each of which would be compiled,
    and none of which may loosen what is known of the shapes in training.
    """
    for limit in ("recompile_limit", "accumulated_recompile_limit"):  # over all models that a process trains
        setattr(torch._dynamo.config, limit, max(MOST_GRAPHS, getattr(torch._dynamo.config, limit)))
    # Rows of an odd number of heads would be padded, and copied for the attention kernels, which take them as they are.
    options: dict[str, Any] | None = {"comprehensive_padding": False} if backend == "inductor" else None
    for layer in (model.blocks[0].norm_1, *model.blocks):
        plain = type(layer).forward
        compiled = torch.compile(plain, fullgraph=True, dynamic=False, backend=backend, options=options)
        # A method, which a copy of the model binds to its own layer.
        layer.forward = MethodType(_for_training(compiled, plain), layer)


def _for_training(compiled: Callable[..., Tensor], plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda layer, *inputs: (compiled if torch.is_grad_enabled() else plain)(layer, *inputs)


def check_sizes(config: GPTConfig, partition: Partition) -> None:
    """Refuse a partition of a model of another size; one that has lost modules remembers the size it had."""
    sizes = {"n_layers": len(partition.blocks), "n_heads": partition.n_heads, "d_mlp": partition.d_mlp}
    for name, given in sizes.items():
        if given != getattr(config, name):
            raise ValueError(
                f"the partition has {name}={given} where model.{name}={getattr(config, name)}; "
                "make it with the sizes of the same config"
            )


def scaled(pieces: Pieces, factor: int) -> Pieces:
    return tuple(piece.scaled(factor) for piece in pieces)


def size(pieces: Pieces) -> int:
    return sum(piece.size for piece in pieces)


def n_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
