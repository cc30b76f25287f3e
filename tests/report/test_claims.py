"""The page counts findings alone, says which have no interval, and what it has not measured."""

import dataclasses
import re

import pytest

from excise.evals.figure import NOT_IN_PAPER, Estimate
from excise.recipes.figures import FIGURES
from excise.report.reproduction import counts_of, in_order, reproduction_page
from tests.report.example_figures import all_figures, figure_1, figure_3, figure_9
from tests.report.test_reproduction import section_of, visible_text


def with_claims(figure, *changes):
    """The figure with a claim for each change to its first."""
    return dataclasses.replace(figure, claims=[dataclasses.replace(figure.claims[0], **change) for change in changes])


def test_every_claim_has_both_numbers_and_a_verdict_in_words():
    text = visible_text(section_of(reproduction_page([figure_1()]), "figure-1"))
    assert "SGTM has a higher forget loss than weak filtering at equal retain loss forget loss of SGTM − that" in text
    assert "Paper curve above at every point (section 5.2) Ours 0.71 nats [0.59, 0.83] holds" in text
    assert "Ours 0.06 nats [−0.05, 0.17] undecided" in text
    assert "Paper 5 % (section 5.2) Ours 17.2 % [13.3, 21.1] does not hold" in text


def test_the_verdict_counts_claims_but_not_those_of_a_pipeline_check():
    page = reproduction_page(in_order([figure_1(), figure_9(check_only=True)]))
    text = visible_text(page)
    assert "1 of 3 claims of the paper holds" in text
    assert "1 holds 1 does not hold 1 cannot be decided yet" in text
    assert "1 of 2 figures a pipeline check only: their claims are not counted" in text
    assert "holds (pipeline check only)" in text
    assert 'class="stamp">pipeline check only' in section_of(page, "figure-9")
    assert "stamp" not in section_of(page, "figure-1")
    assert "A check of the pipeline, not of the paper" in reproduction_page([figure_9(check_only=True)])
    assert "All 1 claim of the paper holds" in reproduction_page([figure_3()])


def test_claims_of_our_own_are_counted_apart():
    claims = [dataclasses.replace(claim, paper=NOT_IN_PAPER) for claim in figure_3().claims]
    ours = dataclasses.replace(figure_3(), name="frontier", claims=claims)
    text = visible_text(reproduction_page(in_order([figure_1(), ours])))
    assert "1 of 3 claims of the paper holds" in text
    assert "1 of 1 of our own hold, 0 do not, 0 cannot be decided" in text
    assert "All 1 claim of our own holds" in reproduction_page([ours])


def test_no_interval_of_a_claim_is_broken_over_two_lines():
    claim = dataclasses.replace(
        figure_3().claims[0], ours=Estimate(0.57, 0.49, 0.65), why="the control has 0.5 [0.4, 0.6]"
    )
    page = reproduction_page([dataclasses.replace(figure_3(), claims=[claim])])
    assert "[0.49,\u00a00.65]" in page
    assert "[0.4,\u00a00.6]" in page


def test_checks_of_what_was_built_are_no_findings_and_have_a_tile_of_their_own():
    checks = with_claims(figure_3(), {"check": True}, {"check": True, "holds": False})
    figures = in_order([figure_1(), checks])
    text = visible_text(reproduction_page(figures))
    assert counts_of(figures) == counts_of([figure_1()]) == {True: 1, False: 1, None: 1}
    assert "1 of 3 claims of the paper holds" in text
    assert "1 of 2 checks of the implementation pass" in text
    assert "nats [1.22, 1.62] as built" in text
    assert "nats [1.22, 1.62] not as built" in text
    assert "As built The claim is about what was built" in text
    assert "<h1>1 of 2 checks of the implementation pass</h1>" in reproduction_page([checks])


def test_findings_that_hold_without_an_interval_are_counted_and_named():
    bare = {"ours": Estimate(1.1428)}
    figure = with_claims(figure_3(), {}, bare, {**bare, "holds": False}, {**bare, "check": True})
    text = visible_text(reproduction_page([figure]))
    assert "2 hold, 1 of them on one seed or without an interval" in text
    assert "1.1 nats holds, without an interval" in text
    assert "1.1 nats does not hold, without an interval" in text
    assert "1.1 nats as built" in text
    assert "[1.22, 1.62] holds Paper" not in text


def test_findings_of_one_seed_are_counted_with_those_without_an_interval():
    figure = with_claims(figure_3(), {}, {}, {"holds": False})
    one_seed = dataclasses.replace(figure, runs=[dataclasses.replace(run, seed=0) for run in figure.runs])
    seeds = [dataclasses.replace(run, seed=seed) for run in figure.runs for seed in (0, 1)]
    text = visible_text(reproduction_page([one_seed]))
    assert "2 hold, 2 of them on one seed or without an interval 1 does not hold, 1 of them on one seed" in text
    assert "Claims: 2 hold · 1 does not hold · one seed" in text
    assert text.count("holds, on one seed") == 2
    assert text.count("does not hold, on one seed") == 1
    assert "on one seed" not in visible_text(reproduction_page([dataclasses.replace(figure, runs=seeds)]))
    assert "of them on one seed" not in reproduction_page([figure_3()])


def test_contents_tell_what_became_of_the_claims_of_each_figure():
    checked = with_claims(figure_3(), {"check": True}, {"holds": False}, {"holds": False})
    contents = visible_text(
        reproduction_page(in_order([figure_1(), checked, figure_9(check_only=True)])).split("<nav")[1]
    )
    assert "data filtering 1 holds · 1 does not hold · 1 undecided Figure 2" in contents
    assert "2 do not hold · 1 of 1 as built Figure 4a" in contents
    assert "1 holds · 1 undecided · one seed · pipeline check only" in contents


def test_claims_are_folded_under_their_own_figure_after_its_panels():
    section = section_of(reproduction_page([figure_1()]), "figure-1")
    panels, claims = section.split('<details class="claimed">')
    assert panels.count("<svg viewBox") >= 2
    assert claims.startswith("<summary><b>Claims:</b> 1 holds · 1 does not hold · 1 undecided</summary>")
    assert claims.split("</details>")[0].count("<li") == 3
    assert "claimed" not in section_of(reproduction_page(all_figures()), "figure-2")


def test_contents_of_a_reproduction_name_what_was_not_measured_in_its_place_and_without_a_link():
    page = reproduction_page(all_figures())
    contents = page.split("<nav")[1].split("</nav>")[0]
    names = re.findall(r"<li><span>((?:Figure|Table) [^<]*)</span>", contents)
    expected = {name.replace("-", " ").capitalize() for name in FIGURES if re.match("(figure|table)-", name)}
    assert set(names) >= expected
    assert names.index("Figure 7") == names.index("Figure 8") - 1 < names.index("Figure 9")
    assert "<span>Figure 13</span><span>Trade-off when military affairs are removed<small>not made yet" in contents
    assert 'href="#figure-13"' not in page
    assert contents.count("not made yet") == len(
        expected - {figure.name.replace("-", " ").capitalize() for figure in all_figures()}
    )
    assert "two-domains" not in contents


@pytest.mark.parametrize("n", [1, 2])
def test_a_page_about_plain_runs_misses_nothing_of_the_paper(n):
    figures = [dataclasses.replace(figure, scale=None) for figure in (figure_1(), figure_3())][:n]
    assert "not measured" not in reproduction_page(figures)
    assert ("<nav" in reproduction_page(figures)) is (n == 2)


def test_samples_are_folded_and_the_glossary_says_that_some_numbers_have_no_interval():
    page = reproduction_page([figure_1()])
    assert "<details open" not in page
    assert "Some numbers have none" in page
