"""``dualpath plan``: what the second path would bring on a cluster, from its data sheets, without running anything."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dualpath.cli.options import FiniteRange
from dualpath.cli.traces import read_trajectories
from dualpath.costmodel.catalogue import MODELS, NODES, Node, model_named, node_named
from dualpath.costmodel.families import cost_of_config
from dualpath.costmodel.shapes import ModelCost
from dualpath.dataflow.bounds import ClusterShape, RatioRange, Resource, loads, ratio_range, utilisations
from dualpath.dataflow.estimate import Efficiency, Estimate, Limit, MeanTurn, estimate
from dualpath.errors import ModelError, SettingsError
from dualpath.settings import parse_bytes
from dualpath.workload.trajectory import Trajectory

_CLUSTER = re.compile(r"(\d+)P(\d+)D", re.IGNORECASE)
_POSITIVE = FiniteRange(0, min_open=True)
_SHARE = FiniteRange(0, 1, min_open=True)
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
    as_json: bool,
) -> None:
    """Say what limits a cluster with and without the second path, and for which P/D ratios the network keeps up.

    These are upper bounds from bytes, FLOPs and data sheets (paper sections 3 and 4.2): queues, stragglers and decode
    memory only make a cluster slower.
    """
    node = _node(node_named(hardware), gpus, snic_bandwidth, cnic_bandwidth, dram_bandwidth)
    cost = _cost(model, kv_element_bytes)
    turn = _turn(trace, prompt_tokens, new_tokens)
    shape = _shape(cluster, node)
    found = estimate(shape, node.flops, cost, turn, Efficiency(storage_efficiency, compute_efficiency))
    ratios = ratio_range(shape.engines_per_node, shape.snic_share, shape.cnic_bandwidth, shape.dram_bandwidth)
    if as_json:
        click.echo(json.dumps(_report(shape, turn, cost, found, ratios), indent=2))
        return
    _show(Console(highlight=False), cluster, shape, turn, cost, found, ratios)


def _node(node: Node, gpus: int | None, snic: str | None, cnic: str | None, dram: str | None) -> Node:
    rates = {"snic_bandwidth": snic, "cnic_bandwidth": cnic, "dram_bandwidth": dram}
    given: dict[str, Any] = {name: float(_rate(name, text)) for name, text in rates.items() if text is not None}
    return replace(node, **given) if gpus is None else replace(node, gpus=gpus, **given)


def _rate(name: str, text: str) -> int:
    flag = f"--{name.replace('_', '-')}"
    rate = parse_bytes(text, flag)
    if rate <= 0:
        raise SettingsError(f"{flag} must be positive, not {text!r}")
    return rate


def _cost(model: str, element_bytes: int) -> ModelCost:
    path = Path(model)
    if not path.exists():
        return model_named(model)
    config = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(config.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{config}: no readable model configuration: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{config}: no model configuration: it is no JSON object")
    return cost_of_config(values, element_bytes=element_bytes)


def _turn(trace: str | None, prompt_tokens: float | None, new_tokens: float | None) -> MeanTurn:
    if prompt_tokens is None and new_tokens is None:
        return mean_turn(read_trajectories(trace or "table2:64K"))
    if trace is not None or prompt_tokens is None or new_tokens is None:
        raise SettingsError("--prompt-tokens and --new-tokens go together, and not with --trace")
    try:
        return MeanTurn(prompt_tokens, new_tokens)
    except ValueError as error:
        raise SettingsError(f"--new-tokens: {error}") from error


def mean_turn(trajectories: Sequence[Trajectory]) -> MeanTurn:
    """The average over all turns of all trajectories, with exact (not whole-block) hits."""
    steps = [step for trajectory in trajectories for step in trajectory.steps()]
    prompt = fmean(step.prompt_tokens for step in steps)
    return MeanTurn(prompt, prompt - fmean(step.hit_tokens for step in steps))


def _shape(cluster: str, node: Node) -> ClusterShape:
    match = _CLUSTER.fullmatch(cluster.strip())
    if match is None or not int(match[1]) or not int(match[2]):
        raise SettingsError(f"--cluster: {cluster!r} does not say prefill and decode nodes, such as 2P4D")
    return ClusterShape(
        prefill_nodes=int(match[1]),
        decode_nodes=int(match[2]),
        engines_per_node=node.gpus,
        cnic_bandwidth=node.cnic_bandwidth,
        snic_share=node.snic_bandwidth / node.cnic_bandwidth,
        dram_bandwidth=node.dram_bandwidth,
    )


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
