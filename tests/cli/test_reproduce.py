"""`excise reproduce`: the list, lines for those who read a file, and errors of one sentence."""

import json

import pytest
from rich.console import Console

from excise.cli.main import main
from excise.cli.progress import ProgressBar
from excise.cli.reproduce import ReproduceArguments, duration, settings
from excise.recipes import reproduce as module
from excise.train.checkpoint import Done
from excise.train.loop import Progress
from tests.recipes.test_reproduce import NO_FILTER, PlannedRun, figure, table, tiny


def test_the_list_names_every_figure_with_what_it_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["reproduce", "--list", "--directory", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for words in ("figure-4a", "Trade-off between forget and retain loss", "together", "GFLOP/s", "appendix D"):
        assert words in out


def test_a_figure_is_made_and_its_path_printed(tmp_path, capsys):
    assert main(["reproduce", "table-4", "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {tmp_path / 'figures' / 'table-4.json'}",
        f"wrote {tmp_path / 'report.html'}",
        "0 claims of the paper hold, 0 do not, 0 cannot be decided",
    ]
    assert "Hyperparameters of RMU" in (tmp_path / "report.html").read_text()


def test_progress_is_a_line_now_and_then_that_names_the_folder_of_its_run(tmp_path, capsys, monkeypatch):
    one = figure("one", no_filter=PlannedRun(config=tiny(NO_FILTER)))
    monkeypatch.setattr(module.reproduce, "__kwdefaults__", {**module.reproduce.__kwdefaults__, "figures": table(one)})
    assert main(["reproduce", "one", "--directory", str(tmp_path), "--no-keep-checkpoints"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (folder,) = (tmp_path / "runs").iterdir()
    assert lines[0].startswith(f"1/1 {folder.name} ")
    assert "tokens/s" in lines[0]
    assert json.loads((tmp_path / "figures" / "one.json").read_text())["runs"][0]["steps"] > 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "name figures"),
        (["figure-33"], "did you mean 'figure-3'"),
        (["figure-3", "--scale", "small"], "no prepared data at 'bilingual'"),
        (["figure-3", "--scale", "medium"], "small"),
    ],
)
def test_bad_input_costs_one_sentence(args, told, tmp_path, capsys):
    assert main(["reproduce", *args, "--directory", str(tmp_path / "out")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_called_as_built_in_data_is_meant():
    sources, _ = settings(ReproduceArguments(topics="topics", bilingual="data/fiction"))
    assert (sources.topics, sources.bilingual) == ("./topics", "data/fiction")


def test_durations_are_short():
    assert [duration(seconds) for seconds in (0.2, 90, 600, 7200, 200000)] == ["0 s", "90 s", "10 min", "2 h", "2 days"]


def test_one_evaluation_does_not_upset_the_time_that_is_left(monkeypatch):
    bar, clock = ProgressBar(Console(), "a run"), iter((0.0, 4.5))
    monkeypatch.setattr("excise.cli.progress.time.monotonic", lambda: next(clock))
    first, second = (Progress(None, Done(step, 0, 0.1 * step), 219, 5.0, {}) for step in (50, 55))
    assert bar._left(first) == pytest.approx(16.9)
    assert bar._left(second) < 50, "4 seconds of evaluation in 5 steps would be 131 in the rest"
