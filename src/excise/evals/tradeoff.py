"""The trade-off curve: losses after ablation at equal intervals of training (paper, figures 1 and 4a)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from excise.data.packing import Corpus
from excise.evals.calibration import calibrate
from excise.evals.losses import evaluate
from excise.model.gpt import GPT
from excise.train.loop import Progress
from excise.train.schedule import is_evaluation


class Tradeoff:
    """A listener that follows the losses of a model with and without its modules while it trains."""

    def __init__(
        self,
        evaluations: int,
        test: Mapping[str, Corpus],
        removed: Sequence[str],
        calibration: Mapping[str, Corpus] | None = None,
        iterations: int = 12,
    ) -> None:
        self.evaluations, self.test, self.removed = evaluations, test, removed
        self.calibration, self.iterations = calibration, iterations
        self.bias: Tensor | None = None

    def __call__(self, progress: Progress) -> dict[str, Any] | None:
        if not is_evaluation(progress.done.step, progress.n_steps, self.evaluations):
            return None
        if self.calibration:
            # The last bias is near the next one, which saves iterations.
            self.bias = calibrate(
                progress.model, self.calibration, self.removed, start=self.bias, iterations=self.iterations
            )
        return {"losses": {name: self._losses(progress.model, corpus) for name, corpus in self.test.items()}}

    def _losses(self, model: GPT, corpus: Corpus) -> dict[str, float]:
        losses = {
            "before": evaluate(model, corpus).mean,
            "ablated": evaluate(model, corpus, removed=self.removed).mean,
        }
        if self.bias is not None:
            losses["calibrated"] = evaluate(model, corpus, removed=self.removed, bias=self.bias).mean
        return losses
