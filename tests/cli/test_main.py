"""The command line: help at once, bad input in one sentence with exit code 2 and nothing half-written."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from excise.bench import BenchConfig, BenchResults, Timing
from excise.cli.arguments import uncoloured
from excise.cli.main import COMMANDS, main
from tests.train.test_checkpoint import reseal

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
        (["train", "demo", "--routing.rule", "sgmt"], "--routing.rule sgmt is not known; did you mean 'sgtm'?"),
        (["train", "demo", "--routing.forget-units", "384"], "set routing.forget_units to at most 383"),
        (["train", "demo", "--routing.forget-heads", "99"], "set routing.forget_heads to at most"),
        (["train", "demo", "--routing.domains", "french"], "domain 'french' is never seen in the training data"),
        (["train", "demo", "--batch.context", "512"], "set it to at most model.context=256"),
        (["train", "demo", "--data.n-stories", "0"], "leaves that split empty"),
        (["train", "demo", "--data.n-stories", "1"], "documents labelled retain, of which there are none"),
        (["train", "demo", "--data.source", "nowhere"], "nowhere holds no prepared data; make it with: excise prepare"),
        (["train", "demo", "--train.learning-rate", "fast"], "--train.learning-rate fast is not a number"),
        (["train", "demo", "--train.learning-rate", "nan"], "train.learning_rate=nan must be a number above 0"),
        (["train", "demo", "--routing.forget-weight", "nan"], "routing.forget_weight=nan must be a number from 0 up"),
        (["train", "demo", "--train.weight-decay", "-1"], "train.weight_decay=-1.0 must be a number from 0 up"),
        (["train", "demo", "--train.budget.amount", "inf"], "set train.budget.amount to a number above 0"),
        (["train", "demo", "--train.seed", "-1"], "train.seed=-1 must be a number from 0 up"),
        (["train", "demo", "--train.device", "foo"], "train.device='foo' is not known; known: auto, cpu, cuda"),
        (["train"], "name a recipe first"),
        (["train", "--directory", "x"], "name a recipe first"),
        (["evaluate", "nowhere"], "there is no folder nowhere"),
        (["sample", "nowhere", "--prompt", "a"], "there is no folder nowhere"),
        (["ablate", "nowhere", "--to", "elsewhere"], "there is no folder nowhere"),
        (["ablate"], "RUN and --to are missing (excise ablate --help lists the options)"),
        (["inspect"], "DATA is missing"),
        (["label"], "SOURCE and --out and --domain are missing"),
        (
            ["prepare", "stories", "--labels", "nowhere", "--out", "data"],
            "nowhere holds no labels.jsonl.gz; write it with",
        ),
        (
            ["evaluate", "nowhere", "--prompts", "a"],
            "--prompts is for samples; name it too, as in --measures losses samples",
        ),
        (["evaluate", "nowhere", "--against", "x"], "--against is for token_losses and samples; name it too"),
        (["unlearn", "nowhere", "--to", "x", "--npo.beta", "1"], "--npo.beta would change nothing, as --method is rmu"),
        (["reproduce", "--out", "x"], "unknown option --out; did you mean --directory?"),
        (["prepare", "stories", "--directory", "x"], "unknown option --directory; did you mean --out?"),
        (["demo", "--sed", "1"], "unknown option --sed; did you mean --seed?"),
        (["bench", "--rounds", "x"], "--rounds x is not a whole number"),
        (["demo", "--xyz", "1"], "unknown option --xyz (excise demo --help lists the options)"),
        (["demo", "again"], "again belongs to no option"),
        (["sample", "nowhere", "--prompt", "a", "--tokens", "3", "4"], "4 belongs to no option"),
        (["demo", "-x", "1"], "unknown option -x"),
        (["train", "demo", "--train.log-every", "1.5"], "--train.log-every 1.5 is not a whole number"),
        (["train", "demo", "--train.seed", "1e3"], "--train.seed 1e3 is not a whole number"),
        (["train", "demo", "--train.seed="], "--train.seed '' is not a whole number"),
        (["train", "demo", "--train.warmup_steps", "half"], "--train.warmup-steps half is not a number"),
        (["train", "demo", "--routing.layers", "1", "b"], "--routing.layers b is not a whole number or all"),
        (["train", "demo", "--routing.layers", "-1"], "routing.layers names block -1, but the model has blocks 0 to 1"),
        (["train", "demo", "--data.forget", "a"], "error: data.forget has 'a'; write domain=category"),
        (["attack", "nowhere", "--baseline", "b", "--documents", "1", "x"], "--documents x is not a whole number"),
        (
            ["attack", "nowhere", "--baseline", "b", "--learning-rates", "1e-3", "x"],
            "--learning-rates x is not a number",
        ),
        (["attack", "nowhere", "--baseline", "b", "--methods", "full", "lara"], "did you mean 'lora'?"),
        (["evaluate", "nowhere", "--step", "x"], "--step x is not a whole number"),
        (["evaluate", "nowhere", "--measures"], "--measures names nothing to measure"),
        (["train", "demo", "--train.seed"], "--train.seed has no value"),
        (["train", "demo", "--directory"], "--directory has no value"),
        (
            ["sample", "nowhere", "--prompt", "-a"],
            "--prompt has no value; one that begins with - is written --prompt=-a",
        ),
        (
            ["train", "demo", "--train.seed", "1", "--train.keep-checkpoints", "1"],
            "--train.keep-checkpoints takes no value such as 1; its opposite is --train.no-keep-checkpoints",
        ),
        (["reproduce", "figure-3", "--list=no"], "--list takes no value such as no; its opposite is --no-list"),
        (["sample", "nowhere", "--promt", "a"], "unknown option --promt; did you mean --prompt?"),
        (["attack", "nowhere", "--basline=a"], "unknown option --basline; did you mean --baseline?"),
        (["attack", "nowhere", "--no-in-contxt"], "unknown option --no-in-contxt; did you mean --no-in-context?"),
        (["sample", "nowhere", "--top_k", "3"], "--prompt is missing"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not re.search(r"Error parsing|Expected|Unrecognized|INT|FLOAT|PATH|Errno", error), (
        "words of the option parser"
    )
    assert not list(tmp_path.iterdir())


def test_long_values_are_told_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["bench", "--size", long := "a-very-long-size-" * 9]) == 2
    assert f"--size {long} is not known" in capsys.readouterr().err
    assert os.environ["COLUMNS"] == "60"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["evaluate", "FILE"], "FILE is a file, not a folder"),
        (["sample", "FILE/run", "--prompt", "a"], "FILE is a file, not a folder"),
        (["prepare", "stories", "--out", "FILE"], "FILE is a file, not a folder"),
        (["train", "demo", "--directory", "FILE/run", *TINY], "FILE is a file, not a folder"),
    ],
)
def test_a_file_where_a_folder_should_be_is_named(command, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Errno" not in error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), "runs/x: no permission to read or write it"),
        (FileNotFoundError(errno.ENOENT, "No such file", Path("a")), "a: there is no such file or folder"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "."), ".: this is a folder, not a file"),
        (FileExistsError(errno.EEXIST, "File exists", "."), ".: this is there already"),
        (FileExistsError(errno.EEXIST, "File exists", __file__), f"{__file__} is a file, not a folder"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", f"{__file__}/a"), f"{__file__} is a file, not a folder"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "the disk is full; make room, and give the same command again",
        ),
        (
            OSError(errno.ENOSPC, "No space left", "a"),
            "a: the disk is full; make room, and give the same command again",
        ),
        (OSError(errno.ELOOP, "Too many levels of links", "a"), "a: too many levels of links"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "connection refused"),
        (OSError("the service is gone"), "the service is gone"),
        (ValueError("a.json tells nothing ([Errno 2] No such file: 'b')"), "a.json tells nothing (No such file: 'b')"),
    ],
)
def test_errors_of_the_system_are_told_without_their_numbers(error, message, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr("excise.cli.bench.main", fail)
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_bad_input_is_one_sentence_in_a_terminal_too():
    """Where complaints are boxed in colour."""
    main_end, terminal = os.openpty()
    code = "import sys; from excise.cli.main import main; sys.exit(main(['bench', '--kinds', 'mixd']))"
    done = subprocess.run([sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = uncoloured(os.read(main_end, 10_000).decode())
    os.close(main_end)
    assert done.returncode == 2
    assert "error: --kinds mixd is not known; did you mean 'mixed'?" in said
    assert "│" not in said


def test_a_source_that_was_not_prepared_is_told_from_a_folder_that_is_not_there(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("A text.")
    assert main(["train", "demo", "--data.source", "texts"]) == 2
    assert "make it with: excise prepare texts --out data" in capsys.readouterr().err


@pytest.mark.parametrize("deeper", ["", "more"])
@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "FOLDER"],
        ["sample", "FOLDER", "--prompt", "a"],
        ["ablate", "FOLDER", "--to", "elsewhere"],
        ["unlearn", "FOLDER", "--to", "elsewhere"],
        ["attack", "RUN", "--baseline", "FOLDER"],
        ["evaluate", "RUN", "--measures", "token_losses", "--against", "FOLDER"],
    ],
)
def test_a_folder_of_runs_is_no_run_but_tells_which_it_holds(trained, tmp_path, capsys, command, deeper):
    shutil.copytree(trained, tmp_path / deeper / "one")
    names = {"FOLDER": str(tmp_path), "RUN": str(trained)}
    assert main([names.get(word, word) for word in command]) == 2
    told = f"there is no config.json in {tmp_path}; name a folder inside it: {tmp_path / deeper / 'one'}\n"
    assert told in capsys.readouterr().err


def test_a_directory_of_another_configuration_is_refused(trained, capsys):
    assert main(["train", "demo", "--directory", str(trained), *TINY, "--train.learning-rate", "0.5"]) == 2
    assert "train.learning_rate is 0.002 there and 0.5 here" in capsys.readouterr().err


def test_an_unknown_label_is_named(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text('{"text": "a b", "category": "spanish", "label": "spansh"}\n')
    categories = ("english", "spanish") * 4
    (tmp_path / "test.jsonl").write_text("".join(f'{{"text": "a b", "category": "{c}"}}\n' for c in categories))
    data = tmp_path / "data"
    assert main(["prepare", str(tmp_path), "--out", str(data), "--processes", "1"]) == 0
    args = ["train", "demo", "--data.source", str(data), "--data.labels", "given"]
    assert main([*args, "--directory", str(tmp_path / "run")]) == 2
    assert "document 1 of the train split: unknown label 'spansh'; did you mean 'spanish'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_named(trained, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    next(copy.glob("checkpoints/*/retain.safetensors")).write_bytes(b"")
    assert main(["sample", str(copy), "--prompt", "Un día"]) == 2
    assert "retain.safetensors is not the file that its manifest lists" in capsys.readouterr().err


def test_from_training_to_a_safe_model(trained, tmp_path, capsys):
    assert main(["evaluate", str(trained)]) == 0
    assert main(["ablate", str(trained), "--to", str(tmp_path / "safe")]) == 0
    assert f"wrote {tmp_path / 'safe' / 'checkpoints' / 'step-2'}\n" in capsys.readouterr().out
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_one_sentence_and_a_run_made_there_loads_here(trained, tmp_path, capsys):
    args = ["train", "demo", "--directory", str(tmp_path / "run"), *TINY, "--train.device", "cuda"]
    assert main(args) == 2
    assert capsys.readouterr().err.count("\n") == 1
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    config = json.loads((copy / "config.json").read_text())
    config["train"]["device"] = "cuda"
    (copy / "config.json").write_text(json.dumps(config))
    reseal(copy)
    assert main(["sample", str(copy), "--prompt", "Un día", "--tokens", "2"]) == 0


@pytest.mark.parametrize("options", [["--temperature", "nan"], ["--tokens", "-3"]])
def test_samples_that_make_no_sense_are_refused(trained, capsys, options):
    assert main(["sample", str(trained), "--prompt", "Un día", *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.json", "5"), ("config.json", "{}"), ("checkpoints/step-2/manifest.json", '{"files": []}')],
)
def test_files_that_are_something_else_are_named(trained, tmp_path, capsys, file, content):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    assert (copy / file).exists()
    (copy / file).write_text(content)
    assert main(["sample", str(copy), "--prompt", "Un día"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert (copy / file).name in error or "checkpoint" in error


def test_a_run_goes_on_from_where_it_was_stopped_and_says_so(tmp_path, capsys):
    args = ["train", "demo", "--directory", str(tmp_path / "run"), *TINY]
    assert main(args) == 0
    capsys.readouterr()
    assert main(args) == 0
    assert "already at step 2" in "".join(capsys.readouterr())


def test_losses_after_ablation_are_followed_live(tmp_path, capsys):
    assert main(["train", "demo", "--directory", str(tmp_path / "run"), *TINY]) == 0
    assert "loss after ablation: retain" in capsys.readouterr().out
    assert "losses" in json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])


def test_the_table_of_a_benchmark_fits_a_terminal_and_its_words_are_explained_below(tmp_path, monkeypatch, capsys):
    timing = Timing("SGTM, one label a micro-batch", 2460.0, 1665.0, [1665.0], 0.958, 0.472, None, None, 1.7, 0.1)
    results = BenchResults(BenchConfig(), "2 CPU threads", "2.13", "bfloat16", 4_300_000, 0.13, [timing])
    monkeypatch.setattr("excise.bench.bench", lambda config, listen: listen(results) or results)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["bench", "--out", str(tmp_path / "bench.json")]) == 0
    *lines, wrote = capsys.readouterr().out.splitlines()
    assert wrote.startswith("wrote ")
    assert max(map(len, lines)) <= 80
    assert "about 20 s" in lines[0]
    heads = next(i for i, line in enumerate(lines) if line.startswith("variant"))
    words = ("tokens/s", "to plain", "in quarters", "set-up", "--reference")
    assert all(any(line.startswith(word) for line in lines[heads:]) for word in words)
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["timings"][0]["milliseconds"] == 1665.0


def test_the_memory_of_a_gpu_is_in_the_table_of_a_benchmark(monkeypatch, capsys):
    timing = Timing("plain training", 3e6, 21.2, [21.2], 1.0, 0.18, 12.04, 8.71, 16.1, 16.1)
    results = BenchResults(BenchConfig(size="8m"), "H200", "2.11", "bfloat16", 7_700_000, 790.0, [timing])
    monkeypatch.setattr("excise.bench.bench", lambda config, listen: listen(results) or results)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["bench", "--size", "8m"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("GB", "in use", "12.0", "8.7"))
    assert "15 to 25 s" not in shown, "which is of the size tiny"


def test_a_training_that_diverges_stops_with_one_sentence(tmp_path, capsys):
    options = ["--train.learning-rate", "1e30", "--train.warmup-steps", "0", "--train.log-every", "1"]
    assert main(["train", "demo", "--directory", str(tmp_path / "run"), *TINY, *options, "--train.clip-norm", "0"]) == 2
    assert "try a lower train.learning_rate" in capsys.readouterr().err
