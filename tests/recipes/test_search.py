"""The search of learning rates: the same for every method, on documents of its own, by a rule that is fixed."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from excise.cli.main import main
from excise.config import override
from excise.data.dataset import load_data
from excise.evals.losses import evaluate
from excise.labels import RETAIN
from excise.model.ablation import ablate
from excise.recipes import reproduce as reproducing
from excise.recipes import search as module
from excise.recipes.figures.beyond import MixedSources
from excise.recipes.figures.bilingual_runs import DOMAIN, gradient_routing, standard
from excise.recipes.figures.plan import plan
from excise.recipes.figures.planned import PlannedRun, Sources
from excise.recipes.search import (
    MethodSearch,
    at_searched_rates,
    judged,
    methods_of,
    rate_key,
    rates_to_try,
    read_search,
    search_rates,
    unsearched,
    validation_loss,
)
from excise.train.loop import train
from excise.train.release import load_run
from excise.train.schedule import steps
from tests.recipes.test_reproduce import BASE, NO_FILTER, SGTM, figure, table, tiny

GRID = (1e-6, 1e-2, 1e2)
TWO = table(figure("two", no_filter=PlannedRun(config=NO_FILTER), sgtm=PlannedRun(config=SGTM)))


def searched(directory, rates=GRID):
    return search_rates(["two"], "smoke", Sources(), directory, rates, shorten=tiny, figures=TWO)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return searched(tmp_path_factory.mktemp("search"))


# --- The rule --------------------------------------------------------------------------------------------------------


def test_the_rate_with_the_lowest_loss_is_chosen():
    losses = {"0.001": 4.0, "0.002": 3.5, "0.004": 3.7, "0.008": None}
    assert judged("a", losses, (8e-3, 4e-3, 2e-3, 1e-3)) == MethodSearch("a", losses, 2e-3, at_edge=False)
    assert judged("a", losses, (1e-3, 0.5)).chosen is None, "not before all rates are tried"


def test_of_rates_that_seeds_could_put_in_any_order_the_lowest_is_chosen():
    assert judged("a", {"0.001": 3.0, "0.002": 3.0, "0.0005": 3.0, "0.00025": 3.1}, (1e-3, 2e-3)).chosen == 5e-4
    losses, grid = {"0.005": 4.98, "0.01": 4.878, "0.02": 4.865}, (5e-3, 1e-2, 2e-2)
    assert rates_to_try(losses, grid) == [4e-2], "the lowest loss is the outermost, however little lower"
    assert judged("a", losses | {"0.04": 5.1}, grid).chosen == 1e-2
    assert judged("a", losses | {"0.04": 4.85, "0.08": 5.1}, grid).chosen == 2e-2, "0.01 is 0.6 % worse"


@pytest.mark.parametrize("best", [6.25e-5, 2.5e-4, 1e-3, 2e-3, 4e-3, 1.6e-2, 6.4e-2])
def test_rates_beyond_the_grid_are_tried_while_the_best_is_the_outermost(best):
    grid, losses = (1e-3, 2e-3, 4e-3), {}
    while rates := rates_to_try(losses, grid):
        losses |= {f"{rate:g}": abs(np.log(rate / best)) for rate in rates}
    found = judged("a", losses, grid)
    tried = sorted(map(float, losses))
    assert np.allclose(np.diff(np.log2(tried)), 1), "in the ratio of the grid"
    assert (tried[0], tried[-1]) == (min(1e-3, max(best / 2, 1.25e-4)), max(4e-3, min(best * 2, 3.2e-2)))
    assert found.chosen == min(tried, key=lambda rate: abs(np.log(rate / best)))
    assert found.at_edge == (not 1.25e-4 < best < 3.2e-2), "where three beyond the grid were not enough"


def test_a_single_rate_is_no_ratio_to_go_on_in():
    assert judged("a", {"0.001": 3.0}, (1e-3,)) == MethodSearch("a", {"0.001": 3.0}, 1e-3, at_edge=True)


def test_a_method_that_always_diverges_is_an_error():
    assert rates_to_try({"0.1": None, "0.2": None}, (0.1, 0.2)) == [0.05]
    losses = dict.fromkeys(("0.1", "0.2", "0.05", "0.025", "0.0125"))
    with pytest.raises(ValueError, match=r"a diverges at every rate from 0.0125 to 0.2; search smaller ones"):
        judged("a", losses, (0.1, 0.2))


@pytest.mark.parametrize(
    "changes",
    [
        {"train.seed": 2, "data.seed": 2},
        {"data.undiscovered_share": 0.4},
        {"data.false_positive_rate": 0.4, "data.retain_share": 0.1},
        {"routing.forget_weight": 0.1},
        {"train.learning_rate": 1.0},
        {"train.evaluations": 7},
        {"train.budget": steps(9)},
        {"model.n_layers": 3, "model.d_model": 32, "model.n_heads": 8},
        {"data.source": "stories-mixed"},
    ],
)
def test_runs_of_one_method_share_a_rate(changes):
    assert rate_key(override(SGTM, changes)) == rate_key(SGTM)


@pytest.mark.parametrize(
    "other",
    [
        NO_FILTER,
        standard(BASE, 0.2, "smoke"),
        gradient_routing(BASE, 0.2, "smoke"),
        override(SGTM, {"train.warmup_steps": 9}),
        override(SGTM, {"batch.rows_per_step": 2, "batch.rows_per_micro_batch": 2}),
        override(SGTM, {"routing.embeddings": "retain"}),
        override(SGTM, {"data.forget_share": 0.1}),
        override(SGTM, {"data.source": "topics"}),
    ],
)
def test_other_methods_batches_schedules_and_data_have_rates_of_their_own(other):
    assert rate_key(other) != rate_key(SGTM)


# --- Runs ------------------------------------------------------------------------------------------------------------


def test_two_methods_are_searched_alike_and_the_better_rate_is_chosen(found):
    search = read_search(found, "smoke")
    assert search.rates == GRID
    assert {of.run: of.chosen for of in search.methods.values()} == {"two: no_filter": 1e-2, "two: sgtm": 1e-2}
    for of in search.methods.values():
        assert set(of.losses) == {"1e-06", "0.01", "100"}
        assert of.losses["0.01"] < of.losses["1e-06"] - 0.1
        assert not of.at_edge
    assert not list(found.parent.glob("runs/*/checkpoints")), "which nobody needs any more"


def test_the_loss_is_that_of_the_ablated_model_on_documents_of_neither_training_nor_test(found, tmp_path):
    config = override(tiny(SGTM), {"train.learning_rate": 1e-2})
    data = load_data(config.data, config.routing.domains)
    train(config, data, tmp_path / "run", [])
    model, _ = load_run(tmp_path / "run")
    held_out = data.calibration[RETAIN]
    expected = evaluate(ablate(model, DOMAIN), held_out, context=config.batch.context).mean
    losses = {of.run: of.losses for of in read_search(found, "smoke").methods.values()}
    assert losses["two: sgtm"]["0.01"] == pytest.approx(expected, rel=1e-5)
    assert not set(held_out.starts) & set(data.test[RETAIN].starts)
    texts = {tuple(data.train.tokens[a : a + n]) for a, n in zip(data.train.starts, data.train.lengths, strict=True)}
    held = [tuple(held_out.tokens[a : a + n]) for a, n in zip(held_out.starts, held_out.lengths, strict=True)]
    assert not texts & set(held)


def test_a_search_goes_on_where_it_was(found, tmp_path, monkeypatch):
    there = tmp_path / found.name
    there.write_bytes(found.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(module, "validation_loss", None)
        assert searched(tmp_path).read_bytes() == found.read_bytes()
    values = json.loads(there.read_text())
    for of in values["methods"].values():
        of["losses"] = {rate: of["losses"][rate] for rate in ("1e-06", "100")}
        of["chosen"] = None
    there.write_text(json.dumps(values))
    trained = []
    monkeypatch.setattr(
        module, "validation_loss", lambda run, *_: trained.append(run.config.train.learning_rate) or 1.0
    )
    searched(tmp_path)
    assert trained == [1e-2, 1e-2]
    searched(tmp_path, (*GRID, 5e-2))
    assert trained == [1e-2, 1e-2, 5e-2, 5e-2], "a finer grid is tried for every method"


def test_training_that_diverges_has_no_loss_and_other_errors_are_told(tmp_path):
    config = override(tiny(NO_FILTER), {"train.learning_rate": 1e30, "train.log_every": 1, "train.clip_norm": 0.0})
    measures = ("losses", "first_loss", "validation")
    with np.errstate(all="ignore"):
        assert validation_loss(PlannedRun(config=config, measures=measures), tmp_path) is None
        at_the_end = override(config, {"train.budget": steps(1), "train.learning_rate": 1e30})
        assert validation_loss(PlannedRun(config=at_the_end, measures=measures), tmp_path) is None
    elsewhere = PlannedRun(config=override(config, {"train.device": "cuda:99"}), measures=measures)
    with pytest.raises(ValueError, match="not on this machine"):
        validation_loss(elsewhere, tmp_path / "other")


# --- Use -------------------------------------------------------------------------------------------------------------


def test_a_run_that_was_done_before_and_has_lost_its_checkpoints_is_judged_by_its_results(tmp_path):
    planned = PlannedRun(config=tiny(SGTM), measures=("validation",))
    loss = validation_loss(planned, tmp_path)
    assert not list(tmp_path.glob("*/checkpoints"))
    assert validation_loss(planned, tmp_path) == loss


def test_figures_take_the_rates_of_a_search_and_others_those_of_the_recipes(found):
    adapt = at_searched_rates(found, "smoke", shorten=tiny, figures=TWO)
    others = table(figure("three", a=PlannedRun(config=gradient_routing(BASE, 0.2, "smoke")))) | TWO
    planned = plan(["two", "three"], "smoke", shorten=lambda config: adapt(tiny(config)), figures=others)
    rates = {run.planned.config.routing.rule: run.planned.config.train.learning_rate for run in planned.runs.values()}
    assert rates == {"none": 1e-2, "sgtm": 1e-2, "gradient_routing": 3e-3}


def test_a_perfect_filter_is_a_weak_one_that_nothing_escapes():
    assert rate_key(standard(BASE, 0.0, "smoke")) == rate_key(standard(BASE, 0.2, "smoke"))


def test_of_several_sizes_the_largest_is_searched():
    layers = {"a": 2, "b": 3, "c": 3, "d": 1}
    sizes = {key: PlannedRun(config=override(SGTM, {"model.n_layers": n})) for key, n in layers.items()}
    mixed = MixedSources(Path())
    methods = methods_of(["sizes"], "smoke", Sources(), mixed, lambda config: config, table(figure("sizes", **sizes)))
    assert [run for run, _ in methods.values()] == ["sizes: b"]


def test_losses_of_another_size_are_not_taken_for_those_of_the_largest(tmp_path):
    large = PlannedRun(config=override(tiny(SGTM), {"model.n_layers": 3}))
    small = PlannedRun(config=tiny(SGTM))
    search_rates(["small"], "smoke", Sources(), tmp_path, (1e-3,), figures=table(figure("small", a=small)))
    both = table(figure("small", a=small), figure("large", b=large))
    with pytest.raises(ValueError, match=r"searched with the model of small: a before, and large: b has another"):
        search_rates(["small", "large"], "smoke", Sources(), tmp_path, (1e-3,), figures=both)


def test_a_search_goes_on_with_another_figure_of_the_same_model(found, tmp_path):
    shutil.copytree(found.parent, tmp_path / "copy")
    other = table(figure("three", a=PlannedRun(config=override(SGTM, {"data.undiscovered_share": 0.4}))))
    file = search_rates(["three"], "smoke", Sources(), tmp_path / "copy", GRID, shorten=tiny, figures=TWO | other)
    assert read_search(file, "smoke") == read_search(found, "smoke"), (
        "its method is known, so that nothing is tried again"
    )


def test_methods_without_a_searched_rate_are_told_by_a_run_of_the_figures_asked_for(found):
    other = PlannedRun(config=override(tiny(SGTM), {"routing.embeddings": "retain"}), seeds=2)
    of_two = {key: PlannedRun(config=tiny(run.config)) for key, run in TWO["two"].runs("smoke", Sources()).items()}
    figures = table(figure("two", **of_two), figure("three", a=other, b=other, c=of_two["sgtm"]))
    assert unsearched(["two"], "smoke", Sources(), found, figures=figures) == []
    assert unsearched(["two", "three"], "smoke", Sources(), found, figures=figures) == ["three: a"]


def test_runs_of_a_search_at_the_chosen_rates_are_not_done_again(found, tmp_path, monkeypatch):
    shutil.copytree(found.parent, tmp_path / "copy")
    adapt = at_searched_rates(found, "smoke", shorten=tiny, figures=TWO)
    monkeypatch.setattr(reproducing, "train", None)
    for shorten, done in ((lambda config: adapt(tiny(config)), True), (tiny, False)):
        with nullcontext() if done else pytest.raises(TypeError):
            reproducing.reproduce(["two"], "smoke", Sources(), tmp_path / "copy", shorten=shorten, figures=TWO)


def test_a_search_leaves_the_checkpoints_of_others_alone(tmp_path):
    reproducing.reproduce(["two"], "smoke", Sources(), tmp_path, shorten=tiny, figures=TWO)
    kept = sorted(tmp_path.glob("runs/*/checkpoints/*"))
    assert kept
    searched(tmp_path, [tiny(SGTM).train.learning_rate])
    assert sorted(tmp_path.glob("runs/*/checkpoints/*")) == kept


def test_what_is_no_finished_search_of_the_scale_is_refused(found, tmp_path):
    with pytest.raises(ValueError, match="is a search at the scale smoke; give one at the scale small"):
        at_searched_rates(found, "small")
    values = json.loads(found.read_text())
    next(iter(values["methods"].values()))["chosen"] = None
    (tmp_path / "half.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="has not tried all rates for no_filter-stories"):
        at_searched_rates(tmp_path / "half.json", "smoke", shorten=tiny, figures=TWO)
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no search of rates"):
        at_searched_rates(tmp_path / "none.json", "smoke")


def test_rates_that_no_run_of_any_figure_has_are_an_error(found, tmp_path):
    at_searched_rates(found, "smoke", Sources(bilingual="elsewhere/data"), shorten=tiny, figures=TWO)
    with pytest.raises(ValueError, match=r"has a rate for \S+ \(two: \S+\), of which no figure has a run at the scale"):
        at_searched_rates(found, "smoke", figures=TWO)


def test_a_search_older_than_its_keys_is_read_by_those_of_today(found, tmp_path):
    values = json.loads(found.read_text())
    names = {"runs": {}, "methods": {key: f"older {key}" for key in values["methods"]}}
    values["methods"] = {f"older {key}": of for key, of in values["methods"].items()}
    (tmp_path / "rates.json").write_text(json.dumps(values))
    (tmp_path / "names.json").write_text(json.dumps(names))
    assert read_search(tmp_path / "rates.json", "smoke") == read_search(found, "smoke")
    values["methods"].popitem()
    (tmp_path / "rates.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"has no rates for older \S+, which names.json beside it calls sgtm-stories-"):
        read_search(tmp_path / "rates.json", "smoke")


def test_the_command_searches_and_uses_what_it_found(tmp_path, capsys, monkeypatch, caplog):
    small = table(figure("two", no_filter=PlannedRun(config=tiny(NO_FILTER))))
    for function in (module.search_rates, module.unsearched, module.at_searched_rates, reproducing.reproduce):
        monkeypatch.setattr(function, "__kwdefaults__", {**function.__kwdefaults__, "figures": small})
    where = ["--directory", str(tmp_path)]
    assert main(["reproduce", "two", "--search", "--grid", "0.000001", "0.02", "400", *where]) == 0
    file = capsys.readouterr().out.splitlines()[-1].removeprefix("wrote ")
    assert main(["reproduce", "two", "--rates", file, *where]) == 0
    used = json.loads((tmp_path / "figures" / "two.json").read_text())["configurations"]["no_filter"]
    assert used["train"]["learning_rate"] == 0.02
    assert main(["reproduce", "two", "--search", "--rates", file, *where]) == 2
    small |= table(figure("three", sgtm=PlannedRun(config=tiny(SGTM))))
    assert main(["reproduce", "two", "three", "--rates", file, *where]) == 0
    told = [record.message for record in caplog.records if "no rate" in record.message]
    assert told == [f"{file} has no rate for three: sgtm; such runs keep their recipe's"]
