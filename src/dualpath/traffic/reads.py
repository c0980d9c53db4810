"""One engine's storage reads: a FIFO of hits that keeps the storage NIC busy (paper section 2, labels 1 and 2)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from dualpath.storage.base import BlockRead, ReadOutcome, Storage
from dualpath.traffic.pending import Pending, all_drained, outcomes_of, submitted
from dualpath.types import BlockKey

BATCHES_IN_FLIGHT = 2
"""The next batch is with the storage before the one before it is done: its NIC never waits for the queue."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """How a hit was read.

    Attributes:
        valid_blocks: blocks from the first on that are good; the rest has to be recomputed.
        bad: index and outcome of the blocks that are not good, as far as they were tried.
        stalled: given up without progress; blocks behind the valid ones may still be in flight (see ``Pending``).
    """

    valid_blocks: int
    bad: tuple[tuple[int, ReadOutcome], ...] = ()
    stalled: bool = False


class Reading(Pending[ReadResult]):
    """A read in the queue; see ``Pending`` for when its destinations may be used again."""

    def __init__(self, blocks: Sequence[BlockRead], on_progress: Callable[[int], None] | None) -> None:
        super().__init__()
        self.blocks = blocks
        self.valid_blocks = 0
        self.issued = 0
        self.in_flight = 0
        self.stopped = False
        self._on_progress = on_progress
        self._outcomes: dict[int, ReadOutcome] = {}

    @property
    def unread_blocks(self) -> int:
        return 0 if self.stopped else len(self.blocks) - len(self._outcomes)

    @property
    def exhausted(self) -> bool:
        """Nothing more will be asked of the storage."""
        return self.stopped or self.issued == len(self.blocks)

    def result(self, stalled: bool = False) -> ReadResult:
        bad = tuple(item for item in sorted(self._outcomes.items()) if item[1] is not ReadOutcome.OK)
        return ReadResult(self.valid_blocks, bad, stalled)

    def next_batch(self, count: int) -> range:
        batch = range(self.issued, min(self.issued + count, len(self.blocks)))
        self.issued = batch.stop
        self.in_flight += 1
        return batch

    def batch_done(self, batch: range, outcomes: Sequence[ReadOutcome]) -> None:
        self.in_flight -= 1
        self._outcomes.update(zip(batch, outcomes, strict=True))
        if any(outcome is not ReadOutcome.OK for outcome in outcomes):
            self.stopped = True
        if self.outcome.done():
            return
        before = self.valid_blocks
        while self._outcomes.get(self.valid_blocks) is ReadOutcome.OK:
            self.valid_blocks += 1
        if self._on_progress is not None and self.valid_blocks > before:
            self._on_progress(self.valid_blocks)


class ReadQueue:
    """Reads hits in the order of asking, at the rate of the storage NIC. Lives on one event loop.

    A read ends at its first bad block: what follows is not worth reading. The read at the head that makes no progress
    for ``stall_timeout_s`` while the storage has batches of it is given up; waiting for its turn never counts.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        block_tokens: int,
        stall_timeout_s: float,
        batch_blocks: int = 8,
        lost: Callable[[BlockKey, ReadOutcome], None] | None = None,
    ) -> None:
        self.blocks_read = 0
        self.bytes_read = 0
        self.bad_blocks = 0
        self.stalls = 0
        self._storage = storage
        self._block_tokens = block_tokens
        self._stall_timeout_s = stall_timeout_s
        self._batch_blocks = batch_blocks
        self._lost = lost
        self._queue: deque[Reading] = deque()
        self._draining: set[Reading] = set()
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def unread_tokens(self) -> int:
        """Tokens that were asked for and are neither read nor given up: the node's ``disk_q`` (paper section 6)."""
        return self._block_tokens * sum(reading.unread_blocks for reading in self._queue)

    @property
    def idle(self) -> bool:
        """No read is queued, and no I/O touches any destination."""
        return not self._queue and not self._draining

    def read(
        self, keys: Sequence[BlockKey], destinations: Sequence[memoryview], on_progress: Callable[[int], None] | None = None
    ) -> Reading:
        """Fill ``destinations`` (a Full Block each) with the blocks ``keys``; await it for the ``ReadResult``.

        ``on_progress`` is told how many blocks from the first on are good so far. Cancelling the wait takes the read
        out of the queue; its destinations may be used again when it has drained.
        """
        blocks = [BlockRead(key, destination) for key, destination in zip(keys, destinations, strict=True)]
        reading = Reading(blocks, on_progress)
        self._queue.append(reading)
        reading.outcome.add_done_callback(lambda _: self._stop(reading))
        self._advance()
        return reading

    async def close(self, timeout_s: float) -> None:
        """Give every read up; returns when no I/O touches any destination.

        Raises:
            DeadlineExceeded: the storage still holds some after ``timeout_s``.
        """
        waiting = [*self._queue, *self._draining]
        for reading in waiting:
            reading.cancel()
        await all_drained(waiting, timeout_s, "storage reads")

    def _advance(self) -> None:
        """Retire what has ended, keep the storage busy, watch the head."""
        self._retire()
        in_flight = sum(reading.in_flight for reading in self._queue)
        for reading in self._queue:
            while in_flight < BATCHES_IN_FLIGHT and not reading.exhausted:
                self._issue(reading)
                in_flight += 1
        self._watch_head()

    def _retire(self) -> None:
        ended = [reading for reading in self._queue if reading.exhausted and not reading.in_flight]
        self._queue = deque(reading for reading in self._queue if reading not in ended)
        for reading in ended:
            reading.finish(reading.result())
            reading.drain()

    def _issue(self, reading: Reading) -> None:
        batch = reading.next_batch(self._batch_blocks)
        loop = asyncio.get_running_loop()
        future = submitted(self._storage.read, reading.blocks[batch.start : batch.stop])
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._batch_done, reading, batch, done))

    def _batch_done(self, reading: Reading, batch: range, future: Future[list[ReadOutcome]]) -> None:
        outcomes = outcomes_of(future, [ReadOutcome.FAILED] * len(batch))
        reading.batch_done(batch, outcomes)
        self._count(reading, batch, outcomes)
        if self._queue and self._queue[0] is reading:
            self._stop_watching()
        if reading in self._draining and not reading.in_flight:
            self._draining.remove(reading)
            reading.drain()
        self._advance()

    def _count(self, reading: Reading, batch: range, outcomes: Sequence[ReadOutcome]) -> None:
        for index, outcome in zip(batch, outcomes, strict=True):
            if outcome is ReadOutcome.OK:
                self.blocks_read += 1
                self.bytes_read += reading.blocks[index].destination.nbytes
            else:
                self.bad_blocks += 1
                if self._lost is not None:
                    self._lost(reading.blocks[index].key, outcome)

    def _stop(self, reading: Reading) -> None:
        """The result is there or not wanted any more: leave the queue, with what is in flight behind."""
        if reading not in self._queue:
            return
        reading.stopped = True
        if reading is self._queue[0]:
            self._stop_watching()
        self._queue.remove(reading)
        if reading.in_flight:
            self._draining.add(reading)
        else:
            reading.drain()
        self._advance()

    def _watch_head(self) -> None:
        if self._stall_timer is None and self._queue and self._queue[0].in_flight:
            loop = asyncio.get_running_loop()
            self._stall_timer = loop.call_later(self._stall_timeout_s, self._stalled, self._queue[0])

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stalled(self, reading: Reading) -> None:
        self._stall_timer = None
        self.stalls += 1
        reading.finish(reading.result(stalled=True))
        self._stop(reading)
