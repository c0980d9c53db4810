"""Waiting requests to engines: what a fetch does, adaptive or strictly in turn (paper section 6)."""

from __future__ import annotations

from dualpath.scheduling.decisions import Decision, Placed
from dualpath.scheduling.decode import DecodeChoice, LeastLoaded, balance_limit, decode_engine
from dualpath.scheduling.ledger import MANY_UNSEEN, EngineState, GroupState, RequestState
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.pools import RolePool
from dualpath.scheduling.prefill import PrefillChoice, prefill_engine
from dualpath.scheduling.readside import ReadSide, recompute_is_faster
from dualpath.settings import Placement
from dualpath.types import ReadShare


class Placer:
    """Moves requests from the queues of both pools onto engines, and chooses who reads the hit once both are known.

    ``sequence`` counts placements; ``loads`` has to hear of every change of a decode group's load from elsewhere.
    """

    def __init__(self, limits: SchedulerLimits, prefill: RolePool, decode: RolePool) -> None:
        self.adaptive = limits.placement is Placement.ADAPTIVE
        self.sequence = 0
        self.loads = LeastLoaded()
        self._limits = limits
        self._beta_tokens = limits.beta_tokens
        self._prefill = prefill
        self._decode = decode
        self._share = ReadSide(limits.read_side, limits.block_tokens).share

    def prefill(self, group: GroupState) -> list[Decision]:
        """Place what waits for prefill engines: on those of ``group``, or on whose turn it is."""
        return self._prefill_in_group(group) if self.adaptive else self._prefill_in_order()

    def decode(self, group: GroupState) -> list[Decision]:
        """Place what waits for decode engines: phase 1 and, in ``group``, phase 2; or on whose turn it is."""
        if not self.adaptive:
            return self._decode_in_order()
        queue, assign = self._decode.queue, self.loads.assign
        done = 0
        for request in queue:
            if not request.left and assign(request) is None:
                break
            done += 1
        queue.drop(done)
        return self._decode_in_group(group)

    def resumed(self, request: RequestState, engine: EngineState) -> None:
        """The request is on ``engine`` already, and only there."""
        request.decode, request.decode_group = engine, engine.group
        engine.requests += 1
        engine.tokens += request.prompt_tokens
        engine.reserved_blocks += request.demand_blocks
        engine.group.load_tokens += request.prompt_tokens
        self.loads.changed(engine.group)
        self.sequence = request.sequence = self.sequence + 1

    def _prefill_in_group(self, group: GroupState) -> list[Decision]:
        decisions: list[Decision] = []
        queue, holds = self._prefill.queue, group.capacity.holds
        if not queue:
            return decisions
        if len(queue) == 1 and not queue[0].left:
            only = queue[0]
            engine = prefill_engine(group.engines.values(), self._limits.alpha_s, self._beta_tokens) if holds(only) else None
            if engine is not None:
                queue.popleft()
                self._assign_prefill(only, engine, decisions)
            return decisions
        choice = PrefillChoice(group.engines.values(), self._limits.alpha_s, self._beta_tokens)
        done = 0
        for request in queue:
            if not request.left:
                engine = choice.engine() if holds(request) else None
                if engine is None:
                    break
                self._assign_prefill(request, engine, decisions)
                choice.assigned(engine)
            done += 1
        queue.drop(done)
        return decisions

    def _decode_in_group(self, group: GroupState) -> list[Decision]:
        decisions: list[Decision] = []
        queue, engines = group.queue, group.engines.values()
        request = queue.head()
        if request is not None and len(queue) == 1:
            engine = decode_engine(engines, request.prompt_tokens, request.demand_blocks)
            if engine is not None:
                queue.popleft()
                self._assign_decode(request, engine, decisions)
            return decisions
        if request is None or all(not engine.has_room(request) for engine in engines):
            return decisions
        choice = DecodeChoice(engines, balance_limit(queue.waiting(), engines))
        done = 0
        for request in queue:
            if not request.left:
                engine = choice.engine(request.prompt_tokens, request.demand_blocks)
                if engine is None:
                    break
                self._assign_decode(request, engine, decisions)
                choice.assigned(engine)
            done += 1
        queue.drop(done)
        return decisions

    def _prefill_in_order(self) -> list[Decision]:
        decisions: list[Decision] = []
        queue = self._prefill.queue
        while (request := queue.head()) is not None:
            engine = self._prefill.whose_turn(request)
            if engine is None or engine.tokens > self._beta_tokens:
                break
            queue.popleft()
            self._prefill.turn_taken()
            self._assign_prefill(request, engine, decisions)
        return decisions

    def _decode_in_order(self) -> list[Decision]:
        decisions: list[Decision] = []
        queue = self._decode.queue
        while (request := queue.head()) is not None:
            engine = self._decode.whose_turn(request)
            if engine is None or not engine.has_room(request):
                break
            queue.popleft()
            self._decode.turn_taken()
            request.decode_group = engine.group
            engine.group.load_tokens += request.prompt_tokens
            self._assign_decode(request, engine, decisions)
        return decisions

    def _assign_prefill(self, request: RequestState, engine: EngineState, decisions: list[Decision]) -> None:
        request.prefill = engine
        engine.requests += 1
        engine.tokens += request.prefill_load_tokens
        if request.decode is not None:
            request.decode.half_blocks -= request.demand_blocks
            decisions.append(self._place(request, engine, request.decode))

    def _assign_decode(self, request: RequestState, engine: EngineState, decisions: list[Decision]) -> None:
        request.decode = engine
        engine.requests += 1
        engine.tokens += request.prompt_tokens
        engine.reserved_blocks += request.demand_blocks
        if request.prefill is None:
            engine.half_blocks += request.demand_blocks
        else:
            decisions.append(self._place(request, request.prefill, engine))

    def _place(self, request: RequestState, prefill: EngineState, decode: EngineState) -> Placed:
        """Both engines are known: choose who reads the hit, and count it."""
        prefill_queue, decode_queue, limits = prefill.read_queue, decode.read_queue, self._limits
        share = self._share(request.hit_tokens, prefill_queue, decode_queue, prefill.buffer_tokens)
        rate = limits.prefill_tokens_per_s
        if limits.recompute_when_faster and recompute_is_faster(share, prefill_queue, decode_queue, rate):
            share = ReadShare()
        self.sequence = request.sequence = sequence = self.sequence + 1
        if share.prefill_tokens:
            request.share_prefill = request.unread_prefill = unread = share.prefill_tokens
            prefill.unread_tokens += unread
            prefill_queue.unread_tokens += unread
        if share.decode_tokens:
            request.share_decode = request.unread_decode = unread = share.decode_tokens
            decode.unread_tokens += unread
            decode_queue.unread_tokens += unread
        for engine in (prefill, decode):
            engine.unseen.append(request)
            if len(engine.unseen) > MANY_UNSEEN:
                engine.forget_left()
        return Placed(request.request_id, prefill.name, decode.name, share, sequence)
