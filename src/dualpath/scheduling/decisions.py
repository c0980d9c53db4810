"""What the scheduler is told and what it answers: token counts and names only (paper section 6).

Nobody changes them. Those built for every request or report are not frozen, which would take 4 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dualpath.types import EngineName, GroupName, NodeName, ReadShare, RequestId, Role


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """An engine that joins.

    ``kv_blocks`` is the capacity of its device KV pool and ``buffer_blocks`` that of its DRAM buffer, both in blocks
    (for a prefill engine ``kv_blocks`` is not scheduled and may be 0).
    """

    name: EngineName
    role: Role
    group: GroupName
    node: NodeName
    kv_blocks: int
    buffer_blocks: int


@dataclass(slots=True, unsafe_hash=True)
class EngineLoad:
    """One engine's report with a fetch.

    ``seen`` is the sequence number of the last placement that the engine had received when it measured; later
    placements are added on top by the scheduler. ``free_kv_blocks`` is None for prefill engines.
    """

    name: EngineName
    seen: int
    unread_tokens: int
    free_kv_blocks: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class RequestDescription:
    """A turn as the scheduler sees it. ``max_output_tokens`` bounds what decode may still add."""

    request_id: RequestId
    prompt_tokens: int
    hit_tokens: int
    max_output_tokens: int


@dataclass(slots=True, unsafe_hash=True)
class Placed:
    """Both engines and the read side are known. ``sequence`` counts placements and grows by one each."""

    request_id: RequestId
    prefill: EngineName
    decode: EngineName
    share: ReadShare
    sequence: int


@dataclass(frozen=True, slots=True)
class Refused:
    """No engine of the cluster could ever hold this request; ``reason`` says which limit and by how much."""

    request_id: RequestId
    reason: str


class LossReason(StrEnum):
    """Why an accepted request left without finishing."""

    ENGINE_LOST = "engine-lost"
    CANCELLED = "cancelled"
    FAILED = "failed"
    TIMED_OUT = "timed-out"


@dataclass(frozen=True, slots=True)
class Lost:
    """The request has left the scheduler unfinished.

    ``prefill`` and ``decode`` name the engines that still know it and have to be told (None: never assigned, or gone).
    """

    request_id: RequestId
    reason: LossReason
    prefill: EngineName | None
    decode: EngineName | None


Decision = Placed | Refused | Lost
