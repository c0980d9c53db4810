"""Invariants of trajectories, trace formats, agents and metrics on random inputs."""

import random
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dualpath.workload.agent import Agent, assigned, common_prefix
from dualpath.workload.metrics import percentile
from dualpath.workload.synthesis import apportioned
from dualpath.workload.trace import Trajectory, Turn, clipped, read_trace, scaled, write_mooncake, write_trace

quick = settings(deadline=None, max_examples=60)


@st.composite
def trajectories(draw: st.DrawFn, cuts: bool = True, all_returns: bool = False) -> Trajectory:
    turns: list[Turn] = []
    history = 0
    for _ in range(draw(st.integers(1, 8))):
        kept = draw(st.none() | st.integers(0, history)) if cuts else None
        start = history if kept is None else kept
        appended = draw(st.integers(0 if start else 1, 40))
        output = draw(st.integers(1 if all_returns else 0, 12))
        reasoning = 0 if all_returns else draw(st.integers(0, output))
        turns.append(Turn(appended, output, draw(st.integers(0, 10**6)) / 1000, reasoning, kept))
        history = start + appended + output - reasoning
    return Trajectory(draw(st.text(min_size=1, max_size=5)), tuple(turns))


@quick
@given(st.lists(trajectories(), min_size=1, max_size=4))
def test_reading_what_was_written(given_trajectories: list[Trajectory]) -> None:
    assert read_trace(write_trace(given_trajectories), "x") == given_trajectories


grown = trajectories(cuts=False, all_returns=True)


@quick
@given(st.lists(grown, min_size=1, max_size=4, unique_by=lambda trajectory: trajectory.id))
def test_mooncake_sessions_that_only_grow_come_back_alike(given_trajectories: list[Trajectory]) -> None:
    assert read_trace(write_mooncake(given_trajectories), "x") == given_trajectories


@quick
@given(trajectories(all_returns=True))
def test_mooncake_sessions_keep_all_prompt_lengths(trajectory: Trajectory) -> None:
    written = read_trace(write_mooncake([trajectory]), "x")
    assert [step.prompt_tokens for part in written for step in part.steps()] == [
        step.prompt_tokens for step in trajectory.steps()
    ]


def replayed(trajectory: Trajectory, seed: int) -> list[tuple[list[int], list[int], int]]:
    """Prompt, output and theoretical hit of every turn."""
    agent, engine = Agent(trajectory, range(10, 10**9), random.Random(seed)), random.Random(-seed - 1)
    sent = []
    while (turn := agent.next_turn()) is not None:
        output = engine.choices(range(10, 10**9), k=turn.output_tokens)
        sent.append((turn.tokens, output, turn.hit_tokens))
        agent.completed(output)
    return sent


def brute_force_hit(prompt: Sequence[int], earlier: Sequence[tuple[list[int], list[int], int]]) -> int:
    longest = 0
    for earlier_prompt, output, _ in earlier:
        with_kv = earlier_prompt + output[:-1]
        length = 0
        while length < min(len(with_kv), len(prompt)) and with_kv[length] == prompt[length]:
            length += 1
        longest = max(longest, length)
    return min(longest, len(prompt) - 1)


@quick
@given(trajectories(), st.integers(0, 1000))
def test_prompts_and_hits_follow_the_trajectory(trajectory: Trajectory, seed: int) -> None:
    sent = replayed(trajectory, seed)
    steps = list(trajectory.steps())
    assert [len(prompt) for prompt, _, _ in sent] == [step.prompt_tokens for step in steps]
    assert [hit for _, _, hit in sent] == [brute_force_hit(prompt, sent[:n]) for n, (prompt, _, _) in enumerate(sent)]
    assert [hit for _, _, hit in sent] == [step.hit_tokens for step in steps]
    history: list[int] = []
    for (prompt, output, _), turn in zip(sent, trajectory.turns, strict=True):
        kept = history[: turn.kept_tokens]
        assert prompt[: len(kept)] == kept
        history = prompt + output[len(output) - turn.returned_tokens :]
    assert replayed(trajectory, seed) == sent


@quick
@given(trajectories())
def test_a_synthetic_first_turn_shifts_everything(trajectory: Trajectory) -> None:
    _, copy = assigned([trajectory], 2, random.Random(1), first_tokens=5)
    shifts = {b.prompt_tokens - a.prompt_tokens for a, b in zip(trajectory.steps(), list(copy.steps())[1:], strict=True)}
    assert shifts <= {0, 6}
    assert copy.total_tokens == trajectory.total_tokens + 6


@quick
@given(trajectories(), st.floats(0.001, 3))
def test_scaled(trajectory: Trajectory, factor: float) -> None:
    smaller = scaled(trajectory, factor)
    for before, after in zip(trajectory.turns, smaller.turns, strict=True):
        assert (before.appended_tokens > 0) == (after.appended_tokens > 0)
        assert (before.output_tokens > 0) == (after.output_tokens > 0)
        assert (before.kept_tokens is None) == (after.kept_tokens is None)
        assert abs(after.appended_tokens - before.appended_tokens * factor) <= 1
        assert before.gap_s == after.gap_s
    assert scaled(trajectory, 1) == trajectory


@quick
@given(trajectories(), st.integers(1, 300))
def test_clipped(trajectory: Trajectory, max_len: int) -> None:
    fitting, dropped = clipped(trajectory, max_len)
    kept = len(fitting.turns) if fitting else 0
    assert kept + dropped == len(trajectory.turns)
    contexts = [step.prompt_tokens + step.turn.requested_tokens for step in trajectory.steps()]
    assert all(context <= max_len for context in contexts[:kept])
    assert not dropped or contexts[kept] > max_len
    assert fitting is None or fitting.turns == trajectory.turns[:kept]


@quick
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or length == min(len(a), len(b))


@quick
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30), st.integers(0, 1000))
def test_apportioned(weights: list[float], rest: int) -> None:
    shares = apportioned(weights, len(weights) + rest)
    assert sum(shares) == len(weights) + rest
    assert min(shares) >= 1
    for weight, share in zip(weights, shares, strict=True):
        assert abs(share - 1 - rest * weight / sum(weights)) <= 1.0 + 1e-6


@quick
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentile_agrees_with_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)
