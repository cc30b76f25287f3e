"""Evaluate a finished run: its losses before ablation, after it, and calibrated."""

from pathlib import Path

from excise.data.dataset import Data
from excise.evals.calibration import Calibrate, calibrate
from excise.evals.losses import ablation_losses
from excise.evals.results import RunResults, write_json
from excise.model.gpt import n_parameters
from excise.train.release import load_run
from excise.train.run import RunDirectory


def evaluate_run(directory: Path, data: Data, calibrate: Calibrate = calibrate) -> RunResults:
    """Losses of a run's latest checkpoint, also written to its results.json."""
    files = RunDirectory(directory)
    context = files.config().batch.context
    model, done = load_run(directory)
    removed = model.partition.domains
    bias = calibrate(model, data.calibration, removed, context)
    results = RunResults(
        losses=ablation_losses(model, data.test, removed, bias, context),
        removed=removed,
        step=done.step,
        tokens=done.tokens,
        seconds=done.seconds,
        parameters=n_parameters(model),
        tokenizer_sha256=data.tokenizer.sha256,
    )
    write_json(results, files.results_file)
    return results
