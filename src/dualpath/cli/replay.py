"""``dualpath replay``: agent traces through real clusters, one system after another, side by side."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from dualpath.cli.options import FiniteRange, Given, settings_options
from dualpath.cli.outputs import check_output_file
from dualpath.cli.progress import ReplayProgress
from dualpath.cli.report import installed_versions, write_report
from dualpath.cli.report_table import render_nodes, render_table
from dualpath.cli.signals import signals_held_back
from dualpath.cli.traces import read_trajectories
from dualpath.clock import MonotonicClock
from dualpath.errors import SettingsError, TraceError
from dualpath.replay.driver import NodeMeter, ReplayDriver, ReplayOptions
from dualpath.scheduling.baselines import SYSTEMS
from dualpath.settings import Settings
from dualpath.workload.agent import Agent, assigned
from dualpath.workload.report import SystemResult, build_report
from dualpath.workload.trajectory import Trajectory, clipped, scaled
from dualpath.workload.turn_table import TurnTable

_SHOWN_REASONS = 5


@dataclass(frozen=True, slots=True)
class Workload:
    """What every system replays: the same agents with the same tokens."""

    trajectories: Sequence[Trajectory]
    options: ReplayOptions
    seed: int

    def agents(self, vocab_size: int) -> list[Agent]:
        """Fresh agents; each draws its tokens from a generator of its own."""
        return [
            Agent(trajectory, range(vocab_size), random.Random(f"{self.seed}/{number}"))
            for number, trajectory in enumerate(self.trajectories)
        ]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One system's replay."""

    result: SystemResult
    meter: NodeMeter
    settings: Settings


def load_trajectories(
    path: Path, *, agents: int | None, scale: float, max_len: int | None, seed: int, console: Console
) -> list[Trajectory]:
    """The trace's trajectories, scaled, clipped to ``max_len``, and as many as there are agents.

    Raises:
        TraceError: the file cannot be read, has holes, or nothing in it fits.
    """
    read = [scaled(trajectory, scale) if scale != 1 else trajectory for trajectory in read_trajectories(str(path), seed)]
    fitting, dropped = read, 0
    if max_len is not None:
        pairs = [clipped(trajectory, max_len) for trajectory in read]
        fitting = [trajectory for trajectory, _ in pairs if trajectory is not None]
        dropped = sum(turns for _, turns in pairs)
    if dropped:
        console.print(f"{dropped} turns beyond {max_len} tokens are left out, {len(read) - len(fitting)} trajectories whole")
    if not fitting:
        raise TraceError(f"{path}: no trajectory has a first turn within {max_len} tokens; use a smaller --scale")
    return assigned(fitting, agents or len(fitting), random.Random(seed))


def run_system(model: Path, settings: Settings, workload: Workload, console: Console) -> Replayed:
    """Replay the workload through a fresh cluster with an empty store."""
    with signals_held_back():
        from dualpath.cluster.local import LocalCluster

    with LocalCluster(model, system=None, settings=settings) as cluster, ReplayProgress(settings, console) as progress:
        driver = ReplayDriver(cluster.client, MonotonicClock(), workload.options, progress.show)
        agents = workload.agents(cluster.vocab_size)
        meter = cluster.run(driver.run(agents, random.Random(workload.seed)))
    bandwidth = settings.storage.snic_bandwidth
    result = SystemResult(
        system=settings.cluster.system,
        turns=TurnTable.of(driver.turns),
        nodes=meter.nodes(None if bandwidth is None else float(bandwidth)),
        wall_s=driver.wall_s,
        block_tokens=settings.cache.block_tokens,
        transfers=not settings.cluster.oracle,
        timelines=driver.turns,
    )
    return Replayed(result, meter, settings)


def report_of(replays: Sequence[Replayed], extra: dict[str, Any]) -> dict[str, Any]:
    """The JSON report of several systems' replays; ``extra`` joins the settings."""
    settings = {**msgspec.to_builtins(replays[0].settings), **extra}
    return build_report([replay.result for replay in replays], settings, installed_versions())


@click.command()
@click.option("--model", required=True, type=click.Path(), help="Hugging Face directory of the model.")
@click.option(
    "--trace",
    required=True,
    type=click.Path(),
    help="Trace file (our JSONL, Mooncake's, kv-cache-tester, mini-swe-agent), or a set of the paper's: table2:64K.",
)
@click.option("--system", "systems", default="basic,dualpath", help="Systems to compare, separated by commas.")
@click.option("--agents", type=click.IntRange(1), help="Agents; default: one for each trajectory.")
@click.option("--arrival-rate", type=FiniteRange(0, min_open=True), help="Agents a second (Poisson); default: all at once.")
@click.option("--scale", default=1.0, type=FiniteRange(0, min_open=True), help="Factor on all token counts.")
@click.option("--gaps", is_flag=True, help="Keep the recorded pauses between turns.")
@click.option("--seed", default=0, help="Seed of tokens, sampling of trajectories and arrivals.")
@click.option("--json", "json_path", type=click.Path(), help="Write the report here.")
@settings_options("system", "store", "host", "port", "api_key", "max_pending")
def replay(
    model: str,
    trace: str,
    systems: str,
    agents: int | None,
    arrival_rate: float | None,
    scale: float,
    gaps: bool,
    seed: int,
    json_path: str | None,
    given: Given,
) -> None:
    """Replay agent traces through clusters on this machine, and compare systems.

    Every turn sends its context and generates exactly the recorded number of tokens. Every system starts with an empty
    store and gets the same agents with the same tokens.
    """
    console = Console()
    settings = [given.settings(name) for name in chosen_systems(systems)]
    if json_path is not None:
        check_output_file("--json", Path(json_path))
    trajectories = load_trajectories(
        Path(trace), agents=agents, scale=scale, max_len=settings[0].model.max_len, seed=seed, console=console
    )
    workload = Workload(trajectories, ReplayOptions(arrival_rate, gaps), seed)
    replays = [run_system(Path(model), chosen, workload, console) for chosen in settings]
    report = report_of(replays, {"trace": trace, "agents": len(trajectories), "scale": scale, "seed": seed})
    console.print(render_table(report, console.width))
    console.print(render_nodes(report))
    for replayed in replays:
        _tell_failures(replayed.result)
    if json_path is not None:
        write_report(Path(json_path), report)
        console.print(f"report: {json_path}")


def _tell_failures(result: SystemResult) -> None:
    """Why turns failed, each reason once."""
    reasons = Counter(turn.error for turn in result.timelines or () if turn.error is not None)
    for reason, count in reasons.most_common(_SHOWN_REASONS):
        click.echo(f"{result.system}: {count} turns failed, and the rest of their agents' with them: {reason}", err=True)
    if (more := len(reasons) - _SHOWN_REASONS) > 0:
        click.echo(f"{result.system}: turns failed for {more} more reasons", err=True)


def chosen_systems(systems: str) -> list[str]:
    """The names in a list that commas separate.

    Raises:
        SettingsError: there is no such system, or no name at all.
    """
    names = [name.strip() for name in systems.split(",") if name.strip()]
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown or not names:
        raise SettingsError(f"system: {', '.join(unknown) or 'none given'}; choose from {', '.join(SYSTEMS)}")
    return names
