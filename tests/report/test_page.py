"""The page shows all of the results, safely, from one file."""

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from excise.report.page import _apart, report_page, write_report
from excise.report.plots import METHODS
from tests.report.example import example_results

VOID = {"meta", "link", "br", "path", "use", "circle", "rect", "line", "col"}


def visible_text(page: str) -> str:
    """What a reader sees of the page outside the picture."""
    body = re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body)))


def numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def as_shown(path: tuple[str, ...], value: float) -> str:
    if path[0] == "configuration":
        return str(value)
    if path[-1] in ("recovered", "share"):
        return f"{100 * value:.3g}%"
    if path[-1] in ("steps", "step", "tokens", "parameters"):
        return f"{value:,}"
    return f"{value:,.2f}"


def test_every_number_of_the_results_is_in_the_page_but_for_seconds_that_depend_on_the_machine():
    words = visible_text(report_page(example_results())).split()
    missing = [path for path, value in numbers(example_results()) if as_shown(path, value) not in words]
    assert {path[-1] for path in missing} == {"seconds"}
    assert "seconds" not in words


def test_the_page_says_under_its_cards_that_a_high_loss_can_be_undone():
    header = visible_text(report_page(example_results()).split("</header>")[0])
    assert header.endswith(
        "A high loss is not yet knowledge that is gone: fine-tuning can bring it back, which this demo does not try; "
        "excise attack does. "
    )


def test_the_page_tells_its_sgtm_from_the_papers():
    text = visible_text(report_page(example_results()))
    assert "one of them, SGTM with token vectors, was taught" in text
    assert "Spanish loss of SGTM with token vectors before its module is removed and after, calibrated" in text
    assert "vectors of its own for Spanish tokens, which the paper’s SGTM does not have" in text


def test_the_page_says_why_calibration_can_raise_a_loss():
    text = visible_text(report_page(example_results()))
    assert "fitted mostly for English, which weighs 100 times as much, so that a Spanish loss can also rise" in text


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_row_of_a_method_holds_its_losses_and_its_costs_in_order(method):
    results = example_results()
    losses, run = results["losses"][method.name], results["runs"][method.name]
    cells = [
        f"{losses[data][stage]:.2f}" for data in ("retain", "forget") for stage in ("before", "ablated", "calibrated")
    ]
    cells += [f"{run['tokens']:,}", f"{run['steps']:,}", f"{run['parameters']:,}"]
    assert f"{method.label} {' '.join(cells)} " in visible_text(report_page(results))


def test_each_claim_says_whether_it_holds():
    text = visible_text(report_page(example_results()))
    assert "3 of 4 claims hold" in text
    assert "recovered by SGTM, at least 0.80 measured 0.86 · holds" in text
    assert "before ablation over no filter, at most 0.50 measured 0.67 · does not hold" in text


def test_the_page_says_when_all_claims_hold():
    results = example_results()
    results["claims"] = [claim for claim in results["claims"] if claim["holds"]]
    assert "All 3 claims hold" in visible_text(report_page(results))


def test_a_near_miss_is_shown_with_enough_decimals_to_see_it():
    assert _apart(0.7996, 0.8) == ("0.7996", "0.8000")
    assert _apart(0.8, 0.8) == ("0.80", "0.80")


def test_both_continuations_follow_the_same_opening():
    text = visible_text(report_page(example_results()))
    for sample in example_results()["samples"]:
        for writer in ("full", "ablated"):
            assert f"{sample['prompt']} {sample[writer]}".replace("  ", " ") in text


def test_text_from_the_results_is_escaped():
    results, attack = example_results(), '<script>alert("1")</script>&'
    results["samples"] = [dict.fromkeys(("language", "prompt", "full", "ablated"), attack)]
    results["claims"][0]["name"] = attack
    results["configuration"][attack] = attack
    page = report_page(results)
    assert "<script" not in page.lower()
    assert (
        page.count("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;") == 5 + 1 + 2
    )  # the opening stands in both columns


def test_a_continuation_of_nothing_says_so():
    results = example_results()
    results["samples"][1]["ablated"] = " "
    assert "(it wrote nothing)" in visible_text(report_page(results))


def test_nothing_is_loaded_from_elsewhere():
    page = report_page(example_results())
    references = re.findall(r"""(?:src|href|srcset|action|data)\s*=\s*["']([^"']*)""", page)
    assert references
    assert all(reference.startswith(("#", "data:")) for reference in references)
    assert not re.findall(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", page))
    assert "@import" not in page
    assert not [target for target in re.findall(r"url\(([^)]*)\)", page) if not target.startswith("#")]


def test_the_picture_takes_all_of_its_colours_from_the_style_sheet():
    (picture,) = re.findall(r"<svg.*?</svg>", report_page(example_results()), flags=re.DOTALL)
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]*)", picture)) <= {
        "none",
        *(
            f"var(--{name})"
            for name in ("ink", "muted", "line", "card", "perfect-filter", "sgtm", "data-filter", "no-filter")
        ),
    }


def test_the_page_can_be_read_aloud():
    page = report_page(example_results())
    assert '<html lang="en">' in page
    assert re.search(r"<title>.+</title>", page)
    assert re.search(r'role="img" aria-label="[^"]+SGTM with token vectors 3\.94 and 8\.71', page)
    assert page.count("<table") == page.count("<caption") == 2
    assert all("scope=" in head for head in re.findall(r"<th\b[^>]*>", page))
    assert '<blockquote lang="es">' in page


def test_every_element_is_closed():
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag, attributes):
            if tag not in VOID:
                self.open.append(tag)

        def handle_startendtag(self, tag, attributes):
            pass

        def handle_endtag(self, tag):
            if tag not in VOID:
                assert self.open.pop() == tag

    balance = Balance()
    balance.feed(report_page(example_results()))
    assert balance.open == []


def test_equal_results_give_equal_bytes(tmp_path):
    paths = [tmp_path / name for name in ("first.html", "second.html")]
    for path in paths:
        write_report(example_results(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes() == report_page(example_results()).encode()
