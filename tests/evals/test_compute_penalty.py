"""Scaling laws and penalties against laws that are known."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.stats import linregress
from scipy.stats import t as student

from excise.evals.compute_penalty import BaselineRun, compute_penalty, fit_law, t95

ALPHA, BETA = 60.0, 0.07
PARAMETERS = (34_000_000, 64_000_000, 125_000_000, 254_000_000)


def baselines(noise=0.0, seed=0):
    """Chinchilla-optimal runs of the paper's sizes, with losses that scatter about a law."""
    random = np.random.default_rng(seed)

    def loss(compute):
        return ALPHA * compute**-BETA * math.exp(noise * random.normal())

    return [BaselineRun(n, 20 * n, loss(6 * n * 20 * n)) for n in PARAMETERS], loss


def test_a_power_law_without_noise_is_recovered_exactly():
    runs, _ = baselines()
    law = fit_law(runs)
    assert (law.alpha, law.beta) == pytest.approx((ALPHA, BETA), rel=1e-9)
    assert (law.beta_low, law.beta_high) == pytest.approx((BETA, BETA), rel=1e-6)
    for run in runs:
        assert law.equivalent_compute(run.loss) == pytest.approx(6 * run.parameters * run.tokens, rel=1e-6)


def test_the_law_is_the_regression_of_log_losses():
    runs, _ = baselines(noise=0.01)
    law, expected = fit_law(runs), linregress(np.log([r.compute for r in runs]), np.log([r.loss for r in runs]))
    assert (law.beta, law.beta_error) == pytest.approx((-expected.slope, expected.stderr))
    assert law.alpha == pytest.approx(math.exp(expected.intercept))


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("penalty", [-0.15, 0.05, 0.38, 0.95])
def test_intervals_hold_the_true_exponent_and_penalty_as_often_as_they_say(penalty, size):
    """The run's loss is that of a baseline with less compute, or more; every run has noise of its own."""
    exponents, penalties = [], []
    for seed in range(400):
        runs, loss = baselines(noise=0.004, seed=seed)
        law = fit_law(runs)
        measured = compute_penalty(law, loss((1 - penalty) * runs[size].compute), runs[size])
        exponents.append(law.beta_low <= BETA <= law.beta_high)
        penalties.append(measured.low <= penalty <= measured.high)
    assert 0.92 <= np.mean(exponents) <= 0.98
    assert 0.92 <= np.mean(penalties) <= 0.98


def test_seeds_of_a_size_do_not_narrow_the_interval():
    """Sizes are off a law, each with all of its seeds, which tell nothing more of it."""
    inside = []
    for seed in range(400):
        runs, _ = baselines(noise=0.02, seed=seed)
        assert asdict(fit_law(3 * runs)) == pytest.approx(asdict(fit_law(runs)))
        random = np.random.default_rng(1000 + seed)
        seeds = [
            replace(run, tokens=run.tokens + i, loss=run.loss * math.exp(0.002 * random.normal()))
            for run in runs
            for i in range(3)
        ]
        law = fit_law(seeds)
        inside.append(law.beta_low <= BETA <= law.beta_high)
    assert law.n_sizes == len(PARAMETERS)
    assert 0.92 <= np.mean(inside) <= 0.98


def test_sizes_of_equal_compute_are_two_points():
    runs = [BaselineRun(10, 40, 3.0), BaselineRun(20, 20, 3.1), BaselineRun(20, 80, 2.5)]
    assert fit_law(runs).n_sizes == 3


def test_the_penalty_is_the_share_of_compute_that_the_loss_does_not_need():
    runs, loss = baselines()
    measured = compute_penalty(fit_law(runs), loss(0.3 * runs[3].compute), runs[3])
    assert measured.compute_penalty == pytest.approx(0.7)
    assert measured.equivalent_compute / measured.baseline_compute == pytest.approx(0.3)
    assert compute_penalty(fit_law(runs), loss(1.2 * runs[3].compute), runs[3]).compute_penalty == pytest.approx(-0.2)


@pytest.mark.parametrize("size", range(4))
def test_a_baseline_has_a_penalty_of_exactly_0_wherever_the_law_runs(size):
    runs, _ = baselines(noise=0.05)
    assert compute_penalty(fit_law(runs), runs[size].loss, runs[size]).compute_penalty == 0


def test_a_larger_standard_error_of_the_loss_gives_a_wider_interval():
    runs, _ = baselines(noise=0.004)
    exact, rough = (compute_penalty(fit_law(runs), 3.0, runs[3], loss_error=error) for error in (0.0, 0.1))
    assert rough.low < exact.low < exact.compute_penalty < exact.high < rough.high


def test_two_runs_give_a_law_and_a_penalty_without_an_interval():
    runs, _ = baselines(noise=0.01)
    law = fit_law(runs[:2])
    measured = compute_penalty(law, 4.0, runs[1])
    assert (law.beta_low, law.beta_high, measured.low, measured.high) == (None, None, None, None)
    assert measured.compute_penalty == pytest.approx(1 - law.equivalent_compute(4.0) / runs[1].compute)


def test_results_survive_json_however_flat_the_law_is():
    runs = [BaselineRun(n, n, 3.0 - i * 1e-6 + 1e-7 * (i % 2)) for i, n in enumerate(PARAMETERS)]
    law = fit_law(runs)
    for result in (law, compute_penalty(law, 1.0, runs[0]), compute_penalty(law, 9.0, runs[0], loss_error=1.0)):
        assert json.loads(json.dumps(asdict(result), allow_nan=False)) == asdict(result)


@pytest.mark.parametrize("degrees", [1, 2, 5, 30, 1000])
def test_t95_is_the_quantile_of_students_t(degrees):
    assert t95(degrees) == pytest.approx(student.ppf(0.975, degrees), rel=1e-4)


def test_what_gives_no_law_is_refused():
    runs, _ = baselines()
    for flat in (runs[:1] * 3, [BaselineRun(10, 40, 3.0), BaselineRun(20, 20, 3.1)]):
        with pytest.raises(ValueError, match="fewer than two sizes"):
            fit_law(flat)
    with pytest.raises(ValueError, match="does not fall with compute"):
        fit_law([replace(run, loss=3.0 + i) for i, run in enumerate(runs)])
    for bad in ({"loss": 0.0}, {"loss": math.nan}, {"loss": math.inf}, {"tokens": 0}, {"parameters": -1}):
        with pytest.raises(ValueError, match="finite and above 0"):
            replace(runs[0], **bad)
    for loss, error, sentence in ((-1.0, None, "no equivalent compute"), (3.0, math.nan, "no standard error")):
        with pytest.raises(ValueError, match=sentence):
            compute_penalty(fit_law(runs), loss, runs[0], loss_error=error)
