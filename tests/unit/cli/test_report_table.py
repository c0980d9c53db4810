"""The tables of a report."""

import dataclasses
import io

import pytest
from rich.console import Console, RenderableType
from tests.support.system_results import BASIC, ORACLE, OTHER

from dualpath.cli.report_table import render_nodes, render_table, render_utilisation, sparkline
from dualpath.workload.report import SystemResult, Utilisation, build_report


def shown(*renderables: RenderableType, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(*renderables)
    return console.export_text()


def rendered(*results: SystemResult) -> str:
    return shown(render_table(build_report(results, {}, {})))


def test_a_narrow_table_leaves_the_ratios_out_and_cuts_nothing() -> None:
    report = build_report([BASIC, OTHER, BASIC, OTHER], {}, {})
    text = shown(render_table(report, 80), render_nodes(report), width=80)
    assert "theoretical hit rate" in text
    assert "vs first" not in text
    assert "…" not in text
    assert "vs first" in rendered(BASIC, OTHER)


def test_table_sets_systems_beside_each_other() -> None:
    lines = rendered(BASIC, OTHER).splitlines()
    cells = {line.strip("│").split("│")[0].strip(): [cell.strip() for cell in line.split("│")[2:-1]] for line in lines}
    assert cells["JCT"] == ["4.00 s", "3.00 s", "0.75×"]
    assert cells["read"] == ["300.0 ms", "300.0 ms", "1.00×"]
    assert cells["hit rate"] == ["64.0%", "64.0%", ""]
    assert cells["busiest SNIC"] == ["75.0%", "100.0%", ""]
    assert cells["identical turns"] == ["3", "1", ""]
    assert "mean nothing" not in "\n".join(lines)


def test_table_marks_a_system_that_moves_no_bytes() -> None:
    text = rendered(BASIC, ORACLE)
    assert "oracle*" in text
    assert "* moves no KV bytes; its tokens mean nothing" in text


def test_systems_without_tokens_are_not_compared_by_them() -> None:
    simulated = [dataclasses.replace(one, timelines=None) for one in (BASIC, OTHER)]
    (line,) = (line for line in rendered(*simulated).splitlines() if "identical turns" in line)
    assert [cell.strip() for cell in line.split("│")[2:-1]] == ["–", "–", ""]


def test_utilisation_of_the_systems_that_have_it() -> None:
    series = {"prefill-node-0 SNIC": [0.5, 1.0], "prefill-node-1 SNIC": [0.0, 0.5], "decode-node-0 SNIC": []}
    measured = dataclasses.replace(BASIC, utilisation=Utilisation(30.0, series))
    (table,) = render_utilisation(build_report([OTHER, measured], {}, {}))
    text = shown(table)
    assert "basic" in text
    assert "60.00 s" in text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "SNIC" in line]
    assert rows == [["prefill SNIC (2)", "50.0%", "75.0%", "100.0%", "▃▇"]]


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        ([], ""),
        ([0.0, 0.13, 0.99, 1.0, 1.7], "▁▂███"),
        ([0.0] * 500 + [1.0] * 500, "▁" * 12 + "█" * 12),
        ([0.5] * 41, "▅" * 24),
    ],
)
def test_sparkline(shares: list[float], line: str) -> None:
    assert sparkline(shares) == line
