"""Storage reads: order, the window of batches, bad blocks, stalls, and memory that is still in use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future

import pytest

from dualpath.errors import DeadlineExceeded, StorageError
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, StoredBlock, WriteOutcome
from dualpath.traffic.reads import Reading, ReadQueue, ReadResult
from dualpath.types import BlockKey

BLOCK_BYTES = 8
OK, MISSING, CORRUPT, FAILED = ReadOutcome.OK, ReadOutcome.MISSING, ReadOutcome.CORRUPT, ReadOutcome.FAILED


class HeldStorage:
    """A storage whose reads end when the test says so."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[BlockKey], Future[list[ReadOutcome]]]] = []
        self.closed = False

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        if self.closed:
            raise StorageError("closed")
        future: Future[list[ReadOutcome]] = Future()
        self.batches.append(([block.key for block in blocks], future))
        return future

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        raise AssertionError("nothing is written")

    def delete(self, keys: Sequence[BlockKey]) -> int:
        raise AssertionError("nothing is deleted")

    def scan(self) -> Iterator[StoredBlock]:
        return iter(())

    def close(self) -> None:
        self.closed = True

    async def end(self, batch: int, outcomes: list[ReadOutcome] | None = None) -> None:
        keys, future = self.batches[batch]
        future.set_result(outcomes or [OK] * len(keys))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def issued(self) -> list[str]:
        return [b"".join(keys).decode() for keys, _ in self.batches]


class Scene:
    """A queue with batches of two blocks over a held storage."""

    def __init__(self, stall_timeout_s: float = 30.0) -> None:
        self.storage = HeldStorage()
        self.lost: list[tuple[BlockKey, ReadOutcome]] = []
        self.queue = ReadQueue(
            self.storage,
            block_tokens=64,
            stall_timeout_s=stall_timeout_s,
            batch_blocks=2,
            lost=lambda key, outcome: self.lost.append((key, outcome)),
        )

    def read(self, keys: str, on_progress: Callable[[int], None] | None = None) -> Reading:
        blocks = [BlockKey(key.encode()) for key in keys]
        return self.queue.read(blocks, [memoryview(bytearray(BLOCK_BYTES)) for _ in blocks], on_progress)


def _run(scenario: Callable[[Scene], Awaitable[None]], stall_timeout_s: float = 30.0) -> None:
    async def run() -> None:
        await scenario(Scene(stall_timeout_s))

    asyncio.run(asyncio.wait_for(run(), 20))


def test_two_batches_are_in_flight_over_the_whole_queue_in_order() -> None:
    async def scenario(scene: Scene) -> None:
        progress: list[int] = []
        first, second = scene.read("abcde", progress.append), scene.read("vwx")
        assert scene.storage.issued == ["ab", "cd"]
        assert scene.queue.unread_tokens == 8 * 64
        await scene.storage.end(0)
        assert scene.storage.issued == ["ab", "cd", "e"]
        assert scene.queue.unread_tokens == 6 * 64
        await scene.storage.end(1)
        assert scene.storage.issued == ["ab", "cd", "e", "vw"]
        assert not first.outcome.done()
        await scene.storage.end(2)
        assert await first == ReadResult(5)
        assert first.drained
        assert progress == [2, 4, 5]
        await scene.storage.end(3)
        await scene.storage.end(4)
        assert await second == ReadResult(3)
        assert scene.queue.idle
        assert scene.queue.unread_tokens == 0
        assert (scene.queue.blocks_read, scene.queue.bytes_read) == (8, 8 * BLOCK_BYTES)

    _run(scenario)


def test_batches_that_end_out_of_order_count_from_the_first_on() -> None:
    async def scenario(scene: Scene) -> None:
        progress: list[int] = []
        reading = scene.read("abcd", progress.append)
        await scene.storage.end(1)
        assert progress == []
        await scene.storage.end(0)
        assert progress == [4]
        assert (await reading).valid_blocks == 4

    _run(scenario)


@pytest.mark.parametrize("bad", [MISSING, CORRUPT, FAILED])
def test_a_read_ends_at_its_first_bad_block_and_the_next_one_goes_on(bad: ReadOutcome) -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.read("abcdefgh"), scene.read("v")
        await scene.storage.end(0, [OK, bad])
        assert scene.storage.issued == ["ab", "cd", "v"]
        assert scene.queue.unread_tokens == 64
        assert not first.outcome.done(), "cd is still being written into its destinations"
        await scene.storage.end(1)
        assert await first == ReadResult(1, ((1, bad),))
        await scene.storage.end(2)
        assert (await second).valid_blocks == 1
        assert scene.lost == [(b"b", bad)]
        assert (scene.queue.bad_blocks, scene.queue.blocks_read) == (1, 4)

    _run(scenario)


def test_a_storage_that_breaks_down_fails_the_batch() -> None:
    async def scenario(scene: Scene) -> None:
        reading = scene.read("abc")
        scene.storage.batches[0][1].set_exception(StorageError("broken"))
        await asyncio.sleep(0)
        scene.storage.batches[1][1].cancel()
        assert await reading == ReadResult(0, ((0, FAILED), (1, FAILED), (2, FAILED)))
        scene.storage.close()
        assert (await scene.read("xyz")).valid_blocks == 0
        assert scene.queue.idle

    _run(scenario)


def test_reading_nothing_is_done_at_once() -> None:
    async def scenario(scene: Scene) -> None:
        reading = scene.read("")
        assert reading.drained
        assert await reading == ReadResult(0)

    _run(scenario)


def test_a_stalled_head_is_given_up_with_what_is_valid_and_drains_later() -> None:
    async def scenario(scene: Scene) -> None:
        freed: list[str] = []
        head, behind = scene.read("abcdef"), scene.read("xy")
        head.when_drained(lambda: freed.append("head"))
        await scene.storage.end(0)
        assert await head == ReadResult(2, stalled=True)
        assert freed == []
        assert not scene.queue.idle
        assert scene.storage.issued == ["ab", "cd", "ef", "xy"]
        await scene.storage.end(3)
        assert (await behind).valid_blocks == 2
        await scene.storage.end(1)
        assert freed == []
        await scene.storage.end(2)
        assert freed == ["head"]
        assert scene.queue.idle
        assert scene.queue.stalls == 1

    _run(scenario, stall_timeout_s=0.05)


def test_waiting_for_ones_turn_is_no_stall() -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.read("abcd"), scene.read("xy")
        # Slow, but with progress in every stall timeout; the second read waits for several of them.
        for batch in range(2):
            await asyncio.sleep(0.06)
            await scene.storage.end(batch)
        assert (await first).valid_blocks == 4
        await asyncio.sleep(0.06)
        await scene.storage.end(2)
        assert await second == ReadResult(2)
        assert scene.queue.stalls == 0

    _run(scenario, stall_timeout_s=0.1)


def test_the_next_head_is_watched_from_when_it_becomes_the_head() -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.read("ab"), scene.read("xy")
        await asyncio.sleep(0.06)
        await scene.storage.end(0)
        assert (await first).valid_blocks == 2
        await asyncio.sleep(0.06)
        assert not second.outcome.done()
        assert await second == ReadResult(0, stalled=True)
        await scene.storage.end(1)

    _run(scenario, stall_timeout_s=0.1)


def test_a_cancelled_read_leaves_the_queue_and_drains_later() -> None:
    async def scenario(scene: Scene) -> None:
        freed: list[str] = []
        reading = scene.read("abcdef")
        reading.when_drained(lambda: freed.append("slots"))

        async def wait() -> None:
            await reading

        waiting = asyncio.create_task(wait())
        behind = scene.read("xy")
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert scene.queue.unread_tokens == 2 * 64
        assert scene.storage.issued == ["ab", "cd", "xy"]
        await scene.storage.end(0)
        assert freed == []
        await scene.storage.end(1)
        assert freed == ["slots"]
        await scene.storage.end(2)
        assert (await behind).valid_blocks == 2
        assert scene.storage.issued == ["ab", "cd", "xy"]

    _run(scenario)


def test_a_cancelled_read_that_was_not_started_drains_at_once() -> None:
    async def scenario(scene: Scene) -> None:
        scene.read("abcd")
        waiting = scene.read("xy")
        waiting.cancel()
        await asyncio.sleep(0)
        assert waiting.drained
        await scene.storage.end(0)
        await scene.storage.end(1)
        assert scene.storage.issued == ["ab", "cd"]

    _run(scenario)


def test_a_cancelled_heads_stall_timer_does_not_outlive_it() -> None:
    async def scenario(scene: Scene) -> None:
        head, behind = scene.read("ab"), scene.read("xy")
        await asyncio.sleep(0.06)
        head.cancel()
        await asyncio.sleep(0.06)
        assert not behind.outcome.done(), "watched from when it became the head"
        assert await behind == ReadResult(0, stalled=True)
        assert scene.queue.stalls == 1
        await scene.storage.end(0)
        await scene.storage.end(1)
        assert scene.queue.idle

    _run(scenario, stall_timeout_s=0.1)


def test_closing_waits_for_the_storage_up_to_its_deadline() -> None:
    async def scenario(scene: Scene) -> None:
        reading = scene.read("abcdef")
        with pytest.raises(DeadlineExceeded, match="1 storage reads"):
            await scene.queue.close(0.02)
        closing = asyncio.create_task(scene.queue.close(10))
        await scene.storage.end(0)
        assert not closing.done()
        await scene.storage.end(1)
        await closing
        assert reading.drained
        assert scene.queue.idle

    _run(scenario)
