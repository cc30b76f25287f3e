"""A run that goes on from a shorter one is the longer run."""

import pytest
import torch

from excise.data.dataset import load_data
from excise.train.checkpoint import saved_steps
from excise.train.loop import train
from excise.train.run import RunDirectory
from tests.train.test_checkpoint import PlugPulledError, small_run, stop_after, without_times


@pytest.fixture(scope="module")
def data():
    return load_data(small_run().data, ("spanish",))


def run_of(n_steps, **changes):
    return small_run(**{"train.schedule": "constant", "train.budget.amount": n_steps, **changes})


@pytest.mark.parametrize(
    ("changes", "common"),
    [({}, 6), ({"train.schedule": "warmup_stable_decay", "train.decay_steps": 2, "train.keep_checkpoints": True}, 3)],
)
def test_a_longer_run_that_begins_as_a_shorter_one_is_the_longer_one_bit_for_bit(tmp_path, data, changes, common):
    whole = train(run_of(9, **changes), data, tmp_path / "whole")
    train(run_of(6, **changes), data, tmp_path / "short")
    with pytest.raises(PlugPulledError):
        train(run_of(9, **changes), data, tmp_path / "long", [stop_after(7)], continue_from=tmp_path / "short")
    assert saved_steps(tmp_path / "long" / "checkpoints")[0] == common
    longer = train(run_of(9, **changes), data, tmp_path / "long", continue_from=tmp_path / "short")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), longer.parameters(), strict=True))
    records = [without_times(RunDirectory(tmp_path / name).metrics()) for name in ("whole", "long")]
    assert records[0] == records[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train.schedule": "cosine", "train.checkpoint_every": 0},
            "no checkpoint of .*short is of the rates that a run of 9 steps has",
        ),
        ({"train.warmup_steps": 0.5}, r"train\.warmup_steps as a number of steps"),
        (
            {"train.learning_rate": 0.1},
            r"short differs in train\.learning_rate; a run goes on from one that differs in",
        ),
    ],
)
def test_a_run_that_is_no_beginning_of_the_longer_one_is_refused(tmp_path, data, changes, message):
    common = {} if "train.learning_rate" in changes else changes
    train(run_of(6, **common), data, tmp_path / "short")
    with pytest.raises(ValueError, match=message):
        train(run_of(9, **changes), data, tmp_path / "long", continue_from=tmp_path / "short")


def test_a_beginning_that_was_cut_short_is_made_again(tmp_path, data, monkeypatch):
    whole = train(run_of(9), data, tmp_path / "whole")
    train(run_of(6), data, tmp_path / "short")
    with monkeypatch.context() as patched:
        patched.setattr("excise.train.checkpoint.seal", lambda *_: (_ for _ in ()).throw(PlugPulledError))
        with pytest.raises(PlugPulledError):
            train(run_of(9), data, tmp_path / "long", continue_from=tmp_path / "short")
    longer = train(run_of(9), data, tmp_path / "long", continue_from=tmp_path / "short")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), longer.parameters(), strict=True))
    steps = [record["step"] for record in RunDirectory(tmp_path / "long").metrics()]
    assert steps == list(range(1, 10))
