"""The report in a real browser: quiet, accessible, for a phone and in the dark, with and without JavaScript."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from excise.report.reproduction import write_reproduction
from tests.report.browser import opened_quietly
from tests.report.example_figures import all_figures

SMALLEST_TEXT = 8.5
"""In pixels, on a phone."""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_reproduction(all_figures(), path)
    return path


@pytest.fixture
def page(browser, report) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(report.as_uri())
    yield page
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_report_fits_is_quiet_asks_nobody_and_is_accessible(browser, report, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = opened_quietly(browser, report, width, scheme)
    found = axe.Axe().run(page)
    assert [(one["id"], one["nodes"][0]["html"]) for one in found.response["violations"]] == []
    page.close()


def test_text_in_charts_is_inside_them_and_large_enough_on_a_phone(browser, report):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(report.as_uri())
    texts = page.evaluate("""[...document.querySelectorAll('.chart text')].map(text => {
      const box = text.getBoundingClientRect(), chart = text.closest('.panel').getBoundingClientRect();
      const scale = text.ownerSVGElement.clientWidth / text.ownerSVGElement.viewBox.baseVal.width;
      return [text.textContent, box.left - chart.left, chart.right - box.right, parseFloat(getComputedStyle(text).fontSize) * scale]
    })""")
    assert len(texts) > 50
    assert [text for text in texts if text[1] < -1 or text[2] < -1 or text[3] < SMALLEST_TEXT] == []
    page.close()


def test_one_button_opens_and_folds_the_claims_of_all_figures(page):
    def n_open():
        return page.locator(".claimed[open]").count()

    button = page.get_by_role("button", name="Open all claims")
    button.click()
    assert n_open() == page.locator(".claimed").count() > 2
    page.get_by_role("button", name="Fold all claims").click()
    assert n_open() == 0


def test_texts_of_a_chart_do_not_cover_one_another(page):
    covering = page.evaluate("""[...document.querySelectorAll('.chart svg')].flatMap(svg => {
      const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
      return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
        p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3).map(([b]) => [a, b]));
    })""")
    assert covering == []


def shown(page: Any, label: str) -> int:
    return page.evaluate(
        "label => [...document.querySelectorAll('#figure-1 .chart g.s')]"
        ".filter(g => g.dataset.l === label && getComputedStyle(g).display !== 'none').length",
        label,
    )


def test_a_series_is_hidden_by_click_and_shown_again_by_keyboard(page):
    assert (shown(page, "SGTM"), shown(page, "No filter")) == (2, 2)
    page.locator("#figure-1 .legend label", has_text="SGTM").click()
    assert (shown(page, "SGTM"), shown(page, "No filter")) == (0, 2)
    assert page.evaluate("document.activeElement.className") == "k0"
    page.keyboard.press("Space")
    assert (shown(page, "SGTM"), shown(page, "No filter")) == (2, 2)


def test_a_tool_tip_follows_the_mouse(page):
    chart = page.locator("#figure-3 .chart").nth(1)
    chart.scroll_into_view_if_needed()
    tip = chart.locator(".tip")
    assert tip.is_hidden()
    box = chart.locator("g.s").first.locator("use").nth(4).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert tip.inner_text().split("\n") == [
        "SGTM",
        "Undiscovered share of the forget data (%): 20",
        "Calibrated forget loss: 4.40 [4.33, 4.47]",
    ]
    page.mouse.move(0, 0)
    assert tip.is_hidden()


def test_a_tool_tip_follows_the_keyboard_and_skips_hidden_series(page):
    page.locator("#figure-3 .legend label", has_text="Gradient Routing").click()
    chart = page.locator("#figure-3 .chart").first
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert chart.locator("> svg").evaluate("svg => svg === document.activeElement")
    tip = chart.locator(".tip")
    assert tip.inner_text().startswith("SGTM\nUndiscovered share of the forget data (%): 0\n")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("Data filter\nUndiscovered share of the forget data (%): 1\n")
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_without_javascript_every_chart_is_drawn_and_series_can_still_be_hidden(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#figure-1 .chart g.s").first.is_visible()
    assert page.locator("#figure-1 details", has_text="The numbers").first.is_visible()
    page.locator("#figure-1 .legend label", has_text="SGTM").click()
    assert page.locator("#figure-1 .chart g.s").first.is_hidden()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_wider_than_a_phone_is_shaded_at_its_edge_until_it_is_scrolled_there(browser, report, scheme):
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page.goto(report.as_uri())
    box = page.get_by_role("group", name="Which data update which parameters")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")

    def edge_is_shaded() -> bool:
        columns = np.median(imread(io.BytesIO(box.screenshot()))[:, :, :3].mean(axis=2), axis=0)
        return abs(columns[-3] - columns[-40]) > 0.05

    assert edge_is_shaded()
    box.focus()
    box.evaluate("box => { box.scrollLeft = box.scrollWidth }")
    assert not edge_is_shaded()
    page.close()


def test_a_band_is_cut_off_at_the_axes(page):
    inner = page.locator("#figure-3 .chart > svg svg").first
    assert inner.evaluate("svg => getComputedStyle(svg).overflow") == "hidden"


def test_the_first_figure_follows_the_contents_and_claims_open_by_keyboard(page):
    assert page.locator("#figure-1").evaluate("section => section.previousElementSibling.className") == "contents"
    claims = page.locator("#figure-1 .claimed")
    assert claims.locator(".verdict").first.is_hidden()
    claims.locator("summary").focus()
    page.keyboard.press("Enter")
    assert claims.locator(".verdict").first.is_visible()
