"""Generated trajectories meet Table 2's averages, all five at once."""

import random
from dataclasses import astuple

import pytest

from dualpath.workload.synthesis import TABLE_2, apportioned, averages_of, demo_trajectories, synthesise
from dualpath.workload.trajectory import Trajectory, Turn

PROMPT_TOKENS = {"32K": 1.03e6, "48K": 2.68e6, "64K": 5.18e6}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", TABLE_2)
def test_averages_of_table_2(name: str, seed: int) -> None:
    trajectories = synthesise(name, 500, random.Random(seed))
    shape, averages = TABLE_2[name]
    assert astuple(averages_of(trajectories)) == pytest.approx(astuple(averages), rel=0.02)
    assert max(trajectory.total_tokens for trajectory in trajectories) <= shape.max_len
    assert min(turn.appended_tokens for trajectory in trajectories for turn in trajectory.turns) >= 1
    assert min(turn.output_tokens for trajectory in trajectories for turn in trajectory.turns) >= 1
    prompt_tokens = sum(step.prompt_tokens for trajectory in trajectories for step in trajectory.steps()) / 500
    assert prompt_tokens == pytest.approx(PROMPT_TOKENS[name], rel=0.03)


def test_few_trajectories_are_of_the_right_order() -> None:
    trajectories = synthesise("32K", 20, random.Random(1))
    assert len({trajectory.id for trajectory in trajectories}) == 20
    assert averages_of(trajectories).total == pytest.approx(28_639, rel=0.1)
    assert len(synthesise("64K", 1, random.Random(1))) == 1


def test_the_seed_decides() -> None:
    assert synthesise("32K", 30, random.Random(5)) == synthesise("32K", 30, random.Random(5))
    assert synthesise("32K", 30, random.Random(5)) != synthesise("32K", 30, random.Random(6))


def test_averages_are_means_of_means() -> None:
    trajectories = [Trajectory("a", (Turn(10, 2), Turn(20, 4))), Trajectory("b", (Turn(40, 6),))]
    assert astuple(averages_of(trajectories)) == (1.5, 27.5, 4.5, 41.0, (21 + 40) / 2)


def test_apportioned() -> None:
    assert apportioned([1.0, 1.0, 2.0], 11) == [3, 3, 5]
    with pytest.raises(ValueError, match="at least 1"):
        apportioned([1.0, 1.0], 1)


def test_demo_agents_are_short_and_alike() -> None:
    agents = demo_trajectories(random.Random(1))
    averages = averages_of(agents)
    assert len(agents) == 36
    assert averages.turns == pytest.approx(22, rel=0.1)
    last_prompts = [list(agent.steps())[-1].prompt_tokens for agent in agents]
    assert 700 < min(last_prompts) < max(last_prompts) < 1250
    assert 250 < min(agent.turns[0].appended_tokens for agent in agents) < 350


def test_demo_parameters() -> None:
    (agent,) = demo_trajectories(random.Random(1), 1, turns=3, first_tokens=50, append_tokens=7, output_tokens=2, spread=0)
    assert agent.turns == (Turn(50, 2), Turn(7, 2), Turn(7, 2))
