"""``dualpath simulate``: agents through a simulated cluster, one system after another, with the report of a replay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dualpath.cli.cluster_options import cluster_nodes, cost_and_size, is_named, overridden
from dualpath.cli.options import FiniteRange
from dualpath.cli.outputs import check_output_file
from dualpath.cli.replay import chosen_systems
from dualpath.cli.report import installed_versions, write_report
from dualpath.cli.report_table import render_nodes, render_table, render_utilisation
from dualpath.cli.simulate_progress import SimulateProgress
from dualpath.cli.traces import read_trajectories
from dualpath.costmodel.calibration import DEFAULT
from dualpath.costmodel.catalogue import MODELS, NODES, node_named
from dualpath.costmodel.serving import Placement, served
from dualpath.errors import ClusterError, SettingsError
from dualpath.knobs import with_knobs
from dualpath.scheduling.baselines import apply_system
from dualpath.settings import Settings, parse_bytes
from dualpath.sim.capacity import Objective, find_capacity, parse_objective
from dualpath.sim.presets import BUFFER_BYTES, Sheet, cluster_of, mean_turn
from dualpath.sim.run import SimResult, Simulation, SimWorkload, without_collector
from dualpath.sim.spec import ClusterSpec
from dualpath.workload.agent import assigned
from dualpath.workload.arrivals import arrivals
from dualpath.workload.report import build_report
from dualpath.workload.trajectory import Trajectory, scaled

MOST_NODES_SHOWN = 16
_POSITIVE = FiniteRange(0, min_open=True)


@click.command()
@click.option("--cluster", default="2P4D", show_default=True, help="Prefill and decode nodes, such as 2P4D.")
@click.option("--model", required=True, help=f"One of {', '.join(MODELS)}, or a directory with a config.json.")
@click.option("--hardware", default="h800", show_default=True, help=f"GPUs of a node: {', '.join(NODES)}.")
@click.option("--trace", default="table2:64K", show_default=True, help="Trace file, or table2:32K, table2:48K, table2:64K.")
@click.option("--agents", type=click.IntRange(1), help="Agents; default: one for each trajectory.")
@click.option("--system", "systems", default="basic,dualpath", show_default=True, help="Systems, separated by commas.")
@click.option("--arrival-rate", type=_POSITIVE, help="Agents a second (Poisson); default: all at once.")
@click.option("--gaps", is_flag=True, help="Keep the recorded pauses between turns.")
@click.option("--scale", default=1.0, type=_POSITIVE, help="Factor on all token counts.")
@click.option("--seed", default=0, help="Seed of generated sets, sampling of trajectories and arrivals.")
@click.option("--gpus", type=click.IntRange(1), help="GPUs (and compute NICs) of a node, instead of the hardware's.")
@click.option("--snic-bandwidth", help="Storage NIC of a node, such as 50GB/s, instead of the hardware's.")
@click.option("--cnic-bandwidth", help="Compute NIC of a GPU, in one direction.")
@click.option("--dram-bandwidth", help="Memory of a node.")
@click.option("--buffer", "buffer_size", default=str(int(BUFFER_BYTES)), help="DRAM buffer of a node.  [default: 80GB]")
@click.option("--alpha-s", default=3.0, show_default=True, type=FiniteRange(0), help="As for `serve`.")
@click.option("--beta-s", default=5.0, show_default=True, type=FiniteRange(0), help="As for `serve`.")
@click.option("--quota-s", default=0.3, show_default=True, type=_POSITIVE, help="As for `serve`.")
@click.option("--block-tokens", default=64, show_default=True, type=click.IntRange(1), help="Tokens in a KV block.")
@click.option("--kv-element-bytes", default=2, show_default=True, type=click.IntRange(1, 8), help="With a config.json.")
@click.option("--find-capacity", is_flag=True, help="Find the highest arrival rate within --slo, for each system.")
@click.option("--slo", default="ttft=4s,tpot=50ms", show_default=True, help="Bounds on the mean, or e.g. ttft.p99=8s.")
@click.option("--json", "json_path", type=click.Path(), help="Write the report here.")
def simulate(
    cluster: str,
    model: str,
    hardware: str,
    trace: str,
    agents: int | None,
    systems: str,
    arrival_rate: float | None,
    gaps: bool,
    scale: float,
    seed: int,
    gpus: int | None,
    snic_bandwidth: str | None,
    cnic_bandwidth: str | None,
    dram_bandwidth: str | None,
    buffer_size: str,
    alpha_s: float,
    beta_s: float,
    quota_s: float,
    block_tokens: int,
    kv_element_bytes: int,
    find_capacity: bool,
    slo: str,
    json_path: str | None,
) -> None:
    """Run agents through a cluster that you do not have: the scheduler, plans and batching are the real ones, time is not.

    Step times come from kernel tables where there are any, else from data sheets; what neither says are the parameters
    that `dualpath reproduce` lists.
    """
    console = Console(highlight=False)
    names, objective = chosen_systems(systems), parse_objective(slo)
    if json_path is not None:
        check_output_file("--json", Path(json_path))
    read = [scaled(one, scale) if scale != 1 else one for one in read_trajectories(trace, seed)]
    node = overridden(node_named(hardware), gpus, snic_bandwidth, cnic_bandwidth, dram_bandwidth)
    cost, size = cost_and_size(model, kv_element_bytes)
    prefill_nodes, decode_nodes = cluster_nodes(cluster)
    placement = Placement(hardware.lower(), node, prefill_nodes, decode_nodes)
    on_nodes = served(model.lower() if is_named(model) else None, cost, size, placement, DEFAULT)
    sheet = Sheet(on_nodes, node, prefill_nodes, decode_nodes, mean_turn(read), _buffer(buffer_size))
    knobs = {"alpha_s": alpha_s, "beta_s": beta_s, "quota_s": quota_s, "block_tokens": block_tokens}
    specs = [cluster_of(sheet, apply_system(with_knobs(Settings(), knobs), name)) for name in names]
    told = {"cluster": cluster, "model": model, "hardware": hardware, "trace": trace, "seed": seed, "scale": scale, **knobs}
    told["step_times"] = on_nodes.source
    if find_capacity:
        report = told | {"slo": slo, "capacity": _show_capacity(console, specs, read, objective, seed)}
    else:
        workload = _workload(read, agents or len(read), arrival_rate, gaps, seed)
        told |= {"agents": len(workload.trajectories), "arrival_rate": arrival_rate, "gaps": gaps}
        report = _compare(console, specs, workload, told)
    if json_path is not None:
        write_report(Path(json_path), report)
        console.print(f"report: {json_path}")


def _compare(console: Console, specs: Sequence[ClusterSpec], workload: SimWorkload, told: dict[str, Any]) -> dict[str, Any]:
    """Run every system and show them side by side; the report.

    Raises:
        ClusterError: not one turn could be held.
    """
    results = [_run(spec, workload, console) for spec in specs]
    report = build_report([one.result for one in results], told, installed_versions())
    _show(console, report, specs)
    for spec, one in zip(specs, results, strict=True):
        _tell_refused(spec.system, one)
    if not any(one.result.turns.completed() for one in results):
        raise ClusterError("not one turn could be held by this cluster")
    return report


def _buffer(text: str) -> float:
    size = parse_bytes(text, "--buffer")
    if size <= 0:
        raise SettingsError(f"--buffer must be positive, not {text!r}")
    return float(size)


def _workload(trajectories: Sequence[Trajectory], agents: int, rate: float | None, gaps: bool, seed: int) -> SimWorkload:
    chosen = assigned(trajectories, agents, random.Random(seed))
    return SimWorkload(chosen, arrivals(agents, rate, random.Random(seed)), gaps)


def _run(spec: ClusterSpec, workload: SimWorkload, console: Console) -> SimResult:
    with SimulateProgress(spec.system, console) as progress, without_collector():
        return Simulation(spec, workload, progress.show).run()


def _show(console: Console, report: dict[str, Any], specs: Sequence[ClusterSpec]) -> None:
    console.print(render_table(report, console.width))
    if specs[0].prefill.nodes + specs[0].decode.nodes <= MOST_NODES_SHOWN:
        console.print(render_nodes(report))
    for table in render_utilisation(report):
        console.print(table)


def _show_capacity(
    console: Console, specs: Sequence[ClusterSpec], read: Sequence[Trajectory], objective: Objective, seed: int
) -> dict[str, Any]:
    """Find every system's capacity and show it; by system, every rate that was tried, as JSON values."""
    found = {}
    for spec in specs:
        with SimulateProgress(spec.system, console) as progress:
            capacity = find_capacity(spec, read, objective, seed, progress.show)
        console.print(capacity.sentence(spec.system))
        best = None if capacity.best is None else capacity.best.rate
        found[spec.system] = {"agents_per_s": best, "levels": [asdict(level) for level in capacity.levels]}
    return found


def _tell_refused(system: str, outcome: SimResult) -> None:
    """Turns that no engine could ever hold."""
    if not outcome.reasons:
        return
    count = sum(outcome.reasons.values())
    reason, _ = max(outcome.reasons.items(), key=lambda item: item[1])
    click.echo(f"{system}: {count} agents ended at a turn that no engine could ever hold, for example {reason}", err=True)
