"""``dualpath plan``: what the second path would bring on a cluster, from its data sheets, without running anything."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dualpath.cli.cluster_options import cluster_nodes, cost_and_size, is_named, overridden, shape_of
from dualpath.cli.options import FiniteRange
from dualpath.cli.plan_search import Task, search_clusters, search_report, show_search
from dualpath.cli.traces import read_trajectories
from dualpath.costmodel.catalogue import MODELS, NODES, node_named
from dualpath.costmodel.shapes import ModelCost
from dualpath.dataflow.bounds import ClusterShape, RatioRange, Resource, loads, ratio_range, utilisations
from dualpath.dataflow.estimate import Efficiency, Estimate, Limit, MeanTurn, estimate
from dualpath.errors import SettingsError
from dualpath.sim.presets import mean_turn
from dualpath.sim.search import Tried

_POSITIVE = FiniteRange(0, min_open=True)
_SHARE = FiniteRange(0, 1, min_open=True)
DEFAULT_TRACE = "table2:64K"
WORTH_IT = 1.1
"""Below this bound on the gain the advice is that the second path does not pay."""
NAMES = {
    Resource.PE_CNIC_READ: "prefill compute NIC, read",
    Resource.PE_CNIC_WRITE: "prefill compute NIC, write",
    Resource.DE_CNIC_READ: "decode compute NIC, read",
    Resource.DE_CNIC_WRITE: "decode compute NIC, write",
    Resource.PE_DRAM: "prefill node memory",
    Resource.DE_DRAM: "decode node memory",
}


@click.command()
@click.option("--cluster", default="2P4D", show_default=True, help="Prefill and decode nodes, such as 2P4D.")
@click.option("--model", required=True, help=f"One of {', '.join(MODELS)}, or a directory with a config.json.")
@click.option("--hardware", default="h800", show_default=True, help=f"GPUs of a node: {', '.join(NODES)}.")
@click.option("--trace", help="Trace file, or a set of the paper's: table2:32K, table2:48K, table2:64K. [default: table2:64K]")
@click.option("--prompt-tokens", type=_POSITIVE, help="Mean prompt of a turn, instead of a trace.")
@click.option("--new-tokens", type=_POSITIVE, help="Mean tokens of a prompt that are no hit, instead of a trace.")
@click.option("--gpus", type=click.IntRange(1), help="GPUs (and compute NICs) of a node, instead of the hardware's.")
@click.option("--snic-bandwidth", help="Storage NIC of a node, such as 50GB/s, instead of the hardware's.")
@click.option("--cnic-bandwidth", help="Compute NIC of a GPU, in one direction.")
@click.option("--dram-bandwidth", help="Memory of a node.")
@click.option("--kv-element-bytes", default=2, show_default=True, type=click.IntRange(1, 8), help="With a config.json.")
@click.option(
    "--storage-efficiency", default=Efficiency().storage, show_default=True, type=_SHARE, help="Share of the NIC's rate."
)
@click.option(
    "--compute-efficiency", default=Efficiency().compute, show_default=True, type=_SHARE, help="Share of the GPU's FLOPs."
)
@click.option("--search", is_flag=True, help="Simulate other P/D ratios of as many nodes, and other knobs; see --agents.")
@click.option(
    "--agents", default=512, show_default=True, type=click.IntRange(1), help="With --search: agents that start together."
)
@click.option("--jobs", type=click.IntRange(1), help="With --search: simulations at a time; default: one a processor.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    cluster: str,
    model: str,
    hardware: str,
    trace: str | None,
    prompt_tokens: float | None,
    new_tokens: float | None,
    gpus: int | None,
    snic_bandwidth: str | None,
    cnic_bandwidth: str | None,
    dram_bandwidth: str | None,
    kv_element_bytes: int,
    storage_efficiency: float,
    compute_efficiency: float,
    search: bool,
    agents: int,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Say what limits a cluster with and without the second path, and for which P/D ratios the network keeps up.

    These are upper bounds from bytes, FLOPs and data sheets (paper sections 3 and 4.2): queues, stragglers and decode
    memory only make a cluster slower.
    """
    node = overridden(node_named(hardware), gpus, snic_bandwidth, cnic_bandwidth, dram_bandwidth)
    cost, size = cost_and_size(model, kv_element_bytes)
    turn = _turn(trace, prompt_tokens, new_tokens)
    shape = shape_of(cluster, node)
    found = estimate(shape, node.flops, cost, turn, Efficiency(storage_efficiency, compute_efficiency))
    ratios = ratio_range(shape.engines_per_node, shape.snic_share, shape.cnic_bandwidth, shape.dram_bandwidth)
    console = Console(highlight=False)
    report = _report(shape, turn, cost, found, ratios)
    tried: list[Tried] = []
    if search:
        if prompt_tokens is not None:
            raise SettingsError("--search simulates agents: it needs a --trace, not --prompt-tokens")
        name = model.lower() if is_named(model) else None
        task = Task(name, cost, size, hardware.lower(), node, trace or DEFAULT_TRACE, agents)
        tried = search_clusters(task, *cluster_nodes(cluster), jobs, Console(stderr=True))
        report["search"] = search_report(tried)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    _show(console, cluster, shape, turn, cost, found, ratios)
    if search:
        show_search(console, tried)


def _turn(trace: str | None, prompt_tokens: float | None, new_tokens: float | None) -> MeanTurn:
    if prompt_tokens is None and new_tokens is None:
        return mean_turn(read_trajectories(trace or DEFAULT_TRACE))
    if trace is not None or prompt_tokens is None or new_tokens is None:
        raise SettingsError("--prompt-tokens and --new-tokens go together, and not with --trace")
    try:
        return MeanTurn(prompt_tokens, new_tokens)
    except ValueError as error:
        raise SettingsError(f"--new-tokens: {error}") from error


def _report(shape: ClusterShape, turn: MeanTurn, cost: ModelCost, found: Estimate, ratios: RatioRange) -> dict[str, Any]:
    return {
        "cluster": asdict(shape),
        "turn": asdict(turn) | {"hit_rate": turn.hit_rate},
        "token_bytes": cost.token_bytes,
        "gb_per_pflop": found.io_per_compute * 1e6,
        "utilisation_at_full_storage_nics": {resource.value: used for resource, used in utilisations(shape).items()},
        "binding_resource": found.binding.value,
        "ratio_range": None
        if ratios.is_empty
        else {
            "lowest": ratios.lowest,
            "lowest_by": ratios.lowest_by.value,
            "highest": ratios.highest,
            "highest_by": ratios.highest_by.value,
        },
        "turns_per_s": {
            "basic": found.basic.turns_per_s,
            "dualpath": found.dualpath.turns_per_s,
            "prefill_compute": found.compute,
        },
        "storage_nics_used_by_dualpath": {"prefill": found.reads[0], "decode": found.reads[1]},
        "limit": {"basic": found.basic.limit.value, "dualpath": found.dualpath.limit.value},
        "speedup_at_most": found.speedup,
        "advice": advice(shape, found, ratios),
    }


def _show(
    console: Console,
    cluster: str,
    shape: ClusterShape,
    turn: MeanTurn,
    cost: ModelCost,
    found: Estimate,
    ratios: RatioRange,
) -> None:
    console.print(
        f"mean turn: {turn.prompt_tokens:,.0f} tokens, {turn.hit_rate:.1%} of them a hit; {cost.token_bytes:,} bytes of KV a "
        f"token; {found.io_per_compute * 1e6:,.1f} GB read per PFLOP computed"
    )
    table = Table("resource", "load", "bandwidth", "used", title=f"{cluster} with every storage NIC busy (paper section 4.2)")
    used, carried = utilisations(shape), loads(shape)
    for resource in Resource:
        bandwidth = carried[resource] / used[resource]
        mark = " *" if resource is found.binding else ""
        table.add_row(
            NAMES[resource] + mark,
            f"{carried[resource] / 1e9:.1f} GB/s",
            f"{bandwidth / 1e9:.0f} GB/s",
            f"{used[resource]:.0%}",
        )
    console.print(table)
    console.print(f"* fills first. {_allowed(ratios)}; this cluster's is {shape.ratio:.3g}")
    rates = Table("", "turns/s at most", "limited by", title="upper bounds")
    rates.add_row("Basic", f"{found.basic.turns_per_s:,.1f}", found.basic.limit.value)
    rates.add_row("DualPath", f"{found.dualpath.turns_per_s:,.1f}", found.dualpath.limit.value)
    console.print(rates)
    console.print(advice(shape, found, ratios))


def _allowed(ratios: RatioRange) -> str:
    if ratios.is_empty:
        limits = f"{NAMES[ratios.lowest_by]}, and {NAMES[ratios.highest_by]}"
        return f"No P/D keeps every storage NIC of this node busy ({limits})"
    lowest, highest = (
        f"{ratio:.3g} ({NAMES[by]})" for ratio, by in ((ratios.lowest, ratios.lowest_by), (ratios.highest, ratios.highest_by))
    )
    return f"P/D may be {lowest} to {highest}"


def advice(shape: ClusterShape, found: Estimate, ratios: RatioRange) -> str:
    """What to make of the bounds, in a sentence or two."""
    if found.speedup < WORTH_IT:
        text = f"The second path brings at most {found.speedup:.2f} x here; the limit is {found.dualpath.limit.value}."
    else:
        text = f"The second path brings up to {found.speedup:.2f} x; the limit is {found.dualpath.limit.value} then."
    if shape.ratio not in ratios and found.dualpath.limit is not Limit.COMPUTE:
        text += f" The {NAMES[found.binding]} fills before the storage NICs do"
        text += "." if ratios.is_empty else f": P/D of {shape.ratio:.3g} is outside the range."
    return text
