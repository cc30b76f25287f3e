"""The trade-off curve: losses after ablation at equal intervals of training (paper, figures 1 and 4a)."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from excise.data.dataset import Data
from excise.evals.calibration import Calibrate, calibrate
from excise.evals.losses import ablation_losses
from excise.train.loop import Progress
from excise.train.schedule import is_evaluation


class Tradeoff:
    """A listener that follows the losses of a model with and without its modules while it trains.

    The losses after the last step are left to the evaluation of the finished run.
    """

    def __init__(self, evaluations: int, data: Data, removed: Sequence[str], calibrate: Calibrate = calibrate) -> None:
        self.evaluations, self.data, self.removed, self.calibrate = evaluations, data, removed, calibrate

    def __call__(self, progress: Progress) -> dict[str, Any] | None:
        step, n_steps = progress.done.step, progress.n_steps
        if step == n_steps or not is_evaluation(step, n_steps, self.evaluations):
            return None
        bias = self.calibrate(progress.model, self.data.calibration, self.removed)
        losses = ablation_losses(progress.model, self.data.test, self.removed, bias)
        return {"losses": {name: asdict(of_set) for name, of_set in losses.items()}}
