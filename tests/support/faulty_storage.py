"""A storage that stands still when told to, and does late what it was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, Storage, StoredBlock, WriteOutcome
from dualpath.types import BlockKey

Outcome = TypeVar("Outcome")
GARBAGE = 0xA5


class Gate:
    """Holds reads, or writes, back from ``close_reads`` or ``close_writes`` until ``open``; shared by all engines' storages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads_closed = self._writes_closed = False
        self._held: list[Callable[[], None]] = []

    def close_reads(self) -> None:
        self._reads_closed = True

    def close_writes(self) -> None:
        self._writes_closed = True

    def open(self) -> None:
        """Let everything through, what was held back first."""
        with self._lock:
            self._reads_closed = self._writes_closed = False
            held, self._held = self._held, []
        for late in held:
            late()

    def holds(self, reading: bool, late: Callable[[], None]) -> bool:
        """Whether the batch has to wait; ``late`` is called at its end."""
        with self._lock:
            closed = self._reads_closed if reading else self._writes_closed
            if closed:
                self._held.append(late)
            return closed


class GatedStorage:
    """Implements ``storage.base.Storage``. A read that was held back fills its destinations with garbage in the end."""

    def __init__(self, storage: Storage, gate: Gate) -> None:
        self._storage = storage
        self._gate = gate

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        held: Future[list[ReadOutcome]] = Future()

        def late() -> None:
            for block in blocks:
                block.destination[:] = bytes([GARBAGE]) * block.destination.nbytes
            held.set_result([ReadOutcome.OK] * len(blocks))

        return held if self._gate.holds(True, late) else self._storage.read(blocks)

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        held: Future[list[WriteOutcome]] = Future()

        def late() -> None:
            held.set_result(self._storage.write(blocks).result())

        return held if self._gate.holds(False, late) else self._storage.write(blocks)

    def delete(self, keys: Sequence[BlockKey]) -> int:
        return self._storage.delete(keys)

    def scan(self) -> Iterator[StoredBlock]:
        return self._storage.scan()

    def close(self) -> None:
        self._gate.open()
        self._storage.close()
