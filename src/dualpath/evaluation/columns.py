"""What the tables of an evaluation say, on the page and in the terminal: columns, marks, scores, numbers as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dualpath.evaluation.section import Section, Value, Within

NONE = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """Four significant digits, all digits before the point up to a thousand million, powers of ten beyond."""
    if not math.isfinite(value):
        return NONE if math.isnan(value) else ("∞" if value > 0 else "−∞")
    size = abs(value)
    if 999.95 <= size < 1e9:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPT)}" if e else text


def percent(ratio: float | None) -> str:
    """A deviation, with its sign."""
    if ratio is None or math.isnan(ratio):
        return ""
    return f"{ratio:+,.1%}" if math.isfinite(ratio) else number(ratio)


def duration(seconds: float) -> str:
    """Of work; a dash where no time was taken."""
    if not seconds:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest_s:02} s"


def target(value: Value) -> str:
    """How near to the paper's value ours should be; empty where there is no target."""
    if value.holds is None:
        return ""
    if value.within is Within.RELATIVE:
        return f"±{value.tolerance * 100:.4g}%"
    return f"factor {value.tolerance:.4g}" if value.within is Within.FACTOR else "at most"


def mark(value: Value) -> str:
    """``ok``, ``miss`` or nothing; ``calibrated`` instead of ``ok`` where it is no prediction."""
    if value.calibrated:
        return "calibrated, miss" if value.holds is False else "calibrated"
    return "" if value.holds is None else ("ok" if value.holds else "miss")


class Column(NamedTuple):
    """Of a table of values."""

    title: str
    cell: Callable[[Value], str]
    numeric: bool = False


COLUMNS = (
    Column("value", lambda value: value.name),
    Column("unit", lambda value: value.unit),
    Column("ours", lambda value: number(value.ours), numeric=True),
    Column("paper", lambda value: "" if value.paper is None else number(value.paper), numeric=True),
    Column("error", lambda value: percent(value.error), numeric=True),
    Column("target", target, numeric=True),
    Column("result", mark),
    Column("note", lambda value: value.note),
)


def columns_of(values: Sequence[Value]) -> list[Column]:
    """Those that say anything about these values."""
    return [column for column in COLUMNS if any(map(column.cell, values))]


@dataclass(frozen=True, slots=True)
class Score:
    """How predictions did; values that parameters were set on are counted apart, and values without target not at all."""

    within: int
    targets: int
    calibrated: int
    worst: Value | None

    @property
    def text(self) -> str:
        return f"{self.within} of {self.targets}" if self.targets else NONE

    @property
    def worst_text(self) -> str:
        return NONE if self.worst is None else percent(self.worst.error)

    @property
    def worst_name(self) -> str:
        return "" if self.worst is None else self.worst.name


def score(sections: Iterable[Section]) -> Score:
    """Of all of these together."""
    values = [value for section in sections for value in section.values]
    predictions = [value for value in values if value.holds is not None and not value.calibrated]
    return Score(
        within=sum(bool(value.holds) for value in predictions),
        targets=len(predictions),
        calibrated=sum(value.calibrated for value in values),
        worst=max(filter(_deviates, predictions), key=lambda value: abs(value.error or 0.0), default=None),
    )


def _deviates(value: Value) -> bool:
    """Whether its error is one: better than "at most" is none."""
    met_limit = value.within is Within.AT_MOST and bool(value.holds)
    return value.error is not None and not math.isnan(value.error) and not met_limit
