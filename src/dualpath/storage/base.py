"""The storage protocol: batches of Full Blocks by key (paper A.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dualpath.types import BlockKey


class ReadOutcome(StrEnum):
    """How the read of one block ended; anything but OK means: recompute from here."""

    OK = "ok"
    MISSING = "missing"
    CORRUPT = "corrupt"
    FAILED = "failed"


class WriteOutcome(StrEnum):
    """How the write of one block ended; anything but OK means: the block is not in the store."""

    OK = "ok"
    FULL = "full"
    READ_ONLY = "read-only"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BlockRead:
    """Fill ``destination`` (exactly one Full Block long, writable) with the block ``key``."""

    key: BlockKey
    destination: memoryview


@dataclass(frozen=True, slots=True)
class BlockWrite:
    """Store ``data`` (one Full Block) as ``key``, the child of ``parent`` (None: first of its chain) at ``depth`` (from 0)."""

    key: BlockKey
    parent: BlockKey | None
    depth: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """What a scan says about one block: enough to rebuild the index, least recently written first by ``written_s``."""

    key: BlockKey
    parent: BlockKey | None
    depth: int
    bytes: int
    written_s: float


class Storage(Protocol):
    """A store of Full Blocks.

    Thread-safe, and safe for several processes on one root. A block is visible only when complete; its checksum
    travels with it. Outcomes are values, not exceptions: losing a block is normal. Nothing is evicted behind the
    caller's back: the index owner orders deletes.
    """

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        """Read a batch; outcomes in the order of ``blocks``."""
        ...

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        """Write a batch; ``data`` must stay untouched until the future is done. Writing a stored key again is OK."""
        ...

    def delete(self, keys: Sequence[BlockKey]) -> int:
        """Delete blocks, returning how many were there."""
        ...

    def scan(self) -> Iterator[StoredBlock]:
        """For the owner of the index: all complete blocks, in any order. What is stored in a damaged form is deleted."""
        ...

    def close(self) -> None:
        """Wait for what runs, then release threads and files. Idempotent."""
        ...
