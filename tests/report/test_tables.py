"""Colour in tables of numbers: around 0 for differences, from the smallest to the largest for numbers far from 0."""

import re

import pytest
from matplotlib.colors import to_hex

from excise.report.figures import paper_figure
from excise.report.reproduction import reproduction_page
from excise.report.tables import heat_scale
from tests.report.example_figures import figure_11, two_topics
from tests.report.test_reproduction import luminance, visible_text


@pytest.mark.parametrize("values", [[4.86, 5.72], [-5.72, -4.86], [1e-9, 1.1e-9]])
def test_colour_of_numbers_far_from_zero_runs_from_the_smallest_to_the_largest(values):
    base, reach = heat_scale(values)
    assert [(value - base) / reach for value in values] == pytest.approx([0.1, 1])


@pytest.mark.parametrize("values", [[-0.1, 0.4], [0.0, 0.4], [0.1, 0.4], [-0.4, -0.1], [0.4], [-0.4, 0.4]])
def test_colour_of_differences_is_the_stronger_the_further_they_are_from_zero(values):
    assert heat_scale(values) == (0, 0.4)


@pytest.mark.parametrize("values", [[], [0.0]])
def test_a_table_without_a_number_or_of_zeros_has_no_colour(values):
    assert heat_scale(values) == (0, 1)


def cells(figure) -> list[tuple[str, float]]:
    found = re.findall(r'<td class="(above|below)" style="--v: ([\d.]+)"', reproduction_page([figure]))
    return [(side, float(strength)) for side, strength in found]


def test_cells_of_losses_have_one_hue_and_differ_and_cells_of_differences_have_two():
    sides, strengths = zip(*cells(two_topics()), strict=True)
    assert set(sides) == {"above"}
    assert (min(strengths), max(strengths), len(set(strengths))) == (0.1, 1, 8)
    assert "closer to the smallest number" in visible_text(reproduction_page([two_topics()]))
    assert {side for side, _ in cells(figure_11())} == {"above", "below"}
    assert "paler is closer to 0" in visible_text(reproduction_page([figure_11()]))


def test_cells_in_a_picture_are_the_darker_the_larger_and_their_numbers_are_readable():
    axes = paper_figure(two_topics()).axes[0]
    (image,) = axes.images
    lights = {value: luminance(to_hex(image.to_rgba(value))) for value in sorted(image.get_array().compressed())}
    assert list(lights.values()) == sorted(lights.values(), reverse=True)
    assert max(lights.values()) - min(lights.values()) > 0.4
    ink = luminance(to_hex(axes.texts[0].get_color()))
    assert (min(lights.values()) + 0.05) / (ink + 0.05) >= 4.5
