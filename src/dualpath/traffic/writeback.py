"""Completed blocks on their way to storage, published in chain order (paper section 2; rules 3 and 5)."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from dualpath.errors import StorageError
from dualpath.storage.base import BlockWrite, Storage, WriteOutcome
from dualpath.traffic.pending import Pending, all_drained, outcomes_of, submitted
from dualpath.types import BlockKey

_REMEMBERED_LOSSES = 4096
"""Keys of lost blocks that are kept, so that a child that comes later is not published without its parent."""

Keys = tuple[BlockKey, ...]


class Writing(Pending[list[WriteOutcome]]):
    """A piece of one chain being written; see ``Pending`` for when its data may be changed again."""

    def __init__(self, blocks: Sequence[BlockWrite]) -> None:
        super().__init__()
        self.blocks = blocks
        self.outcomes: list[WriteOutcome] = []
        self.decided = asyncio.Event()

    @property
    def remaining(self) -> Sequence[BlockWrite]:
        """Blocks without an outcome so far."""
        return self.blocks[len(self.outcomes) :]


class _Hung(NamedTuple):
    """A batch that was given up and is still with the storage."""

    batch: Sequence[BlockWrite]
    running: asyncio.Future[list[WriteOutcome]]


class WriteBack:
    """Writes pieces of chains, several chains at a time. Lives on one event loop.

    Block i + 1 of a chain is never published before block i. Where a block cannot be written, it and everything behind
    it in its chain are lost: not written, or deleted again. A store that is full or read-only is counted and reported
    and stops nothing else.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        block_bytes: int,
        timeout_s: float,
        on_writing: Callable[[Keys], None] | None = None,
        on_published: Callable[[Keys], None] | None = None,
        on_lost: Callable[[Keys, WriteOutcome], None] | None = None,
        batch_blocks: int = 8,
        in_flight_bytes: int = 64 * 2**20,
    ) -> None:
        """``timeout_s`` is the longest that a batch may be with the storage; ``in_flight_bytes`` bounds all of them.

        ``on_writing`` is told what goes to the storage next, ``on_published`` what is there, in chain order, and
        ``on_lost`` what is not and why.
        """
        self.bytes_written = 0
        self.outcomes: Counter[WriteOutcome] = Counter()
        self._storage = storage
        self._timeout_s = timeout_s
        self._on_writing = on_writing
        self._on_published = on_published
        self._on_lost = on_lost
        self._batch_blocks = max(1, min(batch_blocks, in_flight_bytes // block_bytes))
        self._room = asyncio.Semaphore(max(1, in_flight_bytes // (self._batch_blocks * block_bytes)))
        self._undecided: dict[BlockKey, Writing] = {}
        self._tasks: dict[Writing, asyncio.Task[None]] = {}
        self._lost: OrderedDict[BlockKey, None] = OrderedDict()

    @property
    def idle(self) -> bool:
        """Nothing is being written."""
        return not self._tasks

    def write(self, blocks: Sequence[BlockWrite]) -> Writing:
        """Store blocks of one chain, each the child of the one before it; await it for the outcome of each.

        A block behind one that could not be written has that one's outcome. Cancelling the wait ends the writing after
        the batch in flight; the rest is lost.
        """
        writing = Writing(blocks)
        parent = blocks[0].parent if blocks else None
        predecessor = self._undecided.get(parent) if parent is not None else None
        self._undecided.update((block.key, writing) for block in blocks)
        self._tasks[writing] = asyncio.get_running_loop().create_task(self._run(writing, predecessor))
        return writing

    async def drain(self, timeout_s: float) -> None:
        """Returns when everything asked for so far has ended.

        Raises:
            DeadlineExceeded: some is still being written after ``timeout_s``.
        """
        await all_drained(list(self._tasks), timeout_s, "writes to storage")

    async def _run(self, writing: Writing, predecessor: Writing | None) -> None:
        if predecessor is not None:
            await predecessor.decided.wait()
        hung: _Hung | None = None
        if writing.blocks and writing.blocks[0].parent in self._lost:
            self._lose(writing, WriteOutcome.FAILED)
        while writing.remaining:
            if writing.outcome.cancelled():
                self._lose(writing, WriteOutcome.FAILED)
            else:
                async with self._room:
                    hung = await self._write_batch(writing, writing.remaining[: self._batch_blocks])
        self._decide(writing)
        if hung is not None:
            await self._wait_out(hung)
        writing.drain()
        del self._tasks[writing]

    async def _write_batch(self, writing: Writing, batch: Sequence[BlockWrite]) -> _Hung | None:
        """One batch's outcomes; or what is still in flight if it hangs, so that the data can be kept until it ends."""
        if self._on_writing is not None:
            self._on_writing(tuple(block.key for block in batch))
        running = asyncio.wrap_future(submitted(self._storage.write, batch))
        await asyncio.wait((running,), timeout=self._timeout_s)
        if not running.done():
            self._lose(writing, WriteOutcome.FAILED)
            return _Hung(batch, running)
        outcomes = outcomes_of(running, [WriteOutcome.FAILED] * len(batch))
        good = next((index for index, outcome in enumerate(outcomes) if outcome is not WriteOutcome.OK), len(batch))
        self._publish(writing, batch[:good])
        if good < len(batch):
            behind = zip(batch[good:], outcomes[good:], strict=True)
            await self._delete([block.key for block, outcome in behind if outcome is WriteOutcome.OK])
            self._lose(writing, outcomes[good])
        return None

    async def _wait_out(self, hung: _Hung) -> None:
        """Wait for a batch that was reported lost, and make that true unless somebody has written a block again."""
        await asyncio.wait((hung.running,))
        outcomes = outcomes_of(hung.running, [WriteOutcome.FAILED] * len(hung.batch))
        written = (block.key for block, outcome in zip(hung.batch, outcomes, strict=True) if outcome is WriteOutcome.OK)
        await self._delete([key for key in written if key in self._lost])

    async def _delete(self, keys: Sequence[BlockKey]) -> None:
        # A block that cannot be deleted either is an orphan in the store, which its owner's next scan finds.
        with suppress(StorageError):
            if keys:
                await asyncio.to_thread(self._storage.delete, keys)

    def _publish(self, writing: Writing, blocks: Sequence[BlockWrite]) -> None:
        for block in blocks:
            self._lost.pop(block.key, None)
            self.bytes_written += block.data.nbytes
        self._record(writing, [WriteOutcome.OK] * len(blocks))
        if blocks and self._on_published is not None:
            self._on_published(tuple(block.key for block in blocks))

    def _lose(self, writing: Writing, outcome: WriteOutcome) -> None:
        keys = tuple(block.key for block in writing.remaining)
        self._lost.update((key, None) for key in keys)
        while len(self._lost) > _REMEMBERED_LOSSES:
            self._lost.popitem(last=False)
        self._record(writing, [outcome] * len(keys))
        if self._on_lost is not None:
            self._on_lost(keys, outcome)

    def _record(self, writing: Writing, outcomes: list[WriteOutcome]) -> None:
        writing.outcomes += outcomes
        self.outcomes.update(outcomes)

    def _decide(self, writing: Writing) -> None:
        for block in writing.blocks:
            if self._undecided.get(block.key) is writing:
                del self._undecided[block.key]
        writing.decided.set()
        writing.finish(writing.outcomes)
