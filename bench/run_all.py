"""Every measurement behind the README's tables, one after the other; exit status 1 if one of them missed its target.

Each script runs as a process of its own, its output is shown, and its figures go to ``out/bench/<name>.json``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

DIRECTORY = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Script:
    """A benchmark; ``to_stdout``: its ``--json`` prints the figures instead of taking a file."""

    name: str
    arguments: Sequence[str] = ()
    to_stdout: bool = False
    takes_json: bool = True

    def command(self, figures: Path) -> list[str]:
        """What to run."""
        json_flag = [] if not self.takes_json else ["--json"] if self.to_stdout else ["--json", str(figures)]
        return [sys.executable, str(DIRECTORY / f"{self.name}.py"), *self.arguments, *json_flag]


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    script: Script
    exit_status: int
    elapsed_s: float


SCRIPTS = (
    Script("scheduler_lives", to_stdout=True),
    Script("scheduler_service"),
    Script("storage_bandwidth"),
    Script("transport_bandwidth", to_stdout=True),
    Script("model_speed"),
    Script("gain"),
    Script("ladder"),
    Script("fault_soak", takes_json=False),
)


def run(script: Script, output: Path) -> Outcome:
    """Run one script to its end."""
    figures = output / f"{script.name}.json"
    started_s = time.monotonic()
    if script.to_stdout:
        with figures.open("w") as file:
            done = subprocess.run(script.command(figures), stdout=file, check=False)
        print(figures.read_text().strip())
    else:
        done = subprocess.run(script.command(figures), check=False)
    return Outcome(script, done.returncode, time.monotonic() - started_s)


def summary(outcomes: Sequence[Outcome], output: Path) -> Table:
    """A line for each script."""
    table = Table("benchmark", "outcome", "time", "figures", title="benchmarks")
    for outcome in outcomes:
        verdict = "ok" if outcome.exit_status == 0 else f"FAILED (exit status {outcome.exit_status})"
        figures = str(output / f"{outcome.script.name}.json") if outcome.script.takes_json else "-"
        table.add_row(outcome.script.name, verdict, f"{outcome.elapsed_s:.0f} s", figures)
    return table


def chosen(names: str | None) -> list[Script]:
    """The scripts of these names, in the order of ``SCRIPTS``; all without any."""
    if names is None:
        return list(SCRIPTS)
    wanted = names.split(",")
    known = [script.name for script in SCRIPTS]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"--only: no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    return [script for script in SCRIPTS if script.name in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="benchmarks, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("out/bench"), help="directory for the figures")
    options = parser.parse_args()
    scripts = chosen(options.only)
    options.output.mkdir(parents=True, exist_ok=True)
    console = Console(width=120)
    outcomes = []
    for script in scripts:
        console.rule(script.name)
        outcomes.append(run(script, options.output))
    console.print(summary(outcomes, options.output))
    return 1 if any(outcome.exit_status for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
