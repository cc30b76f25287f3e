"""A model small enough for naive references, and documents of every label to run through it."""

from typing import Any

import torch

from excise.data.packing import Batch, Corpus, evaluation_batches
from excise.labels import label_names
from excise.model.gpt import GPT, GPTConfig
from excise.routing.partition import partition
from excise.routing.rules import RULES, RoutingConfig

SMALL = GPTConfig(vocabulary_size=61, context=32, n_layers=3, d_model=24, n_heads=8, d_mlp=20, window=5)
ROUTED_RULES = [rule for rule in RULES if rule != "none"]


def routing_for(rule: str = "sgtm", n_domains: int = 1, **options: Any) -> RoutingConfig:
    domains = ("spanish", "biology", "military")[:n_domains]
    small = {"forget_heads": 2, "forget_units": 4, "embeddings": "joint"}
    return RoutingConfig(**{"rule": rule, "domains": domains, **small, **options})


def small_model(
    routing: RoutingConfig, config: GPTConfig = SMALL, seed: int = 0, own: dict[str, list[int]] | None = None
) -> GPT:
    """A model with large random weights everywhere, so that no path is silent."""
    parts = partition(routing, n_layers=config.n_layers, n_heads=config.n_heads, d_mlp=config.d_mlp, tokens=own)
    model = GPT(config, parts, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def random_documents(n: int, seed: int = 0, longest: int = 14) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, longest, (n,), generator=generator).tolist()
    return [torch.randint(0, SMALL.vocabulary_size, (length,), generator=generator).tolist() for length in lengths]


def documents_of_all_labels(routing: RoutingConfig, per_label: int = 3) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens and token labels of uniform documents, every label in turn."""
    labels = [label for _ in range(per_label) for label in range(len(label_names(routing.domains)))]
    documents = random_documents(len(labels))
    return documents, [[label] * len(document) for label, document in zip(labels, documents, strict=True)]


def batch_of(documents: list[list[int]], labels: list[list[int]], context: int = SMALL.context) -> Batch:
    """All documents packed into the rows of one batch."""
    (batch,) = evaluation_batches(Corpus.of(documents, labels), context, rows_per_batch=1000)
    return batch
