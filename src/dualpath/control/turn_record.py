"""What the scheduler service remembers of a turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from dualpath.control.messages import Submit
from dualpath.kvcache.chain import TOKEN_BYTES
from dualpath.scheduling.decisions import Placed
from dualpath.types import BlockKey, GroupName, ReadShare, Side


@dataclass(slots=True, eq=False)
class TurnRecord:
    """One attempt of a turn, from its submission to its end.

    ``wait_ends_s`` is when it stops waiting for blocks that are being written, ``pinned`` the deepest block of the hit
    while it may not be evicted, ``unread`` the sides that still read, ``prefill_group`` the group that still computes it.
    """

    submit: Submit
    client: bytes
    submitted_s: float
    wait_ends_s: float
    placed: Placed | None = None
    pinned: BlockKey | None = None
    awaited: BlockKey | None = None
    unread: set[Side] = field(default_factory=set)
    prefill_group: GroupName | None = None
    scheduling_s: float = 0.0
    failure: str | None = None
    retryable: bool = True

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def prompt_tokens(self) -> int:
        return len(self.submit.prompt) // TOKEN_BYTES

    def used_share(self, cached_tokens: int) -> ReadShare:
        """Who read the ``cached_tokens`` that were really used."""
        return ReadShare() if self.placed is None else self.placed.share.shrunk(cached_tokens)
