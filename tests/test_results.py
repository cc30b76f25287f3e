"""The results that the repository holds fit together: figures are drawn from the runs beside them."""

from dataclasses import replace
from pathlib import Path

import pytest

from excise.config import override
from excise.evals.figure import read_figure
from excise.evals.results import read_results
from excise.identity import digest
from excise.recipes.figures import FIGURES
from excise.recipes.figures.beyond import MixedSources
from excise.recipes.figures.plan import name_of, plan
from excise.recipes.figures.planned import Sources
from excise.recipes.names import older_names
from excise.recipes.search import at_searched_rates, best_of, lowest_of, methods_of, read_search
from excise.train.run import RunDirectory
from tests.test_identity import with_option

RESULTS = Path(__file__).parents[1] / "results"
RATES = RESULTS / "small" / "rates.json"
FILES = sorted(RESULTS.glob("*/figures/*.json"))
RUNS = sorted(RESULTS.glob("*/runs/*"))
SOURCES = Sources(bilingual="bilingual", topics="topics")
RULE_S_RATE = 0.005
"""Of ten runs of Gradient Routing on Spanish that no figure draws, at the rate that the rule of the search takes."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}/{file.stem}")
def test_a_figure_is_drawn_from_the_runs_beside_it(file):
    runs = file.parents[1] / "runs"
    for line in read_figure(file).runs:
        known = {read_results(results).provenance.checkpoint_sha256 for results in runs.glob(f"{line.name}/results*")}
        assert line.checkpoint_sha256 in known, line.name


@pytest.fixture(scope="module")
def drawn():
    """The runs of all figures."""
    return plan(list(FIGURES), "small", SOURCES).runs


@pytest.fixture(scope="module")
def planned(drawn):
    """These, and those of Gradient Routing at another rate."""
    runs = [run.planned for run in drawn.values()]
    rivals = [run for run in runs if run.method == "gradient_routing"]
    return runs + [replace(run, config=override(run.config, {"train.learning_rate": RULE_S_RATE})) for run in rivals]


def test_every_run_has_one_name_of_today_and_is_planned_by_it(planned):
    names = older_names(RESULTS / "small").runs
    assert sorted(names.values()) == [run.name for run in RUNS]
    assert len(names) == 267
    assert names.keys() <= {name_of(run) for run in planned}
    for name, folder in names.items():
        files = RunDirectory(RESULTS / "small" / "runs" / folder)
        assert name.rpartition("-")[0] == folder.rpartition("-")[0]
        begun = override(files.config(), {"train.precision": "auto"})
        assert name.endswith(digest(begun)) != files.unlearning_file.exists()


def test_a_new_option_renames_no_run(planned):
    names = {name_of(run) for run in planned}
    assert {name_of(replace(run, config=with_option(run.config))) for run in planned} == names
    assert not {name_of(replace(run, config=with_option(run.config, 8))) for run in planned} & names


def test_every_run_opens_and_its_results_say_its_method():
    for run in RUNS:
        files = RunDirectory(run)
        config, provenance = files.config(), read_results(files.results_file).provenance
        assert (provenance.method, provenance.seed) == (run.name.split("-")[0], config.train.seed)


def test_every_figure_is_measured_at_the_small_scale():
    assert {file.stem for file in FILES if file.parts[-3] == "small"} == FIGURES.keys()


def test_the_recipes_have_the_rates_of_the_search(drawn):
    searched = at_searched_rates(RATES, "small", SOURCES)
    assert plan(list(FIGURES), "small", SOURCES, shorten=searched).runs.keys() == drawn.keys()
    keys = methods_of(list(FIGURES), "small", SOURCES, MixedSources(Path()), lambda config: config, FIGURES)
    known = read_search(RATES, "small").methods
    assert known.keys() == older_names(RESULTS / "small").methods.keys()
    assert len(known) == 32
    assert known.keys() <= keys.keys()


def test_the_rates_are_those_that_the_rule_takes_but_for_one_that_was_searched_before_it():
    methods = read_search(RATES, "small").methods
    others = [method.run for method in methods.values() if best_of(method.losses) != method.chosen]
    assert others == ["figure-3: gradient_routing 0 %"]


def test_no_search_ended_at_its_outermost_rate():
    for method in read_search(RATES, "small").methods.values():
        tried = sorted(map(float, method.losses))
        assert tried[0] < lowest_of(method.losses) < tried[-1], method.run
        assert not method.at_edge
