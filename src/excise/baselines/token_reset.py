"""Token reset: the vectors of tokens that mostly a domain uses go back to their first values, and nothing is trained.

A control rather than a rival: it tells how much of a high forget loss is in the vectors of a domain's words alone.
"""

import copy
from collections.abc import Sequence

import torch

from excise.model.gpt import GPT, INITIAL_STD
from excise.routing.split import normal


@torch.no_grad()
def reset_tokens(model: GPT, tokens: Sequence[int], seed: int) -> GPT:
    """A copy of a model that was initialised with this seed, whose core has the first vectors for these tokens."""
    reset = copy.deepcopy(model)
    vectors = reset.tokens.weight[reset.tokens.part]
    vectors[list(tokens)] = normal(seed, "tokens", tuple(vectors.shape), INITIAL_STD)[list(tokens)].to(vectors)
    return reset
