"""What turns cost besides, from their stamps."""

from dataclasses import replace

import pytest

from dualpath.costmodel.attention import AttentionTime
from dualpath.costmodel.hardware import EngineProfile, EngineTimes
from dualpath.kvcache.layout import BlockGeometry
from dualpath.replay.turn_times import turn_times
from dualpath.workload.timeline import StageDurations, TurnId, TurnTimeline

GEOMETRY = BlockGeometry(4, 16, 250)
PROFILE = EngineProfile(AttentionTime(0.0, 1e-3, 0.0), 1.0, 1000.0, EngineTimes(0.0, 2e-3, 0.0, 0.0, copy_bytes_per_s=1e6))
TURN = TurnTimeline(
    id=TurnId("agent", 1),
    submitted_s=100.0,
    first_token_s=100.0 + 0.003 + 0.010 + 0.115 + 0.075,
    second_token_s=100.203 + 0.100 + 0.002 + 0.004,
    last_token_s=100.309 + 3 * (0.002 + 0.001),
    finished_s=100.318 + 0.005,
    prompt_tokens=100,
    output_tokens=5,
    cached_tokens=80,
    hit_tokens=80,
    tokens_digest="",
    stages=StageDurations(scheduling_s=0.001, allocation_s=0.010, read_s=0.115, prefill_s=0.075),
)


def test_what_other_times_do_not_explain() -> None:
    """Storage reads 1,000 tokens a second, a new token takes 1 ms, a step 2 ms, a token's copy 1 ms (over all layers)."""
    times = turn_times([TURN], PROFILE, GEOMETRY)
    assert times.turn_s == pytest.approx(0.003)
    assert times.read_s == pytest.approx(0.010 + 0.115 - 0.080)
    assert times.batch_s == pytest.approx(0.075 - 0.020 - 0.050)
    assert times.handoff_s == pytest.approx(0.004)
    assert times.token_s == pytest.approx(0.001)
    assert times.finish_s == pytest.approx(0.005)
    assert times.decode_step_s == PROFILE.times.decode_step_s


def test_medians_are_never_negative() -> None:
    fast = replace(TURN, stages=StageDurations(0.0, 0.0, 0.0, 0.0))
    slow = replace(TURN, finished_s=TURN.finished_s + 1.0)
    times = turn_times([fast, fast, slow], PROFILE, GEOMETRY)
    assert times.read_s == times.batch_s == 0.0
    assert times.finish_s == pytest.approx(0.005)


def test_turns_of_one_token_and_without_hits_say_nothing_of_what_they_lack() -> None:
    short = replace(TURN, second_token_s=None, last_token_s=TURN.first_token_s, output_tokens=1, cached_tokens=0)
    times = turn_times([short], PROFILE, GEOMETRY)
    assert times.read_s == times.handoff_s == times.token_s == 0.0
