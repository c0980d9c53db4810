"""The numbers of one simulation that experiments compare (paper section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from dualpath.evaluation.dram_tier import hit_rates
from dualpath.sim.run import Balance, SimResult, SimWorkload
from dualpath.sim.spec import ClusterSpec
from dualpath.types import Role
from dualpath.workload import metrics
from dualpath.workload.metrics import Summary, summary
from dualpath.workload.report import NodeCounters, Utilisation
from dualpath.workload.timeline import StageDurations
from dualpath.workload.turn_table import TurnTable

FIRST_PART = 0.05
"""Fig. 14 looks at the first 5 % of a run."""


class Window(NamedTuple):
    """Virtual seconds."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a simulation; times in virtual seconds.

    Attributes:
        jct_s: until the last agent's end.
        turns, failed, preempted: of the whole run.
        ttft_s, ttst_s, latency_s: of the window's turns.
        tpot_s: time of a token after the second (the hand-off is in TTST), of the window's turns.
        stages: mean parts of TTFT, of the window's turns.
        agent_s: mean time of an agent that has ended; ``turn_agent_s`` the mean number of turns times the mean latency of
            the window's turns, which needs no agent to end.
        prompt_tokens, prompt_tokens_per_s: all, and in the plateau (between a fifth and a half of the run).
        storage_max_over_mean: of the bytes that storage NICs have read; ``storage_windows`` the mean of it over time.
        attention_max_over_mean: of the attention of engines in step, over the first part of the run.
        working_set_bytes: mean over the window of the KV of agents that have begun and not ended.
        nodes: counters.
        utilisation: over time.
        prefill_busy, decode_busy: share of the run that groups spent in steps.
        wall_s: real seconds of the simulation.
        dram_hit_rates: of a DRAM tier of each size that the case names, of turns sent within the window.
        hit_rate, theoretical_hit_rate: achieved, in whole blocks, and exact; of completed turns.
        scheduler_cpu_s: processor seconds within the scheduler's calls; None: not measured.
    """

    jct_s: float
    turns: int
    failed: int
    preempted: int
    ttft_s: Summary
    ttst_s: Summary
    tpot_s: Summary
    latency_s: Summary
    stages: StageDurations
    agent_s: float | None
    turn_agent_s: float | None
    prompt_tokens: int
    prompt_tokens_per_s: float
    storage_max_over_mean: float | None
    storage_windows: float | None
    attention_max_over_mean: float | None
    working_set_bytes: float
    nodes: Sequence[NodeCounters]
    utilisation: Utilisation | None
    prefill_busy: float
    decode_busy: float
    wall_s: float
    dram_hit_rates: tuple[float, ...] = ()
    scheduler_cpu_s: float | None = None
    hit_rate: float | None = None
    theoretical_hit_rate: float | None = None


def outcome_of(
    found: SimResult,
    workload: SimWorkload,
    window: Window | None,
    spec: ClusterSpec,
    wall_s: float,
    dram_tier_bytes: Sequence[float] = (),
) -> Outcome:
    """Condense a simulation."""
    turns = found.result.turns
    jct_s = metrics.jct_s(turns)
    chosen = turns if window is None else turns.ended_within(*window)
    latency = summary(chosen.latency_s())
    mean_turns = fmean(len(one.turns) for one in workload.trajectories)
    snic = _snic_series(found.result.utilisation)
    return Outcome(
        jct_s=jct_s,
        turns=len(turns),
        failed=len(turns) - turns.completed(),
        preempted=found.preempted,
        ttft_s=summary(chosen.ttft_s()),
        ttst_s=summary(chosen.ttst_s()),
        tpot_s=summary(chosen.tpot_after_second_s()),
        latency_s=latency,
        stages=metrics.mean_stages(chosen),
        agent_s=_agent_s(turns, workload, window),
        turn_agent_s=None if latency.mean is None else latency.mean * mean_turns,
        hit_rate=metrics.hit_rate(turns),
        theoretical_hit_rate=metrics.theoretical_hit_rate(turns),
        prompt_tokens=sum(turns.columns.prompt_tokens),
        prompt_tokens_per_s=_plateau(turns, jct_s),
        storage_max_over_mean=metrics.max_over_mean([node.storage_read_bytes for node in found.result.nodes]),
        storage_windows=_uneven(snic),
        attention_max_over_mean=_bubbles(found.attention, FIRST_PART * jct_s),
        working_set_bytes=_working_set(turns, window or Window(0.0, jct_s)) * spec.geometry.token_bytes,
        nodes=found.result.nodes,
        utilisation=found.result.utilisation,
        prefill_busy=found.prefill_busy_s / jct_s,
        decode_busy=found.decode_busy_s / jct_s,
        wall_s=wall_s,
        dram_hit_rates=hit_rates(turns, dram_tier_bytes, spec.geometry.token_bytes, *(window or ())),
    )


def _agent_s(turns: TurnTable, workload: SimWorkload, window: Window | None) -> float | None:
    """Mean time of the agents that have ended and began within the window."""
    columns = turns.columns
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    counts: dict[int, int] = {}
    for agent, sent_s, end_s in zip(columns.agent, columns.submitted_s, columns.finished_s, strict=True):
        starts[agent] = min(sent_s, starts.get(agent, sent_s))
        ends[agent] = max(end_s, ends.get(agent, end_s))
        counts[agent] = counts.get(agent, 0) + 1
    lives = [
        ends[agent] - start
        for agent, start in starts.items()
        if counts[agent] == len(workload.trajectories[agent].turns)
        and (window is None or window.start_s <= start < window.end_s)
    ]
    return fmean(lives) if lives else None


def _plateau(turns: TurnTable, jct_s: float) -> float:
    """Prompt tokens a second of the turns that ended between a fifth and a half of the run."""
    start_s, end_s = jct_s / 5, jct_s / 2
    columns = turns.columns
    tokens = sum(
        prompt for prompt, end in zip(columns.prompt_tokens, columns.finished_s, strict=True) if start_s <= end < end_s
    )
    return tokens / (end_s - start_s) if end_s > start_s else 0.0


def _snic_series(utilisation: Utilisation | None) -> list[Sequence[float]]:
    if utilisation is None:
        return []
    return [shares for name, shares in utilisation.series.items() if name.endswith("SNIC read")]


def _uneven(series: Sequence[Sequence[float]]) -> float | None:
    """Mean over time of the largest over the mean, where there is traffic."""
    ratios = [max(at) * len(at) / sum(at) for at in zip(*series, strict=True) if sum(at) > 0]
    return fmean(ratios) if ratios else None


def _bubbles(groups: Sequence[Balance], until_s: float) -> float | None:
    """The slowest engines' attention over the mean's, all steps that began before ``until_s`` together."""
    most = mean = 0.0
    for group in groups:
        for begin_s, most_s, mean_s in zip(group.begin_s, group.most_s, group.mean_s, strict=True):
            if begin_s < until_s:
                most += most_s
                mean += mean_s
    return most / mean if mean else None


def _working_set(turns: TurnTable, window: Window) -> float:
    """Mean tokens of context of agents between their first submission and their last end, over the window.

    An agent's context after a turn stays until its next turn has ended.
    """
    columns = turns.columns
    last_end: dict[int, float] = {}
    total = 0.0
    order = sorted(range(len(columns.agent)), key=columns.finished_s.__getitem__)
    for row in order:
        agent, end_s = columns.agent[row], columns.finished_s[row]
        start_s = last_end.get(agent, columns.submitted_s[row])
        overlap = min(end_s, window.end_s) - max(start_s, window.start_s)
        if overlap > 0:
            total += overlap * columns.prompt_tokens[row]
        last_end[agent] = end_s
    return total / (window.end_s - window.start_s)


def prefill_nodes(nodes: Sequence[NodeCounters]) -> list[NodeCounters]:
    """Those of prefill nodes."""
    return [node for node in nodes if node.role is Role.PREFILL]
