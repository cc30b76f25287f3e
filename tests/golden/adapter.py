"""The model of today under names that no rebuild changes; whoever rebuilds the core writes this file anew, and of others here imports alone.

Full matrices are as the paper has them: W_Q, W_K, W_V, W_1 (out, in) by output, W_O and W_2 by input, and in each the
heads or units of the modules first, in the order of the domains, and then the core's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor, nn

from excise.data.packing import Batch, Corpus, evaluation_batches
from excise.labels import part_of
from excise.model.gpt import GPT, GPTConfig
from excise.routing.partition import partition
from excise.routing.rules import NOTHING, RULES, RoutingConfig
from excise.train import step
from excise.train.loop import build_optimizer
from excise.train.run import TrainConfig
from tests.golden.cases import (
    BLOCKS,
    CONTEXT,
    D_MODEL,
    DOMAINS,
    HEADS,
    TOKENS,
    UNITS,
    VOCABULARY,
    WINDOW,
    Case,
    Document,
)

QKV = ("W_Q", "W_K", "W_V")


def model_of(case: Case, full: Mapping[str, Tensor]) -> GPT:
    """The model of a training with these initial weights, in their precision."""
    tokens = {domain: TOKENS[domain] for domain in DOMAINS[: case.domains]} if case.token_vectors else {}
    parts = partition(routing_of(case), n_layers=BLOCKS, n_heads=HEADS, d_mlp=UNITS, tokens=tokens)
    size = {"n_layers": BLOCKS, "d_model": D_MODEL, "n_heads": HEADS, "d_mlp": UNITS, "window": WINDOW}
    model = GPT(GPTConfig(vocabulary_size=VOCABULARY, context=CONTEXT, **size), parts).to(full["tokens"].dtype)
    with torch.no_grad():
        for name, (pieces, axis) in stored(model).items():
            value = joined_heads([full[name.replace("W_QKV", of)] for of in QKV]) if "W_QKV" in name else full[name]
            sizes = [piece.shape[axis] for piece in pieces]
            for piece, its_value in zip(pieces, value.split(sizes, axis), strict=True):
                piece.copy_(its_value)
    return model


def routing_of(case: Case) -> RoutingConfig:
    return RoutingConfig(
        rule=case.rule,
        domains=DOMAINS[: case.domains],
        forget_heads=case.heads,
        forget_units=case.units,
        layers=tuple(block - 1 for block in case.blocks),
        embeddings=case.embeddings,
        norms=case.norms,
        forget_weight=case.forget_weight,
    )


def stored(model: GPT) -> dict[str, tuple[list[nn.Parameter], int]]:
    """The pieces of each full tensor, and the axis along which they follow one another."""
    tables = model.tokens.weight
    found = {
        "tokens": ([tables[model.tokens.part]], 0),
        **{f"tokens of {part.removeprefix('forget/')}": ([tables[part]], 0) for part in model.tokens.modules_at},
        "positions": ([*model.positions.weight.values()], 0),
        "output bias": ([*model.output_bias.values()], 0),
    }
    norms = {"final norm": model.norm}
    for number, block in enumerate(model.blocks, start=1):
        norms |= {f"block {number}, norm {i}": norm for i, norm in ((1, block.norm_1), (2, block.norm_2))}
        attend, mlp = block.attention, block.mlp
        names = (
            ("W_QKV", attend.qkv.weight, 0),
            ("W_O", attend.out.weight, 1),
            ("b_O", attend.out.bias, 0),
            ("W_1", mlp.up.weight, 0),
            ("b_1", mlp.up.bias, 0),
            ("W_2", mlp.down.weight, 1),
            ("b_2", mlp.down.bias, 0),
        )
        found |= {f"block {number}, {name}": ([*pieces.values()], axis) for name, pieces, axis in names}
    for name, norm in norms.items():
        found |= {f"{name}, gain": ([*norm.weight.values()], 0), f"{name}, shift": ([*norm.bias.values()], 0)}
    return found


def joined_heads(q_k_v: list[Tensor]) -> Tensor:
    """W_Q, W_K and W_V as one matrix, in which these three follow one another within each head."""
    return torch.stack([w.view(HEADS, -1, D_MODEL) for w in q_k_v], 1).reshape(-1, D_MODEL)


def apart(q_k_v: Tensor) -> list[Tensor]:
    return [w.reshape(-1, D_MODEL) for w in q_k_v.view(HEADS, 3, -1, D_MODEL).unbind(1)]


def gradients(model: GPT) -> dict[str, Tensor]:
    """The gradients of all full tensors; where there is none, zeros."""
    found = {}
    for name, (pieces, axis) in stored(model).items():
        of_pieces = [torch.zeros_like(piece) if piece.grad is None else piece.grad for piece in pieces]
        value = torch.cat(of_pieces, axis)
        split = zip(QKV, apart(value), strict=True) if "W_QKV" in name else [("", value)]
        found |= {name.replace("W_QKV", of): of_name.clone() for of, of_name in split}
    return found


def optimizer_of(case: Case, model: GPT) -> torch.optim.Optimizer:
    if case.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.2)
    return build_optimizer(model, TrainConfig(learning_rate=1e-2, module_rate=case.module_rate))


def accumulate(case: Case, model: GPT, micro_batches: list[list[Document]]) -> float:
    """Leave the gradients of a step in the model, none where frozen means still; its loss per token."""
    batches = [batch_of(documents) for documents in micro_batches]
    return step.accumulate(model, batches, routing_of(case), zero_instead=case.zero_gradients).mean


def batch_of(documents: list[Document]) -> Batch:
    tokens, labels = zip(*documents, strict=True)
    (batch,) = evaluation_batches(Corpus.of(tokens, labels), CONTEXT, rows_per_batch=1000)
    return batch


def clip(model: GPT, largest: float) -> None:
    """Clip the gradients of each part."""
    step.clip_by_part(model, largest)


def parameters_of(model: GPT, part: str) -> list[nn.Parameter]:
    """The parameters of `retain`, `joint`, or `forget/spanish` and so on."""
    return [parameter for name, parameter in model.named_parameters() if part_of(name) == part]


@contextmanager
def without(verb: str, rule: str) -> Iterator[None]:
    """A rule that does not do one thing that it does: it does not `hide`, `detach` or `freeze`."""
    effects = {label: replace(effect, **{verb: NOTHING}) for label, effect in RULES[rule].effects.items()}
    with patch.dict(RULES, {rule: replace(RULES[rule], effects=effects)}):
        yield


@contextmanager
def in_float64() -> Iterator[None]:
    """All in double precision, the weights of losses too."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)
