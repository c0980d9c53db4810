"""One engine's traffic: its buffers, storage reads, layer streams, handoffs and write-back (paper section 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from dualpath.clock import Clock
from dualpath.dataflow.classes import TrafficClass
from dualpath.kvcache.layout import BlockGeometry
from dualpath.settings import DeadlineSettings
from dualpath.storage.base import BlockWrite, ReadOutcome, Storage, WriteOutcome
from dualpath.traffic.buffers import SlotPool
from dualpath.traffic.copies import copy, handoff_batch, staging_batch
from dualpath.traffic.layers import ChunkTransfer, LayerFrames, LayerStream
from dualpath.traffic.reads import Reading, ReadQueue
from dualpath.traffic.slices import PagePool
from dualpath.traffic.writeback import WriteBack
from dualpath.transport.base import CopyBatch, Transport
from dualpath.types import BlockKey

_BATCH_BYTES = 32 * 2**20
"""A storage batch is no larger, so that a slow NIC still shows progress well within the stall timeout."""
_BATCH_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class TrafficEvents:
    """Whom the manager tells, on its event loop, what happened to which blocks of the store."""

    on_bad_block: Callable[[BlockKey, ReadOutcome], None] | None = None
    on_writing: Callable[[tuple[BlockKey, ...]], None] | None = None
    on_published: Callable[[tuple[BlockKey, ...]], None] | None = None
    on_lost: Callable[[tuple[BlockKey, ...], WriteOutcome], None] | None = None


class TrafficManager:
    """Executes the plans of one engine. Lives on one event loop; layer streams run on the compute thread.

    Storage and transport are the caller's, who closes them after the manager.
    """

    def __init__(
        self,
        storage: Storage,
        transport: Transport,
        geometry: BlockGeometry,
        deadlines: DeadlineSettings,
        events: TrafficEvents | None = None,
        clock: Clock | None = None,
    ) -> None:
        events = events or TrafficEvents()
        batch_blocks = max(1, min(_BATCH_BLOCKS, _BATCH_BYTES // geometry.full_block_bytes))
        self.pools: dict[str, SlotPool] = {}
        self.exposed_s = 0.0
        self.transfer_s = 0.0
        self.staged_bytes = 0
        self.reads = ReadQueue(
            storage,
            block_tokens=geometry.block_tokens,
            stall_timeout_s=deadlines.stall_timeout_s,
            batch_blocks=batch_blocks,
            lost=events.on_bad_block,
        )
        self.writes = WriteBack(
            storage,
            block_bytes=geometry.full_block_bytes,
            timeout_s=deadlines.transfer_timeout_s,
            on_writing=events.on_writing,
            on_published=events.on_published,
            on_lost=events.on_lost,
            batch_blocks=batch_blocks,
        )
        self._transport = transport
        self._geometry = geometry
        self._deadlines = deadlines
        self._clock = clock
        self._moved: Counter[TrafficClass] = Counter()
        self._copies_in_flight = 0
        self._streams: set[LayerStream] = set()

    @property
    def bytes_moved(self) -> dict[TrafficClass, int]:
        """Bytes by why they moved, since the start; what this engine drove (its peers' transfers are in theirs)."""
        counted = Counter(self._moved)
        counted[TrafficClass.STORAGE_READ] = self.reads.bytes_read
        counted[TrafficClass.WRITE_BACK] = self.writes.bytes_written
        return dict(counted)

    def add_pool(self, region: str, buffer_bytes: int) -> SlotPool:
        """A buffer of at most ``buffer_bytes`` bytes, as many whole slots as fit, which peers can reach as ``region``.

        Raises:
            TransportError: there is no memory for it.
        """
        slots = buffer_bytes // self._geometry.slot_bytes
        size = self._geometry.slot_bytes
        pool = SlotPool(region, slots, size, self._transport.allocate(region, slots * size))
        self.pools[region] = pool
        return pool

    def read(
        self, pool: SlotPool, keys: Sequence[BlockKey], slots: Sequence[int], on_progress: Callable[[int], None] | None = None
    ) -> Reading:
        """Queue the read of blocks ``keys`` into ``slots``; see ``ReadQueue.read``."""
        size = self._geometry.full_block_bytes
        return self.reads.read(keys, [pool.view(slot, size) for slot in slots], on_progress)

    def layer_stream(
        self, chunks: Sequence[ChunkTransfer], frames: LayerFrames, prefill_region: str, after: Future[None] | None = None
    ) -> LayerStream:
        """The stream of one forward batch; ``retire`` it after its end. ``after``: see ``LayerStream``.

        Raises:
            ValueError: the chunks do not fit the frames; see ``LayerStream``.
        """
        stream = LayerStream(
            self._transport,
            chunks,
            geometry=self._geometry,
            frames=frames,
            prefill_region=prefill_region,
            timeout_s=self._deadlines.transfer_timeout_s,
            after=after,
            clock=self._clock,
        )
        self._streams.add(stream)
        return stream

    def retire(self, stream: LayerStream) -> None:
        """Count what a stream did that has finished, or was aborted."""
        self._streams.remove(stream)
        statistics = stream.statistics
        self.exposed_s += statistics.exposed_s
        self.transfer_s += statistics.transfer_s
        self._moved.update(statistics.bytes)

    async def hand_off(
        self, pool: SlotPool, slots: Sequence[int], pages_pool: PagePool, pages: Sequence[int], tokens: int
    ) -> None:
        """Copy a prompt's KV from the DE buffer to device pages; block b from ``slots[b]`` to ``pages[b]``.

        Raises:
            TransportError: see ``copy``.
        """
        batch = handoff_batch(self._geometry, pages_pool, pages, pool.name, slots, tokens)
        moved = await self._copy(batch)  # not in one statement with the sum: others add to it during the wait
        self._moved[TrafficClass.HANDOFF] += moved

    async def stage(self, pool: SlotPool, slots: Sequence[int], pages_pool: PagePool, pages: Sequence[int]) -> None:
        """Copy completed blocks from device pages to staging slots.

        Raises:
            TransportError: see ``copy``.
        """
        batch = staging_batch(self._geometry, pages_pool, pages, pool.name, slots)
        moved = await self._copy(batch)
        self.staged_bytes += moved

    def block_write(self, pool: SlotPool, slot: int, key: BlockKey, parent: BlockKey | None, depth: int) -> BlockWrite:
        """The block in ``slot`` as storage takes it."""
        return BlockWrite(key, parent, depth, pool.view(slot, self._geometry.full_block_bytes))

    def idle(self) -> bool:
        """No slot is held, and nothing is queued or in flight."""
        held = any(pool.used or pool.waiting for pool in self.pools.values())
        return not held and self.reads.idle and self.writes.idle and not self._streams and not self._copies_in_flight

    async def close(self, timeout_s: float) -> None:
        """Give reads up, let writes end; returns when no I/O touches a buffer. Streams and copies are their callers'.

        Raises:
            DeadlineExceeded: the storage still holds something after ``timeout_s``.
        """
        await self.reads.close(timeout_s)
        await self.writes.drain(timeout_s)

    async def _copy(self, batch: CopyBatch) -> int:
        self._copies_in_flight += 1
        try:
            return await copy(self._transport, batch)
        finally:
            self._copies_in_flight -= 1
