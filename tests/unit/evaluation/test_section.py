"""Values against the paper's, and what the tables say about them."""

import math

import pytest

from dualpath.evaluation.columns import columns_of, duration, mark, number, percent, score, target
from dualpath.evaluation.section import Section, Value, Within


def value(ours: float, paper: float | None, within: Within, tolerance: float = 0.0, calibrated: bool = False) -> Value:
    return Value("v", "s", ours, paper, within, tolerance, calibrated)


@pytest.mark.parametrize(
    ("one", "error", "holds"),
    [
        (value(110, 100, Within.RELATIVE, 0.1), 0.1, True),
        (value(89, 100, Within.RELATIVE, 0.1), -0.11, False),
        (value(50, 100, Within.FACTOR, 2), -0.5, True),
        (value(201, 100, Within.FACTOR, 2), 1.01, False),
        (value(0, 100, Within.FACTOR, 2), -1, False),
        (value(100, 100, Within.AT_MOST), 0, True),
        (value(101, 100, Within.AT_MOST), 0.01, False),
        (value(101, 100, Within.SHOWN), 0.01, None),
    ],
)
def test_error_and_target(one: Value, error: float, holds: bool | None) -> None:
    assert one.error == pytest.approx(error)
    assert one.holds is holds


def test_without_a_paper_value_there_is_neither_error_nor_target() -> None:
    one = value(1, None, Within.RELATIVE, 0.1)
    assert (one.error, one.holds, target(one), mark(one)) == (None, None, "", "")


def test_against_zero_there_is_a_target_but_no_error() -> None:
    one = value(0, 0, Within.AT_MOST)
    assert (one.error, one.holds) == (None, True)


def test_not_a_number_meets_no_target() -> None:
    kinds = (Within.RELATIVE, Within.FACTOR, Within.AT_MOST)
    assert [value(math.nan, 1, within, 2).holds for within in kinds] == [False] * 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (0, "0"),
        (2.0, "2"),
        (1.83672, "1.837"),
        (0.0456712, "0.04567"),
        (999.96, "1,000"),
        (49152, "49,152"),
        (-1234567.4, "-1,234,567"),
        (26e9, "2.6×10¹⁰"),
        (1.5e-3 / 32768, "4.578×10⁻⁸"),
        (math.nan, "–"),
        (math.inf, "∞"),
    ],
)
def test_numbers_have_four_digits_or_all_before_the_point(given: float, text: str) -> None:
    assert number(given) == text


def test_deviations_and_durations() -> None:
    assert [percent(ratio) for ratio in (None, 0.1234, -0.05, 20.5, math.nan)] == ["", "+12.3%", "-5.0%", "+2,050.0%", ""]
    assert [duration(s) for s in (0, 12.34, 754.3, 7384)] == ["–", "12.3 s", "12 min 34 s", "2 h 03 min"]


def test_marks_and_targets() -> None:
    ones = [
        value(1, 1, Within.RELATIVE, 0.125),
        value(2, 1, Within.FACTOR, 1.5),
        value(1, 1, Within.AT_MOST, calibrated=True),
        value(2, 1, Within.AT_MOST, calibrated=True),
        value(1, 1, Within.SHOWN),
    ]
    assert [mark(one) for one in ones] == ["ok", "miss", "calibrated", "calibrated, miss", ""]
    assert [target(one) for one in ones] == ["±12.5%", "factor 1.5", "at most", "at most", ""]


def test_columns_that_say_nothing_are_left_out() -> None:
    assert [column.title for column in columns_of([Value("v", "", 1.0)])] == ["value", "ours"]
    assert [column.title for column in columns_of([Value("v", "s", 1.0, 1.0, note="n")])] == [
        *("value", "unit", "ours", "paper", "error", "note")
    ]
    assert columns_of([]) == []


def test_the_score_counts_predictions_with_a_target() -> None:
    worst = value(80, 100, Within.RELATIVE, 0.1)
    sections = [
        Section("a", "A", [], [worst, value(105, 100, Within.RELATIVE, 0.1), value(9, 1, Within.RELATIVE, 0.1, True)]),
        Section("b", "B", [], [value(1, 100, Within.AT_MOST), value(9, 1, Within.SHOWN), value(9, None, Within.SHOWN)]),
    ]
    found = score(sections)
    assert (found.text, found.worst, found.worst_text, found.calibrated) == ("2 of 3", worst, "-20.0%", 1)
    nothing = score([])
    assert (nothing.text, nothing.worst_text, nothing.worst_name) == ("–", "–", "")
