"""Which chunks a prefill engine computes next: FIFO packing under a compute quota (paper section 6, Fig. 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from dualpath.types import RequestId

AttentionTime = Callable[[int, int], float]
"""Predicted attention seconds of ``(cached, new)`` tokens over all layers; grows with both."""


class Ready(Protocol):
    """A request whose ``cached`` tokens are in buffers; the next ``new``, to the end of the prompt, are to be computed."""

    @property
    def request_id(self) -> RequestId: ...

    @property
    def cached(self) -> int: ...

    @property
    def new(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ReadyRequest:
    """``cached`` tokens are in buffers; the next ``new``, to the end of the prompt, are to be computed."""

    request_id: RequestId
    cached: int
    new: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``[cached, cached + new)`` of a request; ``last`` if they end the prompt."""

    request_id: RequestId
    cached: int
    new: int
    last: bool


class Batching:
    """Packs ready requests into forward batches.

    Attributes:
        attention_time: predicted attention seconds of a request's part of a batch.
        quota_s: most predicted attention seconds in one batch.
        max_batch_tokens: most new tokens in one batch.
        kv_rows: device KV capacity in token rows; a batch takes ``Σ (cached + new)``.
        block_tokens: chunks end on block edges, except a prompt's last.
    """

    def __init__(
        self, attention_time: AttentionTime, *, quota_s: float, max_batch_tokens: int, kv_rows: int, block_tokens: int
    ) -> None:
        self._attention_time = attention_time
        self._quota_s = quota_s
        self._max_batch_tokens = max_batch_tokens
        self._kv_rows = kv_rows
        self._block_tokens = block_tokens

    def fits_alone(self, prompt_tokens: int) -> bool:
        """Whether a prompt could ever be computed here; admission has to refuse it otherwise."""
        return prompt_tokens <= self._kv_rows

    def pack(self, ready: Iterable[Ready]) -> list[Chunk]:
        """The next batch, in the order of ``ready``: whole requests, then one that is cut where it would exceed a limit.

        The first request advances by at least a block, whatever quota and ``max_batch_tokens`` say.

        Raises:
            ValueError: a request has nothing to compute, or exceeds ``kv_rows`` even alone.
        """
        chunks: list[Chunk] = []
        seconds_left, tokens_left, rows_left = self._quota_s, self._max_batch_tokens, self._kv_rows
        for request in ready:
            self._check(request)
            most = min(request.new, tokens_left, rows_left - request.cached)
            new = self._largest_chunk(request, most, seconds_left)
            if new <= 0 and not chunks:
                new = min(request.new, self._block_end(request.cached + self._block_tokens) - request.cached)
            if new > 0:
                chunks.append(Chunk(request.request_id, request.cached, new, new == request.new))
            if new < request.new:
                break
            seconds_left -= self._attention_time(request.cached, new)
            tokens_left -= new
            rows_left -= request.cached + new
        return chunks

    def _check(self, request: Ready) -> None:
        if request.new < 1 or not self.fits_alone(request.cached + request.new):
            tokens = f"[0, {request.cached}, {request.cached + request.new})"
            raise ValueError(f"{request.request_id}: {tokens} cannot run in {self._kv_rows} KV rows")

    def _largest_chunk(self, request: Ready, most: int, seconds: float) -> int:
        """The most new tokens, whole or up to a block edge, within ``most`` and ``seconds``; 0 or less if none fit."""
        cached = request.cached
        if most == request.new and self._attention_time(cached, most) <= seconds:
            return most
        first_block = cached // self._block_tokens
        low, high = first_block, (cached + most) // self._block_tokens
        if most == request.new and high * self._block_tokens == cached + most:
            high -= 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._attention_time(cached, middle * self._block_tokens - cached) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low * self._block_tokens - cached

    def _block_end(self, token: int) -> int:
        return token // self._block_tokens * self._block_tokens
