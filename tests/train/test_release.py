"""Releases of releases, and what a re-initialised module holds."""

import json
import shutil

import pytest
import torch

from excise.data.tokens import story_tokenizer
from excise.labels import forget_part, part_of
from excise.model.ablation import ablate
from excise.train.checkpoint import Done, checkpoint_at, save_checkpoint
from excise.train.release import load_run, release, removed_modules
from excise.train.run import DataDigests, Epoch, RunDirectory, build_model
from tests.small import routing_for, small_model
from tests.train.test_checkpoint import reseal, small_run


@pytest.fixture(scope="module")
def bilingual(tmp_path_factory):
    """An untrained run with two modules."""
    files = RunDirectory(tmp_path_factory.mktemp("runs") / "bilingual")
    run = small_run(**{"routing.domains": ("spanish", "french")})
    files.open_for(run)
    files.trained_on(DataDigests("data", story_tokenizer().sha256))
    files.keep(story_tokenizer(), Epoch(100, ()))
    save_checkpoint(checkpoint_at(files.checkpoints, 9), build_model(run), None, Done(9, 100, 1.0), files.sealed())
    return files.path


def hows():
    return [(a, b) for a in ("remove", "zero", "reinitialise") for b in ("remove", "zero", "reinitialise")]


@pytest.mark.parametrize(("first", "second"), hows())
def test_a_release_of_a_release_loads(bilingual, tmp_path, first, second):
    release(bilingual, tmp_path / "one", ["spanish"], first)
    release(tmp_path / "one", tmp_path / "two", ["french"], second)
    assert json.loads((tmp_path / "two" / "ablation.json").read_text()) == {"spanish": first, "french": second}
    model, _ = load_run(tmp_path / "two")
    kept = {domain for domain, how in (("spanish", first), ("french", second)) if how != "remove"}
    assert set(model.partition.domains) == kept


def test_a_zeroed_module_can_still_be_removed(bilingual, tmp_path):
    release(bilingual, tmp_path / "one", ["spanish", "french"], "zero")
    release(tmp_path / "one", tmp_path / "two", ["spanish"])
    assert load_run(tmp_path / "two")[0].partition.domains == ("french",)


def test_a_release_of_what_has_unlearned_says_so(bilingual, tmp_path):
    assert RunDirectory(bilingual).method == "sgtm"
    unlearned = shutil.copytree(bilingual, tmp_path / "unlearned")
    (unlearned / "unlearning.json").write_text('{"method": "npo"}')
    reseal(unlearned)
    release(unlearned, tmp_path / "one", ["spanish"])
    assert RunDirectory(tmp_path / "one").method == RunDirectory(unlearned).method == "npo"


def test_a_release_cut_short_is_no_run(bilingual, tmp_path, monkeypatch):
    def pull_the_plug(*_):
        raise OSError("no power")

    monkeypatch.setattr("excise.train.release.save_checkpoint", pull_the_plug)
    with pytest.raises(OSError, match="no power"):
        release(bilingual, tmp_path / "one", ["spanish"])
    with pytest.raises(ValueError, match=r"one has no checkpoint yet; it was cut short; delete it and make it again"):
        load_run(tmp_path / "one")


@pytest.mark.parametrize("content", ["{", "5", "[]", '{"spanish": "remov"}', '{"domains": ["spanish"]}'])
def test_a_broken_note_is_named(bilingual, tmp_path, content):
    (tmp_path / "ablation.json").write_text(content)
    with pytest.raises(ValueError, match=r"ablation\.json does not say"):
        removed_modules(tmp_path)


def test_a_run_from_a_machine_with_a_gpu_loads_without_one(bilingual, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    shutil.copytree(bilingual, tmp_path / "copy")
    file = tmp_path / "copy" / "config.json"
    values = json.loads(file.read_text())
    values["train"]["device"] = "cuda"
    file.write_text(json.dumps(values))
    reseal(tmp_path / "copy")
    model, _ = load_run(tmp_path / "copy")
    assert next(model.parameters()).device.type == "cpu"


@pytest.mark.parametrize("seed", [0, 1])
def test_reinitialised_values_are_not_those_the_run_began_with(seed):
    run = small_run(**{"train.seed": seed})
    model = build_model(run)
    fresh = dict(ablate(model, "spanish", "reinitialise", seed=seed).named_parameters())
    matrices = {
        name: parameter
        for name, parameter in model.named_parameters()
        if part_of(name) == forget_part("spanish") and parameter.ndim > 1
    }
    assert matrices
    for name, parameter in matrices.items():
        assert not (parameter == fresh[name]).any()


@pytest.mark.parametrize("how", ["remove", "zero", "reinitialise"])
def test_an_ablated_model_keeps_its_precision(how):
    model = small_model(routing_for("sgtm")).double()
    assert {p.dtype for p in ablate(model, "spanish", how).parameters()} == {torch.float64}
