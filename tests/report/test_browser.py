"""The page in a real browser: it fits a phone, is quiet, and asks nobody for anything."""

from typing import Any

import pytest

from excise.report.page import write_report
from tests.report.browser import opened_quietly
from tests.report.example import example_results


def long_words() -> dict[str, Any]:
    """Results with words that no phone is wide enough for."""
    results = example_results()
    results["samples"][0]["full"] = " " + "a" * 300
    results["claims"][0]["name"] = "b" * 200
    results["configuration"]["c" * 100] = "d" * 200
    return results


@pytest.mark.parametrize("results", [example_results(), long_words()], ids=["example", "long_words"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_fits_the_screen_without_errors_or_requests(browser, tmp_path, width, scheme, results):
    path = tmp_path / "report.html"
    write_report(results, path)
    page = opened_quietly(browser, path, width, scheme)
    page.close()


def test_the_text_of_the_picture_follows_dark_mode(browser, tmp_path):
    path = tmp_path / "report.html"
    write_report(example_results(), path)
    colours = set()
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(path.as_uri())
        colours.add(page.evaluate("getComputedStyle(document.querySelector('.picture svg text')).fill"))
        page.close()
    assert len(colours) == 2
