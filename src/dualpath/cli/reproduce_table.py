"""The tables that ``dualpath reproduce`` prints: all experiments, and each one's values beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from dualpath.evaluation.columns import NONE, columns_of, duration, mark, score
from dualpath.evaluation.section import Section, Value

LEAST_WIDTH = 60
"""Characters, for titles and text to be readable above and below a small table."""
STYLES = {"ok": "green", "miss": "bold red", "calibrated": "magenta", "calibrated, miss": "bold red"}


def render_overview(sections: Sequence[Section]) -> Table:
    """How many predictions are within their targets, the worst one, and the time, by experiment and in all."""
    table = Table(title="predictions within target", show_footer=len(sections) > 1)
    footers = _scored("all", sections)
    for header, footer in zip(("experiment", "within", "worst", "worst value", "calibrated", "took"), footers, strict=True):
        is_text = header in ("experiment", "worst value")
        table.add_column(header, footer, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for section in sections:
        table.add_row(*_scored(section.key, [section]))
    return table


def render_section(section: Section) -> Table:
    """An experiment's values, with only those columns that say anything; its text below."""
    table = Table(
        title=Text(section.title, "italic"),
        caption=Text("\n".join(section.text)),
        caption_justify="left",
        min_width=LEAST_WIDTH,
    )
    columns = columns_of(section.values)
    for column in columns:
        table.add_column(column.title, justify="right" if column.numeric else "left", no_wrap=column.numeric, overflow="fold")
    for value in section.values:
        table.add_row(*(_cell(column.cell(value), value, column.cell is mark) for column in columns))
    if not columns:
        table.add_column("no values")
    return table


def _cell(text: str, value: Value, is_mark: bool) -> Text:
    """Text, since names may hold what rich would take for markup."""
    return Text(text, STYLES.get(mark(value), "")) if is_mark else Text(text)


def _scored(name: str, sections: Sequence[Section]) -> list[Text]:
    found = score(sections)
    took = duration(sum(section.wall_s for section in sections))
    return [Text(cell) for cell in (name, found.text, found.worst_text, found.worst_name, str(found.calibrated or NONE), took)]
