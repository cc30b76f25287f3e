"""Checkpoints in parts, runs that resume bit for bit, and releases that hold nothing of a module."""

import json
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

from excise.config import override
from excise.data.dataset import DataConfig, load_data
from excise.data.loader import BatchConfig
from excise.model.gpt import GPTConfig
from excise.routing.rules import RoutingConfig
from excise.train import loop
from excise.train.checkpoint import (
    Done,
    checkpoint_at,
    latest_checkpoint,
    load_checkpoint,
    read_manifest,
    save_checkpoint,
    saved_steps,
    seal,
)
from excise.train.loop import build_optimizer, train
from excise.train.release import load_run, release
from excise.train.run import RunConfig, RunDirectory, TrainConfig, build_model
from excise.train.schedule import Budget


def small_run(**changes):
    run = RunConfig(
        data=DataConfig(n_stories=12, n_test_stories=8, undiscovered_share=0.25),
        model=GPTConfig(vocabulary_size=4096, context=64, n_layers=2, d_model=16, n_heads=4, d_mlp=32),
        routing=RoutingConfig(domains=("spanish",), forget_units=8, embeddings="joint", norms="retain"),
        batch=BatchConfig(context=64, rows_per_step=4, rows_per_micro_batch=2, label_mixing="micro_batches"),
        train=TrainConfig(
            budget=Budget(unit="steps", amount=9), warmup_steps=3, log_every=1, checkpoint_every=3, precision="float32"
        ),
    )
    return override(run, changes)


@pytest.fixture(scope="module")
def data():
    return load_data(small_run().data, ("spanish",))


class PlugPulledError(Exception):
    """The machine went away in the middle of a run."""


def stop_after(step):
    def listener(progress):
        if progress.done.step == step:
            raise PlugPulledError

    return listener


def reseal(run):
    """Seal the checkpoints of a run that was altered on purpose."""
    files = RunDirectory(run)
    for step in saved_steps(files.checkpoints):
        seal(checkpoint_at(files.checkpoints, step), files.sealed())


def without_times(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_whether_a_run_compiles_depends_on_its_length_and_not_on_what_is_left_of_it(tmp_path, data, monkeypatch):
    asked = []
    monkeypatch.setattr(loop, "compiles", lambda config, device, n_steps: asked.append(n_steps))
    run = small_run()
    with pytest.raises(PlugPulledError):
        train(run, data, tmp_path, [stop_after(5)])
    train(run, data, tmp_path)
    assert len(asked) == 2
    assert asked[0] == asked[1] > 5


@pytest.mark.parametrize("label_mixing", ["rows", "micro_batches", "steps"])
def test_interrupted_run_ends_as_an_uninterrupted_one_bit_for_bit(tmp_path, data, label_mixing):
    run = small_run(**{"batch.label_mixing": label_mixing})
    whole = train(run, data, tmp_path / "whole")
    for step in (2, 5, 8):
        with pytest.raises(PlugPulledError):
            train(run, data, tmp_path / "broken", [stop_after(step)])
    resumed = train(run, data, tmp_path / "broken")
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    records = [without_times(RunDirectory(tmp_path / name).metrics()) for name in ("whole", "broken")]
    assert records[0] == records[1]
    files = [sorted((tmp_path / name / "checkpoints" / "step-9").glob("*.safetensors")) for name in ("whole", "broken")]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def interrupt_at(step):
    def listener(progress):
        if progress.done.step == step:
            signal.raise_signal(signal.SIGINT)

    return listener


@pytest.fixture
def interruptible():
    """The usual handler, also where the tests run in the background of a shell that has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_saves_the_step_it_came_in_and_loses_nothing(tmp_path, data):
    run = small_run(**{"train.checkpoint_every": 0})
    whole = train(run, data, tmp_path / "whole")
    for step in (2, 5):
        with pytest.raises(KeyboardInterrupt, match=f"the same command goes on from step {step}"):
            train(run, data, tmp_path / "broken", [interrupt_at(step)])
        assert read_manifest(latest_checkpoint(tmp_path / "broken" / "checkpoints")).done.step == step
    resumed = train(run, data, tmp_path / "broken")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    records = [without_times(RunDirectory(tmp_path / name).metrics()) for name in ("whole", "broken")]
    assert records[0] == records[1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_does_not_wait(tmp_path, data):
    def twice(progress):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small_run(), data, tmp_path / "run", [twice])
    assert latest_checkpoint(tmp_path / "run" / "checkpoints") is None


@pytest.mark.parametrize(("keep", "names"), [(False, {"step-6", "step-9"}), (True, {"step-3", "step-6", "step-9"})])
def test_two_checkpoints_are_kept_and_all_where_asked_for(tmp_path, data, keep, names):
    train(small_run(**{"train.keep_checkpoints": keep}), data, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == names


def test_a_finished_run_is_loaded_and_not_trained_again(tmp_path, data):
    run = small_run()
    first = train(run, data, tmp_path / "run")
    again = train(run, data, tmp_path / "run", [stop_after(1)])
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("runs") / "finished"
    train(small_run(), data, directory)
    return directory


def test_each_file_holds_the_parameters_of_one_part(finished):
    checkpoint = latest_checkpoint(finished / "checkpoints")
    names = {path.name for path in checkpoint.iterdir()}
    parts = ("retain", "joint", "forget-spanish")
    notes = {"manifest.json", "seal.json"}
    assert names == {*notes, *(f"{o}{part}.safetensors" for part in parts for o in ("", "optimizer-"))}
    for part in parts:
        assert {name.rsplit(".")[-1] for name in load_file(checkpoint / f"{part}.safetensors")} == {
            part.replace("-", "/")
        }
    assert set(read_manifest(checkpoint).files) == names - notes


def copy_of(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    return latest_checkpoint(tmp_path / "copy" / "checkpoints")


def test_a_damaged_file_is_named(finished, tmp_path):
    checkpoint = copy_of(finished, tmp_path)
    file = checkpoint / "retain.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"damaged: retain.safetensors is not the file that its manifest lists"):
        load_run(tmp_path / "copy")


def test_a_missing_file_is_named(finished, tmp_path):
    checkpoint = copy_of(finished, tmp_path)
    (checkpoint / "joint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"damaged: its joint.safetensors is missing"):
        load_run(tmp_path / "copy")


def test_the_safe_model_is_the_folder_without_the_modules_file(finished, tmp_path, data):
    checkpoint = copy_of(finished, tmp_path)
    for file in checkpoint.glob("*forget-spanish*"):
        file.unlink()
    safe, _ = load_run(tmp_path / "copy", without=["spanish"])
    with pytest.raises(ValueError, match="forget-spanish"):
        load_run(tmp_path / "copy")
    assert safe.partition.domains == ()


def test_a_release_holds_nothing_of_the_module_and_computes_as_the_ablated_model(finished, tmp_path):
    checkpoint = release(finished, tmp_path / "safe", ["spanish"])
    assert {path.name for path in checkpoint.iterdir()} == {
        *("manifest.json", "seal.json"),
        *("retain.safetensors", "joint.safetensors"),
    }
    safe, _ = load_run(tmp_path / "safe")
    expected, _ = load_run(finished, without=["spanish"])
    tokens = torch.arange(20).unsqueeze(0)
    assert torch.equal(safe(tokens), expected(tokens))


def test_a_release_does_not_overwrite(finished, tmp_path):
    release(finished, tmp_path / "safe", ["spanish"])
    with pytest.raises(ValueError, match="is not empty; choose another directory"):
        release(finished, tmp_path / "safe", ["spanish"])


def test_a_directory_of_another_configuration_is_refused_and_left_alone(finished, data):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"train.learning_rate is 0.005 there and 0.1 here"):
        train(small_run(**{"train.learning_rate": 0.1}), data, finished)
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_config_with_an_unknown_key_is_refused(finished, tmp_path):
    copy_of(finished, tmp_path)
    file = tmp_path / "copy" / "config.json"
    values = json.loads(file.read_text())
    values["routing"]["forget_haeds"] = 1
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"unknown option routing.forget_haeds; did you mean 'forget_heads'"):
        load_run(tmp_path / "copy")


def test_a_checkpoint_of_another_model_is_an_error(finished):
    run = small_run(**{"routing.embeddings": "retain"})
    with pytest.raises(ValueError, match="belongs to another model"):
        load_checkpoint(latest_checkpoint(finished / "checkpoints"), build_model(run))


def config_changed(finished, tmp_path, **changes):
    checkpoint = copy_of(finished, tmp_path)
    file = tmp_path / "copy" / "config.json"
    values = json.loads(file.read_text())
    values["model"] |= changes
    file.write_text(json.dumps(values))
    reseal(tmp_path / "copy")
    return checkpoint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 1}, r"belongs to another model: it holds blocks\.1\."),
        ({"n_layers": 3}, r"belongs to another model: it lacks blocks\.2\."),
        (
            {"d_mlp": 48},
            r"belongs to another model: blocks\.0\.mlp\.\S+ has shape \[24, 16\] there and \[40, 16\] here",
        ),
    ],
)
def test_a_model_is_never_filled_in_part(finished, tmp_path, changes, message):
    config_changed(finished, tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_run(tmp_path / "copy")


def forget_files(checkpoint, start):
    """Take files out of a manifest."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"] = {name: sha for name, sha in manifest["files"].items() if not name.startswith(start)}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    reseal(checkpoint.parents[1])


def test_a_manifest_that_lists_too_little_is_an_error(finished, tmp_path):
    forget_files(copy_of(finished, tmp_path), "forget-spanish")
    with pytest.raises(ValueError, match=r"lists no forget-spanish\.safetensors"):
        load_run(tmp_path / "copy")


@pytest.mark.parametrize("start", ["optimizer-", "optimizer-joint"])
def test_an_unfinished_run_goes_on_only_with_its_optimizer(tmp_path, data, start):
    with pytest.raises(PlugPulledError):
        train(small_run(), data, tmp_path / "run", [stop_after(5)])
    checkpoint = checkpoint_at(tmp_path / "run" / "checkpoints", 3)
    forget_files(checkpoint, start)
    with pytest.raises(ValueError, match=r"lists no optimizer-\w+\.safetensors"):
        train(small_run(), data, tmp_path / "run")


def test_a_finished_run_needs_no_optimizer(finished, tmp_path, data):
    forget_files(copy_of(finished, tmp_path), "optimizer-")
    expected, _ = load_run(finished)
    loaded = train(small_run(), data, tmp_path / "copy")
    assert all(map(torch.equal, loaded.parameters(), expected.parameters()))


def test_a_part_that_was_never_updated_has_no_moments_and_resumes(tmp_path, data):
    run = small_run()
    model = build_model(run)
    optimizer = build_optimizer(model, run.train)
    for name, parameter in model.named_parameters():
        parameter.grad = None if name.endswith("forget/spanish") else torch.ones_like(parameter)
    optimizer.step()
    checkpoint = checkpoint_at(RunDirectory(tmp_path).checkpoints, 1)
    save_checkpoint(checkpoint, model, optimizer, Done(1, 1, 1.0), {})
    other = build_model(run)
    filled = build_optimizer(other, run.train)
    load_checkpoint(checkpoint, other, filled)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert (len(filled.state[b]) == 0) == name.endswith("forget/spanish")
        assert all(torch.equal(optimizer.state[a][key], value) for key, value in filled.state[b].items())


def test_a_folder_that_only_looks_like_a_checkpoint_is_left_alone(finished, tmp_path):
    copy_of(finished, tmp_path)
    (tmp_path / "copy" / "checkpoints" / "step-old").mkdir()
    assert latest_checkpoint(tmp_path / "copy" / "checkpoints").name == "step-9"
    load_run(tmp_path / "copy")
