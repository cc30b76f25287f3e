"""The report shows all of the figures, safely, from one file; figures survive the way through JSON."""

import dataclasses
import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from matplotlib.transforms import Bbox

from excise.evals.figure import (
    Bars,
    Estimate,
    FigureResults,
    Heat,
    PaperClaim,
    Plot,
    Point,
    Series,
    Split,
    Table,
    read_figure,
)
from excise.report.figures import paper_figure, save_figure
from excise.report.numbers import estimate, number
from excise.report.reproduction import PAPER, in_order, looks_in, read_figures, reproduction_page, write_reproduction
from excise.report.style import LOOKS, looks_of
from tests.report.example_figures import all_figures, figure_1, figure_3, figure_9, figure_11, table_1, two_topics
from tests.report.test_page import VOID

ATTACK = '<script>alert("1")</script>&'


def visible_text(page: str) -> str:
    body = re.sub(r"<style.*?</style>|<script.*?</script>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body)))


def section_of(page: str, name: str) -> str:
    return page.split(f'<section id="{name}">')[1].split("</section>")[0]


def one_panel(panel) -> FigureResults:
    return FigureResults("figure-1", "A title", "1", "small", "", [panel], [], [], False)


@pytest.mark.parametrize("figure", all_figures(), ids=lambda figure: figure.name)
def test_a_figure_survives_the_way_through_json(figure, tmp_path):
    (path := tmp_path / "figure.json").write_text(json.dumps(dataclasses.asdict(figure)))
    plain = dataclasses.asdict(read_figure(path))
    assert json.loads(json.dumps(plain)) == json.loads(json.dumps(dataclasses.asdict(figure)))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("titel",), "x", "titel is unknown; did you mean 'title'?"),
        (("panels", 0, "kind"), "pie", r"panels\[0\] is of the unknown kind 'pie'"),
        (("panels", 0, "kind"), "heat", r"panels\[0\].x_label is unknown"),
        (("panels", 0, "series", 1, "points", 0, "x"), 3, r"series\[1\].points\[0\].x is '3' and must be Estimate"),
        (("claims", 0, "ours", "value"), "much", r"claims\[0\].ours.value is 'much' and must be float"),
        (("scale",), "huge", "scale is 'huge' and must be 'smoke' or 'small' or 'paper'"),
        (("runs", 0, "tokens"), 1.5, r"runs\[0\].tokens is '1.5' and must be int"),
        (("pipeline_check_only",), 1, "pipeline_check_only is '1' and must be bool"),
    ],
)
def test_a_file_with_something_wrong_is_one_sentence(place, value, message, tmp_path):
    plain = json.loads(json.dumps(dataclasses.asdict(figure_1())))
    inner = plain
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (path := tmp_path / "figure-1.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=message) as error:
        read_figure(path)
    assert str(error.value).startswith(f"{path} holds no figure: ")


def test_missing_keys_numbers_that_are_none_and_other_files_are_refused(tmp_path):
    plain = dataclasses.asdict(figure_1())
    for change, message in (
        ({"runs": None}, "runs is 'None' and must be Sequence"),
        (
            {"panels": [{**dataclasses.asdict(table_1().panels[0]), "rows": [["alone"]]}]},
            "1 cells of a row and 5 columns",
        ),
    ):
        (path := tmp_path / "figure.json").write_text(json.dumps(plain | change))
        with pytest.raises(ValueError, match=message):
            read_figure(path)
    path.write_text(json.dumps({name: value for name, value in plain.items() if name != "caption"}))
    with pytest.raises(ValueError, match="caption is missing"):
        read_figure(path)
    for text, message in (("[]", "the file is '\\[\\]'"), ('{"name": NaN}', "NaN is no number"), ("{", "Expecting")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_figure(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bars("t", "y", ["a"], {"sgtm": []}, {"sgtm": "SGTM"}), "0 bars of sgtm and 1 groups"),
        (lambda: Bars("t", "y", [], {"sgtm": []}, {}), "'sgtm' in only one of bars and labels"),
        (lambda: Heat("t", "r", "c", ["a"], ["b"], [[1.0, 2.0]]), "2 values of a row and 1 columns"),
        (lambda: Split("t", ["W_Q"], {"retain": [1]}, []), "0 entries of unit and 1 matrices"),
    ],
)
def test_panels_whose_sizes_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_figures_come_in_the_order_of_the_paper_whatever_their_files_order(tmp_path):
    (tmp_path / "figures").mkdir()
    for figure in all_figures():
        (tmp_path / "figures" / f"{figure.name}.json").write_text(json.dumps(dataclasses.asdict(figure)))
    names = [figure.name for figure in read_figures(tmp_path)]
    assert names == [figure.name for figure in all_figures()]
    assert names.index("table-1") == names.index("figure-2") + 1
    page = reproduction_page(read_figures(tmp_path))
    assert re.findall(r'<section id="((?:figure|table)[^"]*)"', page) == names[:-2]
    assert re.findall(r'<li><span>[^<]*</span><a href="#([^"]*)"', page) == names, "the table of contents"
    with pytest.raises(ValueError, match="figure-1 is there twice"):
        in_order([figure_1(), figure_1()])


def test_every_number_of_a_plot_is_in_its_table_and_its_tool_tips():
    page, figure = reproduction_page([figure_3()]), figure_3()
    text, tips = visible_text(page), unescape(" ".join(re.findall(r'data-t="([^"]*)"', page)))
    for panel in figure.panels:
        for point in (point for series in panel.series for point in series.points):
            assert f"{estimate(point.x)} {estimate(point.y)}" in text
            assert f"{estimate(point.x)}\n{estimate(point.y)}" in tips
        for name, level in panel.levels.items():
            assert f"{name} {number(level)}" in text


def test_a_missing_bar_or_cell_says_so():
    assert visible_text(section_of(reproduction_page([figure_9()]), "figure-9")).count("not measured") == 2, (
        "bar and claim"
    )
    assert "– not measured" in visible_text(reproduction_page([figure_11()]))


def test_runs_configurations_and_samples_are_shown():
    text = visible_text(section_of(reproduction_page([figure_1()]), "figure-1"))
    assert "12 runs, 3 seeds; 35.1 million tokens each, 422 million in all." in text
    assert "sgtm-seed-2 2 8,343,040 1,072 35,127,296 9.10 2.44" in text
    assert "train.learning_rate 0.005 0.003 0.003 0.003" in text
    assert "The same for all train.steps 1072 train.seeds [0, 1, 2]" in text
    assert "English opening SGTM, full The cell membrane is a thin layer" in text


def test_text_from_the_results_is_escaped():
    plot = Plot(
        ATTACK, ATTACK, ATTACK, [Series(ATTACK, ATTACK, [Point(Estimate(1), Estimate(1), ATTACK)])], levels={ATTACK: 1}
    )
    bars = Bars(ATTACK, ATTACK, [ATTACK], {"sgtm": [None]}, {"sgtm": ATTACK})
    heat = Heat(ATTACK, ATTACK, ATTACK, [ATTACK], [ATTACK], [[1.0]])
    split = Split(ATTACK, [ATTACK], {ATTACK: [1]}, [ATTACK])
    figure = FigureResults(
        ATTACK,
        ATTACK,
        ATTACK,
        None,
        ATTACK,
        [plot, bars, heat, Table(ATTACK, [ATTACK], [[ATTACK]]), split],
        [PaperClaim(ATTACK, ATTACK, Estimate(1), ATTACK, True, ATTACK)],
        [dataclasses.replace(figure_1().runs[0], name=ATTACK)],
        True,
        configurations={ATTACK: {ATTACK: ATTACK}},
        samples=[dict.fromkeys(("language", "prompt", ATTACK), ATTACK)],
    )
    page = reproduction_page([figure])
    assert page.count("<script") == 2, "our own"
    assert 'alert("1")' not in page


def test_nothing_is_loaded_from_elsewhere_and_every_link_leads_somewhere_or_to_the_paper():
    page = reproduction_page(all_figures())
    assert page.count(f'<a href="{PAPER}">') == 1
    page = page.replace(PAPER, "#")
    references = re.findall(r"""(?:\bsrc|href|srcset|action)\s*=\s*["']([^"']*)""", page)
    assert all(reference.startswith(("#", "data:")) for reference in references)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {reference[1:] for reference in references if reference.startswith("#")} - {""} <= set(ids)
    assert set(re.findall(r"https?://[^\"]*", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert "url(" not in page


def test_every_element_is_closed_and_headings_go_down_by_one():
    class Balance(HTMLParser):
        open: list[str] = []  # noqa: RUF012
        levels: list[int] = []  # noqa: RUF012

        def handle_starttag(self, tag, attributes):
            if tag not in VOID | {"input"}:
                self.open.append(tag)
            if re.fullmatch(r"h\d", tag):
                self.levels.append(int(tag[1]))

        def handle_startendtag(self, tag, attributes):
            pass

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    balance = Balance()
    balance.feed(reproduction_page(all_figures()))
    assert balance.open == []
    assert balance.levels[0] == 1
    assert all(b - a <= 1 for a, b in zip(balance.levels, balance.levels[1:], strict=False))


def test_equal_results_give_equal_bytes_and_twenty_figures_stay_small(tmp_path):
    many = [dataclasses.replace(figure_1(), name=f"figure-{i}") for i in range(14)]
    many += [dataclasses.replace(figure, name=f"figure-{20 + i}") for i, figure in enumerate(all_figures()[3:9])]
    for name in ("first.html", "second.html"):
        write_reproduction(many, tmp_path / name)
    content = (tmp_path / "first.html").read_bytes()
    assert content == (tmp_path / "second.html").read_bytes()
    assert len(content) < 3e6


def test_a_long_curve_is_drawn_whole_with_a_tool_tip_for_some_of_its_points():
    points = [Point(Estimate(i), Estimate(i % 7)) for i in range(2000)]
    page = reproduction_page([one_panel(Plot("t", "x", "y", [Series("sgtm", "SGTM", points, markers=False)]))])
    assert 40 <= page.count("data-t=") <= 60
    assert "(1 point of 34)" in page
    (line,) = re.findall(r'class="line" d="(M[^"]*L[^"]*)"', page)
    assert line.count("L") == 1999


def test_points_that_a_log_axis_has_no_place_for_are_counted():
    points = [Point(Estimate(x), Estimate(1)) for x in (0.0, 1.0, 10.0)]
    page = reproduction_page([one_panel(Plot("t", "x", "y", [Series("sgtm", "SGTM", points)], x_log=True))])
    assert "1 points at or below 0 cannot be drawn" in visible_text(page)
    assert page.count("data-t=") == 2


def test_one_point_and_no_point_can_be_drawn(tmp_path):
    for points in ([], [Point(Estimate(0), Estimate(0))]):
        for log in (False, True):
            figure = one_panel(Plot("t", "x", "y", [Series("sgtm", "SGTM", points)], x_log=log, y_log=log))
            assert "<svg" in reproduction_page([figure])
            save_figure(figure, tmp_path / "figure.svg")
    with pytest.raises(ValueError, match="there is no figure to report"):
        reproduction_page([])


def test_a_method_looks_the_same_in_every_figure_and_unlike_the_others():
    looks = looks_in(all_figures())
    assert looks["sgtm"] == LOOKS["sgtm"]
    others = looks_of(["sgtm", "new_b", "new_a", "no_filter"])
    assert others == looks_of(["new_a", "new_b", "no_filter", "sgtm"])
    assert len(set(others.values())) == 4


def test_no_line_breaks_a_number_with_its_interval():
    table = Table("t", ["what", "loss"], [["no filter", "-0.35 [-0.50, -0.20]"], ["1 of [a, b]", "two words"]])
    page = reproduction_page([one_panel(table)])
    assert "<td>-0.35\u00a0[-0.50,\u00a0-0.20]</td>" in page
    assert "1 of [a, b]" in page
    assert "<td>two words</td>" in page


def test_methods_that_only_one_figure_has_look_different_there_whatever_other_figures_have():
    def figure(*methods):
        return one_panel(
            Plot("t", "x", "y", [Series(method, method, [Point(Estimate(0), Estimate(0))]) for method in methods])
        )

    rare = ("forget_data", "retain_data", "forget_parameters", "retain_parameters")
    looks = looks_in([figure(*LOOKS), figure(*rare), figure("sgtm", "retain_data", "another"), figure("mine")])
    assert len({looks[method] for method in rare}) == len(rare)
    assert len({looks[method] for method in ("sgtm", "retain_data", "another")}) == 3
    later = looks_in([figure("mine"), figure("sgtm", "mine")])
    assert later["mine"] != later["sgtm"], "though it stands alone in the first"


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", LOOKS)
def test_marks_stand_out_from_the_card_in_both_modes(name):
    for colour, card in ((LOOKS[name].light, "#ffffff"), (LOOKS[name].dark, "#1d2126")):
        low, high = sorted((luminance(colour), luminance(card)))
        assert (high + 0.05) / (low + 0.05) >= 3


def alone() -> FigureResults:
    """A single panel, which is narrow, with names that are not."""
    figure = figure_1()
    plot = figure.panels[0]
    names = ("SGTM as in the paper", "Token vectors, a tenth of the documents", "Data filter", "Perfect filter")
    series = [dataclasses.replace(one, label=name) for one, name in zip(plot.series, names, strict=True)]
    return dataclasses.replace(figure, name="alone", panels=[dataclasses.replace(plot, series=series)])


@pytest.mark.parametrize("figure", [*all_figures(), alone()], ids=lambda figure: figure.name)
def test_every_figure_becomes_a_picture_with_all_of_its_text_inside(figure):
    drawn = paper_figure(figure)
    drawn.draw_without_rendering()
    title = next(text for text in drawn.subfigs[0].texts if text.get_text() == figure.title)
    box = Bbox.union(
        [
            drawn.get_tightbbox().transformed(drawn.dpi_scale_trans),
            *(artist.get_window_extent() for artist in (title, *drawn.subfigs[0].legends)),
        ]
    )
    assert box.x0 >= -1
    assert box.y0 >= -1
    assert box.x1 <= drawn.bbox.x1 + 1
    assert box.y1 <= drawn.bbox.y1 + 1


def test_the_number_of_a_negative_bar_stands_beyond_zero_away_from_names_and_markers():
    for chart in reproduction_page([two_topics()]).split('class="axes"')[1:]:
        zero = float(re.findall(r'class="base" d="M([\d.]+)', chart)[0])
        places = re.findall(r'<text x="([\d.]+)" class="value"', chart)
        assert places
        assert all(float(place) > zero for place in places)
    drawn = paper_figure(two_topics())
    drawn.draw_without_rendering()
    for axes in drawn.axes[1:]:
        names = [name.get_window_extent() for name in axes.get_yticklabels()]
        bars = [bar.get_window_extent() for bar in axes.patches]
        numbers = [text.get_window_extent() for text in axes.texts]
        assert len(numbers) == len(bars)
        assert not any(number.overlaps(box) for number in numbers for box in [*names, *bars])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_equal_figures_give_equal_files(tmp_path, suffix):
    for name in ("first", "second"):
        save_figure(figure_9(check_only=True), tmp_path / f"{name}{suffix}")
    first = (tmp_path / f"first{suffix}").read_bytes()
    assert first == (tmp_path / f"second{suffix}").read_bytes()
    assert b"Date" not in first


def test_a_picture_carries_the_stamp_and_an_unknown_suffix_is_refused(tmp_path):
    words = {text.get_text() for text in paper_figure(figure_9(check_only=True)).findobj() if hasattr(text, "get_text")}
    assert "PIPELINE CHECK ONLY" in words
    with pytest.raises(ValueError, match=r"\.png, \.svg or \.pdf"):
        save_figure(figure_9(), tmp_path / "figure.bmp")
