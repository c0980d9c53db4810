"""Nouns that every package shares: names of things, roles, sides and read shares (paper sections 2 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

RequestId = NewType("RequestId", str)
"""One attempt of one turn; a resubmitted turn gets a new one."""

EngineName = NewType("EngineName", str)
"""Unique in the cluster for the life of one engine process, e.g. ``prefill-0.2`` (third incarnation)."""

NodeName = NewType("NodeName", str)
"""A machine (real or virtual) with one storage NIC."""

GroupName = NewType("GroupName", str)
"""Engines of one role that fetch work through one leader."""

BlockKey = NewType("BlockKey", bytes)
"""16 bytes that identify a block's content and everything before it."""


class Role(StrEnum):
    """What an engine does for its whole life."""

    PREFILL = "prefill"
    DECODE = "decode"


class Side(StrEnum):
    """Whose storage NIC reads a hit."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True, unsafe_hash=True)  # never changed; frozen, the scheduler would take 4 times as long to make one
class ReadShare:
    """How many hit tokens each side reads: the prefill engine takes the head, the decode engine the tail.

    ``(hit, 0)`` is the paper's PE read path, ``(0, hit)`` its DE read path, both non-zero a split read.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0

    @property
    def hit_tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    def of(self, side: Side) -> int:
        """Hit tokens that ``side`` reads."""
        return self.prefill_tokens if side is Side.PREFILL else self.decode_tokens

    def shrunk(self, valid_tokens: int) -> ReadShare:
        """The share when only the first ``valid_tokens`` of the hit turned out usable."""
        head = min(self.prefill_tokens, valid_tokens)
        return ReadShare(head, min(self.decode_tokens, valid_tokens - head))
