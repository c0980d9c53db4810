"""Virtual time: a heap of events with a total order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class Kernel:
    """Runs actions in the order of their times, those of one time in the order in which they were asked for.

    It is the ``Clock`` of everything in a simulation. ``now_s`` is an attribute since nothing is read more often.
    """

    __slots__ = ("_heap", "_sequence", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._sequence = 0

    def now(self) -> float:
        return self.now_s

    def at(self, time_s: float, action: Action, argument: Any = None) -> None:
        """Call ``action(argument)`` at ``time_s``, which must not be in the past."""
        self._sequence += 1
        heappush(self._heap, (time_s, self._sequence, action, argument))

    def after(self, delay_s: float, action: Action, argument: Any = None) -> None:
        """Call ``action(argument)`` in ``delay_s``."""
        self._sequence += 1
        heappush(self._heap, (self.now_s + delay_s, self._sequence, action, argument))

    def run(self, until_s: float = float("inf")) -> bool:
        """Run until nothing is left to do (False) or the next event is later than ``until_s`` (True).

        Raises:
            ValueError: an event was asked for in the past.
        """
        heap = self._heap
        while heap:
            time_s = heap[0][0]
            if time_s > until_s:
                return True
            if time_s < self.now_s:
                raise ValueError(f"an event at {time_s} s was asked for at {self.now_s} s")
            self.now_s = time_s
            _, _, action, argument = heappop(heap)
            action(argument)
        return False
