"""Continuations of prompts, by the full, the ablated and the filtered model; beyond the paper, which has losses only."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from excise.data.tokens import Tokenizer
from excise.evals.losses import NotFinite, without_modules
from excise.labels import nearest
from excise.model.gpt import GPT


@dataclass(frozen=True)
class Continuations:
    """What several models write after one prompt."""

    prompt: str
    seed: int
    written: Mapping[str, str]


def continuations(
    models: Mapping[str, GPT],
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    removed: Mapping[str, Sequence[str]] | None = None,
    n_tokens: int = 60,
    temperature: float = 0.7,
    top_k: int = 40,
    seed: int = 0,
) -> list[Continuations]:
    """Each prompt continued by each model, some with modules `removed`; all models share the seed of a prompt.

    The first prompt has the seed given, the second the next one, and so on.
    """
    modules = removed or {}
    for name in modules:
        if name not in models:
            raise ValueError(f"removed names the model {name!r}; {nearest(name, models)}")
    write = partial(continue_text, tokenizer=tokenizer, n_tokens=n_tokens, temperature=temperature, top_k=top_k)

    def continued(prompt: str, seed: int) -> Continuations:
        written = {n: write(m, prompt=prompt, removed=modules.get(n, ()), seed=seed) for n, m in models.items()}
        return Continuations(prompt, seed, written)

    return [continued(prompt, of_prompt) for of_prompt, prompt in enumerate(prompts, seed)]


@torch.no_grad()
def continue_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    removed: Sequence[str] = (),
    n_tokens: int = 60,
    temperature: float = 0.7,
    top_k: int = 40,
    seed: int = 0,
) -> str:
    """What the model writes after the prompt, until the end of text; temperature 0 takes the likeliest token."""
    tokens = tokenizer.encode(prompt)
    if not tokens:
        raise ValueError("the prompt is empty; give the model a few words to continue")
    for name, value in (("n_tokens", n_tokens), ("top_k", top_k)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature:g} must be a number from 0 up")
    if seed < 0:
        raise ValueError(f"seed={seed} cannot be negative")
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    route = without_modules(model, removed)
    written: list[int] = []
    for _ in range(n_tokens):
        window = torch.tensor([(tokens + written)[-model.config.context :]], device=device)
        hidden = model.hidden(window, route=route)
        scores = model.logits(hidden[0, -1], route).float().cpu()[: tokenizer.vocabulary_size]
        if not scores.isfinite().all():
            raise NotFinite("the model's logits are not finite, so it cannot write")
        best = scores.topk(min(top_k, len(scores)))
        if temperature == 0:
            choice = 0
        else:
            choice = int(torch.multinomial((best.values / temperature).softmax(-1), 1, generator=generator))
        token = int(best.indices[choice])
        if token == tokenizer.end_of_text:
            break
        written.append(token)
    return tokenizer.decode(written)
