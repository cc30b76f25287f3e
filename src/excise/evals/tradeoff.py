"""The trade-off curve: losses after ablation at equal intervals of training (paper, figures 1 and 4a)."""

from dataclasses import asdict
from typing import Any

from excise.data.dataset import Data
from excise.evals.calibration import Calibrate, calibrate
from excise.evals.losses import ablation_losses
from excise.train.loop import Progress, autocast
from excise.train.run import RunConfig
from excise.train.schedule import is_evaluation


class Tradeoff:
    """A listener that follows the losses of a model with and without its modules while it trains.

    The losses after the last step can be left to the evaluation of the finished run.
    """

    def __init__(self, run: RunConfig, data: Data, calibrate: Calibrate = calibrate, *, at_end: bool = True) -> None:
        self.run, self.data, self.calibrate, self.at_end = run, data, calibrate, at_end

    def __call__(self, progress: Progress) -> dict[str, Any] | None:
        step, n_steps = progress.done.step, progress.n_steps
        due = is_evaluation(step, n_steps, self.run.train.evaluations)
        if not due or (step == n_steps and not self.at_end):
            return None
        removed, context = self.run.routing.modules, self.run.batch.context
        precision = autocast(self.run.train, next(progress.model.parameters()).device)
        with precision:
            bias = self.calibrate(progress.model, self.data.calibration, removed, context)
        losses = ablation_losses(progress.model, self.data.test, removed, bias, context, precision)
        return {"losses": {name: asdict(of_set) for name, of_set in losses.items()}}
