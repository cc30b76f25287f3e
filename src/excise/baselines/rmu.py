"""RMU, representation misdirection for unlearning (Li et al., WMDP; paper, section 5.3 and appendix J.2).

After one block, forget data is steered towards a random vector and retain data is held where it was; only the MLPs of a
few blocks move. Blocks count from 0, as in the implementation by Li et al. that the paper uses, and so does its table.
As there, a squared distance is a mean over the entries of the hidden states; unlike there, padding does not count.
"""

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from excise.baselines.models import LanguageModel
from excise.data.packing import Batch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RMUConfig:
    """The paper's table, for its model of 16 blocks."""

    layer: int = 7
    """The block after which hidden states are steered."""
    update_layers: tuple[int, ...] = (5, 6, 7)
    """Blocks whose MLP is updated; none after `layer`, whose MLP would not act on what is steered."""
    n_layers: int = 16
    """Depth of the model that these are blocks of; in a model of another depth they scale with it."""
    alpha: float = 100.0
    """Weight of the retain data."""
    steering_coefficient: float = 20.0
    """Length of the random vector."""

    def __post_init__(self) -> None:
        if not 0 <= self.layer < self.n_layers:
            raise ValueError(f"rmu.layer={self.layer} must be a block from 0 to {self.n_layers - 1}")
        if not self.update_layers or min(self.update_layers) < 0 or max(self.update_layers) > self.layer:
            raise ValueError(
                f"rmu.update_layers={self.update_layers} must name blocks from 0 to rmu.layer={self.layer}"
            )

    def scaled(self, n_layers: int) -> "RMUConfig":
        """The same for a model of this depth; blocks that fall together count once."""

        def scale(layer: int) -> int:
            return min(n_layers - 1, round(layer * n_layers / self.n_layers))

        update_layers = tuple(sorted({scale(layer) for layer in self.update_layers}))
        return replace(self, layer=scale(self.layer), update_layers=update_layers, n_layers=n_layers)


def rmu_loss(
    model: LanguageModel, reference: LanguageModel, forget: Batch, retain: Batch, config: RMUConfig, seed: int
) -> Tensor:
    """Distance of forget data from a random vector, and alpha times that of retain data from where it was."""
    steered, held = model.hidden(forget, config.layer), model.hidden(retain, config.layer)  # N D each
    with torch.no_grad():
        original = reference.hidden(retain, config.layer)
    vector = steering_vector(steered.shape[-1], config.steering_coefficient, seed).to(steered.device)
    return mse_loss(steered, vector.expand_as(steered)) + config.alpha * mse_loss(held, original)


def steering_vector(d_model: int, length: float, seed: int) -> Tensor:
    """A vector of this length (D), its direction drawn among those with positive entries."""
    uniform = torch.rand(d_model, generator=torch.Generator().manual_seed(seed))
    return length * torch.nn.functional.normalize(uniform, dim=0)


def rmu_parameters(model: LanguageModel, config: RMUConfig) -> list[nn.Parameter]:
    """W_1, b_1, W_2 and b_2 of the blocks to update."""
    logger.info("RMU steers block %d, updates the MLPs of blocks %s", config.layer, list(config.update_layers))
    return [parameter for layer in config.update_layers for parameter in model.mlp(layer)]
