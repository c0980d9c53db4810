"""Storage in the memory of one process, for tests and experiments without a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from dualpath.clock import Clock, MonotonicClock
from dualpath.errors import StorageError
from dualpath.storage.arguments import check_reads, check_writes
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, StoredBlock, WriteOutcome
from dualpath.types import BlockKey

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class _Stored(NamedTuple):
    about: StoredBlock
    data: bytes


class MemoryStorage:
    """A dict of Full Blocks of ``block_bytes`` each, at most ``capacity_bytes`` in all; it lives and dies with this object.

    Reads and writes are done before their futures are returned.
    """

    def __init__(self, block_bytes: int, capacity_bytes: int | None = None, clock: Clock | None = None) -> None:
        self._block_bytes = block_bytes
        self._capacity_blocks = None if capacity_bytes is None else capacity_bytes // block_bytes
        self._clock = clock or MonotonicClock()
        self._blocks: dict[BlockKey, _Stored] = {}
        self._lock = threading.Lock()
        self._closed = False

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        """Read a batch; outcomes in the order of ``blocks``.

        Raises:
            ValueError: a destination has not the length of a block.
            StorageError: the storage is closed.
        """
        check_reads(blocks, self._block_bytes)
        return self._apply(self._read, blocks)

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        """Write a batch, replacing blocks that are stored already; outcomes in the order of ``blocks``.

        Raises:
            ValueError: data has not the length of a block, or a block has a parent at depth 0 or none below it.
            StorageError: the storage is closed.
        """
        check_writes(blocks, self._block_bytes)
        return self._apply(self._write, blocks)

    def delete(self, keys: Sequence[BlockKey]) -> int:
        """Delete blocks, returning how many were there."""
        with self._lock:
            return sum(self._blocks.pop(key, None) is not None for key in keys)

    def scan(self) -> Iterator[StoredBlock]:
        """All blocks at the time of the call."""
        with self._lock:
            return iter([stored.about for stored in self._blocks.values()])

    def close(self) -> None:
        """Take no more reads and writes. Idempotent."""
        self._closed = True

    def _apply(self, work: Callable[[Item], Outcome], items: Sequence[Item]) -> Future[list[Outcome]]:
        if self._closed:
            raise StorageError("the storage is closed")
        future: Future[list[Outcome]] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            future.set_result([work(item) for item in items])
        return future

    def _read(self, block: BlockRead) -> ReadOutcome:
        stored = self._blocks.get(block.key)
        if stored is None:
            return ReadOutcome.MISSING
        block.destination[:] = stored.data
        return ReadOutcome.OK

    def _write(self, block: BlockWrite) -> WriteOutcome:
        full = self._capacity_blocks is not None and len(self._blocks) >= self._capacity_blocks
        if full and block.key not in self._blocks:
            return WriteOutcome.FULL
        about = StoredBlock(block.key, block.parent, block.depth, block.data.nbytes, self._clock.now())
        self._blocks[block.key] = _Stored(about, bytes(block.data))
        return WriteOutcome.OK
