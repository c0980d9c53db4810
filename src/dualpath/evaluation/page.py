"""All experiments' results as one HTML page that needs nothing else, and as CSV (paper section 7)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

from dualpath.costmodel.calibration import DEFAULT, Calibration, parameters
from dualpath.evaluation.charts import svg
from dualpath.evaluation.columns import NONE, columns_of, duration, mark, number, score, target
from dualpath.evaluation.section import Picture, Section, Value

VALUE_HEADER = ["experiment", "name", "unit", "ours", "paper", "error", "target", "holds", "calibrated", "note"]
POINT_HEADER = ["experiment", "picture", "series", "paper", "x", "y"]
SYMBOLS = {"ok": "✓ ", "miss": "✗ ", "calibrated": "◆ ", "calibrated, miss": "◆ ✗ "}
NOTE = (
    "The error is ours / paper − 1; the paper is arXiv 2602.21548, and values read off its charts are approximate. Calibrated "
    "values are those that free parameters were set on: they are no predictions, and no count of values within target and no "
    "worst error includes them."
)
SCORE_NUMERIC = (False, True, True, False, True, True)
CSS = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c2126; --soft: #5a646e; --line: #d8dde2; --band: #f4f6f8;
  --link: #0b5fa5; --ok: #1a7440; --miss: #b3261e; --set: #6b4bb8; }
@media (prefers-color-scheme: dark) { :root { --page: #14181c; --ink: #e4e8ec; --soft: #a0abb5; --line: #343c44;
  --band: #1c2228; --link: #7cb8f0; --ok: #6fd39a; --miss: #ff8f85; --set: #bda6ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 64rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .6rem 0; }
a { color: var(--link); }
code { font: .875em/1.5 ui-monospace, monospace; background: var(--band); padding: .1em .35em; border-radius: 3px; }
.soft { color: var(--soft); font-size: .9rem; }
.warning { border-left: 4px solid var(--miss); padding: .3rem .8rem; background: var(--band); }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .35rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
tbody th { font-weight: 400; min-width: 13.5rem; }
td:last-child:not(.number) { min-width: 7.5rem; }
#parameters td:nth-child(4) { min-width: 15rem; }
@media (max-width: 40rem) { tbody th { min-width: 9rem; } }
tfoot th, tfoot td { font-weight: 600; border-bottom: 0; }
.number { text-align: right; white-space: nowrap; }
.mark { white-space: nowrap; }
.ok { color: var(--ok); } .miss { color: var(--miss); font-weight: 600; } .calibrated { color: var(--set); }
figure { margin: 1.5rem 0; max-width: 46rem; }
figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .4rem; }
@media print { :root { color-scheme: light; --page: #fff; --ink: #000; --soft: #444; --line: #bbb; --band: #f4f4f4;
  --link: #000; --ok: #14592f; --miss: #9c1c15; --set: #4d3391; } body { max-width: none; padding: 0; font-size: 11pt; }
  table { font-size: 9pt; } tbody th { min-width: 9rem; } .wide { overflow: visible; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
""".strip()


@dataclass(frozen=True, slots=True)
class Heading:
    """What the page says about itself.

    ``command`` is the command line that made it; ``effort`` below 1 makes it say that it is no comparison with the paper.
    """

    title: str
    date: str
    version: str
    command: str
    effort: float = 1.0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A free parameter of the simulator; ``calibrated`` ones were set on figures of the paper."""

    name: str
    value: str
    unit: str
    reason: str
    calibrated: bool


def free_parameters(calibration: Calibration = DEFAULT) -> list[Parameter]:
    """The simulator's, for the page."""
    return [
        Parameter(name, number(value), unit, reason, calibrated)
        for name, value, unit, reason, calibrated in parameters(calibration)
    ]


def html(sections: Sequence[Section], parameters: Sequence[Parameter], heading: Heading) -> str:
    """The page: a summary of all experiments, the free parameters, and each experiment; the same for the same arguments.

    Raises:
        SettingsError: there are pictures to draw, and matplotlib is not installed.
    """
    body = [_heading(heading), _overview(sections)]
    if parameters:
        body.append(_parameters(parameters))
    body += map(_section, sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading.title)}</title>\n<style>\n{CSS}\n</style>\n</head>\n"
        "<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _heading(heading: Heading) -> str:
    made = f"DualPath {escape(heading.version)}, {escape(heading.date)}, made by <code>{escape(heading.command)}</code>"
    lines = [f"<h1>{escape(heading.title)}</h1>", f'<p class="soft">{made}</p>']
    if heading.effort < 1:
        share = f"{heading.effort * 100:.3g}%"
        lines.append(f'<p class="warning">Only {share} of the agents were simulated: no comparison with the paper.</p>')
    return "\n".join(["<header>", *lines, "</header>"])


def _overview(sections: Sequence[Section]) -> str:
    titles = ["experiment", "within target", "worst error", "worst value", "calibrated", "time to run"]
    rows = [_scored([one], f'<a href="#{_anchor(one)}">{escape(one.title)}</a>') for one in sections]
    table = _table("Experiments", _row(titles, SCORE_NUMERIC, header=True), rows, _scored(sections, "all"))
    return f'<section id="overview">\n<h2>Overview</h2>\n<p>{escape(NOTE)}</p>\n{table}\n</section>'


def _scored(sections: Sequence[Section], name: str) -> str:
    found = score(sections)
    took = duration(sum(one.wall_s for one in sections))
    cells = [name, found.text, found.worst_text, escape(found.worst_name), f"{found.calibrated or NONE}", took]
    return _row(cells, SCORE_NUMERIC)


def _parameters(parameters: Sequence[Parameter]) -> str:
    header = _row(["parameter", "value", "unit", "reason", "set on figures"], [False, True, *[False] * 3], header=True)
    rows = []
    for one in parameters:
        cells = [f"<code>{escape(one.name)}</code>", *map(escape, (one.value, one.unit, one.reason))]
        rows.append(_row([*cells, _marked("calibrated") if one.calibrated else ""], [False, True, *[False] * 3]))
    table = _table(
        "One set for all experiments; those marked were set on figures of the paper, as their reasons say.", header, rows
    )
    return f'<section id="parameters">\n<h2>Free parameters</h2>\n{table}\n</section>'


def _section(section: Section) -> str:
    anchor = _anchor(section)
    parts = [f'<section id="{anchor}">', f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.text]
    if section.values:
        parts.append(_values(section.values))
    parts += [_figure(picture, f"{anchor}-{place}") for place, picture in enumerate(section.pictures, 1)]
    took = f"Ran in {duration(section.wall_s)}. " if section.wall_s else ""
    parts.append(f'<p class="soft">{took}<a href="#overview">Overview</a></p>')
    return "\n".join([*parts, "</section>"])


def _values(values: Sequence[Value]) -> str:
    columns = columns_of(values)
    numeric = [column.numeric for column in columns]
    rows = [
        _row([_marked(mark(value)) if one.cell is mark else escape(one.cell(value)) for one in columns], numeric)
        for value in values
    ]
    return _table("", _row([column.title for column in columns], numeric, header=True), rows)


def _marked(word: str) -> str:
    css = "miss" if word.endswith("miss") else word
    return word and f'<span class="mark {css}">{SYMBOLS[word]}{word}</span>'


def _figure(picture: Picture, prefix: str) -> str:
    return f"<figure>\n<figcaption>{escape(picture.title)}</figcaption>\n{svg(picture, prefix)}\n</figure>"


def _table(caption: str, header: str, rows: Iterable[str], footer: str = "") -> str:
    """Scrolls on its own where the page is too narrow for it."""
    above = f"<caption>{escape(caption)}</caption>\n" if caption else ""
    below = f"<tfoot>\n{footer}\n</tfoot>\n" if footer else ""
    body = "\n".join(rows)
    return f'<div class="wide"><table>\n{above}<thead>\n{header}\n</thead>\n<tbody>\n{body}\n</tbody>\n{below}</table></div>'


def _row(cells: Sequence[str], numeric: Sequence[bool], header: bool = False) -> str:
    """Cells are HTML; the first one names the row."""
    texts = []
    for place, (cell, right) in enumerate(zip(cells, numeric, strict=True)):
        tag = "th" if header or not place else "td"
        scope = f' scope="{"col" if header else "row"}"' if tag == "th" else ""
        css = ' class="number"' if right else ""
        texts.append(f"<{tag}{scope}{css}>{cell}</{tag}>")
    return f"<tr>{''.join(texts)}</tr>"


def _anchor(section: Section) -> str:
    return "experiment-" + re.sub(r"[^A-Za-z0-9_-]+", "-", section.key)


def value_rows(sections: Iterable[Section]) -> Iterator[list[str]]:
    """Every value under ``VALUE_HEADER``, in full precision; empty where there is none; truth as ``yes`` and ``no``."""
    for section in sections:
        for one in section.values:
            numbers = [_exact(one.ours), _exact(one.paper), _exact(one.error)]
            judged = [target(one), _yes_no(one.holds), _yes_no(one.calibrated)]
            yield [section.key, one.name, one.unit, *numbers, *judged, one.note]


def point_rows(sections: Iterable[Section]) -> Iterator[list[str]]:
    """Every point of every picture under ``POINT_HEADER``."""
    for section in sections:
        for picture in section.pictures:
            for series in picture.series:
                for x, y in series.points:
                    place = x if isinstance(x, str) else _exact(x)
                    yield [section.key, picture.title, series.name, _yes_no(series.paper), place, _exact(y)]


def write_values(file: TextIO, sections: Iterable[Section]) -> None:
    """All values as CSV; ``file`` is open with ``newline=""``."""
    csv.writer(file).writerows([VALUE_HEADER, *value_rows(sections)])


def write_points(file: TextIO, sections: Iterable[Section]) -> None:
    """All points of all pictures as CSV; ``file`` is open with ``newline=""``."""
    csv.writer(file).writerows([POINT_HEADER, *point_rows(sections)])


def _exact(value: float | None) -> str:
    return "" if value is None else repr(float(value)).removesuffix(".0")


def _yes_no(truth: bool | None) -> str:
    return "" if truth is None else ("yes" if truth else "no")
