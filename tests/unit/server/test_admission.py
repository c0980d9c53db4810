"""Who may come in, and how a stay is ended by its client or by a shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from dualpath.errors import Cancelled, InvalidRequest, Overloaded
from dualpath.server.admission import Admission


class Connection:
    """A client that stays until ``leave``."""

    def __init__(self) -> None:
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}


async def stay(admission: Admission, connection: Connection, turns: int = 1) -> None:
    async with admission.admitted(turns, connection.receive):
        await asyncio.Event().wait()


async def started(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_full_server_refuses() -> None:
    async def test() -> None:
        admission, connection = Admission(3), Connection()
        tasks = [await started(stay(admission, connection)), await started(stay(admission, connection, 2))]
        assert admission.pending == 3
        with pytest.raises(Overloaded, match="3 requests are pending"):
            await stay(admission, connection)
        with pytest.raises(InvalidRequest, match="4 prompts"):
            await stay(admission, connection, 4)
        await cancelled(*tasks)
        assert admission.pending == 0

    run(test)


def test_a_client_that_leaves_ends_its_stay_only() -> None:
    async def test() -> None:
        admission, leaving, staying = Admission(9), Connection(), Connection()
        first, second = await started(stay(admission, leaving)), await started(stay(admission, staying))
        leaving.leave()
        with pytest.raises(Cancelled):
            await first
        assert (second.done(), admission.pending) == (False, 1)
        await cancelled(second)

    run(test)


def test_other_errors_pass_through() -> None:
    async def test() -> None:
        admission = Admission(1)
        for error in (TimeoutError("not ours"), KeyError("x")):
            with pytest.raises(type(error)):
                async with admission.admitted(1, Connection().receive):
                    raise error
        assert admission.pending == 0

    run(test)


def test_a_drain_waits_for_what_is_running() -> None:
    async def test() -> None:
        admission, finish = Admission(9), asyncio.Event()

        async def short() -> None:
            async with admission.admitted(1, Connection().receive):
                await finish.wait()

        task = await started(short())
        drain = await started(admission.drain(5.0))
        with pytest.raises(Overloaded, match="shutting down"):
            await stay(admission, Connection())
        assert not drain.done()
        finish.set()
        await drain
        await task

    run(test)


def test_a_drain_ends_what_runs_too_long() -> None:
    async def test() -> None:
        admission = Admission(9)
        task = await started(stay(admission, Connection()))
        await admission.drain(0.01)
        assert admission.pending == 0
        with pytest.raises(Overloaded, match="shutting down"):
            await task

    run(test)


def test_the_first_end_counts() -> None:
    async def test() -> None:
        admission, connection = Admission(9), Connection()
        task = await started(stay(admission, connection))
        connection.leave()
        await asyncio.sleep(0)
        await admission.drain(0.0)
        with pytest.raises(Cancelled):
            await task

    run(test)


def test_an_empty_server_drains_at_once() -> None:
    run(lambda: Admission(1).drain(100.0))
