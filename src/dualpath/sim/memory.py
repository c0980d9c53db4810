"""Bounded memory that is granted first in, first out: DRAM buffers (paper section 2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class Buffer(Generic[Holder]):
    """A DRAM buffer of ``capacity`` tokens; who does not fit waits, and so does everyone behind.

    Attributes:
        used: tokens granted and not yet given back.
        most_used: the most there ever were.
    """

    __slots__ = ("_granted", "_waiting", "capacity", "most_used", "used")

    def __init__(self, capacity: int, granted: Callable[[Holder], None]) -> None:
        self.capacity = capacity
        self.used = 0
        self.most_used = 0
        self._granted = granted
        self._waiting: deque[tuple[int, Holder]] = deque()

    def ask(self, tokens: int, holder: Holder) -> None:
        """Call ``granted(holder)``, now or once there is room."""
        if self._waiting or self.used + tokens > self.capacity:
            self._waiting.append((tokens, holder))
            return
        self._take(tokens)
        self._granted(holder)

    def give_back(self, tokens: int) -> None:
        """Free what a holder had, and grant what fits now."""
        self.used -= tokens
        waiting = self._waiting
        while waiting and self.used + waiting[0][0] <= self.capacity:
            size, holder = waiting.popleft()
            self._take(size)
            self._granted(holder)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def _take(self, tokens: int) -> None:
        self.used += tokens
        if self.used > self.most_used:
            self.most_used = self.used
