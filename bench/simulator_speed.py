"""Simulated turns a second on one core, and the memory that they take, from 6 to 144 nodes.

Each case runs in a process of its own and builds the whole report, every metric included. The paper's large cluster,
48P96D with 48K agents, takes 5.1 million turns (48K set) or 7.5 million (64K): minutes; ``--until`` stops all cases at a
virtual time. The time of a turn must not grow with the cluster.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from dualpath.evaluation.lab import Case, spec_of, workload_of
from dualpath.sim.run import Simulation, without_collector
from dualpath.workload.report import build_report

TARGET_TURNS_PER_S, TARGET_BYTES, TARGET_GROWTH = 15_000, 4e9, 1.5
CASES = {
    "2P4D": Case(agents=2048, dataset="48K"),
    "8P16D": Case(prefill=8, decode=16, agents=8192, dataset="48K"),
    "48P96D": Case(prefill=48, decode=96, agents=48_000, dataset="48K"),
    "48P96D-64K": Case(prefill=48, decode=96, agents=48_000, dataset="64K"),
}


@dataclass(frozen=True)
class Measured:
    """One case: turns, seconds of the whole run and of the report alone, and the most memory that was resident."""

    case: str
    turns: int
    virtual_s: float
    wall_s: float
    processor_s: float
    report_s: float
    resident_bytes: int

    @property
    def turns_per_s(self) -> float:
        return self.turns / self.wall_s


def measure(name: str, until_s: float | None) -> Measured:
    """Run one case here."""
    case = CASES[name]
    started, processor = time.perf_counter(), time.process_time()
    simulation = Simulation(
        spec_of(case),
        workload_of(case),
        stop=None if until_s is None else lambda progress, _: progress.virtual_s >= until_s,
    )
    with without_collector():
        result = simulation.run().result
        reported = time.perf_counter()
        build_report([result], {}, {})
    ended = time.perf_counter()
    return Measured(
        case=name,
        turns=len(result.turns),
        virtual_s=result.wall_s,
        wall_s=ended - started,
        processor_s=time.process_time() - processor,
        report_s=ended - reported,
        resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def in_process(name: str, until_s: float | None) -> Measured:
    """The same in a fresh process, so that memory is this case's own."""
    command = [sys.executable, __file__, "--child", name, *([] if until_s is None else ["--until", str(until_s)])]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Measured(**json.loads(output))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="2P4D,48P96D", help=f"of {', '.join(CASES)}, separated by commas")
    parser.add_argument("--until", type=float, help="virtual seconds after which to stop")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(asdict(measure(arguments.child, arguments.until))))
        return 0
    found = [in_process(name, arguments.until) for name in arguments.cases.split(",")]
    print(f"{'cluster':12} {'turns':>10} {'virtual s':>10} {'wall s':>8} {'turns/s':>9} {'report s':>9} {'GB':>6}")
    for one in found:
        numbers = f"{one.turns:10,} {one.virtual_s:10,.0f} {one.wall_s:8.1f} {one.turns_per_s:9,.0f}"
        print(f"{one.case:12} {numbers} {one.report_s:9.1f} {one.resident_bytes / 1e9:6.2f}")
    growth = (found[-1].wall_s / found[-1].turns) / (found[0].wall_s / found[0].turns)
    print(f"a turn of {found[-1].case} takes {growth:.2f} x the time of one of {found[0].case} (target {TARGET_GROWTH})")
    met = (
        found[-1].turns_per_s >= TARGET_TURNS_PER_S
        and max(one.resident_bytes for one in found) <= TARGET_BYTES
        and growth <= TARGET_GROWTH
    )
    print(f"target {TARGET_TURNS_PER_S:,} turns/s within {TARGET_BYTES / 1e9:g} GB: {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
