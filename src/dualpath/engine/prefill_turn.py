"""One turn on a prefill engine: what it waits for, holds and has done (paper section 2)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import torch

from dualpath.control.messages import Assign, DecodeShareRead
from dualpath.dataflow.plan import Plan
from dualpath.traffic.reads import Reading


@dataclass(slots=True, eq=False)
class PrefillTurn:
    """State of one turn, from its assignment to its handover.

    ``grant`` gives the decode engine's slots, ``decode_read`` what came of the decode side's share; ``cached``
    counts the tokens whose KV the decode buffer holds (the hit, before the first chunk). ``abandoned_by`` is the peer
    that wants its slots back. Until ``read_begun`` its share of the hit waits for a buffer, unread.
    """

    assign: Assign
    plan: Plan
    prompt: torch.Tensor
    deadline: float
    assigned_s: float
    grant: asyncio.Future[tuple[int, ...]]
    decode_read: asyncio.Future[DecodeShareRead]
    decode_slots: tuple[int, ...] = ()
    prefill_slots: tuple[int, ...] = ()
    cached: int = 0
    allocation_s: float = 0.0
    read_s: float = 0.0
    ready_s: float = 0.0
    in_forward: bool = False
    withdrawn: bool = False
    abandoned_by: str | None = None
    task: asyncio.Task[None] | None = None
    reading: Reading | None = None
    read_begun: bool = False

    @property
    def request_id(self) -> str:
        return self.assign.submit.request_id

    @property
    def prompt_tokens(self) -> int:
        return self.plan.prompt_tokens

    @property
    def remaining(self) -> int:
        """Prompt tokens still to compute."""
        return self.prompt_tokens - self.cached
