"""The central scheduler with a clock around every call: what it costs by itself (paper section 7.6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, EngineLoad, RequestDescription
from dualpath.sim.kernel import Kernel
from dualpath.sim.spec import ClusterSpec
from dualpath.types import GroupName, RequestId, Role, Side

Result = TypeVar("Result")


@dataclass(slots=True)
class SchedulerTimer:
    """Makes a simulation's scheduler, one that is timed if ``measures``."""

    measures: bool
    _timed: list[TimedScheduler] = field(default_factory=list)

    def scheduler(self, spec: ClusterSpec, kernel: Kernel) -> CentralScheduler:
        """For ``Simulation``."""
        if not self.measures:
            return CentralScheduler(spec.limits, kernel)
        self._timed.append(TimedScheduler(spec.limits, kernel))
        return self._timed[-1]

    @property
    def cpu_s(self) -> float | None:
        """Processor seconds within the scheduler's calls so far; None if it is not timed."""
        return sum(one.cpu_s for one in self._timed) if self.measures else None


class TimedScheduler(CentralScheduler):
    """Counts the processor time (of this thread, so that waiting for a processor is none) of the calls that a running
    cluster makes; reading the clock is in it.

    Attributes:
        cpu_s: seconds so far.
    """

    cpu_s = 0.0

    @property
    def has_waiting(self) -> bool:
        return self._timed(lambda: super(TimedScheduler, self).has_waiting)

    def waiting_for(self, role: Role) -> int:
        return self._timed(super().waiting_for, role)

    def backlogged(self) -> list[GroupName]:
        return self._timed(super().backlogged)

    def submit(self, description: RequestDescription) -> list[Decision]:
        return self._timed(super().submit, description)

    def fetch_prefill(self, group: GroupName, loads: Sequence[EngineLoad]) -> list[Decision]:
        return self._timed(super().fetch_prefill, group, loads)

    def fetch_decode(self, group: GroupName, loads: Sequence[EngineLoad]) -> list[Decision]:
        return self._timed(super().fetch_decode, group, loads)

    def read_progress(self, request_id: RequestId, side: Side, tokens_read: int) -> None:
        self._timed(super().read_progress, request_id, side, tokens_read)

    def prefilled(self, request_id: RequestId) -> None:
        self._timed(super().prefilled, request_id)

    def finished(self, request_id: RequestId) -> None:
        self._timed(super().finished, request_id)

    def failed(self, request_id: RequestId) -> list[Decision]:
        return self._timed(super().failed, request_id)

    def _timed(self, call: Callable[..., Result], *arguments: object) -> Result:
        begun_s = time.thread_time()
        try:
            return call(*arguments)
        finally:
            self.cpu_s += time.thread_time() - begun_s
