"""A live cluster's placements in a simulation: what its decision log says instead of what a scheduler would decide now
(paper section 6)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

from dualpath.clock import Clock
from dualpath.errors import ClusterError
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, Placed, RequestDescription
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.log import decode
from dualpath.sim.kernel import Kernel
from dualpath.sim.run import SchedulerFactory
from dualpath.sim.spec import ClusterSpec
from dualpath.types import EngineName, RequestId

Sizes = tuple[int, int, int]
"""Prompt, hit and output tokens."""


class ReplayedDecisions(CentralScheduler):
    """Places every request at once, where a log has placed one of the same sizes, first come, first served.

    A log names attempts, not agents and turns. Bytes depend on sizes only, so it does not matter which of two turns of the
    same sizes goes where: every node reads and writes what it did in the live run. Incarnations of an engine are one.
    """

    def __init__(self, limits: SchedulerLimits, clock: Clock, lines: Iterable[str]) -> None:
        """Raises ProtocolError: a line is none of a decision log."""
        super().__init__(limits, clock)
        self._placements = placements(lines)
        self._replayed = 0

    def submit(self, description: RequestDescription) -> list[Decision]:
        """The log's placement.

        Raises:
            ClusterError: the log has none (left) of these sizes, as when turns were preempted, failed, or used a shorter hit.
        """
        found = self._placements.get(_sizes(description))
        if not found:
            raise ClusterError(f"the decision log places no (other) turn of prompt, hit, output {_sizes(description)} tokens")
        self._replayed += 1
        return [replace(found.popleft(), request_id=description.request_id, sequence=self._replayed)]


def replayed(lines: Iterable[str]) -> SchedulerFactory:
    """For ``Simulation``: a scheduler that repeats what this decision log says."""
    kept = list(lines)

    def factory(spec: ClusterSpec, kernel: Kernel) -> CentralScheduler:
        return ReplayedDecisions(spec.limits, kernel, kept)

    return factory


def placements(lines: Iterable[str]) -> dict[Sizes, deque[Placed]]:
    """A log's placements in order, by the sizes of what was placed, with the engines' names as a simulation has them."""
    found: dict[Sizes, deque[Placed]] = defaultdict(deque)
    waiting: dict[RequestId, Sizes] = {}
    for call in map(decode, lines):
        if call.method == "submit":
            (description,) = call.arguments
            waiting[description.request_id] = _sizes(description)
        for decision in call.decisions:
            if isinstance(decision, Placed):
                placed = replace(decision, prefill=_index(decision.prefill), decode=_index(decision.decode))
                found[waiting.pop(decision.request_id)].append(placed)
    return dict(found)


def _sizes(description: RequestDescription) -> Sizes:
    return description.prompt_tokens, description.hit_tokens, description.max_output_tokens


def _index(name: EngineName) -> EngineName:
    """``prefill-0.2``, the third incarnation of ``prefill-0``, without its incarnation."""
    return EngineName(name.partition(".")[0])
