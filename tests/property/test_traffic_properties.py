"""Cancellations at any await leave pools and queues whole: no slot is lost, shared, or reused while I/O touches it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.errors import DeadlineExceeded
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, StoredBlock, WriteOutcome
from dualpath.traffic.buffers import SlotPool
from dualpath.traffic.reads import ReadQueue
from dualpath.types import BlockKey

SLOT_BYTES = 8
SLOTS = 6

steps = st.lists(st.tuples(st.sampled_from(["ask", "cancel", "free", "run"]), st.integers(0, SLOTS)), max_size=40)


def _pool() -> SlotPool:
    return SlotPool("buffer", SLOTS, SLOT_BYTES, memoryview(bytearray(SLOTS * SLOT_BYTES)))


class PoolMachine:
    """Tasks that hold slots until they are told to let go, as engines' turns do."""

    def __init__(self) -> None:
        self.pool = _pool()
        self.tasks: list[asyncio.Task[None]] = []
        self.granted: list[int] = []
        self.held: dict[int, tuple[int, ...]] = {}

    async def step(self, name: str, value: int) -> None:
        if name == "ask":
            self.tasks.append(
                asyncio.create_task(self._hold(len(self.tasks), value, timeout_s=0.0005 * (value % 3) + 5 * (value % 2)))
            )
        elif name == "cancel" and self.tasks:
            self.tasks[value % len(self.tasks)].cancel()
        elif name == "free" and self.held:
            self.pool.free(self.held.pop(sorted(self.held)[value % len(self.held)]))
        elif name == "run":
            await asyncio.sleep(0.001 * (value % 2))
        self.check()

    async def _hold(self, index: int, count: int, timeout_s: float) -> None:
        try:
            slots = await self.pool.allocate(count, timeout_s)
        except DeadlineExceeded:
            return
        self.granted.append(index)
        self.held[index] = slots

    def check(self) -> None:
        seen = [slot for slots in self.held.values() for slot in slots]
        assert len(seen) == len(set(seen))
        assert len(seen) <= self.pool.used
        assert self.pool.used + self.pool.free_slots == SLOTS
        assert self.pool.peak <= SLOTS

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for slots in self.held.values():
            self.pool.free(slots)
        assert (self.pool.used, self.pool.free_slots, self.pool.waiting) == (0, SLOTS, 0)
        assert self.granted == sorted(self.granted), "asks are granted in their order"


@settings(deadline=None, max_examples=150)
@given(steps)
def test_no_slot_is_ever_lost_or_shared(actions: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        machine = PoolMachine()
        for name, value in actions:
            await machine.step(name, value)
        await machine.end()

    asyncio.run(scenario())


class SlowStorage:
    """Reads that take a random while, end in any order, go wrong at times, and touch their destinations to the last."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.touching: set[int] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        future: Future[list[ReadOutcome]] = Future()
        task = asyncio.create_task(self._read(blocks, future))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return future

    async def _read(self, blocks: Sequence[BlockRead], future: Future[list[ReadOutcome]]) -> None:
        slots = {block.destination[0] for block in blocks}
        assert not self.touching & slots, "two reads write the same slot"
        self.touching |= slots
        await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.004)))
        self.touching -= slots
        outcomes = [ReadOutcome.OK, ReadOutcome.OK, ReadOutcome.OK, ReadOutcome.MISSING]
        future.set_result([self.random.choice(outcomes) for _ in blocks])

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        raise AssertionError("nothing is written")

    def delete(self, keys: Sequence[BlockKey]) -> int:
        raise AssertionError("nothing is deleted")

    def scan(self) -> Iterator[StoredBlock]:
        return iter(())

    def close(self) -> None:
        self.tasks.clear()


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    turns=st.lists(st.tuples(st.integers(1, SLOTS), st.integers(0, 4)), min_size=1, max_size=12),
    stall_timeout_s=st.sampled_from([0.002, 10.0]),
)
def test_slots_of_reads_are_never_reused_while_the_storage_writes_them(
    seed: int, turns: list[tuple[int, int]], stall_timeout_s: float
) -> None:
    async def scenario() -> None:
        storage, pool = SlowStorage(seed), _pool()
        for slot in range(SLOTS):
            pool.view(slot, 1)[0] = slot
        queue = ReadQueue(storage, block_tokens=1, stall_timeout_s=stall_timeout_s, batch_blocks=2)

        async def turn(count: int) -> None:
            slots = await pool.allocate(count, 5)
            keys = [BlockKey(bytes([slot])) for slot in slots]
            reading = queue.read(keys, [pool.view(slot, SLOT_BYTES) for slot in slots])
            reading.when_drained(lambda: _release(storage, pool, slots))
            result = await reading
            assert 0 <= result.valid_blocks <= count
            assert result.valid_blocks == count or result.bad or result.stalled

        tasks = [asyncio.create_task(turn(count)) for count, _ in turns]
        for task, (_, delay) in zip(tasks, turns, strict=True):
            if delay:
                await asyncio.sleep(0.001 * (delay - 1))
                task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends), ends
        await queue.close(5)
        assert queue.idle
        assert queue.unread_tokens == 0
        assert (pool.used, pool.waiting) == (0, 0)

    asyncio.run(scenario())


def _release(storage: SlowStorage, pool: SlotPool, slots: tuple[int, ...]) -> None:
    assert not storage.touching & set(slots)
    pool.free(slots)
