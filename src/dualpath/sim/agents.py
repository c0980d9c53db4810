"""Agents as token counts: what they send (paper A.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dualpath.workload.agent import block_hit
from dualpath.workload.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from dualpath.sim.request import SimRequest


class TurnSize(NamedTuple):
    """A turn's token counts: its prompt, the hit in whole blocks and exactly, its output, and the pause before it."""

    prompt_tokens: int
    block_hit_tokens: int
    hit_tokens: int
    output_tokens: int
    gap_s: float


class SimAgent:
    """One agent.

    Attributes:
        number: its place in the workload.
        next_turn: the turn that it sends next.
        writing: pieces of what its turns have left behind that are still being written.
        waiting: its next turn, which waits until they are written: they are its hit.
    """

    __slots__ = ("next_turn", "number", "sizes", "waiting", "writing")

    def __init__(self, number: int, sizes: Sequence[TurnSize]) -> None:
        self.number = number
        self.sizes = sizes
        self.next_turn = 0
        self.writing = 0
        self.waiting: SimRequest | None = None


def agents_of(trajectories: Sequence[Trajectory], block_tokens: int) -> list[SimAgent]:
    """An agent for each trajectory; those with the same turns share their sizes."""
    shared: dict[int, list[TurnSize]] = {}
    agents = []
    for number, trajectory in enumerate(trajectories):
        sizes = shared.get(id(trajectory.turns))
        if sizes is None:
            sizes = shared[id(trajectory.turns)] = turn_sizes(trajectory, block_tokens)
        agents.append(SimAgent(number, sizes))
    return agents


def turn_sizes(trajectory: Trajectory, block_tokens: int) -> list[TurnSize]:
    """Every turn's counts, with outputs as long as the trace says."""
    return [_size(step.turn, step.prompt_tokens, step.hit_tokens, block_tokens) for step in trajectory.steps()]


def _size(turn: Turn, prompt_tokens: int, hit_tokens: int, block_tokens: int) -> TurnSize:
    return TurnSize(prompt_tokens, block_hit(hit_tokens, block_tokens), hit_tokens, turn.requested_tokens, turn.gap_s)
