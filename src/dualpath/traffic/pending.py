"""Waiting for I/O without forgetting that it still uses memory when the wait is given up (rule 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from dualpath.errors import DeadlineExceeded, StorageError

A = TypeVar("A")
T = TypeVar("T")


class Pending(Generic[T]):
    """An I/O of which two ends have to be told apart.

    Awaiting it gives the result, which may come early (a stall, or a cancellation by whoever awaits it). Its memory is
    in use until it has *drained*, which nobody can hasten: ``when_drained`` is the place to free that memory.
    """

    def __init__(self) -> None:
        self.outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.drained = False
        self._callbacks: list[Callable[[], None]] = []

    def __await__(self) -> Generator[Any, None, T]:
        return self.outcome.__await__()

    def cancel(self) -> None:
        """Start nothing more; what is in flight goes on until it has drained."""
        self.outcome.cancel()

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once no I/O touches the memory any more; at once if that is so now."""
        if self.drained:
            callback()
        else:
            self._callbacks.append(callback)

    async def wait_drained(self) -> None:
        """Returns when no I/O touches the memory any more."""
        event = asyncio.Event()
        self.when_drained(event.set)
        await event.wait()

    def finish(self, result: T) -> None:
        """For the I/O's owner: this is the result, unless nobody waits for it any more."""
        if not self.outcome.done():
            self.outcome.set_result(result)

    def drain(self) -> None:
        """For the I/O's owner: nothing touches the memory any more."""
        assert not self.drained
        self.drained = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


async def all_drained(pending: Sequence[Pending[Any]], timeout_s: float, what: str) -> None:
    """Returns when no I/O of ``pending`` touches any memory any more.

    Raises:
        DeadlineExceeded: some still do after ``timeout_s``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            for one in pending:
                await one.wait_drained()
    except TimeoutError as error:
        count = sum(not one.drained for one in pending)
        raise DeadlineExceeded(f"{count} {what} are still in flight after {timeout_s:g} s") from error


async def completed(future: Future[T]) -> T:
    """The result of work on a thread that cannot be recalled; a cancellation arrives only when the work is over.

    For copies within one machine, which take milliseconds; what can take longer is a ``Pending``.
    """
    inner = asyncio.wrap_future(future)
    cancelled: asyncio.CancelledError | None = None
    while not inner.done():
        try:
            await asyncio.wait((inner,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        inner.exception()
        raise cancelled
    return inner.result()


def submitted(call: Callable[[A], Future[T]], argument: A) -> Future[T]:
    """``call(argument)``; a storage that refuses at once fails in the future, like one that fails later."""
    try:
        return call(argument)
    except StorageError as error:
        failed: Future[T] = Future()
        failed.set_exception(error)
        return failed


def outcomes_of(done: Future[list[T]] | asyncio.Future[list[T]], otherwise: list[T]) -> list[T]:
    """What a storage call says about its blocks, or ``otherwise`` if it broke down as a whole."""
    if done.cancelled() or done.exception() is not None:
        return otherwise
    return done.result()
