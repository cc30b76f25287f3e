"""Low-rank adapters for the native GPT: the attacker who trains few parameters (paper, section 5.3, goes no further
than full fine-tuning)."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from excise.model.gpt import GPT
from excise.routing.split import InputSplit, OutputSplit, normal


class LowRank(nn.Module):
    """Weights by part, W + (alpha / rank) B A each, of which only A and B are trained."""

    def __init__(self, weight: nn.ParameterDict, rank: int, alpha: float, seed: int, name: str) -> None:
        super().__init__()
        self.base, self.scale = weight, alpha / rank
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for part, value in weight.items():
            d_out, d_in = value.shape
            self.a[part] = nn.Parameter(normal(seed, f"{name}.{part}", (rank, d_in), d_in**-0.5).to(value))
            self.b[part] = nn.Parameter(value.new_zeros(d_out, rank))

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __getitem__(self, part: str) -> Tensor:
        adapted: Tensor = self.base[part] + self.scale * (self.b[part] @ self.a[part])
        return adapted


def with_adapters(model: GPT, rank: int, alpha: float = 32.0, seed: int = 0) -> GPT:
    """A copy that computes the same, with untrained adapters on all weights of heads and units and nothing else to train but
    the token vectors that a module adds."""
    adapted = deepcopy(model).requires_grad_(False)
    for part, vectors in adapted.tokens.weight.items():
        vectors.requires_grad_(part != adapted.tokens.part)
    for name, layer in list(adapted.named_modules()):
        if isinstance(layer, (OutputSplit, InputSplit)):
            layer.add_module("weight", LowRank(layer.weight, rank, alpha, seed, name))
    return adapted


def merged(adapted: GPT) -> GPT:
    """A plain model that computes the same, the adapters added to its weights."""
    plain = GPT(adapted.config, adapted.partition).to(next(adapted.parameters()))
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            owner, _, part = name.rpartition(".")
            values = adapted.get_submodule(owner)
            assert isinstance(values, (LowRank, nn.ParameterDict))
            parameter.copy_(values[part])
    return plain
