"""The scheduler's own books: who waits where, and what each engine and node has been given (paper section 6)."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dualpath.scheduling.decisions import EngineDescription, EngineLoad
from dualpath.scheduling.readside import ReadQueue
from dualpath.types import EngineName, GroupName, RequestId

UNLIMITED = sys.maxsize
MANY_UNSEEN = 64
"""Placements unknown to an engine above which those that have left are forgotten."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest request that an engine could hold with nothing else on it; all of whole blocks."""

    prompt_tokens: int
    context_tokens: int
    hit_tokens: int

    def holds(self, request: RequestState) -> bool:
        """Whether prompt, prompt with output, and the hit all fit."""
        return (
            request.prompt_tokens <= self.prompt_tokens
            and request.context_tokens <= self.context_tokens
            and request.hit_tokens <= self.hit_tokens
        )


def smallest(capacities: Iterable[Capacity]) -> Capacity:
    """What all of them hold; without any, everything."""
    rows = [(UNLIMITED, UNLIMITED, UNLIMITED), *((c.prompt_tokens, c.context_tokens, c.hit_tokens) for c in capacities)]
    return Capacity(*map(min, zip(*rows, strict=True)))


@dataclass(slots=True, eq=False)
class RequestState:
    """A request from submit to its end.

    It waits in a queue for each side until that side's engine is known (half placed: only one is), is placed when both
    are (``sequence`` > 0), read when nothing is unread, prefilled when ``prefill`` is None again. ``decode_group`` is
    the group whose private queue or engine has it, ``left`` whether it has ended. Of the hit tokens that a side reads
    (``share_prefill``, ``share_decode``) it has still to read ``unread_prefill`` and ``unread_decode``.
    """

    request_id: RequestId
    prompt_tokens: int
    context_tokens: int
    hit_tokens: int
    demand_blocks: int
    submitted_s: float
    prefill_load_tokens: int = 0
    left: bool = False
    decode_group: GroupState | None = None
    prefill: EngineState | None = None
    decode: EngineState | None = None
    sequence: int = 0
    share_prefill: int = 0
    share_decode: int = 0
    unread_prefill: int = 0
    unread_decode: int = 0


class WaitingQueue(deque["RequestState"]):
    """First in, first out. Requests that have left stay as ghosts that ``head`` and ``waiting`` skip, until they are many."""

    __slots__ = ("_ghosts",)

    def __init__(self) -> None:
        super().__init__()
        self._ghosts = 0

    def head(self) -> RequestState | None:
        """The first request, or None; ``popleft`` removes it."""
        while self:
            if not self[0].left:
                return self[0]
            self.popleft()
            self._ghosts -= 1
        return None

    def drop(self, count: int) -> None:
        """Remove the first ``count`` entries, ghosts included."""
        if count == len(self):
            self.replace([])
            return
        for _ in range(count):
            if self.popleft().left:
                self._ghosts -= 1

    def waiting(self) -> Iterator[RequestState]:
        """All requests in order."""
        return (request for request in self if not request.left) if self._ghosts else iter(self)

    def waiting_count(self) -> int:
        """How many wait."""
        return len(self) - self._ghosts

    def one_left(self) -> None:
        """A request of this queue has just been marked as left."""
        self._ghosts += 1
        if self._ghosts > 64 + len(self) // 2:
            self.replace(list(self.waiting()))

    def replace(self, requests: list[RequestState]) -> None:
        """Hold these requests, in this order, instead."""
        self.clear()
        self.extend(requests)
        self._ghosts = 0


@dataclass(slots=True, eq=False)
class GroupState:
    """Engines that fetch together; ``order`` counts groups as they joined.

    ``load_tokens`` are the prompt tokens in the private queue and on the engines; ``capacity`` is the smallest
    engine's; ``ramping`` counts the engines with an allowance.
    """

    name: GroupName
    order: int
    capacity: Capacity = Capacity(0, 0, 0)
    engines: dict[EngineName, EngineState] = field(default_factory=dict)
    queue: WaitingQueue = field(default_factory=WaitingQueue)
    load_tokens: int = 0
    ramping: int = 0

    def has_open_place(self) -> bool:
        """Whether the private queue may get another request while all engines are just coming back."""
        if self.ramping < len(self.engines):
            return True
        open_places = sum(max(0, engine.allowance - engine.requests) for engine in self.engines.values())
        return self.queue.waiting_count() < open_places


@dataclass(slots=True, eq=False)
class EngineState:
    """One engine's ledger.

    Attributes:
        decodes: whether it is a decode engine.
        requests: unfinished requests given to it (``n_e``).
        tokens: their prompt tokens, hits included (``tok_e``); of a prefill engine perhaps weighted
            (``SchedulerLimits.prefill_load``).
        unread_tokens: its part of what is placed on the node and not known to be read; ``read_ahead_tokens`` are those
            that a report said were read before their events came, so that the node's queue is shorter by them.
        room_blocks: KV blocks above the watermark, less ``grown_blocks``: those that it reported in use beyond what the
            requests it knew have reserved (decode only).
        reserved_blocks: blocks reserved by its requests; ``half_blocks`` those of requests that are only half placed.
        allowance: the most requests it may hold at once.
        unseen: placements that no report of it has shown to be known to it yet, in order.
    """

    description: EngineDescription
    name: EngineName
    decodes: bool
    group: GroupState
    read_queue: ReadQueue
    capacity: Capacity
    room_blocks: int
    buffer_tokens: int
    allowance: int
    requests: int = 0
    tokens: int = 0
    unread_tokens: int = 0
    read_ahead_tokens: int = 0
    reserved_blocks: int = 0
    half_blocks: int = 0
    grown_blocks: int = 0
    unseen: deque[RequestState] = field(default_factory=deque)

    def has_room(self, request: RequestState) -> bool:
        """Whether the request's blocks are free above the watermark (decode only)."""
        return self.room_blocks - self.reserved_blocks >= request.demand_blocks

    def release_prefill(self, request: RequestState) -> None:
        """The request no longer needs this prefill engine: it is prefilled, or has not come so far."""
        self.requests -= 1
        self.tokens -= request.prefill_load_tokens
        request.prefill = None
        if request.unread_prefill:
            self.read(request.unread_prefill)
            request.unread_prefill = 0

    def release_decode(self, request: RequestState) -> None:
        """The request no longer needs this decode engine."""
        self.requests -= 1
        self.tokens -= request.prompt_tokens
        self.reserved_blocks -= request.demand_blocks
        request.decode = None
        if not request.sequence:
            self.half_blocks -= request.demand_blocks
        if request.unread_decode:
            self.read(request.unread_decode)
            request.unread_decode = 0
        if not self.requests and self.grown_blocks:
            self.set_grown(0)

    def forget_left(self) -> None:
        """An engine that never reports must not keep what has left."""
        while self.unseen and self.unseen[0].left:
            self.unseen.popleft()

    def read(self, tokens: int) -> None:
        """Tokens are known to be read, or need no reading any more."""
        self.unread_tokens -= tokens
        if self.read_ahead_tokens:
            ahead = min(tokens, self.read_ahead_tokens)
            self.read_ahead_tokens -= ahead
            tokens -= ahead
        self.read_queue.unread_tokens -= tokens
        if self.read_ahead_tokens > self.unread_tokens:
            self._set_read_ahead(self.unread_tokens)

    def correct(self, load: EngineLoad) -> None:
        """Take over a report, later placements on top.

        It can only add to what the ledger has in use, and only take off what the ledger has unread: the end of a
        request and its read progress come as events, and those are never older than a report.
        """
        unseen, seen = self.unseen, load.seen
        while unseen and unseen[0].sequence <= seen:
            unseen.popleft()
        later_unread = later_blocks = 0
        decodes = self.decodes
        for request in unseen:
            if not request.left:
                later_unread += request.unread_decode if decodes else request.unread_prefill
                later_blocks += request.demand_blocks
        ahead = self.unread_tokens - later_unread - load.unread_tokens
        if ahead > 0 or self.read_ahead_tokens:
            self._set_read_ahead(max(0, ahead))
        if load.free_kv_blocks is not None:
            used = self.description.kv_blocks - load.free_kv_blocks
            grown = used - (self.reserved_blocks - self.half_blocks - later_blocks)
            if grown > 0 or self.grown_blocks:
                self.set_grown(max(0, grown))

    def set_grown(self, blocks: int) -> None:
        """Blocks in use beyond the reservations."""
        self.room_blocks -= blocks - self.grown_blocks
        self.grown_blocks = blocks

    def _set_read_ahead(self, tokens: int) -> None:
        self.read_queue.unread_tokens -= tokens - self.read_ahead_tokens
        self.read_ahead_tokens = tokens
