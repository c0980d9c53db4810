"""The JSON report of a replay and the table that compares systems (paper section 7)."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dualpath.types import Role
from dualpath.workload import metrics
from dualpath.workload.metrics import Summary, ratio, summary
from dualpath.workload.timeline import TurnTimeline

REPORTED_PACKAGES = ("dualpath", "torch", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """What one node did during a replay.

    ``storage_bytes_per_s`` is its storage NIC's limit, None where there is none; ``attention_s`` its engines' time in
    forwards, ``transfer_s`` in moving their layers' KV, of which compute waited for ``exposed_s``; ``peak_kv_bytes`` is
    the most device KV that one prefill batch held.
    """

    name: str
    role: Role
    storage_read_bytes: int
    storage_write_bytes: int
    storage_bytes_per_s: float | None
    attention_s: float
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    peak_kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system's replay.

    Attributes:
        system: its name.
        turns: every turn that was submitted, failed ones included, in any order.
        nodes: counters over the replay alone.
        wall_s: seconds the replay took, agents' start-up included.
        block_tokens: size of a cache block, for the theoretical hit rate.
        transfers: False for a system that moves no KV bytes (the Oracle): its tokens mean nothing.
    """

    system: str
    turns: Sequence[TurnTimeline]
    nodes: Sequence[NodeCounters]
    wall_s: float
    block_tokens: int
    transfers: bool = True

    @property
    def completed(self) -> list[TurnTimeline]:
        return [turn for turn in self.turns if turn.completed]

    @property
    def jct_s(self) -> float:
        return metrics.jct_s(self.turns)


def build_report(
    results: Sequence[SystemResult], settings: Mapping[str, Any], versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The report: ``{"settings", "versions", "systems": [{…}, …]}``, all of it JSON.

    A system's entry is flat. Beside this project's names (JCT in ``jct_s``) it has those of ``vllm bench serve`` for
    what that measures too, and AIPerf's ``time_to_second_token``. ``identical_turns`` counts turns whose tokens equal
    those of the first system that moves bytes; it is None where a system's tokens mean nothing.
    """
    reference = next((result for result in results if result.transfers), None)
    return {
        "settings": dict(settings),
        "versions": dict(installed_versions() if versions is None else versions),
        "systems": [{**_system(result), "identical_turns": _identical(result, reference)} for result in results],
    }


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write ``report`` as JSON, creating the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, default=str, allow_nan=False) + "\n", encoding="utf-8")


def _identical(result: SystemResult, reference: SystemResult | None) -> int | None:
    if reference is None or not result.transfers:
        return None
    return metrics.identical_turns(reference.turns, result.turns)


def _system(result: SystemResult) -> dict[str, Any]:
    return {
        "system": result.system,
        "tokens_valid": result.transfers,
        **_totals(result),
        **_rates(result),
        **_latencies(result.completed),
        **_bench_serve(result),
        **_nodes(result),
        "tokens_digest": metrics.tokens_digest(result.turns),
    }


def _totals(result: SystemResult) -> dict[str, Any]:
    completed = result.completed
    agents = metrics.agent_durations_s(result.turns)
    return {
        "jct_s": result.jct_s,
        "agents": len(agents),
        "agents_completed": metrics.agents_completed(result.turns),
        "agent_s": summary(agents.values())._asdict(),
        "turns": len(result.turns),
        "completed": len(completed),
        "failed": len(result.turns) - len(completed),
        "total_input_tokens": sum(turn.prompt_tokens for turn in completed),
        "total_output_tokens": sum(turn.output_tokens for turn in completed),
    }


def _rates(result: SystemResult) -> dict[str, Any]:
    completed = result.completed
    return {
        "agents_per_s": ratio(metrics.agents_completed(result.turns), result.jct_s),
        "hit_rate": metrics.hit_rate(completed),
        "theoretical_hit_rate": metrics.theoretical_hit_rate(completed, result.block_tokens),
        "theoretical_hit_rate_exact": metrics.theoretical_hit_rate(completed),
    }


def _latencies(completed: Sequence[TurnTimeline]) -> dict[str, Any]:
    stages = metrics.mean_stages(completed)
    return {
        "ttft_s": summary(turn.ttft_s for turn in completed)._asdict(),
        "ttst_s": summary(turn.ttst_s for turn in completed)._asdict(),
        "tpot_s": summary(turn.tpot_s for turn in completed)._asdict(),
        "ttft_breakdown_s": {
            "scheduling": stages.scheduling_s,
            "allocation": stages.allocation_s,
            "read": stages.read_s,
            "prefill": stages.prefill_s,
        },
    }


def _bench_serve(result: SystemResult) -> dict[str, Any]:
    """Fields as ``vllm bench serve`` names them, times in ms, and AIPerf's time to second token."""
    completed = result.completed
    output_tokens = sum(turn.output_tokens for turn in completed)
    all_tokens = output_tokens + sum(turn.prompt_tokens for turn in completed)
    return {
        "duration": result.wall_s,
        "request_throughput": ratio(len(completed), result.wall_s),
        "output_throughput": ratio(output_tokens, result.wall_s),
        "total_token_throughput": ratio(all_tokens, result.wall_s),
        **_milliseconds("ttft", summary(turn.ttft_s for turn in completed)),
        **_milliseconds("tpot", summary(turn.tpot_s for turn in completed)),
        **_milliseconds("e2el", summary(turn.latency_s for turn in completed)),
        "mean_itl_ms": _in_ms(metrics.mean_itl_s(completed)),
        "time_to_second_token": _aiperf(summary(turn.ttst_s for turn in completed)),
    }


def _milliseconds(name: str, seconds: Summary) -> dict[str, float | None]:
    return {
        f"mean_{name}_ms": _in_ms(seconds.mean),
        f"median_{name}_ms": _in_ms(seconds.p50),
        f"p99_{name}_ms": _in_ms(seconds.p99),
    }


def _aiperf(seconds: Summary) -> dict[str, Any]:
    percentiles = {name: _in_ms(getattr(seconds, name)) for name in ("p50", "p90", "p99")}
    return {"unit": "ms", "avg": _in_ms(seconds.mean), **percentiles}


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _nodes(result: SystemResult) -> dict[str, Any]:
    prefill = [node.attention_s for node in result.nodes if node.role is Role.PREFILL]
    return {
        "nodes": [_node(node, result.jct_s) for node in result.nodes],
        "storage_max_over_mean": metrics.max_over_mean([node.storage_read_bytes for node in result.nodes]),
        "attention_time_max_over_mean": metrics.max_over_mean(prefill),
        "transfer_hidden_share": _hidden(result.nodes),
        "prefill_peak_kv_bytes": max((node.peak_kv_bytes for node in result.nodes), default=0),
    }


def _hidden(nodes: Sequence[NodeCounters]) -> float | None:
    """Share of the layers' transfer time that compute hid: 1 − exposed / total."""
    exposed = ratio(sum(node.exposed_s for node in nodes), sum(node.transfer_s for node in nodes))
    return None if exposed is None else 1.0 - exposed


def _node(node: NodeCounters, jct_s: float) -> dict[str, Any]:
    limit = node.storage_bytes_per_s
    return {
        "name": node.name,
        "role": node.role.value,
        "storage_read_bytes": node.storage_read_bytes,
        "storage_write_bytes": node.storage_write_bytes,
        "storage_utilization": None if limit is None else ratio(node.storage_read_bytes, limit * jct_s),
        "attention_s": node.attention_s,
    }
