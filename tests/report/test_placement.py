"""Axes fit the points, and texts stand beside their points without covering anything, on the page and in pictures alike."""

import dataclasses
import re

import pytest
from matplotlib.colors import to_hex
from matplotlib.transforms import Bbox

from excise.evals.figure import Bars, Estimate, Plot, Point, Series
from excise.report.figures import paper_figure
from excise.report.placement import Axis, Frame, bar_limits, limits, limits_of, place_texts
from excise.report.reproduction import reproduction_page
from tests.report.example_figures import around, figure_1
from tests.report.test_reproduction import one_panel, visible_text


def frame_of(panel: Plot) -> Frame:
    x_limits, y_limits = limits_of(panel)
    return Frame(Axis(*x_limits, panel.x_log, 40, 400), Axis(*y_limits, panel.y_log, 280, 10), 7, 15)


def overlap(a, b) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def crowd(n: int) -> Plot:
    """Points with whiskers around one in the middle, which alone has a text, and a level through it."""
    middle = Point(around(0, 0.3), around(0, 0.3), "a text")
    ring = [Point(around(x, 0.2), around(y, 0.2)) for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (3, 3), (-3, -3))]
    series = [Series("sgtm", "SGTM", [middle], line=False), Series("rmu", "RMU", ring[:n], line=False)]
    return Plot("t", "x", "y", series, levels={"goal": 0})


def test_one_wide_interval_does_not_stretch_an_axis():
    usual = [around(value, 0.2) for value in (1, 2, 3, 4)]
    low, high = limits([*usual, Estimate(3, -20, 30)], [], log=False)
    assert (low, high) == pytest.approx((0.7 - 0.06 * 3.6, 4.3 + 0.06 * 3.6))


def test_an_axis_holds_all_points_and_levels_and_the_usual_intervals():
    low, high = limits([around(1, 0.5), around(2, 0.5)], [7], log=False)
    assert low < 0.5
    assert high > 7
    low, high = limits([around(1, 0.5)], [], log=False)
    assert low < 0.5 < 1.5 < high, "a single point"
    low, high = limits([Estimate(10, -1, 1000), Estimate(20, 19, 21), Estimate(40, 39, 41)], [], log=True)
    assert 5 < low < 10
    assert 40 < high < 80


def test_what_is_beyond_the_axes_is_cut_off():
    points = [Point(Estimate(x), around(x, 30 if x == 1 else 0.1)) for x in range(5)]
    page = reproduction_page([one_panel(Plot("t", "x", "y", [Series("sgtm", "SGTM", points)]))])
    (inner,) = re.findall(
        r'<g class="s [^>]*><svg x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" viewBox', page
    )
    (band,) = re.findall(r'class="band" d="M([^"]*)z"', page)
    heights = [float(place.split()[1]) for place in band.split("L")]
    assert min(heights) < float(inner[1]) < float(inner[1]) + float(inner[3]) < max(heights)


def test_a_text_stands_on_a_side_of_its_point_that_is_free():
    panel = crowd(6)
    frame = frame_of(panel)
    text, name = place_texts(panel, frame)
    assert (name.words, text.words) == ("goal 0", "a text")
    for x, y in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
        at = frame.x.at(x), frame.y.at(y)
        assert not overlap(text.box, (at[0] - 5, at[1] - 5, at[0] + 5, at[1] + 5))
    assert not overlap(text.box, name.box)
    assert not overlap(text.box, (frame.x.at(-0.3), frame.y.at(0) - 1, frame.x.at(0.3), frame.y.at(0) + 1)), (
        "its whisker"
    )
    assert abs(text.place[0] - frame.x.at(0)) < 30
    assert abs(text.place[1] - frame.y.at(0)) < 30


def test_a_text_is_left_out_only_where_all_sides_of_its_point_are_taken():
    points = [
        Point(Estimate(x / 20), Estimate(y / 20), "text" if x == y == 10 else "") for x in range(21) for y in range(21)
    ]
    panel = Plot("t", "x", "y", [Series("sgtm", "SGTM", points, line=False)])
    assert place_texts(panel, frame_of(panel)) == []
    panel = Plot("t", "x", "y", [Series("sgtm", "SGTM", points[220:221], line=False)])
    assert [text.words for text in place_texts(panel, frame_of(panel))] == ["text"]


def test_the_name_of_a_level_covers_neither_the_text_of_a_point_nor_another_level():
    panel = dataclasses.replace(crowd(4), x_levels={"goal": 0.4, "least": 0.5})
    frame = frame_of(panel)
    texts = place_texts(panel, frame)
    assert [text.words for text in texts] == ["a text", "goal 0", "goal 0.4", "least 0.5"]
    for i, text in enumerate(texts):
        assert not any(overlap(text.box, other.box) for other in texts[:i])
    for text in texts[1:]:
        assert not text.box[0] < frame.x.at(0.4) < text.box[2]
        assert not text.box[0] < frame.x.at(0.5) < text.box[2]


def test_page_and_picture_write_the_same_texts():
    for panel in (crowd(0), crowd(6), dataclasses.replace(crowd(2), x_levels={"end": 1.5})):
        page = reproduction_page([one_panel(panel)])
        (axes,) = paper_figure(one_panel(panel)).axes
        written = re.findall(r'<text class="halo[^>]*>([^<]*)', page)
        assert sorted(text.get_text() for text in axes.texts) == sorted(written)
        assert "a text" in written


def test_texts_in_a_picture_cover_neither_markers_nor_whiskers_nor_each_other():
    figure = paper_figure(one_panel(crowd(6)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    markers = [
        Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in axes.transData.transform([(0, 0), (1, 0), (0, 1), (-1, 0)])
    ]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in [*markers, *boxes[:i]])


def marked() -> Plot:
    """Sizes as categories, a dashed series in the colour of another, and a line across."""
    points = [Point(Estimate(i), Estimate(i + 1)) for i in range(3)]
    series = [
        Series("sgtm", "Before ablation", points, dashed=True),
        Series("sgtm", "After ablation", points[::-1]),
    ]
    names = {"8M": 0, "Gradient Routing of all": 1, "64M": 2}
    return Plot("t", "size", "y", series, x_levels={"the paper's": 1.5}, x_ticks=names)


def test_named_ticks_stand_at_the_axis_and_in_place_of_their_numbers():
    page = reproduction_page([one_panel(marked())])
    assert "8M Gradient Routing of all 64M" in visible_text(page)
    assert page.count('class="tick"') == 3
    assert "Before ablation 8M 1 Before ablation Gradient Routing of all 2" in visible_text(page)
    assert "&#10;64M&#10;3" in page, "a tool tip"
    (drawn,) = paper_figure(one_panel(marked())).axes
    assert list(drawn.get_xticks()) == [0, 1, 2]
    assert [tick.get_text().replace("\n", " ") for tick in drawn.get_xticklabels()] == list(marked().x_ticks)


def test_intervals_that_reach_further_than_the_bars_are_cut_off():
    panel = Bars(
        "t",
        "y",
        ["a"],
        {"sgtm": [Estimate(50, -1000, 90)], "rmu": [Estimate(-10, -20, 0)]},
        {"sgtm": "SGTM", "rmu": "RMU"},
    )
    assert bar_limits(panel) == (-70, 90)
    assert bar_limits(Bars("t", "y", ["a"], {"sgtm": [Estimate(0, -1, 1)]}, {"sgtm": "SGTM"})) == (-1, 1)
    beyond = Bars("t", "y", ["a"], {"sgtm": [Estimate(50, 10, 1000)]}, {"sgtm": "SGTM"})
    (number,) = re.findall(r'<text x="([\d.]+)" class="value"', reproduction_page([one_panel(beyond)]))
    assert float(number) < 380, "so that the number beside a cut whisker is in the picture"
    page = reproduction_page([one_panel(panel)])
    (width,) = re.findall(r'viewBox="0 0 (\d+) \d+" role="img"', page)
    places = [
        float(place) for way in re.findall(r'"whisker over" d="M([\d.-]+) [\d.]+H([\d.-]+)"', page) for place in way
    ]
    assert len(places) == 4
    assert all(0 < place < float(width) for place in places)
    (drawn,) = paper_figure(one_panel(panel)).axes
    low, high = drawn.get_xlim()
    assert low < -70
    assert high > 90
    ends = [float(x) for lines in drawn.collections for line in lines.get_segments() for x in line[:, 0]]
    assert (min(ends), max(ends)) == pytest.approx((-70, 90))


def test_vertical_levels_have_a_line_and_a_name():
    page = reproduction_page([one_panel(marked())])
    assert re.search(r'class="level" d="M[\d.]+ \d+V\d+"', page)
    assert "the paper&#x27;s 1.5</text>" in page
    in_percent = dataclasses.replace(marked(), x_label="loss above the filter's, %")
    assert "the paper&#x27;s 1.5 %</text>" in reproduction_page([one_panel(in_percent)])
    (drawn,) = paper_figure(one_panel(marked())).axes
    assert [text.get_text() for text in drawn.texts] == ["the paper's 1.5"]
    assert any(list(line.get_xdata()) == [1.5, 1.5] for line in drawn.lines)


def test_a_dashed_series_is_dashed_in_plot_and_legend_and_the_other_of_its_colour_is_not():
    page = reproduction_page([one_panel(marked())])
    groups = re.findall(r'<g class="(s s\d v\d[^"]*)"', page)
    assert groups == 2 * ["s s0 v0 dashed", "s s1 v0"], "legend, then plot"
    figure = paper_figure(one_panel(marked()))
    (legend,) = figure.subfigs[0].legends
    for lines in (figure.axes[0].lines[:2], legend.get_lines()):
        assert [line.is_dashed() for line in lines] == [True, False]
        assert len({to_hex(line.get_color()) for line in lines}) == 1


def test_a_plot_that_is_left_over_has_the_whole_width_and_the_caption_below():
    plot = figure_1().panels[0]
    for panels, kinds in (([plot], ["panel wide"]), (3 * [plot], ["panel", "panel", "panel wide"])):
        page = reproduction_page([dataclasses.replace(figure_1(), panels=panels)])
        assert re.findall(r'<div class="(panel[^"]*)">', page) == kinds
        assert page.index("<figcaption>") > page.rindex('<div class="panel')
