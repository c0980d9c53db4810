"""One turn on a decode engine: what it waits for, holds and has generated (paper section 2)."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, field

from dualpath.control.messages import Assign, Handover
from dualpath.dataflow.plan import Plan
from dualpath.engine.chain_writer import ChainWriter
from dualpath.traffic.reads import Reading


@dataclass(slots=True, eq=False)
class DecodeTurn:
    """State of one turn, from its assignment to its end.

    ``tokens`` are prompt and output; the KV of the first ``kv_tokens`` is in ``pages``. ``position`` is the output
    position of the last token. ``granted`` while the prefill engine may touch ``slots``, ``copying`` while the prompt's KV
    is on its way from there to ``pages``. Until ``read_begun`` its share of the hit waits for a buffer, unread.
    """

    assign: Assign
    plan: Plan
    tokens: array[int]
    deadline: float
    handover: asyncio.Future[Handover]
    writer: ChainWriter
    slots: tuple[int, ...] = ()
    granted: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)
    pages: list[int] = field(default_factory=list)
    copying: bool = False
    kv_tokens: int = 0
    position: int = 0
    started_s: float = 0.0
    ended: bool = False
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
    def last_token(self) -> int:
        return self.tokens[-1]
