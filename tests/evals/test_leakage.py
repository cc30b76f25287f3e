"""Leakage against runs whose leakage is known by construction."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from excise.evals.leakage import LeakagePoint, baseline_curve, leakage

CURVE = baseline_curve([LeakagePoint(0, 8.0), LeakagePoint(100, 6.0), LeakagePoint(300, 5.0)])
NOISY = baseline_curve([LeakagePoint(t, 8 - t / 100 + 0.1 * s, s) for t in (0, 100, 300) for s in (-1, 1)])


@pytest.mark.parametrize(("loss", "tokens"), [(8.0, 0), (7.0, 50), (6.0, 100), (5.5, 200), (5.0, 300)])
def test_leakage_is_read_off_the_curve_between_its_two_nearest_points(loss, tokens):
    measured = leakage(CURVE, loss, 400)
    assert (measured.leakage, measured.equivalent_tokens) == (tokens / 400, tokens)
    assert (measured.censored, measured.lower_bound) == (False, False)


def law(tokens):
    return 4 + 4.5 * (1 + tokens / 5e4) ** -0.4


def deviation(tokens):
    """Between seeds: large where the domain was never seen."""
    return 0.02 + 0.13 * math.exp(-tokens / 2e4)


@pytest.mark.parametrize("n_seeds", [1, 2, 3])
@pytest.mark.parametrize("undiscovered", [55_000, 110_000])
def test_leakage_of_a_data_filter_is_1_within_its_interval(n_seeds, undiscovered):
    """A filter run is a standard run on its undiscovered tokens; its seed and share are none of the curve's."""
    grid = [0, *np.geomspace(2e4, 4e5, 16).astype(int).tolist()]
    found = []
    for repetition in range(120):
        random = np.random.default_rng([repetition, n_seeds, undiscovered])
        runs = [LeakagePoint(t, law(t) + deviation(t) * random.normal(), seed) for t in grid for seed in range(n_seeds)]
        curve = baseline_curve(runs, seed_deviation=deviation(undiscovered) if n_seeds == 1 else None)
        loss = law(undiscovered) + deviation(undiscovered) * random.normal()
        found.append(leakage(curve, loss, undiscovered, n_draws=200))
    covered = [one.low <= 1 <= (one.high or math.inf) for one in found]
    assert 0.89 <= np.mean(covered)
    assert np.mean([one.leakage for one in found]) == pytest.approx(1, abs=0.02)
    assert np.mean([(one.high or math.inf) - one.low for one in found]) < 0.5


def test_a_loss_above_the_zero_token_loss_is_censored_at_0():
    measured = leakage(NOISY, 9.0, 200)
    assert (measured.leakage, measured.low, measured.censored) == (0, 0, True)


def test_before_the_first_point_of_the_curve_a_leakage_is_an_upper_bound():
    assert [leakage(CURVE, loss, 400).upper_bound for loss in (9.0, 8.0, 7.0, 6.0, 5.5)] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_a_loss_below_the_curve_is_a_lower_bound_without_upper_end():
    measured = leakage(NOISY, 4.0, 200)
    assert (measured.leakage, measured.high, measured.lower_bound) == (1.5, None, True)
    assert leakage(NOISY, 6.0, 200).high is not None


def test_a_curve_that_rises_somewhere_is_made_to_fall():
    losses, n_seeds = [8.0, 6.0, 6.5, 6.6, 5.0, 5.2], [1, 3, 1, 2, 1, 1]
    points = [LeakagePoint(i, loss, seed) for i, loss in enumerate(losses) for seed in range(n_seeds[i])]
    curve = baseline_curve(points)
    assert (curve.pooled, CURVE.pooled) == (True, False)
    np.testing.assert_allclose(curve.loss, isotonic_regression(losses, weights=n_seeds, increasing=False).x)


def test_the_interval_says_what_it_counts():
    neither, documents = (leakage(CURVE, 7.0, 200, loss_error=error) for error in (0, 0.1))
    seeds, both = (leakage(NOISY, 7.0, 200, loss_error=error) for error in (0, 0.2))
    assert [one.counts_seeds for one in (neither, documents, seeds, both)] == [False, False, True, True]
    assert (neither.low, neither.high) == (None, None)
    half = 1.96 * 0.1 * 50 / 200
    assert (documents.low, documents.high) == pytest.approx((0.25 - half, 0.25 + half), abs=0.005)
    assert both.low < seeds.low < seeds.leakage < seeds.high < both.high


def test_the_deviation_between_seeds_is_that_of_a_point_and_its_neighbours():
    runs = {0: (8.0, 9.0), 1: (7.0,), 2: (6.0, 6.2, 6.4), 3: (5.0,), 4: (4.0,), 5: (3.0,)}
    curve = baseline_curve([LeakagePoint(t, loss, seed) for t in runs for seed, loss in enumerate(runs[t])])
    np.testing.assert_allclose(np.square(curve.deviation) * curve.degrees, [0.5, 0.58, 0.08, 0.08, 0.58, 0.58])
    assert curve.degrees == [1, 3, 2, 2, 3, 3]


def test_results_survive_json_and_are_the_same_again():
    first, second = (json.dumps([asdict(leakage(NOISY, 6.0, 200)), asdict(NOISY)], allow_nan=False) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("loss", "tokens"), [(6.0, 0), (math.nan, 100), (math.inf, 100)])
def test_leakage_needs_undiscovered_tokens_and_a_finite_loss(loss, tokens):
    with pytest.raises(ValueError, match=f"not defined for {tokens} undiscovered tokens"):
        leakage(CURVE, loss, tokens)


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        ([(0, 8.0, 0)], "0, some above"),
        ([(1, 8.0, 0), (2, 7.0, 0)], "0, some above"),
        ([(0, 8.0, 0), (1, 7.0, 0), (1, 7.0, 0)], "each seed once"),
        ([(0, 8.0, 0), (1, 9.0, 0)], "do not fall"),
        ([(0, 8.0, 0), (1, math.nan, 0)], "do not fall"),
    ],
)
def test_runs_that_are_no_curve_are_refused(points, sentence):
    with pytest.raises(ValueError, match=sentence):
        baseline_curve([LeakagePoint(*point) for point in points])
