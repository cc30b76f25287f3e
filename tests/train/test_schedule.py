"""Budgets and the learning rate."""

import math

import pytest

from excise.data.loader import BatchConfig, Loader
from excise.data.packing import Corpus
from excise.train.run import TrainConfig
from excise.train.schedule import Budget, epochs, is_evaluation, steps, tokens


@pytest.fixture
def loader():
    documents = [[1] * 11 for _ in range(40)]  # ten pairs each
    config = BatchConfig(context=10, rows_per_step=4, rows_per_micro_batch=4)
    return Loader(Corpus.of(documents, [0] * 40), config, seed=0)


def test_budgets_in_epochs_steps_and_tokens_agree(loader):
    assert loader.steps_per_epoch == 10
    assert loader.tokens_per_epoch == 400
    assert epochs(2).n_steps(loader) == steps(20).n_steps(loader) == tokens(800).n_steps(loader) == 20
    assert epochs(0.25).n_steps(loader) == 3
    assert tokens(401).n_steps(loader) == 11


def test_no_budget_is_an_error():
    with pytest.raises(ValueError, match="is no training"):
        Budget(unit="steps", amount=0)


def scheduled(schedule, n_steps, warmup_steps=4, decay_steps=0.2, length=None):
    """The rates of so many steps of a run, which are all of it unless it is longer or shorter."""
    decay = {"decay_steps": decay_steps} if schedule == "warmup_stable_decay" else {}
    config = TrainConfig(learning_rate=2.0, warmup_steps=warmup_steps, schedule=schedule, **decay)
    return [config.rate_at(step, length or n_steps) for step in range(n_steps)]


def test_rate_warms_up_to_its_peak_and_falls_to_zero():
    rates = scheduled("cosine", 101, 10, length=100)
    assert rates[0] == 0.2
    assert rates[9] == rates[10] == max(rates) == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0, abs=1e-12)
    assert all(math.isfinite(rate) for rate in rates)


def test_a_warm_up_below_1_is_a_share_of_the_run():
    def rates(n_steps: int, warmup_steps: float) -> list[float]:
        return scheduled("cosine", n_steps, warmup_steps)

    assert rates(100, 0.25) == rates(100, 25)
    assert rates(10, 0.25) == rates(10, 2)
    assert max(rates(7, 0.5)) == 2.0, "3.5 steps would end below or above the peak"


def test_a_constant_rate_stays_at_its_peak_and_a_decay_falls_evenly_to_zero():
    assert scheduled("constant", 8) == [0.5, 1.0, 1.5, 2.0, *[2.0] * 4]
    assert scheduled("warmup_stable_decay", 10, decay_steps=3) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5]
    assert scheduled("warmup_stable_decay", 10, decay_steps=0.3) == scheduled("warmup_stable_decay", 10, decay_steps=3)


def test_until_its_decay_a_run_goes_as_a_longer_one_does():
    for schedule in ("constant", "warmup_stable_decay"):
        assert scheduled(schedule, 40, decay_steps=10)[:30] == scheduled(schedule, 1000, decay_steps=10)[:30]
    assert scheduled("cosine", 40)[:30] != scheduled("cosine", 1000)[:30]


@pytest.mark.parametrize("warmup_steps", [0, 0.5, 0.999, 1])
@pytest.mark.parametrize("schedule", ["cosine", "constant", "warmup_stable_decay"])
@pytest.mark.parametrize("n_steps", [1, 2, 3])
def test_the_shortest_runs_have_rates_up_to_the_peak(n_steps, schedule, warmup_steps):
    rates = scheduled(schedule, n_steps, warmup_steps)
    assert all(0 < rate <= 2.0 for rate in rates)


def test_evaluations_divide_a_run_into_equal_shares():
    assert [step for step in range(1, 11) if is_evaluation(step, 10, 4)] == [2, 5, 8, 10]
    assert not any(is_evaluation(step, 10, 0) for step in range(1, 11))
