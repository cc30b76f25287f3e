"""Processes that share the work of one directory: nothing is done twice, and nothing is lost with a process."""

import json
import multiprocessing
import os
import signal
import time
from typing import ClassVar

import pytest
import torch

from excise.cli import reproduce as command_module
from excise.cli.main import main
from excise.config import override
from excise.recipes import reproduce as module
from excise.recipes import sharing
from excise.recipes.figures.planned import PlannedRun
from excise.recipes.reproduce import reproduce
from excise.recipes.sharing import taken, work_through
from excise.train.checkpoint import latest_checkpoint
from tests.recipes.test_reproduce import NO_FILTER, SGTM, figure, make, table, tiny
from tests.train.test_checkpoint import PlugPulledError, stop_after

SPAWN = multiprocessing.get_context("spawn")


def note(directory, text):
    with (directory / "notes").open("a") as file:
        file.write(f"{text}\n")


def notes(directory):
    return (directory / "notes").read_text().split()


def hold(file, directory):
    with taken(file) as mine:
        assert mine
        note(directory, "held")
        time.sleep(60)


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError


def test_work_is_taken_once_and_free_when_its_process_is_killed(tmp_path):
    process = SPAWN.Process(target=hold, args=(tmp_path / "locks" / "a", tmp_path))
    process.start()
    wait_for((tmp_path / "notes").exists)
    with taken(tmp_path / "locks" / "a") as mine, taken(tmp_path / "locks" / "b") as other:
        assert (mine, other) == (False, True)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with taken(tmp_path / "locks" / "a") as mine:
        assert mine


def work(directory, names):
    """Every piece needs the last but one before it."""
    sharing.WAIT = 0.02

    def do(name):
        time.sleep(0.02)
        note(directory, name)
        (directory / name).touch()

    def is_ready(name):
        before = names[: names.index(name)][-2:-1]
        return all((directory / other).exists() for other in before)

    work_through(names, directory / "locks", is_done=lambda name: (directory / name).exists(), is_ready=is_ready, do=do)


def test_three_processes_do_each_piece_once_and_none_before_what_it_needs(tmp_path):
    names = [f"piece-{i:02}" for i in range(30)]
    processes = [SPAWN.Process(target=work, args=(tmp_path, names)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    done = notes(tmp_path)
    assert sorted(done) == names
    assert all(done.index(names[i]) > done.index(names[i - 2]) for i in range(2, len(names)))


def reproduce_along(directory):
    """Figures as in another process, which notes what it trains."""
    sharing.WAIT = 0.1
    train = module.train

    def noted(run, data, where, listeners):
        note(directory, where.name)
        return train(run, data, where, listeners)

    module.train = noted
    one = figure("one", a=PlannedRun(config=SGTM), no_filter=PlannedRun(config=NO_FILTER))
    two = figure("two", b=PlannedRun(config=SGTM, measures=("token_losses",), against=NO_FILTER))
    make(table(one, two), directory)


def test_two_processes_reproduce_one_directory_together(tmp_path):
    process = SPAWN.Process(target=reproduce_along, args=(tmp_path,))
    process.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train", module.train)
        patch.setattr(sharing, "WAIT", sharing.WAIT)
        reproduce_along(tmp_path)
    process.join()
    assert process.exitcode == 0
    assert sorted(name.split("-")[0] for name in notes(tmp_path)) == ["no_filter", "sgtm"]
    assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == ["one", "two"]


class Helper:
    """A process that is only noted, and how it ends."""

    commands: ClassVar[list[list[str]]] = []
    threads: ClassVar[list[str]] = []
    signals: ClassVar[list[int]] = []
    code = 0

    def __init__(self, command, env, stdout):
        self.commands.append(command)
        self.threads.append(env["OMP_NUM_THREADS"])

    def wait(self, timeout=None):
        return self.code

    def send_signal(self, number):
        self.signals.append(number)


@pytest.fixture
def helper(monkeypatch):
    for name in ("commands", "threads", "signals"):
        monkeypatch.setattr(Helper, name, [])
    monkeypatch.setattr(Helper, "code", 0)
    monkeypatch.setattr(command_module, "Popen", Helper)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return Helper


def test_the_command_starts_itself_beside_it(tmp_path, helper, capsys):
    arguments = ["table-2", "--jobs", "3", "--directory", str(tmp_path)]
    assert main(["reproduce", *arguments]) == 0
    assert [command[2:] for command in helper.commands] == [
        ["excise.cli.main", "reproduce", *arguments, "--jobs", "1"]
    ] * 2
    assert helper.threads == ["2", "2"]
    helper.code = 2
    assert main(["reproduce", *arguments]) == 2
    assert "2 of the processes beside this one stopped with an error" in capsys.readouterr().err
    assert main(["reproduce", "table-2", "--jobs", "0", "--directory", str(tmp_path)]) == 2
    assert "--jobs 0 must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code", "signals"), [(KeyboardInterrupt, 130, []), (ValueError, 2, [signal.SIGINT])])
def test_the_others_may_save_what_they_are_at_when_the_command_ends_early(
    tmp_path, helper, monkeypatch, error, code, signals
):
    def fail(*_):
        raise error

    monkeypatch.setattr(command_module, "draw", fail)
    assert main(["reproduce", "table-2", "--jobs", "2", "--directory", str(tmp_path)]) == code
    assert helper.signals == signals


def test_two_commands_draw_the_same_tables_at_once(tmp_path):
    assert main(["reproduce", "table-2", "table-5", "--jobs", "2", "--directory", str(tmp_path)]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["table-2.json", "table-5.json"]


def test_a_lost_run_that_is_half_done_again_is_not_taken_for_done(tmp_path, monkeypatch):
    """Its checkpoints were dropped, a figure needs them, and training it again is interrupted."""
    one = figure("one", no_filter=PlannedRun(config=NO_FILTER))
    two = figure("two", sgtm=PlannedRun(config=SGTM, measures=("token_losses",), against=NO_FILTER))

    def saving(config):
        return override(tiny(config), {"train.log_every": 1, "train.checkpoint_every": 1})

    def make_both(figures, **options):
        reproduce(["all"], "smoke", directory=tmp_path, shorten=saving, figures=figures, **options)

    make_both(table(one), keep_checkpoints=False)
    train = module.train
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", lambda run, data, to, more: train(run, data, to, [*more, stop_after(3)]))
        with pytest.raises(PlugPulledError):
            make_both(table(one, two))
    (against,) = tmp_path.glob("runs/no_filter-*")
    assert latest_checkpoint(against / "checkpoints").name == "step-2"
    make_both(table(one, two))
    n_steps = json.loads((against / "results.json").read_text())["provenance"]["step"]
    assert n_steps > 3
    assert latest_checkpoint(against / "checkpoints").name == f"step-{n_steps}"
