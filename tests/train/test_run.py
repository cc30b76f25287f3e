"""What a run may be told, and the files it leaves: whole or not there, and resolved."""

import json
import math

import pytest
import torch

from excise.config import override
from excise.data.dataset import load_data
from excise.train.loop import pick_device, resolve, train
from excise.train.run import DataDigests, RunDirectory, TrainConfig
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
        ("checkpoint_minutes", math.nan),
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


@pytest.mark.parametrize("content", ["[1", "[1]", '{"spanish": ["x"]}', '{"spanish": 1}'])
def test_tokens_that_are_none_are_named(tmp_path, content):
    files = RunDirectory(tmp_path)
    files.open_for(small_run(**{"routing.forget_tokens": 0.7}))
    files.tokens_file.write_text(content)
    with pytest.raises(ValueError, match=r"tokens\.json does not say which tokens the modules have"):
        files.own_tokens()


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


def test_a_run_that_never_came_to_a_logged_step_leaves_its_directory_free(tmp_path):
    files, failed, mended = RunDirectory(tmp_path), small_run(), small_run(**{"data.n_stories": 16})
    files.open_for(failed)
    files.trained_on(DataDigests("other data", "other tokenizer"))
    files.note_tokens({"spanish": [1]})
    train(mended, load_data(mended.data, ("spanish",)), tmp_path)
    assert files.config() == override(mended, {"data.labels": "simulated"})
    assert not files.tokens_file.exists()
    with pytest.raises(ValueError, match=r"data\.n_stories is 16 there and 12 here"):
        files.open_for(failed)


def test_a_config_that_is_none_of_a_run_is_not_replaced(tmp_path):
    (tmp_path / "config.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="unknown option mine"):
        RunDirectory(tmp_path).open_for(small_run())
    assert (tmp_path / "config.json").read_text() == '{"mine": 1}'


@pytest.mark.parametrize(("warmup_steps", "told"), [(10, True), (9, False), (0.5, False)])
def test_a_warm_up_longer_than_the_run_is_told(caplog, warmup_steps, told):
    run = small_run(**{"train.warmup_steps": warmup_steps})
    train(run, load_data(run.data, ("spanish",)))
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    expected = (
        "train.warmup_steps=10 is longer than the run (9 steps): the rate never reaches its peak; "
        "a share such as 0.5 fits any length"
    )
    assert warnings == [expected] * told


def test_a_config_reads_on_where_a_newer_field_is_missing_and_not_where_a_section_is(tmp_path):
    files, run = RunDirectory(tmp_path / "run"), small_run(**{"train.budget": Budget(unit="epochs")})
    files.open_for(run)
    values = json.loads(files.config_file.read_text())
    del values["train"]["budget"]["unit"]
    files.config_file.write_text(json.dumps(values))
    assert files.config() == run
    del values["train"]
    files.config_file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"config\.json: option train is missing"):
        files.config()


def test_a_run_goes_on_with_other_options_that_decide_no_outcome_and_stays_as_it_was_begun(tmp_path):
    files, run = RunDirectory(tmp_path / "run"), small_run()
    files.open_for(run)
    files.log({"step": 1})
    followed = {"train.evaluations": 7, "train.log_every": 3, "train.keep_checkpoints": True, "train.device": "cuda"}
    files.open_for(override(run, {**followed, "data.source": f"elsewhere/{run.data.source}"}))
    assert files.config() == run
    with pytest.raises(ValueError, match=r"\(train\.weight_decay is 0\.1 there and 0\.2 here\)"):
        files.open_for(override(run, {**followed, "train.weight_decay": 0.2}))
