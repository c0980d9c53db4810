"""Any storage behind a storage NIC of given bandwidth, with the counters that utilisation needs (paper section 3)."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from typing import TypeVar

from dualpath.clock import MonotonicClock
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, Storage, StoredBlock, WriteOutcome
from dualpath.storage.limiter import Direction, Limiter
from dualpath.types import BlockKey

Outcome = TypeVar("Outcome")
_MOVED = (ReadOutcome.OK, ReadOutcome.CORRUPT, WriteOutcome.OK)
"""Outcomes whose bytes have passed the NIC; missing blocks and refused writes cost nothing."""


class LimitedStorage:
    """A storage whose batches complete no earlier than the NIC's ``limiter`` lets their bytes pass.

    The real I/O runs at once and at full speed; only completion waits, on one timer thread, so that no I/O thread is
    held. Closing closes ``storage`` and ``limiter`` too.
    """

    def __init__(self, storage: Storage, limiter: Limiter) -> None:
        self._storage = storage
        self._limiter = limiter
        self._clock = MonotonicClock()
        self._timer = _Timer(self._clock)
        self._meters = {direction: _Meter() for direction in Direction}

    @property
    def read_bytes(self) -> int:
        """Payload bytes read so far."""
        return self._meters[Direction.READ].bytes

    @property
    def write_bytes(self) -> int:
        """Payload bytes written so far."""
        return self._meters[Direction.WRITE].bytes

    @property
    def read_busy_s(self) -> float:
        """Time in which reads were under way, up to now; less than the elapsed time by what the NIC idled."""
        return self._meters[Direction.READ].busy_s(self._clock.now())

    @property
    def write_busy_s(self) -> float:
        """Time in which writes were under way, up to now."""
        return self._meters[Direction.WRITE].busy_s(self._clock.now())

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        """As the storage below, and no faster than the NIC."""
        lengths = [block.destination.nbytes for block in blocks]
        return self._limited(Direction.READ, lengths, lambda: self._storage.read(blocks))

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        """As the storage below, and no faster than the NIC."""
        lengths = [block.data.nbytes for block in blocks]
        return self._limited(Direction.WRITE, lengths, lambda: self._storage.write(blocks))

    def delete(self, keys: Sequence[BlockKey]) -> int:
        """As the storage below."""
        return self._storage.delete(keys)

    def scan(self) -> Iterator[StoredBlock]:
        """As the storage below."""
        return self._storage.scan()

    def close(self) -> None:
        """Wait for what runs, deliver what waits for the NIC, then close storage and limiter. Idempotent."""
        self._storage.close()
        self._timer.close()
        self._limiter.close()

    def _limited(
        self, direction: Direction, lengths: Sequence[int], start: Callable[[], Future[list[Outcome]]]
    ) -> Future[list[Outcome]]:
        arrived_s = self._clock.now()
        started = start()
        meter = self._meters[direction]
        meter.begin(arrived_s)
        delivered: Future[list[Outcome]] = Future()
        delivered.set_running_or_notify_cancel()

        def io_done(done: Future[list[Outcome]]) -> None:
            error = done.exception()
            outcomes = [] if error is not None else done.result()
            moved = sum(length for length, outcome in zip(lengths, outcomes, strict=False) if outcome in _MOVED)
            finish_s = self._limiter.reserve(direction, moved, arrived_s) if moved else arrived_s
            self._timer.call_at(finish_s, lambda: deliver(outcomes, error, moved))

        def deliver(outcomes: list[Outcome], error: BaseException | None, moved: int) -> None:
            meter.end(self._clock.now(), moved)
            if error is not None:
                delivered.set_exception(error)
            else:
                delivered.set_result(outcomes)

        started.add_done_callback(io_done)
        return delivered


class _Meter:
    """Bytes moved in one direction, and the time during which any transfer was under way."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()
        self._under_way = 0
        self._since_s = 0.0
        self._busy_s = 0.0

    def begin(self, now_s: float) -> None:
        with self._lock:
            if not self._under_way:
                self._since_s = now_s
            self._under_way += 1

    def end(self, now_s: float, length: int) -> None:
        with self._lock:
            self.bytes += length
            self._under_way -= 1
            if not self._under_way:
                self._busy_s += now_s - self._since_s

    def busy_s(self, now_s: float) -> float:
        with self._lock:
            return self._busy_s + (now_s - self._since_s if self._under_way else 0.0)


class _Timer:
    """Calls functions when their time has come, on a thread that sleeps in between and starts with the first of them."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def call_at(self, due_s: float, function: Callable[[], None]) -> None:
        """Call ``function`` at ``due_s``; at once and on the caller's thread if that is past."""
        if due_s <= self._clock.now():
            function()
            return
        with self._changed:
            heapq.heappush(self._due, (due_s, next(self._numbers), function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="storage-nic", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Wait until everything is called, each at its time, then end the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (function := self._next()) is not None:
            function()

    def _next(self) -> Callable[[], None] | None:
        """The next function, once it is due; None when closing and nothing is left."""
        with self._changed:
            while True:
                if not self._due and self._closing:
                    return None
                wait_s = self._due[0][0] - self._clock.now() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_s)
