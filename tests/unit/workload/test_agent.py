"""The replay rule on tokens."""

import random

import pytest

from dualpath.workload.agent import Agent, SentTokens, assigned, block_hit, common_prefix
from dualpath.workload.trajectory import Trajectory, Turn

TOKEN_IDS = range(10, 30_000)


def agent_for(*turns: Turn, seed: int = 1) -> Agent:
    return Agent(Trajectory("a", turns), TOKEN_IDS, random.Random(seed))


def test_a_prompt_is_everything_before_and_what_is_appended() -> None:
    agent = agent_for(Turn(5, 2), Turn(3, 1, 0.5))
    first = agent.next_turn()
    assert first is not None
    assert (first.turn, len(first.tokens), first.output_tokens, first.hit_tokens) == (0, 5, 2, 0)
    agent.completed([1, 2])
    second = agent.next_turn()
    assert second is not None
    assert second.tokens[:7] == [*first.tokens, 1, 2]
    assert (second.turn, len(second.tokens), second.gap_s, second.hit_tokens) == (1, 10, 0.5, 6)
    agent.completed([3])
    assert agent.next_turn() is None


def test_reasoning_is_dropped_from_the_front_of_the_output() -> None:
    agent = agent_for(Turn(5, 4, reasoning_tokens=3), Turn(1, 1))
    first = agent.next_turn()
    agent.completed([1, 2, 3, 4])
    second = agent.next_turn()
    assert first is not None
    assert second is not None
    assert second.tokens[:-1] == [*first.tokens, 4]
    assert second.hit_tokens == 5


def test_a_cut_context() -> None:
    agent = agent_for(Turn(5, 4), Turn(2, 1, kept_tokens=3), Turn(1, 1, kept_tokens=0))
    first = agent.next_turn()
    agent.completed([1, 2, 3, 4])
    second = agent.next_turn()
    agent.completed([5])
    third = agent.next_turn()
    assert first is not None
    assert second is not None
    assert third is not None
    assert second.tokens[:3] == first.tokens[:3]
    assert (len(second.tokens), second.hit_tokens) == (5, 3)
    assert (len(third.tokens), third.hit_tokens) == (1, 0)


def test_an_empty_output_asks_for_a_token_that_does_not_return() -> None:
    agent = agent_for(Turn(5, 0), Turn(1, 1))
    first = agent.next_turn()
    assert first is not None
    assert first.output_tokens == 1
    agent.completed([9])
    second = agent.next_turn()
    assert second is not None
    assert second.tokens[:5] == first.tokens
    assert len(second.tokens) == 6


def test_tokens_depend_on_the_seed_only() -> None:
    one, same, other = (agent_for(Turn(50, 1), seed=seed).next_turn() for seed in (1, 1, 2))
    assert one == same != other
    assert one is not None
    assert all(token in TOKEN_IDS for token in one.tokens)


def test_calls_out_of_order() -> None:
    agent = agent_for(Turn(5, 1))
    with pytest.raises(RuntimeError, match="no turn is waiting"):
        agent.completed([1])
    agent.next_turn()
    with pytest.raises(RuntimeError, match="turn 0 is not completed"):
        agent.next_turn()


def test_no_token_ids() -> None:
    with pytest.raises(ValueError, match="token id"):
        Agent(Trajectory("a", (Turn(1, 1),)), range(0), random.Random(1))


def test_a_return_to_an_older_context_is_a_hit() -> None:
    sent = SentTokens()
    sent.record([1, 2, 3, 4], [5, 6])
    sent.record([1, 2, 9], [7])
    sent.record([1, 2, 3], [])
    assert sent.hit_tokens([1, 2, 3, 4, 5, 6, 7]) == 5
    assert sent.hit_tokens([1, 2, 9, 9]) == 3
    assert sent.hit_tokens([1, 2, 9]) == 2
    assert sent.hit_tokens([]) == 0


def test_common_prefix() -> None:
    assert [common_prefix([1, 2, 3], other) for other in ([], [1], [2], [1, 2, 3, 4], [1, 2, 4])] == [0, 1, 0, 3, 2]


def test_block_hit() -> None:
    assert [block_hit(tokens, 64) for tokens in (0, 63, 64, 200)] == [0, 0, 64, 192]


def test_more_agents_than_trajectories() -> None:
    trajectories = [Trajectory("a", (Turn(5, 1), Turn(1, 1, kept_tokens=2))), Trajectory("b", (Turn(6, 1),))]
    given = assigned(trajectories, 20, random.Random(1), first_tokens=8)
    assert given[:2] == trajectories
    assert len({trajectory.id for trajectory in given}) == 20
    assert {trajectory.turns[0] for trajectory in given[2:]} == {Turn(8, 1)}
    assert {trajectory.turns[1:] for trajectory in given[2:]} == {(Turn(5, 1), Turn(1, 1, kept_tokens=11)), (Turn(6, 1),)}
    assert assigned(trajectories, 1, random.Random(1)) == trajectories[:1]
    with pytest.raises(ValueError, match="no trajectories"):
        assigned([], 1, random.Random(1))
