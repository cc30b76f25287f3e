"""The trade-off curve: losses after ablation at equal intervals of training (paper, figures 1, 4a, 7 and 13)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from excise.data.dataset import Data
from excise.data.packing import Corpus
from excise.evals.calibration import calibrate, n_evaluated
from excise.evals.losses import AblationLosses, DocumentLosses, of_categories, stage_losses
from excise.evals.progress import evaluation_of
from excise.train.loop import Progress, autocast
from excise.train.run import RunConfig
from excise.train.schedule import is_evaluation


class Tradeoff:
    """A listener that follows the losses of a model with and without its modules while it trains.

    The losses after the last step can be left to the evaluation of the finished run.
    """

    def __init__(self, run: RunConfig, data: Data, *, at_end: bool = True) -> None:
        self.run, self.data, self.at_end = run, data, at_end

    def __call__(self, progress: Progress) -> dict[str, Any] | None:
        step, n_steps = progress.done.step, progress.n_steps
        due = is_evaluation(step, n_steps, self.run.train.evaluations)
        if not due or (step == n_steps and not self.at_end):
            return None
        removed, context = self.run.routing.modules, self.run.batch.context
        precision = autocast(self.run.train, next(progress.model.parameters()).device)
        calibration, test = self.data.calibration, self.data.test
        with evaluation_of(n_evaluated(calibration, test, removed)):
            with precision:
                bias = calibrate(progress.model, calibration, removed, context)
            return recorded(test, stage_losses(progress.model, test, removed, bias, context, precision))


def recorded(sets: Mapping[str, Corpus], losses: Mapping[str, DocumentLosses]) -> dict[str, Any]:
    """The losses of every set as means over its tokens and over its categories, where it has any."""
    categories = {name: of_categories(corpus, losses[name]).values() for name, corpus in sets.items()}
    return {
        "losses": {name: asdict(AblationLosses.mean_of([of])) for name, of in losses.items()},
        "category_means": {name: asdict(AblationLosses.mean_of(of)) for name, of in categories.items() if of},
    }


@dataclass(frozen=True)
class CurvePoint:
    """The losses of a run at some point of its training."""

    step: int
    tokens: int
    compute: float
    """6 x parameters x tokens, in FLOPs, whatever a fast path skips."""
    share: float
    """Of the training that is done."""
    losses: Mapping[str, AblationLosses]
    """By set."""
    category_means: Mapping[str, AblationLosses]
    """By set, the mean over its categories; empty in runs that did not record it."""


def tradeoff_curve(records: Sequence[Mapping[str, Any]], parameters: int) -> list[CurvePoint]:
    """The points that a run's metrics hold, of which the last is its end; a run without any is an error."""
    found = [record for record in records if "losses" in record]
    if not found:
        raise ValueError("the run has no losses among its metrics; train it with train.evaluations above 0")

    def by_set(record: Mapping[str, Any], table: str) -> dict[str, AblationLosses]:
        return {name: AblationLosses(**losses) for name, losses in record.get(table, {}).items()}

    return [
        CurvePoint(
            step=record["step"],
            tokens=record["tokens"],
            compute=6.0 * parameters * record["tokens"],
            share=record["step"] / found[-1]["step"],
            losses=by_set(record, "losses"),
            category_means=by_set(record, "category_means"),
        )
        for record in found
    ]


def equal_lines(
    curves: Mapping[str, Sequence[CurvePoint]], by: Literal["compute", "share"] = "compute"
) -> list[dict[str, dict[str, float]]]:
    """Calibrated losses of all runs where they have had the same compute, or done the same share of their training.

    A line for each point of the run that was trained least, from where all runs have been followed on; each has the
    losses of every run by set, on the straight line between two of its points.
    """
    first = max(getattr(curve[0], by) for curve in curves.values())
    least = min(curves.values(), key=lambda curve: getattr(curve[-1], by))

    def at(curve: Sequence[CurvePoint], level: float) -> dict[str, float]:
        levels = [getattr(point, by) for point in curve]
        return {
            name: float(np.interp(level, levels, [point.losses[name].calibrated for point in curve]))
            for name in curve[0].losses
        }

    levels = [getattr(point, by) for point in least if getattr(point, by) >= first]
    return [{name: at(curve, level) for name, curve in curves.items()} for level in levels]
