"""Numbers have as many digits as are known, and ticks are round."""

import pytest

from excise.evals.figure import Estimate, Table
from excise.report.numbers import count, decimals_of, estimate, linear_ticks, log_ticks, number, tick_labels, unbroken
from excise.report.tables import cells_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3.94, "3.94"),
        (-0.01234, "−0.0123"),
        (63855.185, "63,855"),
        (3.2e-7, "3.2 × 10⁻⁷"),
        (1e19, "10¹⁹"),
        (60, "60"),
    ],
)
def test_numbers_have_sensible_digits(value, text):
    assert number(value) == text


def test_an_interval_decides_how_many_digits_are_shown():
    assert estimate(Estimate(3.94217, 3.9, 3.98)) == "3.942 [3.900, 3.980]"
    assert estimate(Estimate(0.5712, 0.49, 0.65)) == "0.57 [0.49, 0.65]"
    assert estimate(Estimate(350, 325, None), "steps") == "350\u00a0steps [325, …]"
    assert unbroken("0.57, or 57 % [0.49, 0.65]") == "0.57, or 57 % [0.49,\u00a00.65]"
    assert count(35_127_296) == "35.1 million"


def test_ticks_are_round_and_inside():
    assert linear_ticks(2.27, 3.51) == pytest.approx([2.5, 2.75, 3.0, 3.25, 3.5])
    assert tick_labels(linear_ticks(0, 1)) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert tick_labels(log_ticks(1e16, 2e19), log=True) == ["10¹⁶", "10¹⁷", "10¹⁸", "10¹⁹"]
    assert tick_labels(log_ticks(0.5, 2e6), log=True) == ["1", "10", "100", "1k", "10k", "100k", "1M"]
    assert log_ticks(2, 30) == [3, 10, 30]


def test_a_number_without_an_interval_has_two_digits_in_a_claim():
    for value, text in (
        (1.142857, "1.1"),
        (0.09540597, "0.095"),
        (80.66874, "81"),
        (63855.185, "63,855"),
        (20.0, "20"),
    ):
        assert estimate(Estimate(value), digits=2) == text


def test_the_ends_of_an_interval_have_the_decimals_of_their_number():
    assert estimate(Estimate(0.0120, 0.00004, 0.0240)) == "0.012 [0.000, 0.024]"
    assert estimate(Estimate(8.039, -10.3, 26.4)) == "8 [−10, 26]"
    assert estimate(Estimate(0.004, -0.0004, 0.0084)) == "0.0040 [−0.0004, 0.0084]"
    assert number(-0.0004, 2) == "0.00"


def test_a_column_has_the_fewest_decimals_that_show_three_digits_of_its_largest_number():
    assert decimals_of([5.7706, 4.9801]) == 2
    assert decimals_of([0.01, 0.05, -0.1]) == 2
    assert decimals_of([0, 50, 1000]) == 0
    assert decimals_of([3.2e19, 1.0]) is None


def test_measured_columns_of_a_table_have_fixed_decimals_and_settings_stay_as_they_are():
    rows = [["Steps", 250, 5.7706], ["alpha", 100.0, 12.9801], ["rate", 0.001, "never"]]
    assert cells_of(Table("t", ["", "value", "loss"], rows)) == [
        ["Steps", "250", "5.8"],
        ["alpha", "100", "13.0"],
        ["rate", "0.001", "never"],
    ]
