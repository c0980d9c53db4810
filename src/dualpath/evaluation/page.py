"""One self-contained page and two tables of all experiments: our value, the paper's, the error, the picture."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

from dualpath.costmodel.calibration import DEFAULT, parameters
from dualpath.evaluation.charts import svg
from dualpath.evaluation.section import Section, Value, Within

VALUE_COLUMNS = ("experiment", "name", "unit", "ours", "paper", "error", "target", "holds", "calibrated", "note")
POINT_COLUMNS = ("experiment", "picture", "series", "paper", "x", "y")
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; background: #fff; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.6rem; border-top: 1px solid #d0d7de; padding-top: 1rem; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .9rem; }
th, td { padding: .25rem .7rem; text-align: left; border-bottom: 1px solid #e3e7eb; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ok { color: #1a7f37; } .miss { color: #b42318; font-weight: 600; } .set { color: #6b5b95; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; } .pictures svg { max-width: 100%; height: auto; flex: 1 1 26rem; }
code { background: #f3f5f7; padding: .1rem .3rem; border-radius: 3px; } .warn { background: #fff4d6; padding: .5rem .8rem; }
"""


@dataclass(frozen=True, slots=True)
class Heading:
    """What the page says of itself; ``effort`` is the share of the agents that was simulated."""

    title: str
    date: str
    version: str
    command: str
    effort: float = 1.0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A free parameter of the simulation."""

    name: str
    value: str
    unit: str
    reason: str
    calibrated: bool


def free_parameters() -> list[Parameter]:
    """Those of ``costmodel.calibration``."""
    return [
        Parameter(name, f"{value:.4g}", unit, reason, calibrated)
        for name, value, unit, reason, calibrated in parameters(DEFAULT)
    ]


def html(sections: Sequence[Section], free: Sequence[Parameter], heading: Heading) -> str:
    """The page; it needs nothing else."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(heading.title)}</title><style>{_STYLE}</style></head><body>",
        *_head(heading),
        "<h2>Overview</h2>",
        _overview(sections),
        "<h2>Free parameters</h2>",
        "<p>One set for every figure. Those marked were set so that the simulation meets three job completion times of Fig. 7 "
        "(Basic, 2,048 agents; Oracle, 4,096 and 512 agents); everything else is predicted.</p>",
        _parameters(free),
        *(part for section in sections for part in _section(section)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    if value == 0 or 1e-4 <= abs(value) < 1e12:
        digits = f"{value:.4g}"
        return f"{float(digits):,.0f}" if abs(value) >= 1000 else (f"{float(digits):g}")
    return f"{value:.3e}"


def target(value: Value) -> str:
    """What a value is held against."""
    return {
        Within.RELATIVE: f"± {value.tolerance:.0%}",
        Within.FACTOR: f"factor {value.tolerance:g}",
        Within.AT_MOST: "at most",
        Within.SHOWN: "",
    }[value.within]


def write_values(file: TextIO, sections: Sequence[Section]) -> None:
    """A row a value, with ``VALUE_COLUMNS``."""
    writer = csv.writer(file)
    writer.writerow(VALUE_COLUMNS)
    for section in sections:
        for value in section.values:
            known = "" if value.paper is None else repr(value.paper)
            error = "" if value.error is None else f"{value.error:.4f}"
            holds = "" if value.holds is None else str(value.holds).lower()
            row = (section.key, value.name, value.unit, repr(value.ours), known, error, target(value), holds)
            writer.writerow((*row, str(value.calibrated).lower(), value.note))


def write_points(file: TextIO, sections: Sequence[Section]) -> None:
    """A row a point of every picture, with ``POINT_COLUMNS``."""
    writer = csv.writer(file)
    writer.writerow(POINT_COLUMNS)
    for section in sections:
        for picture in section.pictures:
            for series in picture.series:
                for x, y in series.points:
                    writer.writerow((section.key, picture.title, series.name, str(series.paper).lower(), x, repr(y)))


def counts(section: Section) -> tuple[int, int]:
    """Predicted values within their target, and predicted values that have one."""
    held = [value.holds for value in section.values if value.holds is not None and not value.calibrated]
    return sum(held), len(held)


def worst(section: Section) -> Value | None:
    """The predicted value that is furthest from the paper's."""
    known = [value for value in section.values if value.error is not None and not value.calibrated and value.holds is not None]
    return max(known, key=lambda value: abs(value.error or 0.0), default=None)


def _head(heading: Heading) -> Iterator[str]:
    yield f"<h1>{escape(heading.title)}</h1>"
    yield (
        f"<p>Simulated on {escape(heading.date)} with dualpath {escape(heading.version)}: "
        f"<code>{escape(heading.command)}</code>. The paper is arXiv 2602.21548; values read off its charts are about.</p>"
    )
    if heading.effort < 1:
        yield (
            f'<p class="warn">Only {heading.effort:.0%} of the agents were simulated: this shows that it runs, and is no '
            "comparison with the paper.</p>"
        )


def _overview(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        held, of = counts(section)
        far = worst(section)
        furthest = "" if far is None or far.error is None else f"{far.error:+.0%} ({escape(far.name)})"
        mark = "ok" if held == of else "miss"
        rows.append(
            f'<tr><td><a href="#{escape(section.key)}">{escape(section.title)}</a></td>'
            f'<td class="number {mark}">{f"{held} of {of}" if of else ""}</td><td>{furthest}</td>'
            f'<td class="number">{section.wall_s:,.0f} s</td></tr>'
        )
    head = '<tr><th>experiment</th><th class="number">within target</th><th>furthest off</th><th class="number">took</th></tr>'
    return f"<table>{head}{''.join(rows)}</table>"


def _parameters(free: Sequence[Parameter]) -> str:
    rows = [
        f'<tr><td><code>{escape(one.name)}</code></td><td class="number">{escape(one.value)}</td><td>{escape(one.unit)}</td>'
        f"<td>{escape(one.reason)}{' <span class=set>(set)</span>' if one.calibrated else ''}</td></tr>"
        for one in free
    ]
    return f'<table><tr><th>name</th><th class="number">value</th><th>unit</th><th>why</th></tr>{"".join(rows)}</table>'


def _section(section: Section) -> Iterator[str]:
    yield f'<h2 id="{escape(section.key)}">{escape(section.title)}</h2>'
    for paragraph in section.text:
        yield f"<p>{escape(paragraph)}</p>"
    if section.values:
        head = "".join(f'<th class="number">{name}</th>' for name in ("ours", "paper", "error", "target"))
        rows = "".join(_row(value) for value in section.values)
        yield f"<table><tr><th>value</th>{head}<th></th></tr>{rows}</table>"
    pictures = [svg(picture, f"{section.key}-{at}") for at, picture in enumerate(section.pictures)]
    if pictures:
        yield f'<div class="pictures">{"".join(pictures)}</div>'


def _row(value: Value) -> str:
    mark = ""
    if value.calibrated:
        mark = '<span class="set">set</span>'
    elif value.holds is not None:
        mark = '<span class="ok">ok</span>' if value.holds else '<span class="miss">miss</span>'
    note = f" {escape(value.note)}" if value.note else ""
    cells = (
        f"{number(value.ours)} {value.unit}",
        "" if value.paper is None else number(value.paper),
        "" if value.error is None else f"{value.error:+.1%}",
        target(value),
    )
    numbers = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
    return f"<tr><td>{escape(value.name)}</td>{numbers}<td>{mark}{note}</td></tr>"
