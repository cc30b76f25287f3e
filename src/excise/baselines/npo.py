"""NPO, negative preference optimisation (Zhang et al. 2024), with a term that holds the retain data.

    -(2 / beta) log sigmoid(-beta log(pi / pi_ref))         per forget document
    -retain_weight log pi                                   per retain document

pi is the probability of a whole document, not normalised by its length, in both terms, so that they have one scale. At
the reference the gradient is that of gradient ascent; it fades for documents that are forgotten already.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from excise.baselines.models import LanguageModel
from excise.data.packing import Batch


@dataclass(frozen=True, kw_only=True)
class NPOConfig:
    beta: float = 0.1
    """How soon a document counts as forgotten; near 0 none ever does, which is gradient ascent."""
    retain_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise ValueError(f"npo.beta={self.beta:g} must be a number above 0")


def npo_loss(model: LanguageModel, reference: LanguageModel, forget: Batch, retain: Batch, config: NPOConfig) -> Tensor:
    """The mean over documents of both terms, added up."""
    with torch.no_grad():
        original = reference.losses(forget).sum(-1)
    log_ratio = original - model.losses(forget).sum(-1)  # B
    forgotten = -2 / config.beta * logsigmoid(-config.beta * log_ratio)
    return forgotten.mean() + config.retain_weight * model.losses(retain).sum(-1).mean()
