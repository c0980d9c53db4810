"""The report that compares systems, of a replay or of a simulation alike, as JSON values (paper section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualpath.types import Role
from dualpath.workload import metrics
from dualpath.workload.metrics import Summary, ratio, summary
from dualpath.workload.timeline import TurnTimeline
from dualpath.workload.turn_table import TurnTable


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """What one node did during a run.

    ``storage_bytes_per_s`` is its storage NIC's limit, None where there is none; ``attention_s`` its engines' time in
    forwards, ``transfer_s`` in moving their layers' KV, of which compute waited for ``exposed_s``; ``peak_kv_bytes`` is
    the most device KV that one prefill batch held. ``cnic_read_bytes``, ``cnic_write_bytes`` and ``dram_bytes`` are what
    its compute NICs and its memory moved; None: not measured, as on a real cluster.
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
    cnic_read_bytes: int | None = None
    cnic_write_bytes: int | None = None
    dram_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How busy resources were over time.

    Attributes:
        interval_s: seconds that one value stands for; the first interval starts with the run.
        series: by resource ("prefill-node-0 SNIC read"), the share of its capacity used in each interval.
    """

    interval_s: float
    series: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system's run.

    Attributes:
        system: its name.
        turns: every turn that was submitted, failed ones included, in any order.
        nodes: counters over the run alone.
        wall_s: seconds the run took, agents' start-up included; of a simulation, on its own clock.
        block_tokens: size of a cache block, for the theoretical hit rate.
        transfers: False for a system that moves no KV bytes (the Oracle): its tokens mean nothing.
        timelines: the same turns with the digests of their tokens; None: no tokens were generated (a simulation).
        utilisation: of the resources over time; None: not measured.
    """

    system: str
    turns: TurnTable
    nodes: Sequence[NodeCounters]
    wall_s: float
    block_tokens: int
    transfers: bool = True
    timelines: Sequence[TurnTimeline] | None = None
    utilisation: Utilisation | None = None


@dataclass(frozen=True, slots=True)
class _Latencies:
    """Summaries over a system's completed turns; each takes a sort, so they are made once."""

    ttft_s: Summary
    ttst_s: Summary
    tpot_s: Summary
    latency_s: Summary

    @classmethod
    def of(cls, turns: TurnTable) -> _Latencies:
        return cls(summary(turns.ttft_s()), summary(turns.ttst_s()), summary(turns.tpot_s()), summary(turns.latency_s()))


def build_report(results: Sequence[SystemResult], settings: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Any]:
    """The report: ``{"settings", "versions", "systems": [{…}, …]}``, all of it JSON.

    A system's entry is flat. Beside this project's names (JCT in ``jct_s``) it has those of ``vllm bench serve`` for
    what that measures too, and AIPerf's ``time_to_second_token``. ``identical_turns`` counts turns whose tokens equal
    those of the first system that moves bytes; it is None where a system's tokens mean nothing, and, like
    ``tokens_digest``, where none were generated. What was not measured has no key: ``utilisation`` of a system,
    ``cnic_read_bytes``, ``cnic_write_bytes`` and ``dram_bytes`` of its nodes.
    """
    reference = next((result.timelines for result in results if result.transfers and result.timelines is not None), None)
    return {
        "settings": dict(settings),
        "versions": dict(versions),
        "systems": [{**_system(result), "identical_turns": _identical(result, reference)} for result in results],
    }


def _identical(result: SystemResult, reference: Iterable[TurnTimeline] | None) -> int | None:
    if reference is None or result.timelines is None or not result.transfers:
        return None
    return metrics.identical_turns(reference, result.timelines)


def _system(result: SystemResult) -> dict[str, Any]:
    turns, jct_s = result.turns, metrics.jct_s(result.turns)
    latencies = _Latencies.of(turns)
    return {
        "system": result.system,
        "tokens_valid": result.transfers,
        **_totals(turns, jct_s),
        **_rates(turns, jct_s, result.block_tokens),
        **_latencies(turns, latencies),
        **_bench_serve(turns, latencies, result.wall_s),
        **_nodes(result.nodes, jct_s),
        **_utilisation(result.utilisation),
        "tokens_digest": None if result.timelines is None else metrics.tokens_digest(result.timelines),
    }


def _totals(turns: TurnTable, jct_s: float) -> dict[str, Any]:
    agents = metrics.agent_durations_s(turns)
    completed = turns.completed()
    return {
        "jct_s": jct_s,
        "agents": len(agents),
        "agents_completed": metrics.agents_completed(turns),
        "agent_s": summary(agents.values())._asdict(),
        "turns": len(turns),
        "completed": completed,
        "failed": len(turns) - completed,
        "total_input_tokens": sum(turns.of_completed(turns.columns.prompt_tokens)),
        "total_output_tokens": sum(turns.of_completed(turns.columns.output_tokens)),
    }


def _rates(turns: TurnTable, jct_s: float, block_tokens: int) -> dict[str, Any]:
    return {
        "agents_per_s": ratio(metrics.agents_completed(turns), jct_s),
        "hit_rate": metrics.hit_rate(turns),
        "theoretical_hit_rate": metrics.theoretical_hit_rate(turns, block_tokens),
        "theoretical_hit_rate_exact": metrics.theoretical_hit_rate(turns),
    }


def _latencies(turns: TurnTable, latencies: _Latencies) -> dict[str, Any]:
    stages = metrics.mean_stages(turns)
    return {
        "ttft_s": latencies.ttft_s._asdict(),
        "ttst_s": latencies.ttst_s._asdict(),
        "tpot_s": latencies.tpot_s._asdict(),
        "ttft_breakdown_s": {
            "scheduling": stages.scheduling_s,
            "allocation": stages.allocation_s,
            "read": stages.read_s,
            "prefill": stages.prefill_s,
        },
    }


def _bench_serve(turns: TurnTable, latencies: _Latencies, wall_s: float) -> dict[str, Any]:
    """Fields as ``vllm bench serve`` names them, times in ms, and AIPerf's time to second token."""
    output_tokens = sum(turns.of_completed(turns.columns.output_tokens))
    all_tokens = output_tokens + sum(turns.of_completed(turns.columns.prompt_tokens))
    return {
        "duration": wall_s,
        "request_throughput": ratio(turns.completed(), wall_s),
        "output_throughput": ratio(output_tokens, wall_s),
        "total_token_throughput": ratio(all_tokens, wall_s),
        **_milliseconds("ttft", latencies.ttft_s),
        **_milliseconds("tpot", latencies.tpot_s),
        **_milliseconds("e2el", latencies.latency_s),
        "mean_itl_ms": _in_ms(metrics.mean_itl_s(turns)),
        "time_to_second_token": _aiperf(latencies.ttst_s),
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


def _nodes(nodes: Sequence[NodeCounters], jct_s: float) -> dict[str, Any]:
    prefill = [node.attention_s for node in nodes if node.role is Role.PREFILL]
    return {
        "nodes": [_node(node, jct_s) for node in nodes],
        "storage_max_over_mean": metrics.max_over_mean([node.storage_read_bytes for node in nodes]),
        "attention_time_max_over_mean": metrics.max_over_mean(prefill),
        "transfer_hidden_share": _hidden(nodes),
        "prefill_peak_kv_bytes": max((node.peak_kv_bytes for node in nodes), default=0),
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
        **_moved(node),
    }


def _moved(node: NodeCounters) -> dict[str, int]:
    """Bytes that only a simulation counts."""
    moved = {"cnic_read_bytes": node.cnic_read_bytes, "cnic_write_bytes": node.cnic_write_bytes, "dram_bytes": node.dram_bytes}
    return {name: moved_bytes for name, moved_bytes in moved.items() if moved_bytes is not None}


def _utilisation(utilisation: Utilisation | None) -> dict[str, Any]:
    if utilisation is None:
        return {}
    series = {name: list(shares) for name, shares in utilisation.series.items()}
    return {"utilisation": {"interval_s": utilisation.interval_s, "series": series}}
