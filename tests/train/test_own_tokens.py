"""Runs whose modules have vectors for some tokens."""

import shutil

import pytest
import torch

from excise.data.dataset import load_data
from excise.model.ablation import ablate
from excise.train import loop
from excise.train.loop import train
from excise.train.release import load_run, release
from excise.train.run import RunDirectory
from tests.train.test_checkpoint import PlugPulledError, small_run, stop_after

RUN = small_run(**{"routing.forget_tokens": 0.7, "batch.label_mixing": "rows"})
MODULE = "tokens.weight.forget/spanish"


@pytest.fixture(scope="module")
def data():
    return load_data(RUN.data, RUN.routing.domains)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("own")
    train(RUN, data, directory)
    return directory


def test_a_run_notes_its_tokens_and_loads_with_them(finished, data):
    (tokens,) = RunDirectory(finished).own_tokens().values()
    words = [data.tokenizer.decode([token]) for token in tokens]
    assert len(tokens) >= 8
    assert " que" in words
    assert " the" not in words
    model, _ = load_run(finished)
    assert len(dict(model.named_parameters())[MODULE]) == len(tokens)


def test_an_interrupted_run_ends_as_an_uninterrupted_one_bit_for_bit(finished, data, tmp_path):
    with pytest.raises(PlugPulledError):
        train(RUN, data, tmp_path, [stop_after(5)])
    resumed = dict(train(RUN, data, tmp_path).named_parameters())
    for name, parameter in load_run(finished)[0].named_parameters():
        assert torch.equal(parameter, resumed[name]), name


@pytest.mark.parametrize("how", ["remove", "zero", "reinitialise"])
def test_a_release_computes_as_the_ablated_model(finished, tmp_path, how):
    checkpoint = release(finished, tmp_path / "safe", ["spanish"], how)
    assert (how == "remove") == (not any("spanish" in path.name for path in checkpoint.iterdir()))
    assert (how == "remove") == ("spanish" not in RunDirectory(tmp_path / "safe").own_tokens())
    tokens = torch.tensor([[5, 300, *RunDirectory(finished).own_tokens()["spanish"][:8]]])
    expected = ablate(load_run(finished)[0], "spanish")(tokens)
    torch.testing.assert_close(load_run(tmp_path / "safe")[0](tokens), expected)


def test_a_run_without_modules_has_no_token_vectors(data, tmp_path):
    run = small_run(**{"routing.forget_tokens": 0.8, "routing.rule": "none"})
    model = train(run, data, tmp_path)
    assert not RunDirectory(tmp_path).tokens_file.exists()
    assert list(model.tokens.weight) == ["joint"]


def test_a_share_that_no_token_reaches_gives_vectors_for_none(data, tmp_path, caplog):
    run = small_run(**{"routing.forget_tokens": 0.9999, "train.budget.amount": 2})
    train(run, data, tmp_path)
    assert "the module of spanish has vectors for no token" in caplog.text
    assert RunDirectory(tmp_path).own_tokens() == {}
    assert list(load_run(tmp_path)[0].tokens.weight) == ["joint"]


def test_a_run_goes_on_with_the_tokens_that_it_has_noted(data, tmp_path, monkeypatch):
    with pytest.raises(PlugPulledError):
        train(RUN, data, tmp_path, [stop_after(5)])
    noted = RunDirectory(tmp_path).own_tokens()
    monkeypatch.setattr(loop, "own_tokens", lambda *_: {"spanish": [*range(16)]})
    train(RUN, data, tmp_path)
    assert RunDirectory(tmp_path).own_tokens() == noted


@pytest.mark.parametrize("content", [None, "[1"])
def test_a_run_without_its_note_is_told(finished, tmp_path, content):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "tokens.json").unlink()
    if content:
        (copy / "tokens.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokens\.json is (missing|altered) since step-9 was saved"):
        load_run(copy)
