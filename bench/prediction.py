"""A small cluster on this machine, replayed and simulated: bytes and hits, job completion time, time to first token.

    python bench/prediction.py [--only 1P1D,1P2D,2P2D] [--systems basic,dualpath] [--json out.json]

Profiles the model, replays the ablation ladder with it through live clusters with limited storage NICs, then simulates the
same agents twice: with the scheduler's own decisions, and with those of the live run's decision log. Run it with nothing else
on the machine: what others take of the processors, no simulation knows of.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dualpath.cli.options import Given
from dualpath.cli.profile import TypicalTurn, measured, with_turns
from dualpath.cli.replay import Workload, run_system
from dualpath.costmodel.hardware import EngineProfile
from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.create import create_model
from dualpath.models.registry import describe_model
from dualpath.replay.driver import ReplayOptions
from dualpath.scheduling.baselines import LADDER
from dualpath.settings import ReadSidePolicy, Settings
from dualpath.sim.local import local_cluster
from dualpath.sim.replayed import replayed
from dualpath.sim.run import Simulation, SimWorkload, simulate
from dualpath.types import Role
from dualpath.workload.prediction import Pair, Prediction, prediction
from dualpath.workload.synthesis import demo_trajectories
from setups import CLUSTER

CLUSTERS: dict[str, dict[str, Any]] = {
    "1P1D": {"snic_bandwidth": "20MB/s"},
    "1P2D": {"decode": 2, "snic_bandwidth": "14MB/s"},
    "2P2D": {"prefill": 2, "decode": 2, "snic_bandwidth": "12MB/s"},
}
SHAPE: dict[str, Any] = {"agents": 20, "turns": 12, "first_tokens": 800, "append_tokens": 24, "output_tokens": 5, "spread": 0.1}
TYPICAL = TypicalTurn(prompt_tokens=1000, hit_rate=0.95, max_len=2048)
MOST_JCT, MOST_TTFT, MOST_NODE_BYTES = 0.10, 0.20, 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system on one cluster: what the simulation predicts, alone and with the live run's placements."""

    cluster: str
    fixed_sides: bool
    alone: Prediction
    replayed: Prediction

    def misses(self) -> list[str]:
        """The targets that it misses."""
        alone, nodes = self.alone, {**self.alone.read_bytes, **self.alone.write_bytes}
        equal = {
            "hits": alone.hit_tokens,
            "bytes read": alone.total_read_bytes,
            "bytes written": alone.total_write_bytes,
            **({f"{role.value} path": alone.path_read_bytes(role.value) for role in Role} if self.fixed_sides else {}),
            **{f"{node} read, replayed log": pair for node, pair in self.replayed.read_bytes.items()},
            **{f"{node} written, replayed log": pair for node, pair in self.replayed.write_bytes.items()},
        }
        near = {
            "JCT": (alone.jct_s, MOST_JCT),
            "TTFT p50": (alone.ttft_p50_s, MOST_TTFT),
            **{f"{node} bytes": (pair, MOST_NODE_BYTES) for node, pair in nodes.items()},
        }
        missed = [f"{what} differ: {_both(pair)}" for what, pair in equal.items() if not pair.within(0)]
        return missed + [f"{what}: {_both(pair)}" for what, (pair, most) in near.items() if not pair.within(most)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CLUSTERS), help="clusters, separated by commas")
    parser.add_argument("--systems", default=",".join(LADDER), help="systems, separated by commas")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    arguments = parser.parse_args()
    console = Console(width=150)
    with tempfile.TemporaryDirectory(prefix="dualpath-bench-") as scratch:
        outcomes = run(Path(scratch), arguments.only.split(","), arguments.systems.split(","), console)
    console.print(table_of(outcomes))
    for one in outcomes:
        console.print(nodes_of(one))
    missed = [f"{one.cluster} {one.alone.system}: {what}" for one in outcomes for what in one.misses()]
    for sentence in missed:
        console.print(f"MISSED {sentence}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([_plain(one) for one in outcomes], indent=2))
    sys.exit(1 if missed else 0)


def run(scratch: Path, clusters: list[str], systems: list[str], console: Console) -> list[Outcome]:
    """Profile once, then replay and simulate every system on every cluster."""
    model = scratch / "model"
    create_model(model)
    settings = Given(CLUSTER).settings()
    profile = measured(model, settings, TYPICAL, scratch, Console(quiet=True))
    profile = with_turns(model, settings, profile, TYPICAL)
    (scratch / "profile.json").write_text(profile.to_json())
    console.print(f"profile: {profile}")
    workload = Workload(demo_trajectories(random.Random(1), **SHAPE), ReplayOptions(), 1)
    outcomes = []
    for cluster in clusters:
        for system in systems:
            knobs = {"profile": str(scratch / "profile.json"), "decision_log": str(scratch / f"{cluster}-{system}.log")}
            chosen = Given({**CLUSTER, **CLUSTERS[cluster], **knobs}).settings(system)
            outcomes.append(predicted(cluster, model, chosen, profile, workload, console))
            console.print(f"{cluster} {system}: JCT {_both(outcomes[-1].alone.jct_s)}")
    return outcomes


def predicted(
    cluster: str, model: Path, settings: Settings, profile: EngineProfile, workload: Workload, console: Console
) -> Outcome:
    """One system's replay, and both simulations of it."""
    real = run_system(model, settings, workload, console).result
    shape = describe_model(model, settings.model.dtype)
    spec = local_cluster(settings, profile, BlockGeometry(shape.layers, settings.cache.block_tokens, shape.token_layer_bytes))
    agents = SimWorkload(workload.trajectories, [0.0] * len(workload.trajectories))
    assert settings.cluster.decision_log is not None
    with open(settings.cluster.decision_log, encoding="utf-8") as log:
        repeated = Simulation(spec, agents, scheduler=replayed(log)).run().result
    fixed = settings.scheduling.read_side is ReadSidePolicy.PREFILL
    return Outcome(cluster, fixed, prediction(real, simulate(spec, agents).result), prediction(real, repeated))


def table_of(outcomes: list[Outcome]) -> Table:
    """Times of every system, as they were and as predicted."""
    table = Table(title="replayed / simulated")
    for column in (
        "cluster",
        "system",
        "JCT s",
        "JCT s, replayed log",
        "TTFT p50 s",
        "TTFT mean s",
        "hits",
        "worst node's bytes",
    ):
        table.add_column(column)
    for one in outcomes:
        alone = one.alone
        worst = max((*alone.read_bytes.values(), *alone.write_bytes.values()), key=lambda pair: abs(pair.error))
        times = (alone.jct_s, one.replayed.jct_s, alone.ttft_p50_s, alone.ttft_mean_s)
        hits = "equal" if alone.hit_tokens.within(0) else _both(alone.hit_tokens)
        table.add_row(one.cluster, alone.system, *map(_both, times), hits, f"{worst.error:+.1%}")
    return table


def nodes_of(outcome: Outcome) -> Table:
    """Bytes of every node's storage NIC: the path that hits take, and write-back."""
    table = Table(title=f"{outcome.cluster} {outcome.alone.system}: MB, replayed / simulated / simulated with its decision log")
    for column in ("node", "read", "written"):
        table.add_column(column)
    for node in outcome.alone.read_bytes:
        cells = [
            f"{alone[node].real / 1e6:.3f} / {alone[node].predicted / 1e6:.3f} / {repeated[node].predicted / 1e6:.3f}"
            for alone, repeated in (
                (outcome.alone.read_bytes, outcome.replayed.read_bytes),
                (outcome.alone.write_bytes, outcome.replayed.write_bytes),
            )
        ]
        table.add_row(node, *cells)
    return table


def _both(pair: Pair) -> str:
    return f"{pair.real:.4g} / {pair.predicted:.4g} ({pair.error:+.1%})"


def _plain(outcome: Outcome) -> dict[str, Any]:
    def plain(one: Prediction) -> dict[str, Any]:
        times = {name: getattr(one, name) for name in ("jct_s", "ttft_p50_s", "ttft_mean_s", "hit_tokens")}
        nodes = {f"{node} read bytes": pair for node, pair in one.read_bytes.items()}
        nodes |= {f"{node} written bytes": pair for node, pair in one.write_bytes.items()}
        return {name: [pair.real, pair.predicted] for name, pair in {**times, **nodes}.items()}

    return {
        "cluster": outcome.cluster,
        "system": outcome.alone.system,
        "alone": plain(outcome.alone),
        "replayed": plain(outcome.replayed),
        "missed": outcome.misses(),
    }


if __name__ == "__main__":
    main()
