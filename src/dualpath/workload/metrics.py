"""Numbers of a run: percentiles, completion times, hit rates, balance and digests (paper section 7)."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import not_
from statistics import fmean
from typing import NamedTuple

from dualpath.workload.agent import block_hit
from dualpath.workload.timeline import StageDurations, TurnTimeline
from dualpath.workload.turn_table import TurnTable


class Summary(NamedTuple):
    """Mean and percentiles of some values; all None where there are none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


def percentile(values: Sequence[float], percent: float) -> float:
    """The ``percent``-th percentile by linear interpolation between the closest ranks (numpy's default).

    Raises:
        ValueError: no values, or ``percent`` outside [0, 100].
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(values)} values")
    return _of_sorted(sorted(values), percent)


def _of_sorted(ordered: Sequence[float], percent: float) -> float:
    rank = (len(ordered) - 1) * percent / 100
    low, high = math.floor(rank), math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summary(values: Iterable[float]) -> Summary:
    """Summary of the values, none of them NaN; holds them all, as one list."""
    ordered = sorted(values)
    if not ordered:
        return Summary(None, None, None, None)
    return Summary(fmean(ordered), *(_of_sorted(ordered, percent) for percent in (50, 90, 99)))


def jct_s(turns: TurnTable) -> float:
    """Job completion time: from the first submission until the last turn of the last agent has ended."""
    if not turns:
        return 0.0
    return max(turns.columns.finished_s) - min(turns.columns.submitted_s)


def agent_durations_s(turns: TurnTable) -> dict[int, float]:
    """Each agent's time, by its number, from its first submission to its last end (paper Fig. 11)."""
    columns = turns.columns
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    for agent, start_s, end_s in zip(columns.agent, columns.submitted_s, columns.finished_s, strict=True):
        if start_s < starts.get(agent, math.inf):
            starts[agent] = start_s
        if end_s > ends.get(agent, -math.inf):
            ends[agent] = end_s
    return {agent: ends[agent] - start_s for agent, start_s in starts.items()}


def agents_completed(turns: TurnTable) -> int:
    """Agents none of whose turns failed."""
    columns = turns.columns
    return len(set(columns.agent)) - len(set(compress(columns.agent, map(not_, columns.completed))))


def mean_itl_s(turns: TurnTable) -> float | None:
    """Mean time between two tokens, over all neighbours of all completed turns (TPOT weighs turns alike instead)."""
    total_s, steps = 0.0, 0
    for seconds, turn_steps in turns.decodes():
        total_s += seconds
        steps += turn_steps
    return ratio(total_s, steps)


def hit_rate(turns: TurnTable) -> float | None:
    """Share of the completed turns' prompt tokens that came from the cache."""
    return ratio(_total(turns, turns.columns.cached_tokens), _total(turns, turns.columns.prompt_tokens))


def theoretical_hit_rate(turns: TurnTable, block_tokens: int = 1) -> float | None:
    """Share of the completed turns' prompt tokens that an earlier turn of the agent had left behind, in whole blocks."""
    hits = sum(block_hit(hit, block_tokens) for hit in turns.of_completed(turns.columns.hit_tokens))
    return ratio(hits, _total(turns, turns.columns.prompt_tokens))


def mean_stages(turns: TurnTable) -> StageDurations:
    """Mean durations of the completed turns' stages before the first token (paper Fig. 12 left)."""
    columns, completed = turns.columns, turns.completed()
    if not completed:
        return StageDurations()
    stages = (columns.scheduling_s, columns.allocation_s, columns.read_s, columns.prefill_s)
    return StageDurations(*(math.fsum(turns.of_completed(stage)) / completed for stage in stages))


def _total(turns: TurnTable, column: array[int]) -> int:
    return sum(turns.of_completed(column))


def max_over_mean(values: Sequence[float]) -> float | None:
    """How uneven a load is: 1 is perfect; None when there is none (paper Figs. 13 and 14)."""
    return ratio(max(values) * len(values), sum(values)) if values else None


def ratio(part: float, whole: float) -> float | None:
    """``part / whole``; None when ``whole`` is 0."""
    return part / whole if whole else None


def tokens_digest(turns: Iterable[TurnTimeline]) -> str:
    """Digest of all generated tokens by agent and turn, whatever order the turns ended in."""
    whole = hashlib.blake2b(digest_size=16)
    for turn in sorted(turns, key=lambda turn: turn.id):
        whole.update(f"{turn.id.agent}\0{turn.id.turn}\0{turn.tokens_digest}\n".encode())
    return whole.hexdigest()


def identical_turns(turns: Iterable[TurnTimeline], others: Iterable[TurnTimeline]) -> int:
    """How many turns generated the very same tokens in both runs."""
    digests = {turn.id: turn.tokens_digest for turn in turns if turn.completed}
    return sum(other.completed and digests.get(other.id) == other.tokens_digest for other in others)
