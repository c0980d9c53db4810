"""What a caller asks of the cluster and what comes back: the nouns of one turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Protocol

import msgspec

from dualpath.errors import InvalidRequest

MAX_LOGPROBS = 20


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. Randomness is keyed by (seed, position), so that an attempt can continue another.

    ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 switch those filters off; ``logprobs`` None gives none, n
    the chosen token's and the n likeliest ones', of the unfiltered distribution at temperature 1.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def checked(self) -> SamplingParams:
        """This object.

        Raises:
            InvalidRequest: a value is out of range; the message names it.
        """
        rules = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "from 0 to max_tokens"),
            ("temperature", 0.0 <= self.temperature <= 100.0, "from 0 to 100"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 (off) or positive"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
        )
        for name, valid, rule in rules:
            if not valid:
                raise InvalidRequest(f"{name} must be {rule}, not {getattr(self, name)}")
        return self


def finish_reason(sampling: SamplingParams, position: int, token: int, eos_token_ids: Collection[int]) -> str | None:
    """Why the turn ends with ``token`` at ``position`` (from 0): ``stop``, ``length``, or None if it does not."""
    ends = token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos_token_ids)
    if ends and position >= sampling.min_tokens:
        return "stop"
    return "length" if position + 1 >= sampling.max_tokens else None


class TokenEvent(msgspec.Struct, frozen=True, tag="token"):
    """One generated token. ``position`` counts the turn's output from 0; no position comes twice.

    ``cached_tokens``, on the first token, is the hit that was used: a caller that finds its stop string never sees
    TurnFinished.
    """

    position: int
    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    cached_tokens: int | None = None


class TurnFinished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    """The turn is complete; always the last event.

    ``finish_reason`` is ``stop`` (an end or stop token, which is among the tokens) or ``length``. ``cached_tokens`` is
    the hit that was used, ``read_prefill_tokens`` and ``read_decode_tokens`` who read it. Durations are seconds of the
    last attempt's stages up to the first token (paper Fig. 12).
    """

    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    read_prefill_tokens: int = 0
    read_decode_tokens: int = 0
    attempts: int = 1
    scheduling_s: float = 0.0
    allocation_s: float = 0.0
    read_s: float = 0.0
    prefill_s: float = 0.0


TurnEvent = TokenEvent | TurnFinished


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as the scheduler last heard of it; counters grow from the engine's start."""

    name: str
    role: str
    node: str
    running: int = 0
    waiting: int = 0
    kv_blocks: int = 0
    kv_blocks_free: int = 0
    buffer_blocks: int = 0
    buffer_blocks_free: int = 0
    storage_read_bytes: int = 0
    storage_write_bytes: int = 0
    read_queue_tokens: int = 0
    transfer_bytes: dict[str, int] = {}
    bad_blocks: int = 0
    attention_s: float = 0.0
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    peak_kv_bytes: int = 0


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as the scheduler sees it."""

    engines: tuple[EngineStatus, ...] = ()
    waiting: int = 0
    running: int = 0
    stored_blocks: int = 0
    stored_bytes: int = 0
    pinned_blocks: int = 0
    pending_blocks: int = 0
    evicted_blocks: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    restarts: int = 0


class TurnClient(Protocol):
    """Runs turns on a cluster."""

    def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, *, timeout_s: float | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        """Events of one turn: tokens in order of position, then one TurnFinished.

        Closing the iterator early (``aclose``) cancels the turn on both sides. The tokens of an interrupted attempt
        are kept: another attempt continues behind them.

        Raises:
            InvalidRequest: at once, if the cluster could never serve it.
            Overloaded: too much is pending already.
            DeadlineExceeded: the turn did not end within ``timeout_s`` (default: the cluster's request timeout).
            RequestFailed: every attempt failed, or the cluster shuts down.
        """
        ...

    async def status(self) -> ClusterStatus:
        """The cluster's state.

        Raises:
            DeadlineExceeded: the scheduler does not answer.
        """
        ...

    @property
    def max_context_tokens(self) -> int:
        """Most tokens of prompt and output together."""
        ...
