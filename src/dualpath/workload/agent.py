"""What an agent sends next: a trajectory turned into prompts of random tokens, as a state machine (paper A.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dualpath.workload.randomness import Random
from dualpath.workload.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """One turn to send.

    Attributes:
        turn: its number in the trajectory, from 0.
        tokens: the prompt.
        output_tokens: exactly so many tokens have to be generated, at least 1.
        gap_s: how long the agent takes before it sends this (a replay may ignore it).
        hit_tokens: theoretical hit, exact; ``block_hit`` gives it at block granularity.
    """

    turn: int
    tokens: list[int]
    output_tokens: int
    gap_s: float
    hit_tokens: int


class Agent:
    """One agent's side of the conversation: call ``next_turn`` and ``completed`` in turn until there is no next one.

    ``token_ids`` are the ids that appended tokens are drawn from, which leaves special tokens out. Nobody else may draw
    from ``random``: then an agent's appended tokens depend on its seed only.
    """

    def __init__(self, trajectory: Trajectory, token_ids: range, random: Random) -> None:
        if not token_ids:
            raise ValueError("an agent needs at least one token id to draw from")
        self.trajectory = trajectory
        self._token_ids = token_ids
        self._random = random
        self._sent = SentTokens()
        self._history: list[int] = []
        self._prompt: list[int] | None = None
        self._turn = 0

    def next_turn(self) -> PromptSpec | None:
        """The next prompt; None when the trajectory is over.

        Raises:
            RuntimeError: the turn before has not been completed.
        """
        if self._prompt is not None:
            raise RuntimeError(f"agent {self.trajectory.id}: turn {self._turn} is not completed yet")
        if self._turn == len(self.trajectory.turns):
            return None
        turn = self.trajectory.turns[self._turn]
        appended = self._random.choices(self._token_ids, k=turn.appended_tokens)
        self._prompt = self._history[: turn.kept_tokens] + appended
        hit = self._sent.hit_tokens(self._prompt)
        return PromptSpec(self._turn, self._prompt, turn.requested_tokens, turn.gap_s, hit)

    def completed(self, output: Sequence[int]) -> None:
        """The turn was answered; what comes back of ``output`` joins the history.

        Raises:
            RuntimeError: no turn is waiting for an answer.
        """
        if self._prompt is None:
            raise RuntimeError(f"agent {self.trajectory.id}: no turn is waiting for an answer")
        returned = self.trajectory.turns[self._turn].returned_tokens
        self._sent.record(self._prompt, output)
        self._history = self._prompt + list(output[max(0, len(output) - returned) :])
        self._prompt = None
        self._turn += 1


@dataclass(slots=True)
class SentTokens:
    """Every sequence whose KV an agent's turns have left behind; none is a prefix of another."""

    _sequences: list[list[int]] = field(default_factory=list)

    def hit_tokens(self, prompt: Sequence[int]) -> int:
        """Longest prefix of ``prompt`` with KV; at least one token is always computed."""
        longest = max((common_prefix(sequence, prompt) for sequence in self._sequences), default=0)
        return max(0, min(longest, len(prompt) - 1))

    def record(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """A turn ran: the KV of its prompt and output exists, except the last generated token's."""
        stored = [*prompt, *output[:-1]]
        self._sequences = [one for one in self._sequences if common_prefix(one, stored) < len(one)]
        if all(common_prefix(one, stored) < len(stored) for one in self._sequences):
            self._sequences.append(stored)


def block_hit(hit_tokens: int, block_tokens: int) -> int:
    """The whole blocks of an exact hit, in tokens."""
    return hit_tokens // block_tokens * block_tokens


def theoretical_hits(trajectories: Sequence[Trajectory], block_tokens: int) -> int:
    """Hit tokens, in whole blocks, of all turns."""
    return sum(block_hit(step.hit_tokens, block_tokens) for one in trajectories for step in one.steps())


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, by bisection: comparing slices is fast, comparing tokens one by one is not."""
    equal, limit = 0, min(len(a), len(b))
    while equal < limit:
        middle = (equal + limit + 1) // 2
        if a[equal:middle] == b[equal:middle]:
            equal = middle
        else:
            limit = middle - 1
    return equal


def assigned(trajectories: Sequence[Trajectory], agents: int, random: Random, first_tokens: int = 64) -> list[Trajectory]:
    """A trajectory for each of ``agents`` agents.

    Agents beyond the given trajectories replay a sampled one behind a synthetic first turn of ``first_tokens`` random
    tokens that generates one (A.3), so that nothing is shared between them. Copies of one trajectory share one tuple of
    turns.
    """
    if not trajectories:
        raise ValueError("no trajectories to replay")
    copies: dict[int, Trajectory] = {}
    chosen = list(trajectories[:agents])
    for number in range(len(trajectories), agents):
        source = random.choice(trajectories)
        copy = copies.get(id(source))
        if copy is None:
            copy = copies[id(source)] = _with_first_turn(source, first_tokens)
        chosen.append(copy.named(f"{source.id}#{number}"))
    return chosen


def _with_first_turn(trajectory: Trajectory, first_tokens: int) -> Trajectory:
    shift = first_tokens + 1
    turns = (replace(turn, kept_tokens=_shifted(turn.kept_tokens, shift)) for turn in trajectory.turns)
    return Trajectory(trajectory.id, (Turn(first_tokens, 1), *turns))


def _shifted(kept_tokens: int | None, shift: int) -> int | None:
    return None if kept_tokens is None else kept_tokens + shift
