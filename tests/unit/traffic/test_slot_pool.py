"""Slots are granted in order, once, and never to two owners."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dualpath.errors import DeadlineExceeded, PromptTooLong
from dualpath.traffic.buffers import SlotPool

SLOT_BYTES = 16


def _pool(slots: int = 8) -> SlotPool:
    return SlotPool("decode-buffer", slots, SLOT_BYTES, memoryview(bytearray(slots * SLOT_BYTES)))


def _counts(pool: SlotPool) -> tuple[int, int]:
    return pool.used, pool.free_slots


async def _started(ask: Coroutine[Any, Any, tuple[int, ...]]) -> asyncio.Task[tuple[int, ...]]:
    task = asyncio.create_task(ask)
    await asyncio.sleep(0)
    return task


def test_slots_are_distinct_and_counted() -> None:
    async def scenario() -> None:
        pool = _pool()
        first = await pool.allocate(5, 1)
        second = await pool.allocate(3, 1)
        assert sorted(first + second) == list(range(8))
        assert await pool.allocate(0, 1) == ()
        pool.free(first)
        assert _counts(pool) == (3, 5)
        assert pool.peak == 8

    asyncio.run(scenario())


def test_views_are_the_slots_own_bytes() -> None:
    memory = bytearray(8 * SLOT_BYTES)
    pool = SlotPool("buffer", 8, SLOT_BYTES, memoryview(memory))
    pool.view(3, 4)[:] = b"slot"
    assert memory[3 * SLOT_BYTES : 3 * SLOT_BYTES + 4] == b"slot"
    with pytest.raises(AssertionError):
        pool.view(8, 4)
    with pytest.raises(AssertionError):
        pool.view(0, SLOT_BYTES + 1)


def test_a_small_ask_does_not_overtake_a_large_one() -> None:
    async def scenario() -> None:
        pool = _pool()
        held = await pool.allocate(6, 1)
        large = await _started(pool.allocate(5, 10))
        small = await _started(pool.allocate(1, 10))
        assert not small.done()
        pool.free(held[:2])
        await asyncio.sleep(0)
        assert not large.done()
        assert not small.done()
        pool.free(held[2:])
        assert len(await large) == 5
        assert len(await small) == 1
        assert _counts(pool) == (6, 2)

    asyncio.run(scenario())


def test_a_timeout_names_the_pool_and_lets_the_next_one_through() -> None:
    async def scenario() -> None:
        pool = _pool()
        await pool.allocate(6, 1)
        large = await _started(pool.allocate(5, 0.02))
        small = await _started(pool.allocate(2, 10))
        with pytest.raises(DeadlineExceeded, match=r"5 slots of decode-buffer \(8 in all, .* 6 used"):
            await large
        assert len(await small) == 2
        assert pool.waiting == 0

    asyncio.run(scenario())


def test_what_can_never_fit_is_refused_at_once() -> None:
    with pytest.raises(PromptTooLong, match="decode-buffer"):
        asyncio.run(_pool().allocate(9, 1))


def test_a_cancelled_head_leaves_no_hole() -> None:
    async def scenario() -> None:
        pool = _pool()
        await pool.allocate(6, 1)
        large = await _started(pool.allocate(5, 10))
        small = await _started(pool.allocate(2, 10))
        large.cancel()
        assert len(await small) == 2
        with pytest.raises(asyncio.CancelledError):
            await large

    asyncio.run(scenario())


def test_slots_granted_to_an_owner_who_is_cancelled_before_it_sees_them_are_not_lost() -> None:
    async def scenario() -> None:
        pool = _pool()
        held = await pool.allocate(8, 1)
        asking = await _started(pool.allocate(5, 10))
        pool.free(held)
        assert pool.used == 5
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert _counts(pool) == (0, 8)

    asyncio.run(scenario())


@pytest.mark.parametrize("again", [(0,), (0, 0), (7,)])
def test_giving_back_what_is_not_held_is_our_own_bug(again: tuple[int, ...]) -> None:
    async def scenario() -> None:
        pool = _pool()
        slots = await pool.allocate(2, 1)
        pool.free(slots[:1])
        await pool.allocate(0, 1)
        with pytest.raises(AssertionError):
            pool.free(again)

    asyncio.run(scenario())


def test_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="decode-buffer"):
        SlotPool("decode-buffer", 2, SLOT_BYTES, memoryview(bytearray(31)))
