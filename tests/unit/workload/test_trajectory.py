"""Turns, the lengths that follow from them, scaling and clipping."""

import pytest

from dualpath.workload.trajectory import Trajectory, Turn, clipped, scaled


def lengths(trajectory: Trajectory) -> list[tuple[int, int, int]]:
    return [(step.kept_tokens, step.prompt_tokens, step.hit_tokens) for step in trajectory.steps()]


def test_everything_kept() -> None:
    trajectory = Trajectory("a", (Turn(100, 10), Turn(20, 5), Turn(1, 1)))
    # KV exists for prompt + output - 1 tokens: 109, then 134.
    assert lengths(trajectory) == [(0, 100, 0), (110, 130, 109), (135, 136, 134)]
    assert trajectory.total_tokens == 137


def test_reasoning_does_not_return_and_nothing_behind_it_is_a_hit() -> None:
    trajectory = Trajectory("a", (Turn(100, 10, reasoning_tokens=6), Turn(20, 5)))
    assert lengths(trajectory) == [(0, 100, 0), (104, 124, 100)]


def test_shrunken_context() -> None:
    trajectory = Trajectory("a", (Turn(100, 10), Turn(5, 1, kept_tokens=40), Turn(5, 1)))
    assert lengths(trajectory) == [(0, 100, 0), (40, 45, 40), (46, 51, 45)]


def test_a_whole_hit_still_computes_one_token() -> None:
    assert lengths(Trajectory("a", (Turn(100, 10), Turn(0, 1, kept_tokens=64))))[1] == (64, 64, 63)


def test_an_empty_output_still_asks_for_a_token() -> None:
    trajectory = Trajectory("a", (Turn(100, 0), Turn(20, 5)))
    assert trajectory.turns[0].requested_tokens == 1
    assert lengths(trajectory) == [(0, 100, 0), (100, 120, 100)]


@pytest.mark.parametrize(
    ("turns", "field"),
    [
        ((), "turns"),
        ((Turn(0, 1),), r"turns\[0\].appended_tokens"),
        ((Turn(5, 1, kept_tokens=1),), r"turns\[0\].kept_tokens"),
        ((Turn(5, 1), Turn(1, 1, kept_tokens=7)), r"turns\[1\].kept_tokens"),
        ((Turn(5, 1), Turn(0, 1, kept_tokens=0)), r"turns\[1\].appended_tokens"),
    ],
)
def test_impossible_trajectories(turns: tuple[Turn, ...], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Trajectory("a", turns)


def test_impossible_turns() -> None:
    with pytest.raises(ValueError, match="appended_tokens"):
        Turn(-1, 1)
    with pytest.raises(ValueError, match="reasoning_tokens"):
        Turn(1, 1, reasoning_tokens=2)


def test_scaled() -> None:
    trajectory = Trajectory("a", (Turn(1000, 100, 2.5, 40), Turn(3, 1), Turn(10, 0, kept_tokens=500)))
    assert scaled(trajectory, 0.1).turns == (Turn(100, 10, 2.5, 4), Turn(1, 1), Turn(1, 0, kept_tokens=50))


def test_clipped_ends_before_the_first_turn_that_does_not_fit() -> None:
    trajectory = Trajectory("a", (Turn(100, 10), Turn(50, 10), Turn(1, 1, kept_tokens=5)))
    assert clipped(trajectory, 170) == (trajectory, 0)
    assert clipped(trajectory, 169) == (Trajectory("a", (Turn(100, 10),)), 2)
    assert clipped(trajectory, 109) == (None, 3)
