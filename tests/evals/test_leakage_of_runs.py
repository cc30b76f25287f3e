"""Leakage from trained models: a data filter leaks everything that it did not discover, SGTM little."""

import pytest

from excise.config import override
from excise.data.dataset import load_data
from excise.evals.measures import MEASURES
from excise.evals.options import MeasureOptions
from excise.evals.run import evaluate_run, open_run
from excise.recipes.demo import demo_run
from excise.train.loop import train

SHARES, SEEDS = (0.0, 0.05, 0.1, 0.2, 0.35), (0, 1, 2)


def trained(folder, share, seed, **changes):
    """A run of the demo's size, trained and evaluated."""
    directory = folder / f"{'-'.join(map(str, changes.values()))}-{share}-{seed}"
    fixed = {"data.undiscovered_share": share, "train.seed": seed, "train.evaluations": 0}
    run = override(demo_run(), fixed | changes)
    data = load_data(run.data, run.routing.domains)
    train(run, data, directory)
    evaluate_run(directory, data)
    return directory


@pytest.mark.stress
def test_a_filter_with_another_seed_and_share_leaks_all_and_sgtm_a_little(tmp_path):
    plain = {
        "routing.rule": "none",
        "routing.forget_weight": 1.0,
        "routing.forget_tokens": 0.0,
        "data.filter": "weak",
    }
    curve = tuple(trained(tmp_path, share, seed, **plain) for share in SHARES for seed in SEEDS)

    def leakage(run):
        return MEASURES["leakage"](open_run(run), MeasureOptions(baselines=curve)).domains["spanish"]

    for share, seed in ((0.15, 7), (0.25, 8)):
        found = leakage(trained(tmp_path, share, seed, **plain))
        assert found.counts_seeds
        assert found.low <= 1 <= (found.high or 1), found
        assert 0.7 < found.leakage < 1.4
    assert leakage(trained(tmp_path, 0.15, 7)).leakage < 0.3
