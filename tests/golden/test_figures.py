"""The figures of `results/small`, drawn anew from what is committed of their runs, say what the committed ones say."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from excise.evals.figure import read_figure
from excise.recipes.figures import FIGURES
from excise.recipes.figures.plan import plan
from excise.recipes.figures.planned import Sources
from excise.recipes.reproduce import Workshop, draw
from excise.recipes.search import at_searched_rates
from excise.report.reproduction import counts_of

SMALL = Path(__file__).parents[2] / "results" / "small"
SOURCES = Sources(bilingual="bilingual", topics="topics")


def test_every_figure_drawn_anew_has_the_same_runs_numbers_and_verdicts():
    at_rates = at_searched_rates(SMALL / "rates.json", "small")
    work = Workshop(plan(list(FIGURES), "small", SOURCES, shorten=at_rates), SMALL / "runs")
    folders = {run.name: work.directory(run).name for run in work.plan.runs.values()}
    differ = {}
    for name, figure in FIGURES.items():
        drawn = json.loads(json.dumps(asdict(draw(figure, "small", work.groups(name)))))
        committed = json.loads((SMALL / "figures" / f"{name}.json").read_text(encoding="utf-8"))
        for line in (*drawn["runs"], *committed["runs"]):
            line["name"] = folders.get(line["name"], line["name"])
        if found := list(differences(drawn, committed)):
            differ[name] = found
    assert not differ


def differences(drawn: Any, committed: Any, where: str = "") -> Iterator[str]:
    """The places in which a figure is another one; numbers may differ by a billionth, for sums in another order."""
    if isinstance(drawn, dict) and isinstance(committed, dict):
        names = drawn.keys() | committed.keys()
        if where.startswith(".configurations."):  # where options may have come since the figure was drawn, or gone
            names = drawn.keys() & committed.keys()
        for name in sorted(names):
            yield from differences(drawn.get(name), committed.get(name), f"{where}.{name}")
    elif isinstance(drawn, list) and isinstance(committed, list) and len(drawn) == len(committed):
        for i, pair in enumerate(zip(drawn, committed, strict=True)):
            yield from differences(*pair, f"{where}[{i}]")
    elif isinstance(drawn, float) and isinstance(committed, float):
        if drawn != pytest.approx(committed, rel=1e-9, abs=0):
            yield f"{where}: {drawn} and not {committed}"
    elif drawn != committed:
        yield f"{where}: {str(drawn)[:80]} and not {str(committed)[:80]}"


def test_of_all_claims_as_many_hold_as_the_readme_says():
    figures = [read_figure(SMALL / "figures" / f"{name}.json") for name in FIGURES]
    assert sum(len(figure.claims) for figure in figures) == 186
    assert counts_of(figures) == {True: 47, False: 21, None: 51}
