"""Losses followed while a model trains, at the context it trains with."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from excise.data.dataset import load_data
from excise.data.packing import Corpus
from excise.data.tokenised import Column
from excise.evals.losses import STAGES, AblationLosses, DocumentLosses, batches_of, evaluate
from excise.evals.measures import measure_tradeoff
from excise.evals.options import MeasureOptions
from excise.evals.run import evaluate_run, open_run
from excise.evals.tradeoff import Tradeoff, equal_lines, recorded, tradeoff_curve
from excise.train.loop import train
from excise.train.run import RunDirectory, build_model
from tests.train.test_checkpoint import small_run

CHANGES = {"model.context": 128, "batch.context": 32, "train.evaluations": 3}


@pytest.fixture(scope="module")
def run():
    return small_run(**CHANGES)


@pytest.fixture(scope="module")
def data(run):
    return load_data(run.data, run.routing.domains)


@pytest.mark.parametrize(("at_end", "steps"), [(True, [3, 6, 9]), (False, [3, 6])])
def test_losses_are_recorded_at_equal_intervals(tmp_path, run, data, at_end, steps):
    seen = []
    listeners = [Tradeoff(run, data, at_end=at_end), lambda progress: seen.append(progress.metrics)]
    train(run, data, tmp_path / "run", listeners)
    records = [record for record in RunDirectory(tmp_path / "run").metrics() if "losses" in record]
    assert [record["step"] for record in records] == steps
    assert [metrics["step"] for metrics in seen if "losses" in metrics] == steps, "those after it see them"
    results = evaluate_run(tmp_path / "run", data)
    end = measure_tradeoff(open_run(tmp_path / "run", data), MeasureOptions())[-1]
    for followed, found in (
        (end.losses, results.losses.sets),
        (end.category_means, results.losses.category_means),
    ):
        assert set(followed) == set(found)
        for name, losses in followed.items():
            assert asdict(losses) == pytest.approx({stage: getattr(found[name], stage) for stage in STAGES})


def test_a_set_of_several_categories_has_a_mean_over_its_tokens_and_one_over_them():
    categories = Column(("essays", "notes"), np.array([0, 1, 1]))
    corpus = replace(Corpus.of([[1] * 101, [2] * 11, [3] * 11], [1] * 3), categories=categories)
    losses = DocumentLosses(np.array([[400.0] * 3, [20.0] * 3, [40.0] * 3]), np.array([100, 10, 10]))
    found = recorded({"retain": corpus}, {"retain": losses})
    assert found["losses"]["retain"] == dict.fromkeys(STAGES, 460 / 120)
    assert found["category_means"]["retain"] == dict.fromkeys(STAGES, (4.0 + 3.0) / 2)
    assert "retain" not in recorded({"retain": Corpus.of([[1] * 101], [1])}, {"retain": losses})["category_means"]


def test_losses_are_measured_at_the_context_of_training(tmp_path, run, data):
    model = train(run, data, tmp_path / "run")
    results = evaluate_run(tmp_path / "run", data)
    short, long = (evaluate(model, data.test["retain"], context=context).mean for context in (32, 128))
    assert results.losses.sets["retain"].before == pytest.approx(short)
    assert abs(short - long) > 1e-4


def test_the_context_is_the_models_where_none_is_given(run, data):
    model = build_model(run)
    assert next(batches_of(model, data.test["retain"])).tokens.shape[-1] == 128
    assert next(batches_of(model, data.test["retain"], 32)).tokens.shape[-1] == 32


def point(step, retain, forget):
    losses = {"retain": AblationLosses(0.0, 0.0, retain), "forget": AblationLosses(0.0, 0.0, forget)}
    recorded = {name: asdict(of) for name, of in losses.items()}
    return {"step": step, "tokens": 100 * step, "losses": recorded, "category_means": recorded}


def test_lines_of_equal_compute_join_runs_where_they_have_had_as_much():
    short = tradeoff_curve([point(1, 6.0, 9.0), point(2, 5.0, 8.0)], parameters=10)
    long = tradeoff_curve([{"step": 1}, point(1, 7.0, 9.5), point(4, 4.0, 6.5)], parameters=10)
    assert [at.compute for at in long] == [6000.0, 24000.0]
    assert [at.share for at in long] == [0.25, 1.0]
    lines = equal_lines({"short": short, "long": long})
    assert lines[1] == {"short": {"retain": 5.0, "forget": 8.0}, "long": {"retain": 6.0, "forget": 8.5}}
    late = tradeoff_curve([point(2, 6.0, 9.0), point(4, 4.0, 6.5)], parameters=10)
    assert len(equal_lines({"short": short, "late": late})) == 1, (
        "before a run was followed there is nothing to compare"
    )
    half, end = equal_lines({"short": short, "long": long}, by="share")
    assert end == {"short": {"retain": 5.0, "forget": 8.0}, "long": {"retain": 4.0, "forget": 6.5}}
    assert half["long"]["retain"] == pytest.approx(7 - 3 * (0.5 - 0.25) / 0.75)


def test_a_run_that_recorded_no_means_over_categories_has_a_curve_without_them():
    old = {name: value for name, value in point(1, 6.0, 9.0).items() if name != "category_means"}
    (only,) = tradeoff_curve([old], parameters=10)
    assert (only.losses["retain"].calibrated, only.category_means) == (6.0, {})


def test_a_run_that_was_not_followed_has_no_curve():
    with pytest.raises(ValueError, match="no losses among its metrics"):
        tradeoff_curve([{"step": 1, "tokens": 5}], parameters=10)
