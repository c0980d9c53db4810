"""Who reads a hit from storage: one side, alternating sides, the shorter queue, or both (paper sections 6 and 7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dualpath.settings import ReadSidePolicy
from dualpath.types import ReadShare

_NO_HIT = ReadShare()


@dataclass(slots=True, eq=False)
class ReadQueue:
    """A node's storage NIC: hit tokens placed on the node and not yet read (``disk_q``), and its rate."""

    tokens_per_s: float
    unread_tokens: int = 0

    def seconds_with(self, tokens: int) -> float:
        """When ``tokens`` more would be read, at full rate and first in, first out."""
        return (self.unread_tokens + tokens) / self.tokens_per_s


def prefill_reads(hit_tokens: int, prefill: ReadQueue, decode: ReadQueue) -> bool:
    """Whether the prefill side would be done with the hit no later than the decode side.

    At equal rates this is the paper's rule: the node with the shorter read queue; the prefill side when they tie.
    """
    return prefill.seconds_with(hit_tokens) <= decode.seconds_with(hit_tokens)


def split(hit_tokens: int, prefill: ReadQueue, decode: ReadQueue, block_tokens: int) -> ReadShare:
    """The block-aligned cut where both sides are done at the same time, ``(queue + share) / rate`` being equal.

    If one queue is longer than the other by more than the hit (at equal rates), the shorter one gets all of it.
    """
    rates = prefill.tokens_per_s + decode.tokens_per_s
    ahead = prefill.tokens_per_s * (decode.unread_tokens + hit_tokens) - decode.tokens_per_s * prefill.unread_tokens
    head = round(ahead / rates / block_tokens) * block_tokens
    head = min(max(head, 0), hit_tokens)
    return ReadShare(head, hit_tokens - head)


def recompute_is_faster(share: ReadShare, prefill: ReadQueue, decode: ReadQueue, prefill_tokens_per_s: float) -> bool:
    """Whether computing the hit anew is predicted to end before the slower side has read its share."""
    prefill_s = prefill.seconds_with(share.prefill_tokens) if share.prefill_tokens else 0.0
    decode_s = decode.seconds_with(share.decode_tokens) if share.decode_tokens else 0.0
    return share.hit_tokens / prefill_tokens_per_s < max(prefill_s, decode_s)


@lru_cache(maxsize=4096)
def _whole(hit_tokens: int, prefill: bool) -> ReadShare:
    return ReadShare(hit_tokens, 0) if prefill else ReadShare(0, hit_tokens)


class ReadSide:
    """The read-side policy; it remembers only whose turn it is when sides alternate."""

    def __init__(self, policy: ReadSidePolicy, block_tokens: int) -> None:
        self._splits = policy is ReadSidePolicy.SPLIT
        self._alternates = policy is ReadSidePolicy.ROUND_ROBIN
        self._prefill_only = policy is ReadSidePolicy.PREFILL
        self._block_tokens = block_tokens
        self._prefill_turn = False

    def share(self, hit_tokens: int, prefill: ReadQueue, decode: ReadQueue, prefill_buffer_tokens: int) -> ReadShare:
        """Who reads how much of a hit of whole blocks.

        The decode engine's buffer has room for the whole prompt anyway; what the prefill engine's buffer could never
        hold is read by the decode side.
        """
        if not hit_tokens:
            return _NO_HIT
        if self._splits:
            share = split(hit_tokens, prefill, decode, self._block_tokens)
        elif self._choose_prefill(hit_tokens, prefill, decode):
            share = _whole(hit_tokens, True)
        else:
            share = _whole(hit_tokens, False)
        if share.prefill_tokens > prefill_buffer_tokens:
            return ReadShare(prefill_buffer_tokens, hit_tokens - prefill_buffer_tokens)
        return share

    def _choose_prefill(self, hit_tokens: int, prefill: ReadQueue, decode: ReadQueue) -> bool:
        if self._alternates:
            self._prefill_turn = not self._prefill_turn
            return self._prefill_turn
        return self._prefill_only or prefill_reads(hit_tokens, prefill, decode)
