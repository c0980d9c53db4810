"""What a turn costs beside compute and bytes, measured with one agent on a small live cluster (paper sections 6 and 7)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from dualpath.clock import MonotonicClock
from dualpath.cluster.local import LocalCluster
from dualpath.costmodel.hardware import EngineProfile, EngineTimes
from dualpath.kvcache.layout import BlockGeometry
from dualpath.replay.driver import ReplayDriver, ReplayOptions
from dualpath.settings import Settings
from dualpath.workload.agent import Agent
from dualpath.workload.synthesis import demo_trajectories
from dualpath.workload.timeline import TurnTimeline

TURNS, OUTPUT_TOKENS, APPENDED_TOKENS = 24, 8, 24
WARM_UP_TURNS = 3


def measure_turns(model: Path, settings: Settings, profile: EngineProfile, prompt_tokens: int) -> EngineTimes:
    """``profile.times`` with what turns of about ``prompt_tokens`` cost besides, as a cluster of one prefill and one decode
    engine shows.

    ``settings`` should name no bandwidth: the storage is to be as fast as it is.

    Raises:
        ModelError, SettingsError, ClusterError: the cluster cannot start.
    """
    with LocalCluster(model, system=None, settings=settings) as cluster:
        grown = TURNS * (APPENDED_TOKENS + OUTPUT_TOKENS)
        first_tokens = max(1, min(prompt_tokens - grown // 2, cluster.client.max_context_tokens - 2 * grown))
        trajectories = demo_trajectories(
            random.Random(0),
            agents=1,
            turns=TURNS,
            first_tokens=first_tokens,
            append_tokens=APPENDED_TOKENS,
            output_tokens=OUTPUT_TOKENS,
        )
        agents = [Agent(one, range(cluster.vocab_size), random.Random(0)) for one in trajectories]
        driver = ReplayDriver(cluster.client, MonotonicClock(), ReplayOptions())
        cluster.run(driver.run(agents, random.Random(0)))
        geometry = cluster.spec.geometry
    return turn_times([turn for turn in driver.turns if turn.completed][WARM_UP_TURNS:], profile, geometry)


def turn_times(turns: Sequence[TurnTimeline], profile: EngineProfile, geometry: BlockGeometry) -> EngineTimes:
    """Medians over turns that had the cluster for themselves, of what the profile's other times leave unexplained."""
    hits = [turn for turn in turns if turn.cached_tokens]
    return replace(
        profile.times,
        turn_s=_median(_start_s(turn) for turn in turns),
        read_s=_median(_read_s(turn, profile) for turn in hits),
        batch_s=_median(_batch_s(turn, profile, geometry) for turn in turns),
        handoff_s=_median(_handoff_s(turn, profile, geometry) for turn in turns),
        token_s=_median(_token_s(turn, profile) for turn in turns),
        finish_s=_median(turn.finished_s - (turn.last_token_s or turn.finished_s) for turn in turns),
    )


def _median(values: Iterable[float | None]) -> float:
    return max(0.0, median([value for value in values if value is not None] or [0.0]))


def _start_s(turn: TurnTimeline) -> float | None:
    """What of the time to the first token belongs to no stage of an engine."""
    if turn.first_token_s is None:
        return None
    stages = turn.stages
    return turn.first_token_s - turn.submitted_s - stages.allocation_s - stages.read_s - stages.prefill_s


def _read_s(turn: TurnTimeline, profile: EngineProfile) -> float:
    return turn.stages.allocation_s + turn.stages.read_s - turn.cached_tokens / profile.storage_tokens_per_s


def _batch_s(turn: TurnTimeline, profile: EngineProfile, geometry: BlockGeometry) -> float:
    """Of its prefill: what neither compute nor the copy of its first and last layer explain."""
    compute_s = profile.attention(turn.cached_tokens, turn.prompt_tokens - turn.cached_tokens)
    copied_bytes = 2 * turn.prompt_tokens * geometry.token_layer_bytes
    return turn.stages.prefill_s - compute_s - copied_bytes / profile.times.copy_bytes_per_s


def _handoff_s(turn: TurnTimeline, profile: EngineProfile, geometry: BlockGeometry) -> float | None:
    """From the first to the second token, without the copy and the step."""
    if turn.first_token_s is None or turn.second_token_s is None:
        return None
    copy_s = turn.prompt_tokens * geometry.token_bytes / profile.times.copy_bytes_per_s
    return turn.second_token_s - turn.first_token_s - copy_s - profile.times.step_s(1, turn.prompt_tokens)


def _token_s(turn: TurnTimeline, profile: EngineProfile) -> float | None:
    """Of each token after the second, what is no compute."""
    if turn.second_token_s is None or turn.last_token_s is None or turn.output_tokens < 3:
        return None
    mean_s = (turn.last_token_s - turn.second_token_s) / (turn.output_tokens - 2)
    return mean_s - profile.times.step_s(1, turn.prompt_tokens)
