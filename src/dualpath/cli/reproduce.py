"""``dualpath reproduce``: the paper's evaluation and experiments beyond it, predicted, as a page and as tables."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console

from dualpath.cli.options import FiniteRange
from dualpath.cli.reproduce_table import render_overview, render_section
from dualpath.errors import SettingsError, StorageError
from dualpath.evaluation.charts import require_matplotlib
from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Lab, default_jobs
from dualpath.evaluation.page import Heading, free_parameters, html, write_points, write_values
from dualpath.evaluation.registry import EXPERIMENTS
from dualpath.evaluation.section import Section
from dualpath.knobs import did_you_mean


@click.command()
@click.option("--only", help="Experiments, separated by commas, e.g. table3,fig12; see --list.")
@click.option("--list", "list_only", is_flag=True, help="Say which experiments there are.")
@click.option("--output", default="out/reproduce", show_default=True, type=click.Path(), help="Directory for page and tables.")
@click.option("--jobs", type=click.IntRange(1), help="Simulations at a time; default: one a processor.")
@click.option(
    "--effort",
    default=1.0,
    show_default=True,
    type=FiniteRange(0, 1, min_open=True),
    help="Share of all agents that is simulated; below 1 it is quick, and no comparison with the paper.",
)
def reproduce(only: str | None, list_only: bool, output: str, jobs: int | None, effort: float) -> None:
    """Predict the paper's tables and figures with the simulator; write index.html, values.csv and points.csv."""
    console = Console(highlight=False)
    if list_only:
        for key, experiment in EXPERIMENTS.items():
            console.print(f"{key:18} {experiment.title}")
        return
    chosen = chosen_experiments(only)
    require_matplotlib()
    directory = Path(output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--output: {directory}: {error.strerror}") from error
    lab = Lab(jobs or default_jobs(), effort, lambda line: console.print(f"  {line}", style="dim"))
    started = time.monotonic()
    lab.outcomes(case for experiment in chosen for case in experiment.cases())
    sections = [_section(experiment, lab) for experiment in chosen]
    console.print(render_overview(sections))
    if only is not None:
        for section in sections:
            console.print(render_section(section))
    heading = Heading(
        title="DualPath: the paper's evaluation, predicted",
        date=date.today().isoformat(),
        version=version("dualpath"),
        command=shlex.join(["dualpath", *sys.argv[1:]]),
        effort=effort,
    )
    _write(directory, sections, heading)
    console.print(f"{directory / 'index.html'} after {time.monotonic() - started:,.0f} s")


def chosen_experiments(only: str | None) -> list[Experiment]:
    """The experiments that a list names; all of them if there is none.

    Raises:
        SettingsError: there is no such experiment; says which is meant, perhaps.
    """
    if only is None:
        return list(EXPERIMENTS.values())
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in EXPERIMENTS:
            known = ", ".join(EXPERIMENTS)
            raise SettingsError(f"--only: no experiment {name!r}{did_you_mean(name, EXPERIMENTS)}; there are {known}")
    if not names:
        raise SettingsError("--only: no experiment given")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def _section(experiment: Experiment, lab: Lab) -> Section:
    started = time.monotonic()
    section = experiment.section(lab)
    simulated_s = sum(lab.outcome(case).wall_s for case in dict.fromkeys(experiment.cases()))
    return replace(section, wall_s=simulated_s + time.monotonic() - started)


def _write(directory: Path, sections: Sequence[Section], heading: Heading) -> None:
    try:
        with (directory / "values.csv").open("w", newline="", encoding="utf-8") as file:
            write_values(file, sections)
        with (directory / "points.csv").open("w", newline="", encoding="utf-8") as file:
            write_points(file, sections)
        (directory / "index.html").write_text(html(sections, free_parameters(), heading), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}") from error
