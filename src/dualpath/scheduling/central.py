"""The central scheduler: a plain object that is told what happens and answers with decisions (paper section 6).

It sees token counts and names only and does no I/O. The scheduler service decodes messages and calls it, the simulator
calls it directly, a decision log replays through a fresh one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dualpath.clock import Clock
from dualpath.errors import UnknownEngine
from dualpath.scheduling.admission import engine_state, refusal, request_state
from dualpath.scheduling.decisions import (
    Decision,
    EngineDescription,
    EngineLoad,
    LossReason,
    Lost,
    Refused,
    RequestDescription,
)
from dualpath.scheduling.ledger import UNLIMITED, Capacity, EngineState, GroupState, RequestState, smallest
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.placing import Placer
from dualpath.scheduling.pools import RolePool
from dualpath.scheduling.readside import ReadQueue
from dualpath.scheduling.status import SchedulerStatus, engine_ledger
from dualpath.types import EngineName, GroupName, NodeName, RequestId, Role, Side

_PREFILL_SIDE = Side.PREFILL  # reading an enumeration's member takes longer than everything else on the hot path

RAMP_REQUESTS = 4
"""Requests that an engine which joins a running cluster may hold at first; each that ends well adds one."""


class CentralScheduler:
    """Places requests on prefill and decode engines and chooses who reads their hits.

    A request waits for both sides, is half placed when one engine is known, placed when both are; read progress,
    ``prefilled`` and ``finished`` take it off the books step by step. Every accepted request ends exactly once: by
    ``finished``, by a ``Lost`` decision after ``failed``, ``cancel``, ``leave`` or the loss of an engine it needs, or by a
    ``Refused`` one when the last engine that could hold it has gone and others remain.

    Events about unknown requests are ignored and counted in ``late_events`` (engines and clients race). Events about
    unknown engines raise ``UnknownEngine``: the engine has to join again. A prefill engine's ``kv_blocks``, if not 0,
    bounds the prompts it may get. A decode engine's report counts as used what it holds back for the placements it has
    seen, copied to its pool or not.

    An engine that joins after the first placement starts with an empty ledger, so that everything would go to it at
    once; it may hold ``RAMP_REQUESTS`` at first and one more for each that ends well (strict round robin cannot flood
    it and does without).
    """

    def __init__(self, limits: SchedulerLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._pools = {role: RolePool(role) for role in Role}
        self._prefill, self._decode = self._pools[Role.PREFILL], self._pools[Role.DECODE]
        self._placer = Placer(limits, self._prefill, self._decode)
        self._nodes: dict[NodeName, ReadQueue] = {}
        self._requests: dict[RequestId, RequestState] = {}
        self._load_changed = self._placer.loads.changed
        self._waiting = 0
        self._floor = smallest(())
        self.late_events = 0

    @property
    def limits(self) -> SchedulerLimits:
        return self._limits

    @property
    def has_waiting(self) -> bool:
        """Whether an accepted request is not placed on both sides yet: if not, a fetch would only take over the loads."""
        return self._waiting > 0

    def waiting_for(self, role: Role) -> int:
        """How many requests wait for an engine of this role and have no group yet: any group's fetch looks at them."""
        return self._pools[role].queue.waiting_count()

    def backlogged(self) -> list[GroupName]:
        """Decode groups that may have requests of their own waiting: only their own fetches look at these."""
        return [group.name for group in self._placer.loads.backlogged()]

    def engine_joined(self, engine: EngineDescription) -> list[Decision]:
        """Let an engine take part. If one of this name is known, it is given up first."""
        decisions = self.engine_lost(engine.name)
        pool = self._pools[engine.role]
        group = pool.open_group(engine.group)
        ramps = self._placer.adaptive and self._placer.sequence > 0
        queue = self._nodes.setdefault(engine.node, ReadQueue(self._limits.node_rate(engine.node)))
        state = engine_state(engine, group, queue, self._limits, RAMP_REQUESTS if ramps else UNLIMITED)
        group.ramping += ramps
        before, capacity = pool.capacities, group.capacity
        pool.add(state)
        self._floor = smallest((self._prefill.floor, self._decode.floor))
        if pool is self._decode:
            self._placer.loads.add(group)
        if len(group.engines) > 1 and group.capacity != capacity:
            self._start_over()
        return decisions + self._refuse_unheld(pool, before)

    def engine_lost(self, name: EngineName) -> list[Decision]:
        """Give an engine up, whether it said goodbye or fell silent.

        Requests placed on it are lost; all others return to both queues in the order in which they were submitted. An
        unknown name is no error.
        """
        for pool in (self._prefill, self._decode):
            if name in pool.engines:
                return self._remove_engine(pool, pool.engines[name])
        return []

    def submit(self, description: RequestDescription) -> list[Decision]:
        """Accept a request, or refuse it because no engine that has joined could ever hold it.

        Raises:
            ValueError: the hit is no whole blocks, or leaves no token to compute.
        """
        if description.request_id in self._requests:
            self.late_events += 1
            return []
        request = request_state(description, self._limits, self._clock.now())
        if not self._floor.holds(request):
            for pool in (self._decode, self._prefill):
                if not pool.holds(request):
                    return [self._refused(pool, request)]
        self._requests[description.request_id] = request
        self._waiting += 1
        self._prefill.queue.append(request)
        self._decode.queue.append(request)
        return []

    def fetch_prefill(self, group: GroupName, loads: Sequence[EngineLoad]) -> list[Decision]:
        """Give waiting requests to a group's prefill engines, first in, first out (Alg. 1).

        Strict round robin gives to whose turn it is in the whole cluster, whichever group asks. The decisions may name
        engines of other groups and have to be passed on to both sides.

        Raises:
            UnknownEngine: the group, or one of the reporting engines, has not joined or was given up.
        """
        return self._placed(self._placer.prefill(self._prefill.report(group, loads)))

    def fetch_decode(self, group: GroupName, loads: Sequence[EngineLoad]) -> list[Decision]:
        """Give waiting requests to decode engines: groups first, then the engines of this one (two phases).

        As for ``fetch_prefill``, strict round robin asks for no group, and decisions may name engines of others.

        Raises:
            UnknownEngine: the group, or one of the reporting engines, has not joined or was given up.
        """
        return self._placed(self._placer.decode(self._decode.report(group, loads)))

    def resumed(self, description: RequestDescription, decode: EngineName) -> None:
        """A turn goes on where its context still is: it is on that decode engine's books until it ends, on nobody else's.

        The paper's systems have no such turns. It counts as a placement, and the engine knows of it.

        Raises:
            UnknownEngine: there is no such decode engine.
            ValueError: the hit is no whole blocks, or leaves no token to compute.
        """
        engine = self._decode.engines.get(decode)
        if engine is None:
            raise UnknownEngine(f"there is no decode engine {decode}", (decode,))
        if description.request_id in self._requests:
            self.late_events += 1
            return
        request = request_state(description, self._limits, self._clock.now())
        self._requests[description.request_id] = request
        self._placer.resumed(request, engine)

    def read_progress(self, request_id: RequestId, side: Side, tokens_read: int) -> None:
        """``side`` has now read ``tokens_read`` of its share in all (the whole share also when it gives the rest up)."""
        request = self._requests.get(request_id)
        if request is None or not request.sequence:
            self.late_events += 1
        elif side is _PREFILL_SIDE:
            unread, left = request.unread_prefill, request.share_prefill - tokens_read
            if left < unread and request.prefill is not None:
                request.unread_prefill = left = left if left > 0 else 0
                request.prefill.read(unread - left)
        else:
            unread, left = request.unread_decode, request.share_decode - tokens_read
            if left < unread and request.decode is not None:
                request.unread_decode = left = left if left > 0 else 0
                request.decode.read(unread - left)

    def prefilled(self, request_id: RequestId) -> None:
        """The decode engine's buffer holds the whole prompt's KV: the prefill engine's share has ended."""
        request = self._requests.get(request_id)
        if request is None or request.prefill is None or request.decode is None:
            self.late_events += 1
            return
        if request.prefill.allowance < UNLIMITED:
            request.prefill.allowance += 1
        request.prefill.release_prefill(request)
        if request.unread_decode:
            request.decode.read(request.unread_decode)
            request.unread_decode = 0

    def finished(self, request_id: RequestId) -> None:
        """The turn is complete; if ``prefilled`` has not arrived yet, it counts as arrived."""
        request = self._requests.get(request_id)
        if request is None or not request.sequence or request.decode is None:
            self.late_events += 1
            return
        if request.decode.allowance < UNLIMITED:
            request.decode.allowance += 1
        self._remove(request)

    def failed(self, request_id: RequestId) -> list[Decision]:
        """An engine cannot go on with the request."""
        return self.leave(request_id, LossReason.FAILED)

    def cancel(self, request_id: RequestId) -> list[Decision]:
        """The caller gave the request up."""
        return self.leave(request_id, LossReason.CANCELLED)

    def leave(self, request_id: RequestId, reason: LossReason) -> list[Decision]:
        """Take a request off the books in whatever state it is; the decision names the engines that have to be told."""
        request = self._requests.get(request_id)
        if request is None:
            self.late_events += 1
            return []
        return [self._lose(request, reason)]

    def status(self) -> SchedulerStatus:
        """The ledger as it stands; this looks at every request."""
        waiting = [request for request in self._requests.values() if not request.sequence]
        half = Counter(engine.name for r in waiting for engine in (r.prefill, r.decode) if engine is not None)
        engines = [engine for pool in self._pools.values() for engine in pool.engines.values()]
        return SchedulerStatus(
            waiting=len(waiting),
            placed=len(self._requests) - len(waiting),
            sequence=self._placer.sequence,
            late_events=self.late_events,
            longest_wait_s=self._clock.now() - waiting[0].submitted_s if waiting else 0.0,
            engines={engine.name: engine_ledger(engine, half[engine.name]) for engine in engines},
            read_queue_tokens={node: queue.unread_tokens for node, queue in self._nodes.items()},
        )

    def _placed(self, decisions: list[Decision]) -> list[Decision]:
        self._waiting -= len(decisions)
        return decisions

    def _leave_group(self, request: RequestState, group: GroupState) -> None:
        request.decode_group = None
        group.load_tokens -= request.prompt_tokens
        self._load_changed(group)

    def _leave_queues(self, request: RequestState) -> None:
        """To be called before a request that waits, and is marked as left, is taken off the ledgers."""
        self._waiting -= 1
        if request.prefill is None:
            self._prefill.queue.one_left()
        if request.decode is None:
            (self._decode if request.decode_group is None else request.decode_group).queue.one_left()

    def _remove(self, request: RequestState) -> None:
        """Take a request off every queue and ledger."""
        del self._requests[request.request_id]
        request.left = True
        if not request.sequence:
            self._leave_queues(request)
        if request.prefill is not None:
            request.prefill.release_prefill(request)
        if request.decode is not None:
            request.decode.release_decode(request)
        if request.decode_group is not None:
            self._leave_group(request, request.decode_group)

    def _lose(self, request: RequestState, reason: LossReason, gone: EngineState | None = None) -> Lost:
        """Remove a request and name the engines that know it: both once it is placed, the prefill engine until its end."""
        knows = [
            e.name if e is not None and e is not gone and request.sequence else None for e in (request.prefill, request.decode)
        ]
        self._remove(request)
        return Lost(request.request_id, reason, knows[0], knows[1])

    def _remove_engine(self, pool: RolePool, engine: EngineState) -> list[Decision]:
        mine = [r for r in self._requests.values() if r.sequence and engine in (r.prefill, r.decode)]
        decisions: list[Decision] = [self._lose(request, LossReason.ENGINE_LOST, engine) for request in mine]
        self._start_over()
        group, before = engine.group, pool.capacities
        group.ramping -= engine.allowance < UNLIMITED
        pool.remove(engine)
        self._floor = smallest((self._prefill.floor, self._decode.floor))
        if not any(e.read_queue is engine.read_queue for p in self._pools.values() for e in p.engines.values()):
            del self._nodes[engine.description.node]
        if pool is self._decode and not group.engines:
            self._placer.loads.remove(group)
        return decisions + self._refuse_unheld(pool, before)

    def _start_over(self) -> None:
        """Take back everything that is not placed on both sides: to the global queues, in order of submission.

        Half placements are known to the scheduler only, so this costs the engines nothing. If only those on a lost
        engine went back, the two sides would be given out in different orders, and requests that hold a prefill engine
        could wait for ever for decode engines held by requests that wait for that prefill engine.
        """
        waiting = [request for request in self._requests.values() if not request.sequence]
        for request in waiting:
            if request.prefill is not None:
                request.prefill.release_prefill(request)
            if request.decode is not None:
                request.decode.release_decode(request)
            if request.decode_group is not None:
                request.decode_group.queue.replace([])
                self._leave_group(request, request.decode_group)
        self._prefill.queue.replace(waiting)
        self._decode.queue.replace(waiting)

    def _refuse_unheld(self, pool: RolePool, before: frozenset[Capacity]) -> list[Decision]:
        """Nobody may wait at the head of a queue for an engine that has gone: what none here could hold now is refused."""
        if pool.capacities == before:
            return []
        unassigned = [r for r in self._requests.values() if (r.decode if pool is self._decode else r.prefill) is None]
        refused = [request for request in unassigned if not request.sequence and not pool.holds(request)]
        for request in refused:
            self._remove(request)
        return [self._refused(pool, request) for request in refused]

    def _refused(self, pool: RolePool, request: RequestState) -> Refused:
        engines = [engine.description for engine in pool.engines.values()]
        return Refused(request.request_id, refusal(request, engines, self._limits))
