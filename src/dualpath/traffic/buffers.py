"""DRAM buffers in slots of one Full Block each, granted first come, first served (paper section 2, A.5)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from dualpath.errors import DeadlineExceeded, PromptTooLong
from dualpath.kvcache.pool import BlockPool


class SlotPool:
    """A buffer of ``slots`` slots of ``slot_bytes`` bytes in ``memory``; asks wait in strict order until theirs fits.

    Lives on one event loop. A slot is used until nobody can touch it any more: whoever holds it waits for that.
    """

    def __init__(self, name: str, slots: int, slot_bytes: int, memory: memoryview) -> None:
        if memory.nbytes < slots * slot_bytes:
            raise ValueError(f"{name}: {slots} slots of {slot_bytes} bytes do not fit {memory.nbytes}")
        self.name = name
        self.capacity = slots
        self.slot_bytes = slot_bytes
        self.peak = 0
        self._memory = memory
        self._blocks = BlockPool(slots, growth_blocks=0)
        self._used: set[int] = set()
        self._waiting: deque[tuple[int, asyncio.Future[tuple[int, ...]]]] = deque()

    @property
    def free_slots(self) -> int:
        return self._blocks.free_blocks

    @property
    def used(self) -> int:
        """Slots that somebody holds."""
        return len(self._used)

    @property
    def waiting(self) -> int:
        """Asks that were not granted yet."""
        return len(self._waiting)

    async def allocate(self, count: int, timeout_s: float, *, ahead: bool = False) -> tuple[int, ...]:
        """``count`` slots, once everybody who asked earlier has theirs; or before them, if ``ahead``.

        Whoever still holds slots has to be ahead: what those wait for who came earlier could be just these.

        Raises:
            PromptTooLong: at once, if the pool could never hold so many.
            DeadlineExceeded: they did not become free within ``timeout_s``.
        """
        if count > self.capacity:
            raise PromptTooLong(f"{self.name} holds {self.capacity} blocks, and {count} are needed at a time")
        if (ahead or not self._waiting) and count <= self.free_slots:
            return self._take(count)
        granted: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if ahead else self._waiting.append)((count, granted))
        try:
            async with asyncio.timeout(timeout_s):
                return await granted
        except TimeoutError as error:
            late = DeadlineExceeded(f"{self._describe(count)} were not free within {timeout_s:g} s")
            self._withdraw(granted)
            raise late from error
        except asyncio.CancelledError:
            self._withdraw(granted)
            raise

    def free(self, slots: Iterable[int]) -> None:
        """Give used slots back for reuse; nobody may read or write them any more."""
        listed = list(slots)
        assert self._used.issuperset(listed), f"{self.name}: slots {set(listed) - self._used} are given back twice"
        assert len(set(listed)) == len(listed), f"{self.name}: a slot comes twice in {listed}"
        self._used.difference_update(listed)
        self._blocks.free(listed)
        self._grant()

    def view(self, slot: int, length: int) -> memoryview:
        """The first ``length`` bytes of a slot."""
        assert 0 <= slot < self.capacity, f"{self.name} has no slot {slot}"
        assert length <= self.slot_bytes, f"{self.name}: a slot has {self.slot_bytes} bytes, not {length}"
        start = slot * self.slot_bytes
        return self._memory[start : start + length]

    def _take(self, count: int) -> tuple[int, ...]:
        slots = self._blocks.allocate(count)
        assert slots is not None
        self._used.update(slots)
        self.peak = max(self.peak, self.used)
        return tuple(slots)

    def _grant(self) -> None:
        while self._waiting:
            count, granted = self._waiting[0]
            if not granted.done() and count > self.free_slots:
                return
            self._waiting.popleft()
            if not granted.done():
                granted.set_result(self._take(count))

    def _withdraw(self, granted: asyncio.Future[tuple[int, ...]]) -> None:
        """Forget an ask whose owner is gone, perhaps between the grant and its arrival."""
        if granted.done() and not granted.cancelled():
            self.free(granted.result())
            return
        granted.cancel()
        self._waiting = deque(ask for ask in self._waiting if ask[1] is not granted)
        self._grant()

    def _describe(self, count: int) -> str:
        return f"{count} slots of {self.name} ({self.capacity} in all, {self.free_slots} free, {self.used} used)"
