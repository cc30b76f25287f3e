"""The command line: help at once, bad input in one sentence with exit code 2 and nothing half-written."""

import subprocess
import sys
import time

import pytest

from excise.cli.main import COMMANDS, main

TINY = [
    "--data.n-stories",
    "8",
    "--data.n-test-stories",
    "8",
    "--model.d-model",
    "16",
    "--model.d-mlp",
    "32",
    "--routing.forget-units",
    "8",
    "--train.budget.unit",
    "steps",
    "--train.budget.amount",
    "2",
    "--train.evaluations",
    "1",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "demo", "--directory", str(directory), *TINY]) == 0
    return directory


def test_help_does_not_wait_for_torch():
    code = "import sys; from excise.cli.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    start = time.perf_counter()
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).returncode == 0
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    try:
        code = main([command, "--help"])
    except SystemExit as exit:
        code = exit.code
    assert code == 0
    assert "excise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "dmo"], "unknown recipe 'dmo'; did you mean 'demo'?"),
        (["train", "demo", "--routing.rul", "sgtm"], "did you mean --routing.rule?"),
        (["train", "demo", "--routing.rule", "sgmt"], "unknown rule 'sgmt'; did you mean 'sgtm'?"),
        (["train", "demo", "--routing.forget-units", "384"], "set routing.forget_units to at most 383"),
        (["train", "demo", "--routing.forget-heads", "99"], "set routing.forget_heads to at most"),
        (["train", "demo", "--routing.domains", "french"], "domain 'french' is never seen in the training data"),
        (["train", "demo", "--batch.context", "512"], "set it to at most model.context=256"),
        (["train", "demo", "--data.n-stories", "0"], "leaves that split empty"),
        (["train", "demo", "--data.source", "nowhere"], "there is no train.jsonl or train.jsonl.gz in nowhere"),
        (["train", "demo", "--train.learning-rate", "fast"], "could not convert string to float: 'fast'"),
        (["train", "demo", "--data.tokenizer", "nowhere.json"], "nowhere.json"),
        (["evaluate", "nowhere"], "there is no config.json in nowhere"),
        (["sample", "nowhere", "--prompt", "a"], "there is no config.json in nowhere"),
        (["ablate", "nowhere", "--to", "elsewhere"], "there is no config.json in nowhere"),
        (["ablate"], "required"),
        (["demo", "--sed", "1"], "did you mean --seed?"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_directory_of_another_configuration_is_refused(trained, capsys):
    assert main(["train", "demo", "--directory", str(trained), *TINY, "--train.learning-rate", "0.5"]) == 2
    assert "train.learning_rate is 0.003 there and 0.5 here" in capsys.readouterr().err


def test_an_unknown_label_names_its_line(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text('{"text": "a b", "category": "spanish", "label": "spansh"}\n')
    categories = ("english", "spanish") * 4
    (tmp_path / "test.jsonl").write_text("".join(f'{{"text": "a b", "category": "{c}"}}\n' for c in categories))
    args = ["train", "demo", "--data.source", str(tmp_path), "--data.labels", "given"]
    assert main([*args, "--directory", str(tmp_path / "run")]) == 2
    assert "train.jsonl:1: unknown label 'spansh'; did you mean 'spanish'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_named(trained, tmp_path, capsys):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    next(copy.glob("checkpoints/*/retain.safetensors")).write_bytes(b"")
    assert main(["sample", str(copy), "--prompt", "Un día"]) == 2
    assert "retain.safetensors is not the file that its manifest lists" in capsys.readouterr().err


def test_from_training_to_a_safe_model(trained, tmp_path, capsys):
    assert main(["evaluate", str(trained)]) == 0
    assert main(["ablate", str(trained), "--to", str(tmp_path / "safe")]) == 0
    assert not list((tmp_path / "safe").rglob("*forget*"))
    assert main(["sample", str(trained), "--prompt", "Un día", "--tokens", "5"]) == 0
    full = capsys.readouterr().out
    assert "full" in full
    assert "ablated" in full
    assert main(["sample", str(tmp_path / "safe"), "--prompt", "Un día", "--tokens", "5"]) == 0
    safe = capsys.readouterr().out
    assert safe.split("Un día")[-1] == full.split("Un día")[-1]


def test_ablating_twice_has_nothing_left_to_take_out(trained, tmp_path, capsys):
    assert main(["ablate", str(trained), "--to", str(tmp_path / "safe")]) == 0
    assert main(["ablate", str(tmp_path / "safe"), "--to", str(tmp_path / "safer")]) == 2
    assert "has no module to take out" in capsys.readouterr().err
