"""The results that the repository holds fit together: figures are drawn from the runs beside them."""

from pathlib import Path

import pytest

from excise.evals.figure import read_figure
from excise.evals.results import read_results
from excise.recipes.figures import FIGURES
from excise.recipes.figures.beyond import MixedSources
from excise.recipes.figures.plan import plan
from excise.recipes.figures.planned import Sources
from excise.recipes.search import at_searched_rates, best_of, lowest_of, methods_of, read_search

RESULTS = Path(__file__).parents[1] / "results"
RATES = RESULTS / "small" / "rates.json"
FILES = sorted(RESULTS.glob("*/figures/*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}/{file.stem}")
def test_a_figure_is_drawn_from_the_runs_beside_it(file):
    runs = file.parents[1] / "runs"
    for line in read_figure(file).runs:
        known = {read_results(results).provenance.checkpoint_sha256 for results in runs.glob(f"{line.name}/results*")}
        assert line.checkpoint_sha256 in known, line.name


def test_every_figure_is_measured_at_the_small_scale():
    assert {file.stem for file in FILES if file.parts[-3] == "small"} == FIGURES.keys()


def test_the_recipes_have_the_rates_of_the_search():
    sources = Sources(bilingual="bilingual", topics="topics")
    searched = at_searched_rates(RATES, "small")
    plain, at_rates = (plan(list(FIGURES), "small", sources, **changes).runs for changes in ({}, {"shorten": searched}))
    assert plain.keys() == at_rates.keys()
    names = methods_of(list(FIGURES), "small", sources, MixedSources(Path()), lambda config: config, FIGURES)
    assert read_search(RATES, "small").methods.keys() <= names.keys()


def test_the_rates_are_those_that_the_rule_takes_but_for_one_that_was_searched_before_it():
    methods = read_search(RATES, "small").methods
    others = [method.run for method in methods.values() if best_of(method.losses) != method.chosen]
    assert others == ["figure-3: gradient_routing 0 %"]


def test_no_search_ended_at_its_outermost_rate():
    for method in read_search(RATES, "small").methods.values():
        tried = sorted(map(float, method.losses))
        assert tried[0] < lowest_of(method.losses) < tried[-1], method.run
        assert not method.at_edge
