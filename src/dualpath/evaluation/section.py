"""What an experiment leaves behind: numbers beside the paper's, pictures, and a conclusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Within(StrEnum):
    """How a value is held against the paper's."""

    RELATIVE = "relative"
    """``|ours − paper| / paper`` is at most the tolerance."""
    FACTOR = "factor"
    """ours is within a factor of the paper's: ``max(ours / paper, paper / ours)`` is at most the tolerance."""
    AT_MOST = "at most"
    """ours is at most the paper's."""
    SHOWN = "shown"
    """there is no target; both are shown."""


@dataclass(frozen=True, slots=True)
class Value:
    """One number of an experiment.

    ``name`` says which ("JCT DualPath, 2,048 agents"); ``paper`` is None where the paper has none; ``calibrated`` marks
    the few values that parameters were set on, which are no predictions.
    """

    name: str
    unit: str
    ours: float
    paper: float | None = None
    within: Within = Within.SHOWN
    tolerance: float = 0.0
    calibrated: bool = False
    note: str = ""

    @property
    def error(self) -> float | None:
        """``ours / paper − 1``; None without a paper's value."""
        return None if not self.paper else self.ours / self.paper - 1

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.within is Within.SHOWN or self.paper is None:
            return None
        if self.within is Within.AT_MOST:
            return self.ours <= self.paper
        if self.within is Within.FACTOR:
            return self.ours > 0 and max(self.ours / self.paper, self.paper / self.ours) <= self.tolerance
        return abs(self.ours - self.paper) <= self.tolerance * abs(self.paper)


@dataclass(frozen=True, slots=True)
class Series:
    """A named curve (or group of bars); ``paper`` marks the paper's own values."""

    name: str
    points: Sequence[tuple[float | str, float]]
    paper: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart: lines over numbers, or bars over categories when the x values are texts."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """An experiment's result.

    Attributes:
        key: its name on the command line, e.g. ``fig7``.
        title: what it shows.
        text: paragraphs, what was run and what to conclude, misses included.
        values: numbers beside the paper's.
        pictures: charts.
        wall_s: seconds that it took to run.
    """

    key: str
    title: str
    text: Sequence[str]
    values: Sequence[Value] = ()
    pictures: Sequence[Picture] = ()
    wall_s: float = field(default=0.0, compare=False)
