"""Numbers of a replay: percentiles, completion times, hit rates, balance and digests (paper section 7)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from dualpath.workload.agent import block_hit
from dualpath.workload.timeline import StageDurations, TurnTimeline


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


def summary(values: Iterable[float | None]) -> Summary:
    """Summary of the values that are not None."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return Summary(None, None, None, None)
    return Summary(fmean(ordered), *(_of_sorted(ordered, percent) for percent in (50, 90, 99)))


def jct_s(turns: Sequence[TurnTimeline]) -> float:
    """Job completion time: from the first submission until the last turn of the last agent has ended."""
    if not turns:
        return 0.0
    return max(turn.finished_s for turn in turns) - min(turn.submitted_s for turn in turns)


def agent_durations_s(turns: Iterable[TurnTimeline]) -> dict[str, float]:
    """Each agent's time from its first submission to its last end (paper Fig. 11)."""
    spans: dict[str, tuple[float, float]] = {}
    for turn in turns:
        start, end = spans.get(turn.id.agent, (turn.submitted_s, turn.finished_s))
        spans[turn.id.agent] = (min(start, turn.submitted_s), max(end, turn.finished_s))
    return {agent: end - start for agent, (start, end) in spans.items()}


def agents_completed(turns: Iterable[TurnTimeline]) -> int:
    """Agents none of whose turns failed."""
    failed: dict[str, bool] = {}
    for turn in turns:
        failed[turn.id.agent] = failed.get(turn.id.agent, False) or not turn.completed
    return sum(not any_failed for any_failed in failed.values())


def mean_itl_s(turns: Iterable[TurnTimeline]) -> float | None:
    """Mean time between two tokens, over all pairs of neighbours of all turns (TPOT weighs turns alike instead)."""
    decoded = [(turn.decode_s, turn.output_tokens - 1) for turn in turns if turn.decode_s is not None]
    return ratio(sum(seconds for seconds, _ in decoded), sum(steps for _, steps in decoded))


def hit_rate(turns: Sequence[TurnTimeline]) -> float | None:
    """Share of all prompt tokens that came from the cache."""
    return ratio(sum(turn.cached_tokens for turn in turns), sum(turn.prompt_tokens for turn in turns))


def theoretical_hit_rate(turns: Sequence[TurnTimeline], block_tokens: int = 1) -> float | None:
    """Share of all prompt tokens that an earlier turn of the same agent had left behind, in whole blocks."""
    hits = sum(block_hit(turn.hit_tokens, block_tokens) for turn in turns)
    return ratio(hits, sum(turn.prompt_tokens for turn in turns))


def mean_stages(turns: Sequence[TurnTimeline]) -> StageDurations:
    """Mean durations of the stages before the first token (paper Fig. 12 left)."""
    if not turns:
        return StageDurations()
    stages = [turn.stages for turn in turns]
    return StageDurations(
        scheduling_s=fmean(one.scheduling_s for one in stages),
        allocation_s=fmean(one.allocation_s for one in stages),
        read_s=fmean(one.read_s for one in stages),
        prefill_s=fmean(one.prefill_s for one in stages),
    )


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
