"""A run copied to where its data have never been can be sampled, ablated, and evaluated on other texts."""

import json
import shutil

import pytest

from excise.cli.main import main
from excise.data.stories import stories
from excise.files import sha256_of
from excise.train.run import RunDirectory
from tests.cli.test_main import TINY


def prepared(folder, tokenizer, split="train"):
    """Data with stories in both languages, made by the command."""
    rows = [
        {"text": text, "category": category}
        for story in stories(24, seed=0, split=split)
        for category, text in (("english", story.english), ("spanish", story.spanish))
    ]
    folder.mkdir()
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--tokenizer", tokenizer, "--test-share", "0.4", "--processes", "1"]
    assert main(["prepare", str(folder / "texts.jsonl"), "--out", str(folder / "data"), *options]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def travelled(tmp_path_factory):
    """A folder with a run, its unlearned copy and other texts; the data of the run and where it was trained are gone."""
    home, away = (tmp_path_factory.mktemp(name) for name in ("home", "away"))
    data, run = prepared(home / "own", "train:400"), home / "run"
    options = ["--data.source", str(data), *TINY[4:]]  # but for the numbers of stories
    assert main(["train", "demo", "--directory", str(run), *options]) == 0
    assert main(["unlearn", str(run), "--to", str(away / "unlearned"), "--steps", "0", "--batch-size", "2"]) == 0
    assert main(["evaluate", str(run)]) == 0
    shutil.copytree(run, away / "run")
    prepared(away / "other", str(away / "run" / "tokenizer.json"), split="test")
    shutil.rmtree(home)
    return away


@pytest.fixture
def there(travelled, monkeypatch):
    monkeypatch.chdir(travelled)
    return travelled


def test_the_tokenizer_that_a_run_keeps_is_the_one_it_was_trained_with(there):
    for run in ("run", "unlearned"):
        assert sha256_of(there / run / "tokenizer.json") == RunDirectory(there / run).digests().tokenizer_sha256


def test_a_travelled_run_samples_and_so_do_its_release_and_what_has_unlearned(there, tmp_path, capsys):
    assert main(["ablate", "run", "--to", str(tmp_path / "safe")]) == 0
    for run in ("run", "unlearned", str(tmp_path / "safe")):
        assert main(["sample", run, "--prompt", "hi", "--tokens", "3"]) == 0
        assert "hi" in capsys.readouterr().out


def test_a_travelled_run_is_evaluated_on_texts_prepared_with_its_tokenizer(there):
    assert main(["evaluate", "run", "--data", "other/data"]) == 0
    (elsewhere,) = there.glob("run/results-on-*.json")
    at_home, away = (
        json.loads(file.read_text())["measures"]["losses"] for file in (there / "run/results.json", elsewhere)
    )
    assert away["sets"]["spanish"]["n_tokens"] != at_home["sets"]["spanish"]["n_tokens"]
    assert away["forget_tokens"] == at_home["forget_tokens"], "which only its training data could tell"
    assert at_home["forget_tokens"]["spanish"]["labelled"] > 0


def test_without_its_data_a_run_says_how_to_evaluate_it_on_others(there, capsys):
    assert main(["evaluate", "run"]) == 2
    assert "put them there, or evaluate it on others: excise evaluate run --data FOLDER" in capsys.readouterr().err


def test_a_tokenizer_that_is_not_the_runs_own_is_refused(there, tmp_path, capsys):
    run = shutil.copytree(there / "run", tmp_path / "run")
    shutil.copyfile(RunDirectory(run).path / "epoch.json", run / "tokenizer.json")
    assert main(["sample", str(run), "--prompt", "hi"]) == 2
    assert "tokenizer.json is altered since step-2 was saved" in capsys.readouterr().err
