"""Whole runs on a GPU: compiled, recorded and read ahead, they learn what plain ones learn and resume bit for bit."""

import pytest
import torch

from excise.data.dataset import load_data
from excise.train.loop import train
from excise.train.run import RunDirectory
from tests.train.test_checkpoint import PlugPulledError, small_run, stop_after

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # What torch and its compiler warn of differs from version to version; such a warning, as an error, would end compilation.
    pytest.mark.filterwarnings("ignore:::torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def fast_run(label_mixing, **changes):
    options = {"batch.label_mixing": label_mixing, "train.precision": "bfloat16", "train.compile": "on"}
    return small_run(**{**options, **changes})


@pytest.mark.parametrize("label_mixing", ["rows", "micro_batches"])
def test_a_compiled_run_learns_what_a_plain_one_does(tmp_path, label_mixing):
    fast = fast_run(label_mixing)
    data = load_data(fast.data, fast.routing.domains)
    train(fast, data, tmp_path / "fast")
    train(fast_run(label_mixing, **{"train.compile": "off"}), data, tmp_path / "plain")
    losses = [[record["loss"] for record in RunDirectory(tmp_path / name).metrics()] for name in ("fast", "plain")]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "bfloat16_stream"])
def test_an_interrupted_compiled_run_ends_as_an_uninterrupted_one(tmp_path, precision):
    run = fast_run("rows", **{"train.precision": precision})
    data = load_data(run.data, run.routing.domains)
    whole = train(run, data, tmp_path / "whole")
    with pytest.raises(PlugPulledError):
        train(run, data, tmp_path / "broken", [stop_after(5)])
    resumed = train(run, data, tmp_path / "broken")
    for (name, a), b in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(a, b[1]), name
