"""The page, its CSV files and the tables in the terminal."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from dualpath.cli.reproduce_table import render_overview, render_section
from dualpath.evaluation.page import (
    POINT_HEADER,
    VALUE_HEADER,
    Heading,
    Parameter,
    free_parameters,
    html,
    point_rows,
    value_rows,
    write_points,
    write_values,
)
from dualpath.evaluation.section import Picture, Section, Series, Value, Within

EVIL = "<script>alert(\"1\")</script> & 'x', [bold]"
HEADING = Heading(f"title {EVIL}", "2026-01-02", "0.1.0", f"dualpath reproduce --output {EVIL}")
PICTURES = [
    Picture(f"lines {EVIL}", EVIL, EVIL, [Series(EVIL, [(1, 2.0), (2, 0.1)]), Series(EVIL, [(1, 3.0)], paper=True)]),
    Picture("bars", "x", "y", [Series("one", [(EVIL, 2.0)])]),
]
SECTIONS = [
    Section(
        "fig7",
        f"Fig. 7 {EVIL}",
        ["First paragraph.", EVIL],
        [
            Value("JCT, 2,048 agents", "s", 10123.4, 10100, Within.RELATIVE, 0.1, calibrated=True),
            Value("missed[b]", "s", 2512.0, 2100, Within.RELATIVE, 0.1, note=f"a note {EVIL}"),
            Value("met", "x", 1.8367, 1.87, Within.FACTOR, 1.5),
            Value("new number", "1/s", 7654321.0),
        ],
        PICTURES,
        wall_s=75.0,
    ),
    Section("a/b c", "Another", [], [Value("alone", "", 2.0)], PICTURES),
    Section("text", "Only text", ["Nothing to count."]),
]
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Tags that are open, everything they hold, and what is wrong with them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    return checker


@pytest.fixture(scope="module")
def page() -> str:
    return html(SECTIONS, free_parameters(), HEADING)


def test_all_tags_are_closed_in_order(page: str) -> None:
    found = checked(page)
    assert (found.wrong, found.open) == ([], [])
    assert {"svg", "table", "figure", "section"} <= set(found.tags)


def test_it_needs_nothing_else(page: str) -> None:
    attributes = checked(page).attributes
    ids = [value for name, value in attributes if name == "id"]
    links = [value for name, value in attributes if name in ("href", "src", "xlink:href")]
    assert len(ids) == len(set(ids))
    assert links
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_texts_are_escaped(page: str) -> None:
    found = checked(page)
    assert "script" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.texts.count(EVIL) >= 3


def test_it_is_the_same_again(page: str) -> None:
    assert html(SECTIONS, free_parameters(), HEADING) == page


def test_every_value_is_shown(page: str) -> None:
    texts = checked(page).texts
    shown = {"10,123", "10,100", "+0.2%", "◆ calibrated", "2,512", "+19.6%", "✗ miss", "±10%", "1.837", "✓ ok", "factor 1.5"}
    assert shown <= set(texts)
    assert {"new number", "7,654,321", "alone", "2", "1 of 2", "1 min 15 s", "Nothing to count."} <= set(texts)


def test_a_table_without_paper_has_no_empty_columns() -> None:
    assert re.findall('<th scope="col"[^>]*>([^<]*)', html(SECTIONS[1:2], [], HEADING))[-2:] == ["value", "ours"]


def test_it_says_who_made_it_and_with_which_parameters(page: str) -> None:
    text = "".join(checked(page).texts)
    assert "DualPath 0.1.0, 2026-01-02" in text
    assert HEADING.command in text
    assert all(one.name in text and one.reason in text for one in free_parameters())
    one = html([], [Parameter("<p>", "1", "<s>", "<because>", True)], HEADING)
    assert "<code>&lt;p&gt;</code>" in one
    assert "&lt;because&gt;" in one


def test_less_than_all_agents_is_no_comparison(page: str) -> None:
    assert "no comparison" not in page
    assert "Only 12.5% of the agents" in html([], [], replace(HEADING, effort=0.125))


def test_nothing_at_all_is_a_page() -> None:
    found = checked(html([], [], HEADING))
    assert (found.wrong, found.open) == ([], [])


def test_free_parameters_are_the_simulators() -> None:
    found = {one.name: one for one in free_parameters()}
    assert found["storage_share"].calibrated
    assert not found["handoff_s"].calibrated
    assert found["handoff_s"].unit == "s"
    assert float(found["handoff_s"].value) > 0


def test_values_as_csv() -> None:
    file = io.StringIO(newline="")
    write_values(file, SECTIONS)
    read = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
    assert read == [VALUE_HEADER, *value_rows(SECTIONS)]
    rows = [dict(zip(VALUE_HEADER, row, strict=True)) for row in read[1:]]
    assert [float(row["ours"]) for row in rows] == [value.ours for section in SECTIONS for value in section.values]
    assert [row["holds"] for row in rows] == ["yes", "no", "yes", "", ""]
    assert [row["calibrated"] for row in rows] == ["yes", "no", "no", "no", "no"]
    assert rows[1]["note"] == f"a note {EVIL}"
    assert (rows[3]["paper"], rows[3]["error"], rows[3]["target"]) == ("", "", "")


def test_points_as_csv() -> None:
    file = io.StringIO(newline="")
    write_points(file, SECTIONS[:1])
    read = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
    assert read == [POINT_HEADER, *point_rows(SECTIONS[:1])]
    assert [row[3:] for row in read[1:]] == [
        ["no", "1", "2"],
        ["no", "2", "0.1"],
        ["yes", "1", "3"],
        ["no", EVIL, "2"],
    ]


def printed(*tables: object) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(*tables)
    return console.export_text()


def test_the_overview_in_the_terminal() -> None:
    text = printed(render_overview(SECTIONS))
    assert re.search(r"fig7 .*1 of 2 │ \+19\.6% │ missed\[b\] +│ +1 │ 1 min 15 s", text)
    assert re.search(r"all .*1 of 2", text)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_a_section_in_the_terminal(section: Section) -> None:
    text = printed(render_section(section))
    assert section.title in text
    assert all(value.name in text for value in section.values)
    assert all(paragraph in text for paragraph in section.text)
