"""Every figure and table from runs of its own, of a few steps each."""

from excise.config import override
from excise.evals.relearning import AttackConfig
from excise.recipes.figures import FIGURES, frontier_attacks, topics_runs
from excise.recipes.reproduce import reproduce
from excise.report.reproduction import read_figures, write_reproduction
from excise.train.schedule import steps
from tests.recipes.test_reproduce import tiny

ATTACK = AttackConfig(steps=2, rows_per_step=2, rows_per_micro_batch=2, context=64, learning_rates=(1e-3,))


def of_few_steps(config):
    documents = {"data.n_stories": 64, "data.n_test_stories": 64} if config.data.source == "topics" else {}
    return override(tiny(config), {**documents, "train.budget": steps(3), "train.checkpoint_every": 1})


def test_every_figure_is_drawn_from_runs_of_its_own(tmp_path, monkeypatch):
    for module in (topics_runs, frontier_attacks):
        monkeypatch.setitem(module.ATTACKS, "smoke", ATTACK)
    paths = reproduce(["all"], "smoke", directory=tmp_path, shorten=of_few_steps)
    assert [path.stem for path in paths] == list(FIGURES)
    figures = read_figures(tmp_path)
    assert all(figure.panels or figure.claims for figure in figures)
    write_reproduction(figures, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("<section") > len(FIGURES)
