"""The manager: one engine's pools, reads, copies and writes counted together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from dualpath.dataflow.classes import TrafficClass
from dualpath.dataflow.plan import plan
from dualpath.kvcache.layout import BlockGeometry
from dualpath.settings import DeadlineSettings
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, StoredBlock, WriteOutcome
from dualpath.traffic.layers import ChunkTransfer, LayerFrames
from dualpath.traffic.manager import TrafficEvents, TrafficManager
from dualpath.traffic.slices import PagePool
from dualpath.transport.memory import MemoryBoard, MemoryTransport
from dualpath.types import BlockKey, ReadShare

GEOMETRY = BlockGeometry(layers=3, block_tokens=4, token_layer_bytes=8)
FULL = GEOMETRY.full_block_bytes


class DictStorage:
    """A storage in a dictionary that answers at once."""

    def __init__(self) -> None:
        self.stored: dict[BlockKey, bytes] = {}

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        future: Future[list[ReadOutcome]] = Future()
        future.set_result([self._read(block) for block in blocks])
        return future

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        self.stored.update((block.key, bytes(block.data)) for block in blocks)
        future: Future[list[WriteOutcome]] = Future()
        future.set_result([WriteOutcome.OK] * len(blocks))
        return future

    def delete(self, keys: Sequence[BlockKey]) -> int:
        return sum(self.stored.pop(key, None) is not None for key in keys)

    def scan(self) -> Iterator[StoredBlock]:
        return iter(())

    def close(self) -> None:
        self.stored.clear()

    def _read(self, block: BlockRead) -> ReadOutcome:
        if block.key not in self.stored:
            return ReadOutcome.MISSING
        block.destination[:] = self.stored[block.key]
        return ReadOutcome.OK


def _key(index: int) -> BlockKey:
    return BlockKey(bytes([index]) * 16)


def test_a_turn_goes_from_storage_to_pages_and_back_and_every_byte_is_counted() -> None:
    async def scenario() -> None:
        storage, transport = DictStorage(), MemoryTransport(MemoryBoard())
        rng = np.random.default_rng(5)
        kv = rng.integers(0, 256, size=(3, 12, 8), dtype=np.uint8)
        storage.stored = {_key(0): kv[:, :4].tobytes(), _key(1): kv[:, 4:8].tobytes()}
        published: list[BlockKey] = []
        bad: list[tuple[BlockKey, ReadOutcome]] = []
        events = TrafficEvents(lambda *what: bad.append(what), on_published=published.extend)
        manager = TrafficManager(storage, transport, GEOMETRY, DeadlineSettings(), events)
        buffer = manager.add_pool("buffer", 5 * GEOMETRY.slot_bytes + 100)
        staging = manager.add_pool("staging", GEOMETRY.slot_bytes)
        assert (buffer.capacity, staging.capacity) == (5, 1)
        assert manager.idle()

        slots = await buffer.allocate(3, 1)
        reading = manager.read(buffer, [_key(0), _key(1), _key(9)], slots)
        assert not manager.idle()
        assert (await reading).valid_blocks == 2
        assert bad == [(_key(9), ReadOutcome.MISSING)]

        frames = np.zeros(2 * 12 * 8, dtype=np.uint8)
        transport.register("frames", frames)
        chunk = ChunkTransfer(plan(12, ReadShare(0, 8), GEOMETRY), 8, 4, 0, (), slots, "buffer")
        stream = manager.layer_stream([chunk], LayerFrames("frames", 2, 12), "buffer")
        stream.start()
        for layer in range(3):
            stream.wait_loaded(layer)
            frames.reshape(2, 12, 8)[layer % 2, 8:] = kv[layer, 8:]
            stream.computed(layer)
        stream.finish().result(10)
        assert not manager.idle()
        manager.retire(stream)

        pages = np.zeros((3, 8, 4, 8), dtype=np.uint8)
        transport.register("pages", pages.reshape(-1))
        pool = PagePool("pages", 8)
        await manager.hand_off(buffer, slots, pool, [6, 1, 2], tokens=12)
        assert np.array_equal(pages[:, [6, 1, 2]].reshape(3, 12, 8), kv)
        buffer.free(slots)

        (slot,) = await staging.allocate(1, 1)
        await manager.stage(staging, [slot], pool, [2])
        writing = manager.writes.write([manager.block_write(staging, slot, _key(2), _key(1), 2)])
        assert not manager.idle()
        assert await writing == [WriteOutcome.OK]
        writing.when_drained(lambda: staging.free([slot]))
        await manager.close(5)
        assert storage.stored[_key(2)] == kv[:, 8:].tobytes()
        assert published == [_key(2)]
        assert manager.idle()
        assert manager.bytes_moved == {
            TrafficClass.STORAGE_READ: 2 * FULL,
            TrafficClass.LAYER_LOAD: 2 * FULL,
            TrafficClass.LAYER_STORE: FULL,
            TrafficClass.HANDOFF: 3 * FULL,
            TrafficClass.WRITE_BACK: FULL,
        }
        assert manager.staged_bytes == FULL
        assert manager.transfer_s > 0
        transport.close()

    asyncio.run(scenario())


def test_a_cancelled_handoff_ends_only_when_the_copy_is_over() -> None:
    async def scenario() -> None:
        storage, transport = DictStorage(), MemoryTransport(MemoryBoard())
        large = BlockGeometry(layers=1, block_tokens=1024, token_layer_bytes=32 * 1024)
        manager = TrafficManager(storage, transport, large, DeadlineSettings())
        buffer = manager.add_pool("buffer", 2 * large.slot_bytes)
        slots = await buffer.allocate(2, 1)
        buffer.view(slots[1], large.full_block_bytes)[-4:] = b"last"
        pages = bytearray(2 * large.layer_block_bytes)
        transport.register("pages", pages)
        task = asyncio.create_task(manager.hand_off(buffer, slots, PagePool("pages", 2), [0, 1], tokens=2048))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert pages[-4:] == b"last"
        buffer.free(slots)
        assert manager.idle()
        transport.close()

    asyncio.run(scenario())
