"""``dualpath reproduce``: which experiments there are, and a page and tables at a hundredth of the effort."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner

from dualpath.cli.reproduce import chosen_experiments, reproduce
from dualpath.errors import DualPathError
from dualpath.evaluation.registry import EXPERIMENTS


def test_every_experiment_is_listed() -> None:
    output = CliRunner().invoke(reproduce, ["--list"], catch_exceptions=False).output
    assert all(key in output for key in EXPERIMENTS)
    assert {
        "table1",
        "table2",
        "fig7",
        "fig8",
        "fig9",
        "fig10",
        "fig11",
        "fig13",
        "fig14",
        "fig15",
        "split",
    } <= EXPERIMENTS.keys()


def test_a_page_and_tables(tmp_path: Path) -> None:
    arguments = ["--only", "table2,fig14", "--effort", "0.01", "--jobs", "1", "--output", str(tmp_path)]
    result = CliRunner().invoke(reproduce, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'id="fig14' in page or "fig14" in page
    assert "<svg" in page
    assert "mixture_factor" in page
    with (tmp_path / "values.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["experiment"] for row in rows} == {"table2", "fig14"}
    assert sum(row["experiment"] == "table2" for row in rows) >= 15
    assert (tmp_path / "points.csv").stat().st_size > 0


@pytest.mark.parametrize(("only", "message"), [("fig77", "did you mean 'fig7'"), (" , ", "no experiment given")])
def test_unknown_experiments(only: str, message: str) -> None:
    with pytest.raises(DualPathError, match=message):
        chosen_experiments(only)


def test_an_output_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DualPathError, match="--output"):
        CliRunner().invoke(reproduce, ["--only", "table1", "--output", str(tmp_path / "file")], catch_exceptions=False)
