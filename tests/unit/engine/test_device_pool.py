"""The paged KV pool: first come, first served, and nothing lost to those who stop waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import torch

from dualpath.engine.device_pool import DevicePool
from dualpath.kvcache.layout import BlockGeometry

GEOMETRY = BlockGeometry(layers=3, block_tokens=4, token_layer_bytes=8)


def pool(pages: int) -> DevicePool:
    return DevicePool(GEOMETRY, pages, torch.device("cpu"))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_its_memory_is_pages_of_every_layer() -> None:
    one = pool(5)
    assert one.memory.shape == (3, 5, 4, 8)
    assert one.memory.dtype is torch.uint8
    assert one.layer(2).data_ptr() == one.memory[2].data_ptr()
    assert (one.capacity, one.free_pages) == (5, 5)


def test_pages_are_given_at_once_while_there_are_some() -> None:
    async def scenario() -> None:
        one = pool(5)
        first = await one.allocate(3)
        assert len(set(first)) == 3
        assert one.free_pages == 2
        one.free(first)
        assert one.free_pages == 5
        assert await one.allocate(0) == []

    run(scenario())


def test_those_who_wait_are_served_in_turn_and_nobody_overtakes() -> None:
    async def scenario() -> None:
        one = pool(4)
        held = await one.allocate(3)
        served: list[str] = []

        async def wait(name: str, count: int) -> list[int]:
            pages = await one.allocate(count)
            served.append(name)
            return pages

        large, small = asyncio.create_task(wait("large", 4)), asyncio.create_task(wait("small", 1))
        await asyncio.sleep(0)
        assert one.free_pages == 1  # small would fit, but large came first
        one.free(held)
        one.free(await large)
        await small
        assert served == ["large", "small"]

    run(scenario())


def test_a_running_sequence_grows_without_waiting_or_not_at_all() -> None:
    async def scenario() -> None:
        one = pool(3)
        pages = await one.allocate(2)
        waiting = asyncio.create_task(one.allocate(3))
        await asyncio.sleep(0)
        grown = one.grow(pages[-1])
        assert grown is not None
        assert grown not in pages
        assert one.grow(grown) is None
        one.free([*pages, grown])
        assert len(await waiting) == 3

    run(scenario())


def test_cancelling_a_wait_lets_the_next_one_through() -> None:
    async def scenario() -> None:
        one = pool(4)
        held = await one.allocate(3)
        large, small = asyncio.create_task(one.allocate(4)), asyncio.create_task(one.allocate(1))
        await asyncio.sleep(0)
        large.cancel()
        assert len(await small) == 1
        assert large.cancelled()
        one.free(held)
        assert one.free_pages == 3

    run(scenario())


def test_cancelling_a_wait_that_was_just_served_gives_the_pages_back() -> None:
    async def scenario() -> None:
        one = pool(4)
        held = await one.allocate(4)
        waiting = asyncio.create_task(one.allocate(4))
        await asyncio.sleep(0)
        one.free(held)  # served, but the task has not run since
        assert one.free_pages == 0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert one.free_pages == 4

    run(scenario())
