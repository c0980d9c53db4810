"""What the second path brings on this machine: JCT against Basic and Oracle, SNIC balance (paper Figs. 7, 8 and 13).

    python bench/gain.py [--only 1P1D,1P2D,2P2D,oracle,oracle-heavy] [--json out.json]

Every claim is a ratio of runs made one after another by this command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dualpath.cli.report_table import render_table
from setups import Setup, run

STORAGE_BOUND = {"agents": 40, "turns": 24, "first_tokens": 400, "append_tokens": 24, "output_tokens": 5, "spread": 0.1}


@dataclass(frozen=True, slots=True)
class Claim:
    """``value(report)`` against ``target``; ``at_most`` turns the comparison round."""

    text: str
    value: Callable[[dict[str, Any]], float]
    target: float
    at_most: bool = False

    def holds(self, report: dict[str, Any]) -> bool:
        value = self.value(report)
        return value <= self.target if self.at_most else value >= self.target


def entry(report: dict[str, Any], system: str) -> dict[str, Any]:
    """A system's part of the report."""
    found: dict[str, Any] = next(one for one in report["systems"] if one["system"] == system)
    return found


def speedup(system: str, over: str = "basic") -> Callable[[dict[str, Any]], float]:
    return lambda report: float(entry(report, over)["jct_s"] / entry(report, system)["jct_s"])


def busiest(system: str) -> Callable[[dict[str, Any]], float]:
    return lambda report: float(max(node["storage_utilization"] for node in entry(report, system)["nodes"]))


def balance(system: str) -> Callable[[dict[str, Any]], float]:
    return lambda report: float(entry(report, system)["storage_max_over_mean"])


def identical(system: str) -> Callable[[dict[str, Any]], float]:
    return lambda report: float(entry(report, system)["identical_turns"] / entry(report, system)["turns"])


SETUPS: dict[str, tuple[Setup, list[Claim]]] = {
    "1P1D": (
        Setup("1P1D, storage-bound", ("basic", "dualpath", "dualpath-split"), {"snic_bandwidth": "20MB/s"}, STORAGE_BOUND),
        [
            Claim("Basic's prefill SNIC is busy", busiest("basic"), 0.95),
            Claim("DualPath against Basic (bound 2.0)", speedup("dualpath"), 1.85),
            Claim("split reads against Basic (bound 2.0)", speedup("dualpath-split"), 1.9),
            Claim("DualPath's turns with Basic's tokens", identical("dualpath"), 1.0),
        ],
    ),
    "1P2D": (
        Setup(
            "1P2D, storage-bound",
            ("basic", "dualpath", "dualpath-split"),
            {"decode": 2, "snic_bandwidth": "14MB/s"},
            STORAGE_BOUND,
        ),
        [
            Claim("Basic's prefill SNIC is busy", busiest("basic"), 0.95),
            Claim("DualPath against Basic (bound 3.0)", speedup("dualpath"), 2.6),
            Claim("split reads against Basic (bound 3.0)", speedup("dualpath-split"), 2.75),
        ],
    ),
    "2P2D": (
        Setup(
            "2P2D, balance of the SNICs",
            ("dualpath",),
            {"prefill": 2, "decode": 2, "snic_bandwidth": "12MB/s"},
            STORAGE_BOUND,
        ),
        [Claim("SNIC traffic max/mean", balance("dualpath"), 1.1, at_most=True)],
    ),
    "oracle": (
        Setup(
            "storage not the limit, demo model, agents that write more than they read",
            ("dualpath", "oracle"),
            {"snic_bandwidth": "400MB/s", "block_tokens": 64},
            {"agents": 30, "turns": 20, "first_tokens": 300, "append_tokens": 24, "output_tokens": 40, "spread": 0.1},
        ),
        [
            Claim("busiest SNIC", busiest("dualpath"), 0.5, at_most=True),
            Claim("DualPath against Oracle", speedup("oracle", "dualpath"), 1.25, at_most=True),
        ],
    ),
    "oracle-short": (
        Setup("the same, generating 5 tokens a turn", ("dualpath", "oracle"), {"snic_bandwidth": "400MB/s"}, STORAGE_BOUND),
        [Claim("busiest SNIC", busiest("dualpath"), 0.5, at_most=True)],
    ),
    "oracle-heavy": (
        Setup(
            "storage not the limit, compute-heavy model",
            ("dualpath", "oracle"),
            {"snic_bandwidth": "400MB/s"},
            {**STORAGE_BOUND, "agents": 12, "turns": 12},
            {"hidden": 1024, "layers": 8, "heads": 16, "kv_heads": 2, "head_dim": 64, "intermediate": 2816},
        ),
        [
            Claim("busiest SNIC", busiest("dualpath"), 0.5, at_most=True),
            Claim("DualPath against Oracle", speedup("oracle", "dualpath"), 1.10, at_most=True),
        ],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SETUPS), help="set-ups, separated by commas")
    parser.add_argument("--json", type=Path, help="write all reports here")
    arguments = parser.parse_args()
    console = Console(width=120)
    reports, missed = {}, 0
    for name in arguments.only.split(","):
        setup, claims = SETUPS[name]
        report, _ = run(setup, console)
        console.print(render_table(report))
        for claim in claims:
            bound = "at most" if claim.at_most else "at least"
            verdict = "holds" if claim.holds(report) else "MISSED"
            missed += verdict != "holds"
            console.print(f"{claim.text}: {claim.value(report):.3f} ({bound} {claim.target:g}: {verdict})")
        reports[name] = report
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(reports, indent=2))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
