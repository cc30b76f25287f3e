"""A naive reference for routed training, written for reading: one document at a time, one backward pass per label.

It asks the package for nothing but parameters: rules and parts come from a table written by hand, matrices are full,
heads follow one another in a loop, and gradients of frozen parts are zeroed by hand.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from excise.model.gpt import GPT
from excise.routing.rules import RoutingConfig
from tests.routing.paper import FIRST_DOMAIN, Effect, effect_of, parameters_of


def naive_gradients(
    model: GPT,
    documents: list[list[int]],
    labels: list[list[int]],
    routing: RoutingConfig,
    own: dict[str, list[int]] | None = None,
) -> dict[str, Tensor]:
    """The gradient of each parameter from documents (tokens) with a label per token, where modules have vectors of their
    own for some tokens."""
    own = own or {}
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == parameters_of(routing, model.config, own), "a name must end in the part of the table"
    n_predicted = sum(len(document) - 1 for document in documents)
    total = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for document, token_labels in zip(documents, labels, strict=True):
        row_labels = token_labels[1:]  # a loss carries the label of its target
        for label in sorted(set(row_labels)):
            live = torch.tensor([row == label for row in row_labels])
            losses = naive_losses(model, document, [effect_of(routing, row) for row in row_labels], live, own)
            weight = routing.forget_weight if label >= FIRST_DOMAIN else 1.0
            model.zero_grad()
            (weight * losses[live].sum() / n_predicted).backward()
            for name, parameter in model.named_parameters():
                part = name.rsplit(".", 1)[-1]
                if parameter.grad is not None and part not in effect_of(routing, label).freeze:
                    total[name] += parameter.grad
    model.zero_grad()
    return total


def naive_losses(
    model: GPT, document: list[int], effects: list[Effect], live: Tensor, own: dict[str, list[int]] | None = None
) -> Tensor:
    """The loss of each pair of one document; rows that are not live pass no gradient to others."""
    own = own or {}
    tokens, targets = torch.tensor(document[:-1]), torch.tensor(document[1:])
    tables = torch.stack([naive_table(model, effect, own) for effect in effects])  # one for each row
    x = tables[torch.arange(len(tokens)), tokens] + full(model.positions.weight)[: len(tokens)]
    for i, block in enumerate(model.blocks):
        reach = model.config.window if i % 2 else len(tokens)
        heads = naive_heads(block, norm(block.norm_1, x), reach, live)
        head_parts = [part for part, w in block.attention.qkv.weight.items() for _ in range(len(w) // 3)]
        heads = gated(heads, head_parts, effects)
        x = x + heads @ full(block.attention.out.weight, 1).T + full(block.attention.out.bias)
        units = norm(block.norm_2, x) @ full(block.mlp.up.weight).T + full(block.mlp.up.bias)
        unit_parts = [part for part, w in block.mlp.up.weight.items() for _ in range(len(w))]
        units = gated(F.gelu(units, approximate="tanh"), unit_parts, effects)
        x = x + units @ full(block.mlp.down.weight, 1).T + full(block.mlp.down.bias)
    logits = torch.stack([table @ row for table, row in zip(tables, norm(model.norm, x), strict=True)])
    if model.output_bias is not None:
        logits = logits + full(model.output_bias)
    return F.cross_entropy(logits, targets, reduction="none")


def naive_table(model: GPT, effect: Effect, own: dict[str, list[int]]) -> Tensor:
    """The vector of each token: the core's, and what the modules add to it that are not hidden."""
    core = next(part for part in model.tokens.weight if not part.startswith("forget/"))
    vectors = list(model.tokens.weight[core])
    for domain, tokens in own.items():
        if f"forget/{domain}" not in effect.hide:
            for i, token in enumerate(tokens):
                vectors[token] = vectors[token] + model.tokens.weight[f"forget/{domain}"][i]
    return torch.stack(vectors)


def naive_heads(block, x: Tensor, reach: int, live: Tensor) -> Tensor:
    """The outputs of all heads side by side, one head after the other."""
    weight, K = full(block.attention.qkv.weight), block.attention.head_size
    n_rows, outputs = len(x), []
    for rows_of_head in weight.split(3 * K):
        q, k, v = (x @ part.T for part in rows_of_head.split(K))
        k = torch.where(live[:, None], k, k.detach())
        v = torch.where(live[:, None], v, v.detach())
        scores = q @ k.T
        for i in range(n_rows):
            for j in range(n_rows):
                if j > i or i - j >= reach:
                    scores[i, j] = -torch.inf
        outputs.append(scores.softmax(-1) @ v)
    return torch.cat(outputs, -1)


def gated(outputs: Tensor, column_parts: list[str], effects: list[Effect]) -> Tensor:
    """Each row's heads or units, zero where its effect hides them and constant where it detaches them."""
    rows = []
    for row, effect in zip(outputs, effects, strict=True):
        hidden = torch.tensor([part in effect.hide for part in column_parts])
        detached = torch.tensor([part in effect.detach for part in column_parts])
        row = torch.where(detached, row.detach(), row)
        rows.append(torch.where(hidden, torch.zeros_like(row), row))
    return torch.stack(rows)


def norm(layer, x: Tensor) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + 1e-5).sqrt() * full(layer.weight) + full(layer.bias)


def full(pieces, axis: int = 0) -> Tensor:
    return torch.cat(list(pieces.values()), axis)
