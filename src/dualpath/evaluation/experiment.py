"""An experiment: what it simulates, and what it makes of the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.section import Section


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table of the paper, or a question beyond it.

    Attributes:
        key: its name on the command line.
        title: what it shows.
        cases: what has to be simulated, so that all experiments' cases can run side by side.
        section: what comes of it; asks the lab for the outcomes of these very cases.
    """

    key: str
    title: str
    cases: Callable[[], Sequence[Case]]
    section: Callable[[Lab], Section]
