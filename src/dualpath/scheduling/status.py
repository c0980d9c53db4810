"""What the scheduler shows of its books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dualpath.scheduling.ledger import EngineState
from dualpath.types import EngineName, NodeName, Role


@dataclass(frozen=True, slots=True)
class EngineLedger:
    """One engine: ``requests`` is ``n_e``, ``tokens`` is ``tok_e``, ``unread_tokens`` its part of ``disk_q``.

    ``reserved_blocks`` and ``free_blocks`` (above the watermark) are a decode engine's KV pool; ``grown_blocks`` is what it
    last reported in use beyond the reservations.
    """

    role: Role
    node: NodeName
    requests: int
    half_placed: int
    tokens: int
    unread_tokens: int
    reserved_blocks: int
    grown_blocks: int
    free_blocks: int
    allowance: int


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The whole ledger.

    Attributes:
        waiting: accepted requests that are not placed on both sides.
        placed: requests that engines work on.
        sequence: placements so far.
        late_events: events about requests that were unknown or past that state.
        longest_wait_s: age of the oldest request that is not placed.
        read_queue_tokens: ``disk_q`` of each node.
    """

    waiting: int
    placed: int
    sequence: int
    late_events: int
    longest_wait_s: float
    engines: Mapping[EngineName, EngineLedger]
    read_queue_tokens: Mapping[NodeName, int]


def engine_ledger(engine: EngineState, half_placed: int) -> EngineLedger:
    """A copy of one engine's books."""
    return EngineLedger(
        role=engine.description.role,
        node=engine.description.node,
        requests=engine.requests,
        half_placed=half_placed,
        tokens=engine.tokens,
        unread_tokens=engine.unread_tokens - engine.read_ahead_tokens,
        reserved_blocks=engine.reserved_blocks,
        grown_blocks=engine.grown_blocks,
        free_blocks=engine.room_blocks - engine.reserved_blocks,
        allowance=engine.allowance,
    )
