"""All engines of one role: their groups, their order, and the requests that wait for them (paper section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from dualpath.errors import UnknownEngine
from dualpath.scheduling.decisions import EngineLoad
from dualpath.scheduling.ledger import Capacity, EngineState, GroupState, RequestState, WaitingQueue, smallest
from dualpath.types import EngineName, GroupName, Role


class RolePool:
    """The engines of one role, the role's global queue, and what the engines could hold.

    ``capacities`` are the groups', ``floor`` is what every one of them holds.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.queue = WaitingQueue()
        self.groups: dict[GroupName, GroupState] = {}
        self.engines: dict[EngineName, EngineState] = {}
        self.capacities: frozenset[Capacity] = frozenset()
        self.floor = smallest(())
        self._order: list[EngineState] = []
        self._next = 0
        self._groups_joined = 0

    def holds(self, request: RequestState) -> bool:
        """Whether some group here could hold the request if it had nothing else, or there is none at all."""
        for capacity in self.capacities:
            if capacity.holds(request):
                return True
        return not self.capacities

    def report(self, name: GroupName, loads: Sequence[EngineLoad]) -> GroupState:
        """Take over the loads of a group's engines, and return the group.

        Raises:
            UnknownEngine: the group has no engines, or some of these engines are not its own.
        """
        group = self.groups.get(name)
        if group is not None and not loads:
            return group
        engines = group.engines if group is not None else {}
        try:
            reported = [(engines[load.name], load) for load in loads]
        except KeyError:
            reported = []
        if group is None or len(reported) != len(loads):
            strangers = tuple(load.name for load in loads if load.name not in engines)
            raise UnknownEngine(f"{self.role} group {name} has no such engines: {', '.join(strangers)}", strangers)
        for engine, load in reported:
            engine.correct(load)
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

    def whose_turn(self, request: RequestState) -> EngineState | None:
        """Strict round robin: the next engine in order, passing over those that could never hold the request."""
        count = len(self._order)
        for position in chain(range(self._next, count), range(self._next)):
            if self._order[position].group.capacity.holds(request):
                self._next = position
                return self._order[position]
        return None

    def turn_taken(self) -> None:
        """The engine whose turn it was has got its request."""
        self._next = (self._next + 1) % len(self._order)

    def _recount(self, group: GroupState) -> None:
        group.capacity = smallest(engine.capacity for engine in group.engines.values())
        self.capacities = frozenset(group.capacity for group in self.groups.values())
        self.floor = smallest(self.capacities)
