"""Write-back: chain order, losses, full stores, bounds, and data that is still in use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future

import pytest

from dualpath.errors import DeadlineExceeded, StorageError
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, StoredBlock, WriteOutcome
from dualpath.traffic.writeback import WriteBack, Writing
from dualpath.types import BlockKey

BLOCK_BYTES = 8
OK, FULL, READ_ONLY, FAILED = WriteOutcome.OK, WriteOutcome.FULL, WriteOutcome.READ_ONLY, WriteOutcome.FAILED


class HeldStorage:
    """A storage whose writes end when the test says so."""

    def __init__(self) -> None:
        self.batches: list[tuple[Sequence[BlockWrite], Future[list[WriteOutcome]]]] = []
        self.deleted: list[BlockKey] = []
        self.delete_threads: set[int] = set()
        self.refuses = False

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        raise AssertionError("nothing is read")

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        if self.refuses:
            raise StorageError("closed")
        future: Future[list[WriteOutcome]] = Future()
        self.batches.append((blocks, future))
        return future

    def delete(self, keys: Sequence[BlockKey]) -> int:
        self.delete_threads.add(threading.get_ident())
        self.deleted += keys
        return len(keys)

    def scan(self) -> Iterator[StoredBlock]:
        return iter(())

    def close(self) -> None:
        self.refuses = True

    async def end(self, batch: int, outcomes: list[WriteOutcome] | None = None) -> None:
        blocks, future = self.batches[batch]
        future.set_result(outcomes or [OK] * len(blocks))
        await settle()

    @property
    def issued(self) -> list[str]:
        return [b"".join(block.key for block in blocks).decode() for blocks, _ in self.batches]


async def settle() -> None:
    """Let everything run that can; deletes go through a thread."""
    for _ in range(20):
        await asyncio.sleep(0.001)


class Scene:
    """Batches of two blocks, at most two batches at a time, and a record of what was told."""

    def __init__(self, timeout_s: float) -> None:
        self.storage = HeldStorage()
        self.told: list[str] = []
        self.back = WriteBack(
            self.storage,
            block_bytes=BLOCK_BYTES,
            timeout_s=timeout_s,
            on_writing=lambda keys: self.told.append("writing " + b"".join(keys).decode()),
            on_published=lambda keys: self.told.append("published " + b"".join(keys).decode()),
            on_lost=lambda keys, outcome: self.told.append(f"{outcome} " + b"".join(keys).decode()),
            batch_blocks=2,
            in_flight_bytes=4 * BLOCK_BYTES,
        )

    def write(self, keys: str, parent: str | None = None) -> Writing:
        blocks, depth = [], 0
        for key in keys:
            above = None if parent is None else BlockKey(parent.encode())
            blocks.append(BlockWrite(BlockKey(key.encode()), above, depth, memoryview(bytes(BLOCK_BYTES))))
            parent, depth = key, depth + 1
        return self.back.write(blocks)


def _run(scenario: Callable[[Scene], Awaitable[None]], timeout_s: float = 30.0) -> None:
    async def run() -> None:
        await scenario(Scene(timeout_s))

    asyncio.run(asyncio.wait_for(run(), 20))


def test_blocks_are_published_in_chain_order_batch_by_batch() -> None:
    async def scenario(scene: Scene) -> None:
        writing = scene.write("abc")
        await settle()
        assert scene.storage.issued == ["ab"]
        await scene.storage.end(0)
        assert not writing.outcome.done()
        await scene.storage.end(1)
        assert await writing == [OK] * 3
        await settle()
        assert writing.drained
        assert scene.told == ["writing ab", "published ab", "writing c", "published c"]
        assert scene.back.bytes_written == 3 * BLOCK_BYTES
        assert scene.back.idle

    _run(scenario)


def test_a_child_waits_for_its_parent_in_an_earlier_write() -> None:
    async def scenario(scene: Scene) -> None:
        first, second, other = scene.write("ab"), scene.write("c", parent="b"), scene.write("x")
        await settle()
        assert scene.storage.issued == ["ab", "x"]
        await scene.storage.end(1)
        assert (await other, second.outcome.done()) == ([OK], False)
        await scene.storage.end(0)
        await scene.storage.end(2)
        assert (await first, await second) == ([OK, OK], [OK])
        assert scene.told[-1] == "published c"

    _run(scenario)


@pytest.mark.parametrize("bad", [FULL, READ_ONLY, FAILED])
def test_behind_a_block_that_is_not_written_nothing_of_its_chain_stays(bad: WriteOutcome) -> None:
    async def scenario(scene: Scene) -> None:
        first, waiting = scene.write("abcde"), scene.write("f", parent="e")
        await settle()
        await scene.storage.end(0, [bad, OK])
        assert await first == [bad] * 5
        assert await waiting == [FAILED]
        late = scene.write("g", parent="c")
        assert await late == [FAILED]
        assert scene.storage.issued == ["ab"]
        assert scene.storage.deleted == [b"b"]
        assert threading.get_ident() not in scene.storage.delete_threads
        assert scene.told == ["writing ab", f"{bad} abcde", "failed f", "failed g"]

    _run(scenario)


def test_a_full_store_is_counted_and_nothing_else_stops() -> None:
    async def scenario(scene: Scene) -> None:
        for index in range(3):
            writing = scene.write("a")
            await settle()
            await scene.storage.end(index, [FULL])
            assert await writing == [FULL]
        assert scene.back.outcomes == {FULL: 3}
        again = scene.write("a")
        await settle()
        await scene.storage.end(3)
        child = scene.write("b", parent="a")
        await settle()
        await scene.storage.end(4)
        assert (await again, await child) == ([OK], [OK])

    _run(scenario)


def test_a_storage_that_breaks_down_loses_the_blocks_only() -> None:
    async def scenario(scene: Scene) -> None:
        writing = scene.write("ab")
        await settle()
        scene.storage.batches[0][1].set_exception(StorageError("broken"))
        assert await writing == [FAILED, FAILED]
        scene.storage.close()
        assert await scene.write("x") == [FAILED]
        assert await scene.write("") == []

    _run(scenario)


def test_bytes_in_flight_are_bounded() -> None:
    async def scenario(scene: Scene) -> None:
        writings = [scene.write(chain) for chain in ("ab", "cd", "ef")]
        await settle()
        assert scene.storage.issued == ["ab", "cd"]
        await scene.storage.end(1)
        assert scene.storage.issued == ["ab", "cd", "ef"]
        await scene.storage.end(0)
        await scene.storage.end(2)
        for writing in writings:
            assert await writing == [OK, OK]

    _run(scenario)


def test_a_batch_that_hangs_is_lost_and_its_data_kept_until_it_ends() -> None:
    async def scenario(scene: Scene) -> None:
        freed: list[str] = []
        writing = scene.write("abc")
        writing.when_drained(lambda: freed.append("slots"))
        assert await writing == [FAILED] * 3
        assert freed == []
        with pytest.raises(DeadlineExceeded, match="1 writes"):
            await scene.back.drain(0.02)
        for chain in ("d", "e"):
            scene.write(chain)
        await settle()
        assert scene.storage.issued == ["ab", "d", "e"], "a hung batch takes no room from others"
        await scene.storage.end(1)
        await scene.storage.end(2)
        await scene.storage.end(0)
        assert freed == ["slots"]
        assert scene.storage.deleted == [b"a", b"b"], "reported lost, so it may not be in the store"
        await scene.back.drain(1)

    _run(scenario, timeout_s=0.1)


def test_a_cancelled_wait_ends_after_the_batch_in_flight() -> None:
    async def scenario(scene: Scene) -> None:
        writing = scene.write("abcd")
        await settle()

        async def wait() -> None:
            await writing

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not writing.drained
        await scene.storage.end(0)
        assert writing.drained
        assert scene.told == ["writing ab", "published ab", "failed cd"]

    _run(scenario)
