"""Who reads a hit from storage: one side, alternating sides, the shorter queue, or both (paper sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualpath.settings import ReadSidePolicy
from dualpath.types import ReadShare

_NO_HIT = ReadShare()


@dataclass(slots=True, eq=False)
class ReadQueue:
    """A node's storage NIC: hit tokens placed on the node and not yet read (``disk_q``), and its rate.

    It serves its queue at full rate, first in, first out: ``tokens`` more are read after
    ``(unread_tokens + tokens) / tokens_per_s`` seconds.
    """

    tokens_per_s: float
    unread_tokens: int = 0


def shorter_queue(hit_tokens: int, prefill: ReadQueue, decode: ReadQueue) -> ReadShare:
    """The side that would be done with the hit first, the prefill side when they tie.

    At equal rates this is the paper's rule: the side whose node has the shorter read queue.
    """
    prefill_s = (prefill.unread_tokens + hit_tokens) / prefill.tokens_per_s
    if prefill_s <= (decode.unread_tokens + hit_tokens) / decode.tokens_per_s:
        return ReadShare(hit_tokens, 0)
    return ReadShare(0, hit_tokens)


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
    read_s = (
        (queue.unread_tokens + tokens) / queue.tokens_per_s
        for queue, tokens in ((prefill, share.prefill_tokens), (decode, share.decode_tokens))
        if tokens
    )
    return share.hit_tokens / prefill_tokens_per_s < max(read_s, default=0.0)


class ReadSide:
    """A read-side policy; it remembers only whose turn it is when sides alternate.

    Each pair of nodes alternates for itself: one turn for all would run in step with engines that are placed in turn, and
    half of the nodes would read everything.
    """

    def __init__(self, policy: ReadSidePolicy, block_tokens: int) -> None:
        self._decode_next: dict[tuple[ReadQueue, ReadQueue], bool] = {}
        policies: dict[ReadSidePolicy, Callable[[int, ReadQueue, ReadQueue], ReadShare]] = {
            ReadSidePolicy.PREFILL: lambda hit_tokens, _prefill, _decode: ReadShare(hit_tokens, 0),
            ReadSidePolicy.ROUND_ROBIN: self._in_turn,
            ReadSidePolicy.SHORTER_QUEUE: shorter_queue,
            ReadSidePolicy.SPLIT: lambda hit_tokens, prefill, decode: split(hit_tokens, prefill, decode, block_tokens),
        }
        self._policy = policies[policy]

    def share(self, hit_tokens: int, prefill: ReadQueue, decode: ReadQueue, prefill_buffer_tokens: int) -> ReadShare:
        """Who reads how much of a hit of whole blocks.

        The decode engine's buffer has room for the whole prompt anyway; what the prefill engine's buffer could never
        hold is read by the decode side.
        """
        if not hit_tokens:
            return _NO_HIT
        share = self._policy(hit_tokens, prefill, decode)
        if share.prefill_tokens > prefill_buffer_tokens:
            return ReadShare(prefill_buffer_tokens, hit_tokens - prefill_buffer_tokens)
        return share

    def _in_turn(self, hit_tokens: int, prefill: ReadQueue, decode: ReadQueue) -> ReadShare:
        by_decode = self._decode_next.get((prefill, decode), False)
        self._decode_next[prefill, decode] = not by_decode
        return ReadShare(0, hit_tokens) if by_decode else ReadShare(hit_tokens, 0)
