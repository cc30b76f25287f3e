"""Processes that share the work of one directory: nothing is done twice, and nothing is lost with a process."""

import multiprocessing
import os
import signal
import time

import pytest

from excise.cli.main import main
from excise.recipes import reproduce as module
from excise.recipes import sharing
from excise.recipes.figures.planned import PlannedRun
from excise.recipes.sharing import taken, work_through
from tests.recipes.test_reproduce import NO_FILTER, SGTM, figure, make, table

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


def test_the_command_starts_others_beside_it(tmp_path, capsys):
    assert main(["reproduce", "table-2", "table-5", "--jobs", "2", "--directory", str(tmp_path)]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["table-2.json", "table-5.json"]
    assert main(["reproduce", "table-2", "--jobs", "0", "--directory", str(tmp_path)]) == 2
    assert "--jobs 0 must be at least 1" in capsys.readouterr().err
