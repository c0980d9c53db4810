"""All engines of one role: their groups, their order, and the requests that wait for them (paper section 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dualpath.errors import UnknownEngine
from dualpath.scheduling.decisions import EngineLoad
from dualpath.scheduling.ledger import Capacity, EngineState, GroupState, RequestState, WaitingQueue
from dualpath.types import EngineName, GroupName, RequestId, Role


class RolePool:
    """The engines of one role, and the role's global queue.

    Requests that no engine here can hold any more, since one has left, are set aside until another joins. Every request
    in the queue can thus be held by some engine, or there is none at all.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.queue = WaitingQueue()
        self.groups: dict[GroupName, GroupState] = {}
        self.engines: dict[EngineName, EngineState] = {}
        self._capacities: frozenset[Capacity] = frozenset()
        self._stranded: dict[RequestId, RequestState] = {}
        self._order: list[EngineState] = []
        self._next = 0
        self._groups_joined = 0

    def holds(self, request: RequestState) -> bool:
        """Whether some group here could hold the request if it had nothing else, or there is none at all."""
        for capacity in self._capacities:
            if capacity.holds(request):
                return True
        return not self._capacities

    def report(self, name: GroupName, loads: Sequence[EngineLoad]) -> GroupState:
        """Take over the loads of a group's engines, and return the group.

        Raises:
            UnknownEngine: the group has no engines, or some of these engines are not its own.
        """
        group = self.groups.get(name)
        if group is None or any(load.name not in group.engines for load in loads):
            members = group.engines if group is not None else {}
            strangers = tuple(load.name for load in loads if load.name not in members)
            raise UnknownEngine(f"{self.role} group {name} has no such engines: {', '.join(strangers)}", strangers)
        for load in loads:
            group.engines[load.name].correct(load)
        return group

    def open_group(self, name: GroupName) -> GroupState:
        """The group of this name, a new one if it has no engines yet."""
        group = self.groups.get(name)
        if group is None:
            self._groups_joined += 1
            group = self.groups[name] = GroupState(name, self._groups_joined)
        return group

    def add(self, engine: EngineState) -> None:
        """Let an engine join."""
        self.engines[engine.name] = engine
        self._order.append(engine)
        engine.group.engines[engine.name] = engine
        self._recount(engine.group)

    def remove(self, engine: EngineState) -> None:
        """Let an engine leave, and its group with its last engine. It must hold no requests any more."""
        position = self._order.index(engine)
        del self._order[position], self.engines[engine.name]
        if position < self._next:
            self._next -= 1
        del engine.group.engines[engine.name]
        if not engine.group.engines:
            del self.groups[engine.group.name]
        self._recount(engine.group)

    def take_turn(self, request: RequestState, has_room: Callable[[EngineState], bool]) -> EngineState | None:
        """Strict round robin: the engine whose turn it is, unless it has no room (then the turn stays its own).

        Engines that could never hold the request are passed over.
        """
        count = len(self._order)
        for step in range(count):
            position = (self._next + step) % count
            engine = self._order[position]
            if engine.group.capacity.holds(request):
                if not has_room(engine):
                    return None
                self._next = (position + 1) % count
                return engine
        return None

    def discard(self, request: RequestState) -> None:
        """A request that waits here has left."""
        if self._stranded.pop(request.request_id, None) is None:
            self.queue.has_left()

    def strand(self) -> None:
        """Set aside what no engine can hold, and take back what one can; earlier submitted requests come first."""
        waiting = [*self._stranded.values(), *self.queue]
        held = [request for request in waiting if self.holds(request)]
        if len(held) != len(self.queue) or self._stranded:
            self._stranded = {request.request_id: request for request in waiting if not self.holds(request)}
            self.queue.replace(held)

    def _recount(self, group: GroupState) -> None:
        if group.engines:
            group.capacity = Capacity(*map(min, zip(*(engine.capacity for engine in group.engines.values()), strict=True)))
        capacities = frozenset(group.capacity for group in self.groups.values())
        if capacities != self._capacities:
            self._capacities = capacities
            self.strand()
