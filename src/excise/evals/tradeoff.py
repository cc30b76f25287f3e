"""The trade-off curve: losses after ablation at equal intervals of training (paper, figures 1 and 4a)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from excise.data.packing import Corpus
from excise.evals.calibration import calibrate
from excise.evals.losses import evaluate
from excise.train.loop import Progress, due


class Tradeoff:
    """A listener that follows the losses of a model with and without its modules while it trains."""

    def __init__(
        self,
        test: Mapping[str, Corpus],
        removed: Sequence[str],
        every: int,
        calibration: Mapping[str, Corpus] | None = None,
    ) -> None:
        self.test, self.removed, self.every, self.calibration = test, removed, every, calibration
        self.bias: Tensor | None = None

    def __call__(self, progress: Progress) -> dict[str, Any] | None:
        if not self.every or not due(progress.step, self.every, progress.n_steps):
            return None
        model = progress.model
        if self.calibration:
            # The last bias is near the next one, which saves most of the iterations.
            self.bias = calibrate(model, self.calibration, self.removed, start=self.bias, iterations=20)
        return {"losses": {name: self._losses(progress, corpus) for name, corpus in self.test.items()}}

    def _losses(self, progress: Progress, corpus: Corpus) -> dict[str, float]:
        losses = {
            "before": evaluate(progress.model, corpus).mean,
            "ablated": evaluate(progress.model, corpus, removed=self.removed).mean,
        }
        if self.bias is not None:
            losses["calibrated"] = evaluate(progress.model, corpus, removed=self.removed, bias=self.bias).mean
        return losses
