"""Gradient difference (Liu et al. 2022): descent on the retain loss and ascent on the forget loss, both per token."""

from torch import Tensor

from excise.baselines.models import LanguageModel
from excise.data.packing import Batch


def gradient_difference_loss(model: LanguageModel, forget: Batch, retain: Batch) -> Tensor:
    """Retain loss minus forget loss."""
    return model.losses(retain).sum() / retain.n_predicted - model.losses(forget).sum() / forget.n_predicted
