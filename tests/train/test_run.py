"""What a run may be told, and the files it leaves: whole or not there, and resolved."""

import json
import math

import pytest
import torch

from excise.config import override
from excise.train.loop import pick_device, resolve
from excise.train.run import RunDirectory, TrainConfig
from excise.train.schedule import Budget
from tests.train.test_checkpoint import small_run


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("learning_rate", 0.0),
        ("module_rate", -1.0),
        ("weight_decay", -1.0),
        ("weight_decay", math.nan),
        ("clip_norm", math.nan),
        ("clip_norm", -1.0),
        ("beta_1", 1.0),
        ("beta_2", -0.1),
        ("beta_2", math.nan),
        ("warmup_steps", -1),
        ("warmup_steps", 2.5),
        ("checkpoint_every", -1),
        ("log_every", 0),
        ("seed", -1),
        ("device", "foo"),
        ("device", "cuda:x"),
    ],
)
def test_nonsense_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"train\.{name}="):
        TrainConfig(**{name: value})


@pytest.mark.parametrize("amount", [math.inf, math.nan, -1.0])
def test_an_endless_budget_is_refused(amount):
    with pytest.raises(ValueError, match=r"budget\.amount"):
        Budget(amount=amount)


def test_a_device_that_is_not_there_is_an_error(monkeypatch):
    current = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_device", current.append)
    assert pick_device("cuda:0") == torch.device("cuda:0")
    assert current == [torch.device("cuda:0")]
    with pytest.raises(ValueError, match=r"train\.device='cuda:1' is not on this machine"):
        pick_device("cuda:1")


def test_a_precision_left_to_the_machine_is_settled_when_the_run_begins(tmp_path, monkeypatch):
    files, run = RunDirectory(tmp_path / "run"), small_run(**{"train.precision": "auto"})
    monkeypatch.setattr("excise.train.loop.has_bfloat16", lambda device: True)
    files.open_for(resolve(run, files))
    assert files.config().train.precision == "bfloat16"
    assert files.config().train.device == "auto"
    monkeypatch.setattr("excise.train.loop.has_bfloat16", lambda device: False)
    assert resolve(run, files) == files.config(), "resumed on another machine, it stays what it was"
    assert resolve(run, None).train.precision == "float32"
    assert resolve(override(run, {"train.precision": "float32"}), files).train.precision == "float32"


def test_metrics_survive_a_line_cut_off(tmp_path):
    files = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        files.log({"step": step})
    with files.metrics_file.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [record["step"] for record in files.metrics()] == [1, 2, 3]
    files.keep_metrics_until(2)
    assert files.metrics_file.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_metrics_broken_elsewhere_are_named(tmp_path):
    files = RunDirectory(tmp_path)
    files.metrics_file.write_text('{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:1 is damaged"):
        files.metrics()


def test_metrics_are_replaced_and_never_half_written(tmp_path, monkeypatch):
    files = RunDirectory(tmp_path)
    files.log({"step": 1})

    def pull_the_plug(*_):
        raise OSError("no power")

    monkeypatch.setattr("os.replace", pull_the_plug)
    with pytest.raises(OSError, match="no power"):
        files.keep_metrics_until(0)
    assert files.metrics() == [{"step": 1}]


def test_config_holds_every_field(tmp_path):
    files = RunDirectory(tmp_path / "run")
    files.open_for(small_run())
    values = json.loads(files.config_file.read_text())
    del values["train"]["budget"]["unit"]
    files.config_file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"train\.budget\.unit is missing"):
        files.config()
