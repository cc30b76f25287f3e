"""Runs that lose their power: killed at any moment, or with all gone that the disk was not waited for."""

import errno
import json
import os
import random
import shutil
import stat
import time
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from excise.config import override
from excise.data.dataset import load_data
from excise.files import flush
from excise.train import checkpoint as checkpoints
from excise.train import loop
from excise.train.checkpoint import checkpoint_at, save_checkpoint, saved_steps
from excise.train.loop import train
from excise.train.release import load_run, release
from excise.train.run import SEALED, RunDirectory, TrainConfig
from tests.train.test_checkpoint import PlugPulledError, small_run, stop_after, without_times

TINY = {"model.context": 32, "batch.context": 32, "model.n_layers": 1, "model.d_model": 8, "batch.label_mixing": "rows"}
RUN = small_run(**{**TINY, "routing.forget_tokens": 0.7})
N_STEPS, EVERY = 9, 3
OPERATIONS = ("fsync", "replace", "mkdir", "unlink", "rmdir")


@pytest.fixture(scope="module")
def data():
    return load_data(RUN.data, RUN.routing.domains)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "finished"
    train(RUN, data, directory)
    return directory


class Disk:
    """A folder, and what of it is on the disk for certain: contents and names as they were last flushed.

    Files and folders go by the number of their inode; all are held open, so that no number is given again.
    """

    def __init__(self, folder, deaf_to=()):
        self.held, self.contents, self.names, self.deaf_to = {}, {}, {}, deaf_to
        self.root = self.hold(folder)
        self.flushed(self.held[self.root])

    def hold(self, path, within=None):
        number = os.stat(path, dir_fd=within).st_ino
        if number not in self.held:
            self.held[number] = os.open(path, os.O_RDONLY, dir_fd=within)
        return number

    def flushed(self, descriptor):
        status = os.fstat(descriptor)
        number, is_folder = status.st_ino, stat.S_ISDIR(status.st_mode)
        if number not in self.held:
            self.held[number] = os.dup(descriptor)
        if is_folder and "folders" not in self.deaf_to:
            self.names[number] = self.names_now(number)
        elif not is_folder and "files" not in self.deaf_to:
            self.contents[number] = self.content_now(number)

    def names_now(self, number):
        return {name: self.hold(name, self.held[number]) for name in os.listdir(self.held[number])}

    def content_now(self, number):
        return os.pread(self.held[number], os.fstat(self.held[number]).st_size, 0)

    def killed(self):
        """All that was written, as contents by path; None is a folder."""
        return self._image(self.root, lambda then, now: now, lambda then, now: now)

    def cut(self, seed):
        """What was flushed, and of the rest any part: a name new, old or gone, of a content some, or zeros."""
        dice = random.Random(seed)

        def content(then, now):
            tail = now[len(then) :] if now.startswith(then) else now
            return then + dice.choice((b"", tail[: dice.randrange(len(tail) + 1)], bytes(len(tail)), tail))

        return self._image(self.root, lambda then, now: dice.choice((then, now)), content)

    def _image(self, folder, name_of, content_of, path=""):
        then, now = self.names.get(folder, {}), self.names_now(folder)
        image = {}
        for name in sorted({*then, *now}):
            number = name_of(then.get(name), now.get(name))
            if number is not None and stat.S_ISDIR(os.fstat(self.held[number]).st_mode):
                image |= {f"{path}{name}": None, **self._image(number, name_of, content_of, f"{path}{name}/")}
            elif number is not None:
                image[f"{path}{name}"] = content_of(self.contents.get(number, b""), self.content_now(number))
        return image

    def close(self):
        for descriptor in self.held.values():
            os.close(descriptor)


def restore(image, folder):
    folder.mkdir()
    for path, content in image.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    return folder


@contextmanager
def interposed(before, after=lambda operation, argument: None):
    """Calls around each write of tensors or of metrics, each flush, rename, new folder and deletion."""

    def between(name, real):
        def call(*arguments, **options):
            before()
            result = real(*arguments, **options)
            after(name, arguments[0])
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        places = [(os, name) for name in OPERATIONS] + [(checkpoints, "save_file"), (RunDirectory, "log")]
        for place, name in places:
            patch.setattr(place, name, between(name, getattr(place, name)))
        yield


@dataclass(frozen=True)
class Moment:
    """What is left of a run after a loss of power, and the step of the last checkpoint that it was told is saved."""

    left: dict
    saved: int


def images_of(work, folder, seeds=(), deaf_to=()):
    """What is left of a folder at each moment of some work: after a kill where there are no seeds, or else after a cut
    for each; once where it is the same."""
    folder.mkdir()
    disk, moments, saved, number = Disk(folder, deaf_to), {}, [0], count()

    def moment():
        here = next(number)
        for left in [disk.cut(f"{here} {seed}") for seed in seeds] or [disk.killed()]:
            digest = sha256(
                repr([(path, content and sha256(content).digest()) for path, content in left.items()]).encode()
            )
            moments[digest.digest()] = Moment(left, saved[0])

    def after(operation, argument):
        if operation == "fsync":
            disk.flushed(argument)

    def save(folder, model, optimizer, done, sealed):
        save_checkpoint(folder, model, optimizer, done, sealed)
        saved[0] = done.step

    try:
        with pytest.MonkeyPatch.context() as patch, interposed(moment, after):
            patch.setattr(loop, "save_checkpoint", save)
            work(folder)
        moment()
    finally:
        disk.close()
    return list(moments.values())


def end_of(run):
    """All that a run ends with, times left out."""
    latest = checkpoint_at(run / "checkpoints", N_STEPS)
    records = without_times(RunDirectory(run).metrics())
    return {path.name: path.read_bytes() for path in latest.glob("*.safetensors")}, records


def resumed_from(directory, data):
    """Train to the end; the step that it went on from."""
    first = []
    train(RUN, data, directory, [lambda progress: first.append(progress.done.step - 1)])
    return first[0] if first else N_STEPS


def check_all_resume(moments, data, finished, tmp_path):
    expected = end_of(finished)
    for number, moment in enumerate(moments):
        folder = restore(moment.left, tmp_path / str(number))
        assert resumed_from(folder / "run", data) >= moment.saved, f"a checkpoint is lost at {number}"
        assert end_of(folder / "run") == expected, f"another end after {number}"
        shutil.rmtree(folder)


def trained_in(data):
    return lambda folder: train(RUN, data, folder / "run")


def some_of(moments, n):
    """The first moments of a run, in which little is there, and more from all over it, the last among them."""
    first, others = moments[: n // 4], moments[n // 4 :]
    return [*first, *others[:: -(len(others) // (n - len(first)))]]


def test_a_run_killed_at_any_write_flush_or_rename_goes_on_to_the_same_end(data, finished, tmp_path):
    moments = images_of(trained_in(data), tmp_path / "disk")
    assert {moment.saved for moment in moments} == {0, 3, 6, 9}
    check_all_resume(some_of(moments, 20), data, finished, tmp_path)


def test_a_run_that_loses_its_power_goes_on_from_what_was_flushed_to_the_same_end(data, finished, tmp_path):
    moments = images_of(trained_in(data), tmp_path / "disk", seeds=(0,))
    check_all_resume(some_of(moments, 20), data, finished, tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize("seed", [None, *range(5)])
def test_a_run_goes_on_from_every_moment(data, finished, tmp_path, seed):
    moments = images_of(trained_in(data), tmp_path / "disk", () if seed is None else (seed,))
    check_all_resume(moments, data, finished, tmp_path)


@pytest.mark.parametrize("deaf_to", ["files", "folders"])
def test_a_disk_that_is_not_waited_for_loses_runs(data, tmp_path, deaf_to):
    moments = images_of(trained_in(data), tmp_path / "disk", seeds=(0,), deaf_to=(deaf_to,))

    def goes_on(moment, folder):
        try:
            return resumed_from(restore(moment.left, folder) / "run", data) >= moment.saved
        except (ValueError, OSError):
            return False

    assert not all(goes_on(moment, tmp_path / str(number)) for number, moment in enumerate(some_of(moments, 20)))


def killed_in_fact(at, data, directory):
    """Train in a process of its own that ends at some operation without a word; whether it came so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads, which this has none of
        child = os.fork()
    if child == 0:
        left = iter(range(at))
        with interposed(lambda: next(left, None) is None and os._exit(9)):
            train(RUN, data, directory)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("at", [1, 40, 75, 100])
def test_a_process_killed_in_fact_goes_on_to_the_same_end(data, finished, tmp_path, at):
    assert killed_in_fact(at, data, tmp_path / "run")
    train(RUN, data, tmp_path / "run")
    assert end_of(tmp_path / "run") == end_of(finished)


@pytest.mark.stress
def test_a_process_killed_at_every_operation_in_turn_goes_on_to_the_same_end(data, finished, tmp_path):
    at = 1
    while killed_in_fact(at, data, tmp_path / f"{at}"):
        train(RUN, data, tmp_path / f"{at}")
        assert end_of(tmp_path / f"{at}") == end_of(finished)
        shutil.rmtree(tmp_path / f"{at}")
        at += 1
    assert at > 100


@pytest.mark.parametrize("seeds", [(), (0, 1)])
def test_a_release_cut_short_is_none_and_never_holds_anything_of_the_module(finished, tmp_path, seeds):
    moments = images_of(lambda folder: release(finished, folder / "safe", ["spanish"]), tmp_path / "disk", seeds)
    whole = []
    for number, moment in enumerate(moments):
        assert not any("spanish" in path for path in moment.left)
        safe = restore(moment.left, tmp_path / str(number)) / "safe"
        whole.append(any(safe.glob("checkpoints/step-*")))
        with nullcontext() if whole[-1] else pytest.raises(ValueError, match=r"no (checkpoint|config\.json|folder)"):
            load_run(safe)
    assert whole[-1]
    assert not whole[0]


def leaves(values, path=()):
    """The path of each value that is neither a list nor an object with something in it."""
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    found = [leaf for key, value in inner for leaf in leaves(value, (*path, key))]
    return found or [path]


def edited(values, path):
    """The values with another one at a path."""
    if path:
        copy = values.copy()
        copy[path[0]] = edited(values[path[0]], path[1:])
        return copy
    if isinstance(values, str):
        return values + "0"
    if isinstance(values, bool):
        return not values
    return [0] if values == [] else {"0": 0} if values == {} else values + 1


@pytest.fixture(scope="module")
def zeroed(finished, tmp_path_factory):
    """A release that still has the vectors of its tokens, and so every file that a seal is over."""
    directory = tmp_path_factory.mktemp("runs") / "zeroed"
    release(finished, directory, ["spanish"], "zero")
    return directory


@pytest.mark.parametrize(
    "name", ["config.json", "data.json", "tokens.json", "ablation.json", "manifest.json", "seal.json"]
)
def test_every_field_edited_once_is_noticed(zeroed, tmp_path, name):
    run = Path(shutil.copytree(zeroed, tmp_path / "run"))
    (file,) = run.rglob(name)
    whole = file.read_bytes()
    values = json.loads(whole)
    for path in leaves(values):
        file.write_text(json.dumps(edited(values, path), indent=2) + "\n")
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            load_run(run)
    file.write_bytes(whole)
    load_run(run)


@pytest.mark.parametrize("name", SEALED)
def test_a_file_that_comes_or_goes_is_noticed(zeroed, tmp_path, name):
    run = Path(shutil.copytree(zeroed, tmp_path / "run"))
    there = (run / name).exists()
    if there:
        (run / name).unlink()
    else:
        (run / name).write_text("{}\n")
    with pytest.raises(
        ValueError, match="no config.json" if name == "config.json" else "missing" if there else "is new"
    ):
        load_run(run)


@pytest.mark.parametrize("name", ["config.json", "data.json", "tokens.json", "manifest.json", "seal.json"])
def test_training_goes_on_with_nothing_that_was_edited(data, tmp_path, name):
    with pytest.raises(PlugPulledError):
        train(RUN, data, tmp_path / "run", [stop_after(5)])
    (file,) = (tmp_path / "run").rglob(name)
    values = json.loads(file.read_text())
    file.write_text(json.dumps(edited(values, leaves(values)[-1])))
    run = RunDirectory(tmp_path / "run").config()  # as it may be edited, or its directory is refused
    with pytest.raises(ValueError, match=r"begun with other data" if name == "data.json" else name):
        train(run, data, tmp_path / "run")


def test_an_edit_while_a_run_trains_is_noticed(data, tmp_path):
    def edit(progress):
        if progress.done.step == 4:
            file = tmp_path / "run" / "config.json"
            file.write_text(file.read_text() + "\n")

    train(RUN, data, tmp_path / "run", [edit])
    with pytest.raises(ValueError, match=r"config\.json is altered since step-9 was saved; bring it back"):
        load_run(tmp_path / "run")


def take(file):
    file.unlink()


def alter(file):
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def tear(file):
    file.write_bytes(file.read_bytes()[:20])


def make_unreadable(file):
    file.unlink()
    file.mkdir()


DAMAGES = {
    "its joint.safetensors is missing": ("joint.safetensors", take),
    "its retain.safetensors cannot be read (Is a directory)": ("retain.safetensors", make_unreadable),
    "optimizer-retain.safetensors is not the file that its manifest lists": ("optimizer-retain.safetensors", alter),
    "its manifest.json is not as it was written": ("manifest.json", tear),
    "its manifest.json is missing": ("manifest.json", take),
    "its seal.json is not as it was written": ("seal.json", tear),
    "has no seal.json": ("seal.json", take),
}


@pytest.fixture
def interrupted(data, tmp_path):
    """A run cut off after step 7, with checkpoints of steps 3 and 6."""
    with pytest.raises(PlugPulledError):
        train(RUN, data, tmp_path / "run", [stop_after(7)])
    return tmp_path / "run"


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_passes_a_damaged_checkpoint_over_for_the_one_before_and_says_so(
    interrupted, data, finished, caplog, damage
):
    name, do = DAMAGES[damage]
    do(checkpoint_at(interrupted / "checkpoints", 6) / name)
    assert resumed_from(interrupted, data) == 3
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert damage in warning
    assert warning.endswith("; it is kept as step-6.damaged, and the run goes on from step 3")
    assert end_of(interrupted) == end_of(finished)
    assert {path.name for path in (interrupted / "checkpoints").iterdir()} == {"step-6", "step-6.damaged", "step-9"}


def test_a_damaged_checkpoint_is_not_measured_in_silence_by_the_one_before(interrupted):
    (checkpoint_at(interrupted / "checkpoints", 6) / "joint.safetensors").unlink()
    with pytest.raises(ValueError, match="missing; the command that trained the run goes on from step 3 and mends it"):
        load_run(interrupted)
    assert load_run(interrupted, step=3)[1].step == 3


def test_where_no_checkpoint_is_whole_nothing_begins_anew(interrupted, data):
    for step in (3, 6):
        (checkpoint_at(interrupted / "checkpoints", step) / "joint.safetensors").unlink()
    before = {path: path.stat().st_mtime_ns for path in interrupted.rglob("*.*") if path.name != "tokens.json"}
    with pytest.raises(
        ValueError, match=r"step-6 is damaged.*no other is whole, so bring it back from a copy, or make"
    ):
        train(RUN, data, interrupted)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_checkpoint_from_before_is_refused_in_one_sentence(interrupted, data):
    for step in (3, 6):
        (checkpoint_at(interrupted / "checkpoints", step) / "seal.json").unlink()
    for use in (lambda: load_run(interrupted), lambda: train(RUN, data, interrupted)):
        with pytest.raises(
            ValueError, match=r"has no seal\.json: .* an earlier Excise, .* make the run again"
        ) as error:
            use()
        assert "\n" not in str(error.value)


def test_metrics_torn_after_the_checkpoint_are_dropped_and_those_before_it_named(tmp_path):
    files = RunDirectory(tmp_path)
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, 6)]
    files.metrics_file.write_text("".join([*lines[:3], "\0" * 12, "\n", lines[4]]))
    files.keep_metrics_until(3)
    assert [record["step"] for record in files.metrics()] == [1, 2, 3]
    files.metrics_file.write_text("".join([lines[0], '{"st\n', lines[2]]))
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2 is damaged"):
        files.keep_metrics_until(3)


@pytest.mark.parametrize(("minutes", "steps"), [(10.0, [4, 8, 9]), (0.5, [1, 2, 3, 4, 5, 6, 7, 8, 9]), (0.0, [9])])
def test_checkpoints_are_written_by_the_clock_as_well(data, tmp_path, monkeypatch, minutes, steps):
    now = [0.0]

    rate_at = TrainConfig.rate_at

    def three_minutes_a_step(*arguments):
        now[0] += 180
        return rate_at(*arguments)

    monkeypatch.setattr(TrainConfig, "rate_at", three_minutes_a_step)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=time.perf_counter, monotonic=lambda: now[0]))
    timed = {"train.checkpoint_every": 0, "train.checkpoint_minutes": minutes, "train.keep_checkpoints": True}
    train(override(RUN, timed), data, tmp_path / "run")
    assert saved_steps(tmp_path / "run" / "checkpoints") == steps


def test_a_file_system_that_keeps_folders_by_itself_will_do(tmp_path, monkeypatch):
    (tmp_path / "file").touch()

    def refuse(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("os.fsync", refuse)
    flush(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"):
        flush(tmp_path / "file")
