"""The picture shows the curves of the results, and nothing of when, where or how it was drawn."""

import struct

import matplotlib
import pytest
from matplotlib.lines import Line2D

from excise.report.plots import METHODS, equal_shares, save_tradeoff, tradeoff_figure
from tests.report.example import SHARES, example_results


def drawn_lines() -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in tradeoff_figure(example_results()).axes[0].lines}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_each_method_is_one_line_through_its_checkpoints(method):
    curve = example_results()["curves"][method.name]
    line = drawn_lines()[method.label]
    assert list(line.get_xdata()) == [point["retain"] for point in curve]
    assert list(line.get_ydata()) == [point["forget"] for point in curve]
    assert line.get_marker() == method.marker


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_star_stands_at_the_end_of_training(method):
    end = example_results()["curves"][method.name][-1]
    star = drawn_lines()[f"{method.label}, end"]
    assert (star.get_marker(), star.get_color()) == ("*", method.colour)
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([end["retain"]], [end["forget"]])


def test_a_dashed_line_joins_all_methods_at_each_share_of_training():
    dashed = [line for label, line in drawn_lines().items() if label.startswith("equal share")]
    assert len(dashed) == len(SHARES)
    assert all(len(line.get_xdata()) == len(METHODS) for line in dashed)


def test_shares_that_differ_by_a_rounding_are_equal_and_lone_points_are_not_joined():
    def point(share: float, forget: float) -> dict[str, float]:
        return {"share": share, "forget": forget}

    curves = [[point(0.25, 9.0), point(0.5, 8.0), point(1.0, 7.0)], [point(0.256, 6.0), point(1.0, 5.0)]]
    assert [[p["forget"] for p in group] for group in equal_shares(curves)] == [[6.0, 9.0], [5.0, 7.0]]


def test_the_legend_names_every_method():
    (legend,) = tradeoff_figure(example_results()).legends
    assert {method.label for method in METHODS} <= {text.get_text() for text in legend.get_texts()}


def test_labels_stay_inside_the_picture_and_out_of_the_curves():
    figure = tradeoff_figure(example_results())
    axes, (legend,) = figure.axes[0], figure.legends
    figure.draw_without_rendering()
    for artist in (axes.xaxis.label, axes.yaxis.label, legend, *figure.texts):
        extent = artist.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
        assert 0 <= extent.y0 < extent.y1 <= figure.bbox.y1
    assert legend.get_window_extent().y0 > axes.bbox.y1


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    tradeoff_figure(example_results())
    assert dict(matplotlib.rcParams) == before


def test_png_is_large_enough_to_print(tmp_path):
    save_tradeoff(example_results(), tmp_path / "tradeoff.png")
    width, height = struct.unpack(">II", (tmp_path / "tradeoff.png").read_bytes()[16:24])
    assert 1000 <= width <= 2400
    assert 0.7 <= height / width <= 1.1


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_equal_results_give_equal_bytes(tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in ("first", "second")]
    for path in paths:
        save_tradeoff(example_results(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert b"Date" not in paths[0].read_bytes()


def test_some_of_the_methods_are_enough():
    results = example_results()
    results["curves"] = {"sgtm": results["curves"]["sgtm"][-1:]}
    assert {str(line.get_label()) for line in tradeoff_figure(results).axes[0].lines} == {
        "SGTM with token vectors",
        "SGTM with token vectors, end",
    }


def test_an_unknown_method_is_refused():
    results = example_results()
    results["curves"]["prayer"] = []
    with pytest.raises(ValueError, match="unknown method 'prayer'"):
        tradeoff_figure(results)


def test_an_empty_curve_is_refused():
    results = example_results()
    results["curves"]["sgtm"] = []
    with pytest.raises(ValueError, match="curve of 'sgtm' has no point"):
        tradeoff_figure(results)


def test_an_unknown_kind_of_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.svg or \.pdf"):
        save_tradeoff(example_results(), tmp_path / "tradeoff.bmp")
