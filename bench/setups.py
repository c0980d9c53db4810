"""Replays for the gain benchmarks: a model, a workload and a cluster each, run for several systems in turn."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dualpath.cli.options import Given
from dualpath.cli.replay import Replayed, Workload, report_of, run_system
from dualpath.models.create import create_model
from dualpath.replay.driver import ReplayOptions
from dualpath.workload.synthesis import demo_trajectories
from dualpath.workload.trajectory import Trajectory

CLUSTER: dict[str, Any] = {
    "block_tokens": 16,
    "max_len": 4096,
    "pending_timeout_s": 10.0,
    "prefill_buffer": "128MiB",
    "decode_buffer": "384MiB",
    "decode_kv_memory": "384MiB",
    "prefill_kv_memory": "64MiB",
    "write_back_buffer": "16MiB",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """One replay: ``knobs`` on top of ``CLUSTER``, ``model`` as keywords of create_model, ``shape`` of the agents."""

    name: str
    systems: Sequence[str]
    knobs: dict[str, Any]
    shape: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    skew: float = 0.0
    seed: int = 1

    def trajectories(self) -> list[Trajectory]:
        """The agents; with ``skew`` s, half of them, in random order, begin with 1 + s times the context of the others."""
        if not self.skew:
            return demo_trajectories(random.Random(self.seed), **self.shape)
        half = {**self.shape, "agents": self.shape["agents"] // 2}
        long = {**half, "first_tokens": int(half["first_tokens"] * (1 + self.skew))}
        short_ones = demo_trajectories(random.Random(self.seed), **half)
        long_ones = demo_trajectories(random.Random(self.seed + 1), **long)
        mixed = [*short_ones, *long_ones]
        random.Random(self.seed).shuffle(mixed)
        return [Trajectory(f"agent-{number}", one.turns) for number, one in enumerate(mixed)]


def run(setup: Setup, console: Console) -> tuple[dict[str, Any], list[Replayed]]:
    """Replay the set-up as each of its systems; the report and what it was made from."""
    console.rule(setup.name)
    workload = Workload(setup.trajectories(), ReplayOptions(), setup.seed)
    with tempfile.TemporaryDirectory(prefix="dualpath-bench-") as scratch:
        model = Path(scratch) / "model"
        create_model(model, **setup.model)
        settings = [Given({**CLUSTER, **setup.knobs}).settings(system) for system in setup.systems]
        replays = [run_system(model, one, workload, console) for one in settings]
    return report_of(replays, {"setup": setup.name}), replays
