"""Which decode engine gets the next request: first a group, then an engine within it (paper section 6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from dualpath.scheduling.ledger import GroupState, RequestState

BALANCE = 1.05
"""How far above the group's mean an engine's tokens may go before others are preferred."""


class WaitingRequest(Protocol):
    """A request in a group's private queue; ``demand_blocks`` is what it reserves on a decode engine."""

    prompt_tokens: int
    demand_blocks: int


class DecodeCandidate(Protocol):
    """A decode engine in phase 2.

    ``requests`` is ``n_e``, ``tokens`` is ``tok_e``; of ``room_blocks`` above the watermark ``reserved_blocks`` are taken;
    ``allowance`` is the most requests it may hold at once (unlimited but for one that has just come back).
    """

    requests: int
    tokens: int
    room_blocks: int
    reserved_blocks: int
    allowance: int


_requests = attrgetter("requests")
DecodeEngine = TypeVar("DecodeEngine", bound=DecodeCandidate)


class LeastLoaded:
    """Phase 1: the group with the smallest load, kept in a heap so that no choice looks at all groups.

    Entries are never updated in place: before the next choice a group whose load has changed gets a new one, or, when
    many have changed or are stale, all do. Entries whose load is no longer the group's are dropped when they come up.

    Attributes:
        changed: to be called with a group after every change of its load that is not an ``assign``.
    """

    def __init__(self) -> None:
        self._groups: dict[int, GroupState] = {}
        self._heap: list[tuple[int, int]] = []
        self._changed: set[GroupState] = set()
        self._backlog: dict[int, GroupState] = {}
        self.changed: Callable[[GroupState], None] = self._changed.add

    def add(self, group: GroupState) -> None:
        """Let a group take part. Idempotent."""
        self._groups[group.order] = group
        self._changed.add(group)

    def remove(self, group: GroupState) -> None:
        del self._groups[group.order]
        self._backlog.pop(group.order, None)
        self._changed.discard(group)

    def backlogged(self) -> list[GroupState]:
        """Groups that have requests in their private queues (a few have none left but ghosts)."""
        self._backlog = {order: group for order, group in self._backlog.items() if group.queue}
        return list(self._backlog.values())

    def assign(self, request: RequestState) -> GroupState | None:
        """Put the request into the private queue of the group with the smallest load among those that take it.

        The group that joined first wins a tie; None if no group takes the request.
        """
        if self._changed:
            self._push_changed()
        heap, passed_over = self._heap, []
        while heap:
            load, order = heap[0]
            group = self._groups.get(order)
            if group is None or group.load_tokens != load:
                heappop(heap)
            elif group.capacity.holds(request) and (not group.ramping or group.has_open_place()):
                group.queue.append(request)
                self._backlog[order] = group
                group.load_tokens = load = load + request.prompt_tokens
                request.decode_group = group
                heapreplace(heap, (load, order))
                break
            else:
                passed_over.append(heappop(heap))
        for entry in passed_over:
            heappush(heap, entry)
        return request.decode_group

    def _push_changed(self) -> None:
        """Pushing takes several times as long as an entry of a new heap."""
        if 4 * len(self._changed) > len(self._groups) or len(self._heap) > 4 * len(self._groups):
            self._heap = [(group.load_tokens, order) for order, group in self._groups.items()]
            heapify(self._heap)
        else:
            for group in self._changed:
                heappush(self._heap, (group.load_tokens, group.order))
        self._changed.clear()


def balance_limit(waiting: Iterable[WaitingRequest], engines: Collection[DecodeCandidate]) -> float:
    """Phase 2's ``H``: tokens an engine should not pass, from what the group holds and could hold now.

    ``1.05 · (Σ_{r∈S} tokens(r) + Σ_e tok_e) / |G|``, where ``S`` are the requests from the head of the queue that fit
    the sum of free blocks (fragmentation ignored).
    """
    free = tokens = 0
    for engine in engines:
        tokens += engine.tokens
        if engine.room_blocks > engine.reserved_blocks:
            free += engine.room_blocks - engine.reserved_blocks
    for request in waiting:
        free -= request.demand_blocks
        if free < 0:
            break
        tokens += request.prompt_tokens
    return BALANCE * tokens / len(engines)


class DecodeChoice(Generic[DecodeEngine]):
    """Phase 2 over the engines of one group, for one fetch.

    They are kept in order of their requests; of equal ones the one that came to its requests first.
    """

    def __init__(self, engines: Iterable[DecodeEngine], limit_tokens: float) -> None:
        self._limit_tokens = limit_tokens
        self._engines = sorted((engine for engine in engines if engine.requests < engine.allowance), key=_requests)

    def engine(self, prompt_tokens: int, demand_blocks: int) -> DecodeEngine | None:
        """Among the engines with room, the fewest requests within ``H``, else the fewest tokens; None if none has room."""
        most_tokens = self._limit_tokens - prompt_tokens
        fallback: DecodeEngine | None = None
        for engine in self._engines:
            if engine.room_blocks - engine.reserved_blocks >= demand_blocks:
                if engine.tokens <= most_tokens:
                    return engine
                if fallback is None or engine.tokens < fallback.tokens:
                    fallback = engine
        return fallback

    def assigned(self, engine: DecodeEngine) -> None:
        """``engine`` has got a request; one that is at its allowance leaves."""
        engines, requests = self._engines, engine.requests
        engines.remove(engine)
        if requests < engine.allowance:
            position = len(engines)  # bisection with a key would take longer than this loop, which starts near the place
            while position and engines[position - 1].requests > requests:
                position -= 1
            engines.insert(position, engine)


def decode_engine(engines: Collection[DecodeEngine], prompt_tokens: int, demand_blocks: int) -> DecodeEngine | None:
    """What ``DecodeChoice`` with its ``balance_limit`` gives, for a group in which one request only waits."""
    free = tokens = 0
    for engine in engines:
        tokens += engine.tokens
        room = engine.room_blocks - engine.reserved_blocks
        if room > 0:
            free += room
    if demand_blocks <= free:
        tokens += prompt_tokens
    most_tokens = BALANCE * tokens / len(engines) - prompt_tokens
    within: DecodeEngine | None = None
    beyond: DecodeEngine | None = None
    for engine in engines:
        if engine.room_blocks - engine.reserved_blocks >= demand_blocks and engine.requests < engine.allowance:
            if engine.tokens <= most_tokens:
                if within is None or engine.requests < within.requests:
                    within = engine
            elif beyond is None or (engine.tokens, engine.requests) < (beyond.tokens, beyond.requests):
                beyond = engine
    return beyond if within is None else within
