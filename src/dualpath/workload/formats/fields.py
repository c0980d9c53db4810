"""Checked access to the fields of a trace; every complaint names file, line and field."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualpath.errors import TraceError
from dualpath.workload.trajectory import Trajectory, Turn

_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a trace, and where it stands: ``path`` leads to it within its line. null counts as missing."""

    name: str
    line: int
    value: dict[str, Any]
    path: str = ""

    def error(self, field: str, problem: str) -> TraceError:
        return TraceError(f"{self.name}:{self.line}: {self.path}{field}: {problem}")

    def count(self, field: str, default: int = _REQUIRED, least: int = 0) -> int:
        """A whole number, ``least`` or more."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(field, f"must be a whole number, {least} or more, not {reprlib.repr(value)}")
        return value

    def number(self, field: str, default: float = _REQUIRED) -> float:
        """A finite number."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(field, f"must be a number, not {reprlib.repr(value)}")
        return float(value)

    def duration(self, field: str, default: float = _REQUIRED) -> float:
        """A finite number, 0 or more."""
        value = self.number(field, default)
        if value < 0:
            raise self.error(field, f"must not be negative, but is {value}")
        return value

    def text(self, field: str, default: str = _REQUIRED) -> str:
        value = self._value(field, default)
        if not isinstance(value, str):
            raise self.error(field, f"must be text, not {reprlib.repr(value)}")
        return value

    def child(self, field: str, default: dict[str, Any] = _REQUIRED) -> Record:
        """An object within this one."""
        return self._record(self._value(field, default), field)

    def children(self, field: str) -> list[Record]:
        """A list of objects that is not empty."""
        return [self._record(value, f"{field}[{index}]") for index, value in enumerate(self._filled_list(field))]

    def rows(self, field: str, columns: Sequence[str]) -> list[Record]:
        """A list, not empty, of lists with one value a column."""
        rows = []
        for index, values in enumerate(self._filled_list(field)):
            if not isinstance(values, list) or len(values) != len(columns):
                raise self.error(f"{field}[{index}]", f"must be a list of {', '.join(columns)}")
            rows.append(self._record(dict(zip(columns, values, strict=True)), f"{field}[{index}]"))
        return rows

    def counts(self, field: str, default: list[int] = _REQUIRED) -> list[int]:
        """A list of whole numbers, perhaps empty."""
        values = self._value(field, default)
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise self.error(field, "must be a list of whole numbers")
        return values

    def trajectory(self, identity: str, turns: Sequence[Turn]) -> Trajectory:
        """The trajectory of this record.

        Raises:
            TraceError: the turns do not follow from each other.
        """
        try:
            return Trajectory(identity, tuple(turns))
        except ValueError as problem:
            raise TraceError(f"{self.name}:{self.line}: {problem}") from problem

    def _value(self, field: str, default: Any) -> Any:
        value = self.value.get(field)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(field, "is missing")
        return default

    def _filled_list(self, field: str) -> list[Any]:
        values = self._value(field, _REQUIRED)
        if not isinstance(values, list) or not values:
            raise self.error(field, "must be a list with at least one entry")
        return values

    def _record(self, value: Any, field: str) -> Record:
        if not isinstance(value, dict):
            raise self.error(field, f"must be an object, not {reprlib.repr(value)}")
        return Record(self.name, self.line, value, f"{self.path}{field}.")
