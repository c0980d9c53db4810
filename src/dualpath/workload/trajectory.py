"""Trajectories: what each turn of an agent keeps, appends and generates, in tokens (paper A.3, A.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of an agent.

    Its prompt is the first ``kept_tokens`` of the history, followed by ``appended_tokens`` new ones. The history is the
    previous turn's prompt and the part of its output that came back.

    Attributes:
        appended_tokens: new tokens of the prompt (tool output, or what the user wrote); the first turn's whole prompt.
        output_tokens: generated tokens, reasoning included. 0 is possible in traces; a replay asks for one token then.
        gap_s: seconds between the end of the previous turn and this one (tool or human); before the first turn, since
            the replay began.
        reasoning_tokens: the first so many output tokens do not come back in the next prompt.
        kept_tokens: where the history is cut; None keeps all of it.
    """

    appended_tokens: int
    output_tokens: int
    gap_s: float = 0.0
    reasoning_tokens: int = 0
    kept_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("appended_tokens", "output_tokens", "gap_s", "reasoning_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.reasoning_tokens > self.output_tokens:
            raise ValueError(f"reasoning_tokens ({self.reasoning_tokens}) exceed output_tokens ({self.output_tokens})")

    @property
    def returned_tokens(self) -> int:
        """How much of the output is part of the history afterwards: its last so many tokens."""
        return self.output_tokens - self.reasoning_tokens

    @property
    def requested_tokens(self) -> int:
        """What a replay asks for: a prefill always yields one token."""
        return max(1, self.output_tokens)


class Step(NamedTuple):
    """A turn with the lengths that follow from the turns before it."""

    turn: Turn
    kept_tokens: int
    prompt_tokens: int
    hit_tokens: int
    """Longest prefix of the prompt whose KV an earlier turn left, at most all but one token (exact, not whole blocks)."""

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.turn.output_tokens


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All turns of one agent, in order.

    Raises:
        ValueError: no turns, a prompt without tokens, or a turn that keeps more than there is; names turn and field.
    """

    id: str
    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError("turns: a trajectory has at least one turn")
        history = 0
        for index, turn in enumerate(self.turns):
            if not 0 <= (turn.kept_tokens or 0) <= history:
                raise ValueError(f"turns[{index}].kept_tokens: {turn.kept_tokens} of a history of {history} tokens")
            prompt = _kept(turn, history) + turn.appended_tokens
            if prompt < 1:
                raise ValueError(f"turns[{index}].appended_tokens: the prompt would be empty")
            history = prompt + turn.returned_tokens

    def named(self, identity: str) -> Trajectory:
        """The same turns under another name; they are not checked again."""
        copy = object.__new__(Trajectory)
        object.__setattr__(copy, "id", identity)
        object.__setattr__(copy, "turns", self.turns)
        return copy

    def steps(self) -> Iterator[Step]:
        """Every turn with its prompt's length and theoretical hit, if outputs are as long as the trace says.

        KV exists for prompt + output − 1 tokens of a turn; behind dropped reasoning nothing of the output matches.
        """
        history = stored = 0
        for turn in self.turns:
            kept = _kept(turn, history)
            prompt = kept + turn.appended_tokens
            yield Step(turn, kept, prompt, min(kept, stored, prompt - 1))
            history = prompt + turn.returned_tokens
            stored = prompt if turn.reasoning_tokens else prompt + turn.requested_tokens - 1

    @property
    def total_tokens(self) -> int:
        """All appended and generated tokens."""
        return sum(turn.appended_tokens + turn.output_tokens for turn in self.turns)


def _kept(turn: Turn, history: int) -> int:
    return history if turn.kept_tokens is None else turn.kept_tokens


def scaled(trajectory: Trajectory, factor: float) -> Trajectory:
    """The same turns with every token count multiplied by ``factor``; what was positive stays at least 1."""
    turns: list[Turn] = []
    history = 0
    for turn in trajectory.turns:
        kept = None if turn.kept_tokens is None else min(history, _scaled(turn.kept_tokens, factor))
        output = _scaled(turn.output_tokens, factor)
        reasoning = min(output, _scaled(turn.reasoning_tokens, factor))
        appended = _scaled(turn.appended_tokens, factor)
        turns.append(Turn(appended, output, turn.gap_s, reasoning, kept))
        history = _kept(turns[-1], history) + appended + turns[-1].returned_tokens
    return Trajectory(trajectory.id, tuple(turns))


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor)) if tokens else 0


def clipped(trajectory: Trajectory, max_len: int) -> tuple[Trajectory | None, int]:
    """The turns before the first whose prompt and output exceed ``max_len`` tokens, and how many turns that drops.

    None when the first turn is too long already.
    """
    fitting = 0
    for step in trajectory.steps():
        if step.prompt_tokens + step.turn.requested_tokens > max_len:
            break
        fitting += 1
    dropped = len(trajectory.turns) - fitting
    return (replace(trajectory, turns=trajectory.turns[:fitting]) if fitting else None), dropped
