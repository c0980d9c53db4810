"""What happened to each turn: when its tokens came, how many there were, and how long the stages took (paper Fig. 12)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class TurnId(NamedTuple):
    """Which turn of which agent; the same in every system that replays the same trajectories."""

    agent: str
    turn: int


@dataclass(frozen=True, slots=True)
class StageDurations:
    """Seconds of a turn's stages up to its first token."""

    scheduling_s: float = 0.0
    allocation_s: float = 0.0
    read_s: float = 0.0
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnTimeline:
    """One turn of a replay.

    Attributes:
        submitted_s … finished_s: stamps of one clock; None where that token never came.
        prompt_tokens, output_tokens, cached_tokens: what was sent, generated, and taken from the cache.
        hit_tokens: theoretical hit of the tokens sent, exact.
        tokens_digest: digest of the generated tokens.
        error: why the turn failed; None: it is complete.
    """

    id: TurnId
    submitted_s: float
    first_token_s: float | None
    second_token_s: float | None
    last_token_s: float | None
    finished_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    hit_tokens: int
    tokens_digest: str
    stages: StageDurations = field(default_factory=StageDurations)
    error: str | None = None

    @property
    def completed(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, from submission."""
        return None if self.first_token_s is None else self.first_token_s - self.submitted_s

    @property
    def ttst_s(self) -> float | None:
        """Time to the second token, measured from the first: hand-off and first decode step."""
        if self.first_token_s is None or self.second_token_s is None:
            return None
        return self.second_token_s - self.first_token_s

    @property
    def decode_s(self) -> float | None:
        """Time between the first and the last of at least two tokens."""
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens < 2:
            return None
        return self.last_token_s - self.first_token_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token after the first: (last − first) / (n − 1), as ``vllm bench serve`` has it."""
        decode_s = self.decode_s
        return None if decode_s is None else decode_s / (self.output_tokens - 1)

    @property
    def latency_s(self) -> float:
        """From submission to the end."""
        return self.finished_s - self.submitted_s


class TurnRecorder:
    """Collects one turn's stamps while its events arrive; the caller reads the clock."""

    def __init__(self, id: TurnId, prompt_tokens: int, hit_tokens: int, submitted_s: float) -> None:
        self._id = id
        self._prompt_tokens = prompt_tokens
        self._hit_tokens = hit_tokens
        self._submitted_s = submitted_s
        self._early_s: list[float] = []
        self._last_s: float | None = None
        self._tokens: list[int] = []

    @property
    def tokens(self) -> list[int]:
        """The output so far."""
        return self._tokens

    def token(self, token: int, now_s: float) -> None:
        """The next output token has arrived."""
        self._tokens.append(token)
        self._last_s = now_s
        if len(self._early_s) < 2:
            self._early_s.append(now_s)

    def finished(self, now_s: float, cached_tokens: int, stages: StageDurations) -> TurnTimeline:
        """The turn is complete."""
        return self._timeline(now_s, cached_tokens, stages, None)

    def failed(self, now_s: float, error: str) -> TurnTimeline:
        """The turn ended without all of its tokens."""
        return self._timeline(now_s, 0, StageDurations(), error)

    def _timeline(self, now_s: float, cached: int, stages: StageDurations, error: str | None) -> TurnTimeline:
        first_s, second_s = (*self._early_s, None, None)[:2]
        return TurnTimeline(
            id=self._id,
            submitted_s=self._submitted_s,
            first_token_s=first_s,
            second_token_s=second_s,
            last_token_s=self._last_s,
            finished_s=now_s,
            prompt_tokens=self._prompt_tokens,
            output_tokens=len(self._tokens),
            cached_tokens=cached,
            hit_tokens=self._hit_tokens,
            tokens_digest=digest(self._tokens),
            stages=stages,
            error=error,
        )


def digest(tokens: Sequence[int]) -> str:
    """32 hexadecimal digits that depend on the tokens and their order only."""
    text = ",".join(map(str, tokens))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
