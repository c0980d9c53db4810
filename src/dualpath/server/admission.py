"""Which requests are in the server, how many may be, and how each is ended from outside: by its client or by a shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.types import Receive

from dualpath.errors import Cancelled, DualPathError, InvalidRequest, Overloaded

SHUTTING_DOWN = "the server is shutting down"
ENDING_TIMEOUT_S = 10.0
"""Longest wait for interrupted turns to clean up after themselves."""


class Stay:
    """One admitted request, which others may end with an error of their choice."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.error: DualPathError | None = None
        self.timeout = asyncio.timeout(None)

    def end(self, error: DualPathError) -> None:
        """Interrupt the request at its next await; it then raises ``error``. Only the first end counts."""
        if self.error is None:
            self.error = error
            self.timeout.reschedule(asyncio.get_running_loop().time())


class Admission:
    """Counts turns that are accepted and unfinished, and closes the door at a shutdown."""

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._stays: set[Stay] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    @property
    def pending(self) -> int:
        """Turns accepted and not finished."""
        return sum(stay.turns for stay in self._stays)

    @asynccontextmanager
    async def admitted(self, turns: int, receive: Receive) -> AsyncIterator[None]:
        """The stay of a request of ``turns`` turns, ended early when its client disconnects or the shutdown's patience ends.

        Raises:
            Overloaded: there is no room, or the server is shutting down (also while the stay lasts).
            InvalidRequest: there could never be room for so many turns.
            Cancelled: the client has gone.
        """
        self._check_room(turns)
        stay = Stay(turns)
        self._stays.add(stay)
        self._empty.clear()
        watcher = asyncio.create_task(_end_with_client(receive, stay))
        try:
            async with stay.timeout:
                yield
        except TimeoutError:
            if stay.error is not None and stay.timeout.expired():
                raise stay.error from None
            raise
        finally:
            self._leave(stay)
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def drain(self, patience_s: float) -> None:
        """Accept nothing more, wait up to ``patience_s`` for what is running, then end the rest."""
        self.draining = True
        try:
            async with asyncio.timeout(patience_s):
                await self._empty.wait()
        except TimeoutError:
            self.end_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING_TIMEOUT_S):
                    await self._empty.wait()

    def end_all(self) -> None:
        """End every stay now; what was asked gets 503, or an error in its stream."""
        for stay in self._stays:
            stay.end(Overloaded(SHUTTING_DOWN))

    def _check_room(self, turns: int) -> None:
        if self.draining:
            raise Overloaded(SHUTTING_DOWN)
        if turns > self._max_pending:
            raise InvalidRequest(
                f"{turns} prompts in one request are more than the {self._max_pending} this server takes at once"
            )
        if self.pending + turns > self._max_pending:
            raise Overloaded(f"{self.pending} requests are pending, {self._max_pending} at most; try again later")

    def _leave(self, stay: Stay) -> None:
        self._stays.discard(stay)
        if not self._stays:
            self._empty.set()


async def _end_with_client(receive: Receive, stay: Stay) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stay.end(Cancelled("the client has closed the connection"))
