"""Experiments on a terminal: an overview, and a table for each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from dualpath.evaluation.page import counts, number, target, worst
from dualpath.evaluation.section import Section, Value


def render_overview(sections: Sequence[Section]) -> Table:
    """A line an experiment: how many predictions are within their target, and the one that is furthest off."""
    table = Table("experiment", title="within target")
    table.add_column("holds", justify="right")
    table.add_column("furthest off")
    for section in sections:
        held, of = counts(section)
        far = worst(section)
        furthest = "" if far is None or far.error is None else f"{far.error:+.0%} {far.name}"
        table.add_row(section.key, f"{held}/{of}" if of else "–", furthest)
    return table


def render_section(section: Section) -> Table:
    """A line a value."""
    table = Table("value", title=section.title, caption="\n".join(section.text))
    for header in ("ours", "paper", "error", "target", ""):
        table.add_column(header, justify="right")
    for value in section.values:
        table.add_row(
            value.name,
            f"{number(value.ours)} {value.unit}",
            "" if value.paper is None else number(value.paper),
            "" if value.error is None else f"{value.error:+.1%}",
            target(value),
            _mark(value),
        )
    return table


def _mark(value: Value) -> str:
    if value.calibrated:
        return "set"
    return {True: "ok", False: "miss", None: ""}[value.holds]
