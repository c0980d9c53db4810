"""The ablation ladder on this machine: what each step brings where it can show (paper Fig. 12, right).

    python bench/ladder.py [--only layerwise,path,scheduling,split] [--json out.json]

Basic → +layerwise → +second path → +scheduling → +split. Each step is measured against the one before it, on a set-up
where the resource that it frees is the limit: device KV of the prefill engine, one storage NIC, device KV of
the decode engines under skewed load, the time of a single read.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dualpath.scheduling.baselines import LADDER
from setups import Setup, run

AGENTS = {"agents": 32, "turns": 16, "first_tokens": 400, "append_tokens": 24, "output_tokens": 5, "spread": 0.1}

SETUPS = {
    "layerwise": Setup(
        "1P1D, the prefill engine's KV memory holds one request at a time without layerwise prefill",
        LADDER[:2],
        {"snic_bandwidth": "400MB/s", "prefill_kv_memory": "5MiB", "max_len": 640},
        {**AGENTS, "first_tokens": 300, "append_tokens": 8, "output_tokens": 2},
        {"layers": 8},
    ),
    "path": Setup("1P1D, storage-bound", LADDER[1:3], {"snic_bandwidth": "20MB/s"}, AGENTS),
    "scheduling": Setup(
        "2P2D, decode memory for few requests, half of the agents with four times the context",
        LADDER[2:4],
        {"prefill": 2, "decode": 2, "snic_bandwidth": "16MB/s", "max_len": 2400, "decode_kv_memory": "10MiB"},
        {**AGENTS, "agents": 16, "turns": 12, "output_tokens": 12},
        skew=3.0,
    ),
    "split": Setup(
        "2P2D, as many agents as engines: each waits for its own reads",
        LADDER[3:],
        {"prefill": 2, "decode": 2, "snic_bandwidth": "12MB/s"},
        {**AGENTS, "agents": 4, "turns": 24, "first_tokens": 800},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SETUPS), help="set-ups, separated by commas")
    parser.add_argument("--json", type=Path, help="write all reports here")
    arguments = parser.parse_args()
    console = Console(width=120)
    table = Table(title="ablation ladder: JCT against the step before")
    for column in ("set-up", "step", "JCT", "against the step before", "SNIC max/mean"):
        table.add_column(column)
    reports = {}
    for name in arguments.only.split(","):
        report, _ = run(SETUPS[name], console)
        reports[name] = report
        before = None
        for entry in report["systems"]:
            gain = "" if before is None else f"{before / entry['jct_s']:.2f} x"
            balance = entry["storage_max_over_mean"]
            table.add_row(name, entry["system"], f"{entry['jct_s']:.1f} s", gain, f"{balance:.2f}")
            before = entry["jct_s"]
    console.print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(reports, indent=2))


if __name__ == "__main__":
    main()
