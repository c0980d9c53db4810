"""A lab that knows its outcomes without simulating, and how to look into a section."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Section, Value


def _unknown(case: Case) -> Outcome:
    raise AssertionError(f"nobody said what comes of {case}")


@dataclass(slots=True)
class CannedLab(Lab):
    """Gives what ``made`` makes of a case; remembers which cases were asked for."""

    made: Callable[[Case], Outcome] = _unknown
    asked: set[Case] = field(default_factory=set)

    def outcomes(self, cases: Iterable[Case]) -> dict[Case, Outcome]:
        wanted = list(cases)
        self.asked.update(wanted)
        return {case: self.made(case) for case in wanted}


def named(of: Section, start: str) -> Value:
    """The one value whose name begins so."""
    (found,) = [value for value in of.values if value.name.startswith(start)]
    return found


def text(of: Section) -> str:
    """All paragraphs."""
    return "\n".join(of.text)
