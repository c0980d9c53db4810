"""A DRAM tier of contexts, replayed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.evaluation.dram_tier import Visit, hit_rate, hit_rates
from dualpath.evaluation.lab import Case, run_case
from dualpath.workload.turn_table import TurnTable


def visits(*turns: tuple[int, int]) -> list[Visit]:
    """A turn a second, of (agent, prompt)."""
    return [Visit(agent, float(second), prompt) for second, (agent, prompt) in enumerate(turns)]


ALTERNATING = visits((0, 100), (1, 50), (0, 120), (1, 80), (0, 150), (1, 90))
"""Sent again: 100 + 50 + 120 + 80 = 350 tokens."""


@pytest.mark.parametrize(
    ("capacity", "hits"),
    [
        (1000, 350),  # everything
        (240, 350),  # 150 + 90 at the end
        (239, 350),  # the last turn finds its 80 before it grows and pushes 0 out
        (200, 100 + 50 + 120 + 0),  # 120 + 80 fit; 150 pushes out 1's 80
        (150, 100 + 0 + 0 + 0),  # 100 + 50 fit; 120 pushes out 1, whose 80 pushes out 0, and so on
        (0, 0),
    ],
)
def test_least_recently_used_contexts_go_first(capacity: int, hits: int) -> None:
    assert hit_rate(ALTERNATING, capacity) == pytest.approx(hits / 350)


def test_a_context_larger_than_the_tier_pushes_out_everything() -> None:
    assert hit_rate(visits((0, 10), (1, 200), (0, 10)), 100) == 0


def test_a_shrunken_prompt_hits_no_more_than_it_has() -> None:
    assert hit_rate(visits((0, 100), (0, 40), (0, 60)), 100) == 1
    assert hit_rate(visits((0, 100), (0, 40), (1, 60), (0, 60)), 100) == 1


def test_first_turns_send_nothing_again() -> None:
    assert hit_rate(visits((0, 10), (1, 10), (2, 10)), 100) is None
    assert hit_rate([], 100) is None


def test_only_turns_within_the_times_count_but_earlier_ones_fill_the_tier() -> None:
    assert hit_rate(ALTERNATING, 200, start_s=2) == pytest.approx(270 / 350)
    assert hit_rate(ALTERNATING, 200, start_s=4) == pytest.approx(120 / 200)
    assert hit_rate(ALTERNATING, 200, start_s=2, end_s=4) == 1
    assert hit_rate(ALTERNATING, 200, start_s=9) is None


turns = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100)), min_size=1, max_size=60)


@given(turns, st.integers(0, 400), st.integers(0, 400))
def test_a_larger_tier_hits_no_less(of: list[tuple[int, int]], one: int, other: int) -> None:
    small, large = (hit_rate(visits(*of), capacity) for capacity in sorted((one, other)))
    assert (small is None) == (large is None)
    assert small is None or large is None or 0 <= small <= large <= 1


@given(turns)
def test_an_endless_tier_hits_all_but_first_turns(of: list[tuple[int, int]]) -> None:
    assert hit_rate(visits(*of), math.inf) in (None, 1)


def test_turns_are_taken_in_the_order_of_their_submission() -> None:
    table = TurnTable(["a", "b"])
    for agent, sent_s, prompt in ((0, 2.0, 20), (1, 1.0, 30), (0, 0.0, 10)):
        table.append(agent, 0, sent_s, 3.0, 4.0, 5.0, 6.0, prompt, 5, 0, 0, 0.0, 0.0, 0.0, 0.0)
    assert hit_rates(table, (0.0, 80.0, 1e9), token_bytes=2) == (0, 1, 1)
    assert hit_rates(table, (78.0,), token_bytes=2) == (0,)
    assert hit_rates(table, (), token_bytes=2) == ()


def test_a_case_says_what_its_tiers_hit() -> None:
    few = Case(dataset="32K", agents=4, until_s=60.0, dram_tier_bytes=(0.0, 1e9, 1e15))
    none, some, all_hit = run_case(few).dram_hit_rates
    assert none == 0
    assert 0 < some < 1
    assert all_hit == 1
