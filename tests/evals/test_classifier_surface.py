"""The surface of differences against one that is bilinear by construction, and its picture."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from excise.data.thresholds import Roc, roc
from excise.evals.classifier_surface import LabelledPair, along_roc, classifier_surface, roc_of
from excise.report.surface_plot import save_surface, surface_figure

RECALLS, RATES = (0.2, 0.5, 0.9, 1.0), (0.0, 0.1, 0.6)


def retain(recall, rate):
    return 0.3 * recall - 0.2 * rate - 0.4 * recall * rate


def forget(recall, rate):
    return 1 - recall + 2 * recall * rate


def pair(recall, rate, noise=0.0):
    return LabelledPair(recall, rate, 4 + retain(recall, rate) + noise, 6 + forget(recall, rate) - noise, 4.0, 6.0)


PAIRS = [pair(recall, rate) for recall in RECALLS for rate in RATES]
SURFACE = classifier_surface(PAIRS)
ROC = Roc(0.9, (1.0, 0.8, 0.5, 0.2, 0.0), (0.0, 0.0, 0.05, 0.4, 1.0), (0.0, 0.3, 0.7, 0.95, 1.0))


def test_differences_are_those_of_sgtm_minus_the_filter_at_each_point():
    for i, recall in enumerate(RECALLS):
        for j, rate in enumerate(RATES):
            assert SURFACE.retain[i][j] == pytest.approx(retain(recall, rate))
            assert SURFACE.forget[i][j] == pytest.approx(forget(recall, rate))


def test_seeds_at_the_same_point_are_averaged_and_their_order_is_of_no_matter():
    noisy = [pair(p.recall, p.false_positive_rate, noise) for p in reversed(PAIRS) for noise in (0.5, -0.5)]
    np.testing.assert_allclose(classifier_surface(noisy).retain, SURFACE.retain)
    np.testing.assert_allclose(classifier_surface(noisy).forget, SURFACE.forget)


def test_between_the_points_the_surface_is_bilinear():
    random = np.random.default_rng(0)
    recall, rate = random.uniform(0.2, 1, 100), random.uniform(0, 0.6, 100)
    rough = replace(SURFACE, forget=random.normal(size=(4, 3)).tolist())
    expected = RegularGridInterpolator((RECALLS, RATES), rough.forget)(np.stack([recall, rate], 1))
    np.testing.assert_allclose(rough.at(recall, rate)[0], retain(recall, rate))
    np.testing.assert_allclose(rough.at(recall, rate)[1], expected)


def test_a_roc_curve_gets_the_differences_at_its_thresholds_and_a_flag_outside_the_grid():
    points = along_roc(SURFACE, ROC)
    assert [point.threshold for point in points] == [1.0, 0.8, 0.5, 0.2, 0.0]
    assert [point.outside for point in points] == [True, False, False, False, True]
    for point in points[1:-1]:
        assert point.retain == pytest.approx(retain(point.recall, point.false_positive_rate))
        assert point.forget == pytest.approx(forget(point.recall, point.false_positive_rate))
    assert points[-1].forget == pytest.approx(forget(1.0, 0.6)), "the nearest point of the grid"


def test_the_roc_curve_in_the_report_of_the_labels_is_read():
    curve = roc(np.array([0.9, 0.8, 0.3, 0.1]), np.array([1.0, 0.0, 1.0, 0.0]))
    report = json.loads(json.dumps({"documents": {"held_out": {"roc": asdict(curve)}}}))
    assert roc_of(report) == curve
    with pytest.raises(ValueError, match="no ROC curve"):
        roc_of({"documents": {"held_out": None}})


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (PAIRS[:-1], "no full grid"),
        (PAIRS[:3], "no full grid"),
        ([], "no full grid"),
        ([*PAIRS, pair(1.5, 0.1)], "from 0 to 1"),
        ([*PAIRS, pair(0.5, 0.1, math.nan)], "finite"),
    ],
)
def test_runs_that_are_no_grid_are_refused(pairs, sentence):
    with pytest.raises(ValueError, match=sentence):
        classifier_surface(pairs)


def test_a_roc_curve_that_misses_the_grid_is_refused():
    with pytest.raises(ValueError, match="no point of the ROC curve is on the grid"):
        along_roc(SURFACE, Roc(0.5, (1.0, 0.0), (0.0, 1.0), (0.0, 1.0)))


def test_the_picture_shows_both_differences_around_0_and_the_curve_over_them(tmp_path):
    results = json.loads(json.dumps([asdict(SURFACE), [asdict(p) for p in along_roc(SURFACE, ROC)]], allow_nan=False))
    panels = [axes for axes in surface_figure(*results).axes if axes.images]
    for axes, values in zip(panels, (SURFACE.retain, SURFACE.forget), strict=True):
        assert axes.images[0].get_clim() == pytest.approx((-np.abs(values).max(), np.abs(values).max()))
        curve = {line.get_label(): line for line in axes.lines}["ROC"]
        assert (tuple(curve.get_xdata()), tuple(curve.get_ydata())) == (ROC.false_positive_rate, ROC.recall)
    for name in ("first.png", "second.png"):
        save_surface(results[0], tmp_path / name, results[1])
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
