"""A simulated cluster: the real central scheduler and plans, and nodes whose time passes in closed form
(paper sections 2 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dualpath.dataflow.charges import Stage, per_token
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, EngineDescription, Placed, Refused, RequestDescription
from dualpath.sim.decode import DecodeGroup
from dualpath.sim.dispatch import Dispatcher
from dualpath.sim.handoff import Handoff
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine, PrefillEngine, SimNode
from dualpath.sim.prefill import PrefillGroup
from dualpath.sim.reads import Reads
from dualpath.sim.request import SimRequest
from dualpath.sim.resident import ResidentGroup, ResidentPath
from dualpath.sim.spec import ClusterSpec
from dualpath.types import RequestId, Role

Engine = TypeVar("Engine", PrefillEngine, DecodeEngine)


class SimCluster:
    """Takes turns, and tells when they are done.

    Attributes:
        preempted: turns that had to leave HBM and start again.
        resident: of a cluster whose decode engines keep contexts; else None.
        unfinished: turns accepted and not done, by the id of their attempt.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: ClusterSpec,
        scheduler: CentralScheduler,
        done: Callable[[SimRequest], None],
        refused: Callable[[SimRequest, str], None],
    ) -> None:
        """``done`` is called when a turn's last token is there, ``refused`` when no engine could ever hold it."""
        self.spec = spec
        self.preempted = 0
        self.unfinished: dict[RequestId, SimRequest] = {}
        self._kernel = kernel
        self._scheduler = scheduler
        self._done = done
        self._refused = refused
        self._attempts = 0
        charges = per_token(spec.geometry, layerwise=spec.prefill.layerwise, transfers=spec.transfers)
        self._reads = Reads(kernel, scheduler, charges[Stage.READ], spec.latencies.read_s, self._ready)
        self._handoff = Handoff(kernel, spec, charges, self._decodes, self._submit, self._admitted if spec.resident else None)
        self.resident = ResidentPath(kernel, spec, scheduler, self._handoff, self._end) if spec.resident else None
        prefill, decode = spec.prefill, spec.decode
        self.prefill_nodes = self._nodes(Role.PREFILL, prefill.nodes, prefill.buffer_tokens, self._reads.granted)
        self.decode_nodes = self._nodes(Role.DECODE, decode.nodes, decode.buffer_tokens, self._reads.decode_granted)
        self.prefill_groups = [
            PrefillGroup(kernel, spec, engines, charges, self._prefilled)
            for engines in _groups(self.prefill_nodes, spec.step_engines(prefill.step_nodes), PrefillEngine)
        ]
        self.decode_groups = [
            self._decode_group(engines)
            for engines in _groups(self.decode_nodes, spec.step_engines(decode.step_nodes), DecodeEngine)
        ]
        self._join()
        self._prefill_engines = {engine.name: engine for group in self.prefill_groups for engine in group.engines}
        self._decode_engines = {engine.name: engine for group in self.decode_groups for engine in group.engines}
        self._in_flight = 0
        self._dispatcher = Dispatcher(
            kernel, scheduler, self.nodes, decode.kv_blocks, spec.fetch_interval_s, self._decide, lambda: self._in_flight
        )

    @property
    def nodes(self) -> list[SimNode]:
        return self.prefill_nodes + self.decode_nodes

    def new_id(self) -> RequestId:
        """An id that no attempt has had."""
        self._attempts += 1
        return RequestId(str(self._attempts))

    def longest_wait_s(self) -> float:
        """How long the turn that waits longest has waited for its first token; this looks at every unfinished turn."""
        waiting = [request.sent_s for request in self.unfinished.values() if request.first_s != request.first_s]
        return self._kernel.now_s - min(waiting) if waiting else 0.0

    def submit(self, request: SimRequest) -> None:
        """Take a turn once its hit is stored, or refuse it because no engine could ever hold it."""
        if self.resident is not None and self.resident.begin(request):
            self._resumed(request)
        elif request.agent.writing:
            request.agent.waiting = request
        else:
            self._submit(request)

    def _submit(self, request: SimRequest) -> None:
        if not self.prefill_groups[0].fits(request.prompt_tokens):
            rows = f"{self.spec.prefill_kv_rows} tokens of KV that a prefill batch may hold"
            self._refused(request, f"a prompt of {request.prompt_tokens} tokens exceeds the {rows}")
            return
        self.unfinished[request.request_id] = request
        decisions = self._scheduler.submit(
            RequestDescription(request.request_id, request.prompt_tokens, request.hit_tokens, request.output_tokens)
        )
        if decisions:
            self._decide(decisions)
        else:
            self._dispatcher.submitted()

    def _decode_group(self, engines: Sequence[DecodeEngine]) -> DecodeGroup:
        arguments = (self._kernel, self.spec, engines, self._finished, self._preempted)
        if self.resident is None:
            return DecodeGroup(*arguments)
        return ResidentGroup(*arguments, self.resident.prefilled, self.resident.residents)

    def _resumed(self, request: SimRequest) -> None:
        """The turn is where its context is: that engine computes what is new."""
        assert request.decode is not None
        self.unfinished[request.request_id] = request
        self._in_flight += 1
        self._dispatcher.sequence += 1
        group = self.decode_groups[request.decode.group]
        assert isinstance(group, ResidentGroup)
        group.prefill(request)

    def _admitted(self, engine: DecodeEngine) -> None:
        assert self.resident is not None
        self.resident.residents.make_room(engine)

    def _nodes(self, role: Role, count: int, buffer_tokens: int, granted: Callable[[SimRequest], None]) -> list[SimNode]:
        return [SimNode(role, number, self.spec.node, buffer_tokens, granted) for number in range(count)]

    def _join(self) -> None:
        kv_blocks = {Role.PREFILL: 0, Role.DECODE: self.spec.decode.kv_blocks}
        for node in self.nodes:
            buffer_blocks = node.buffer.capacity // self.spec.geometry.block_tokens
            for engine in node.engines:
                self._scheduler.engine_joined(
                    EngineDescription(engine.name, node.role, node.group, node.name, kv_blocks[node.role], buffer_blocks)
                )

    def _decide(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is Placed:
                self._placed(decision)
            elif isinstance(decision, Refused):
                self._refused(self.unfinished.pop(decision.request_id), decision.reason)

    def _placed(self, placed: Placed) -> None:
        request = self.unfinished[placed.request_id]
        self._in_flight += 1
        request.prefill = self._prefill_engines[placed.prefill]
        request.decode = decode = self._decode_engines[placed.decode]
        request.head, request.tail = placed.share.prefill_tokens, placed.share.decode_tokens
        if request.head + request.tail < request.hit_tokens:  # recomputing is predicted to be faster
            request.hit_tokens = request.cached = 0
            request.new = request.prompt_tokens
            if not request.generated_before:
                request.reused_tokens = 0
        if request.placed_s != request.placed_s:  # a later attempt keeps the first one's stamps
            request.placed_s = self._kernel.now_s
        self._dispatcher.sequence = placed.sequence
        decode.promised_blocks += self._handoff.blocks(request)
        if self.spec.transfers:
            self._reads.begin(request)
        else:
            self._reads.skip(request)

    def _ready(self, request: SimRequest) -> None:
        assert request.prefill is not None
        self.prefill_groups[request.prefill.group].ready(request)

    def _prefilled(self, request: SimRequest) -> None:
        """The next token is there, and the decode node's buffer holds the whole prompt's KV."""
        if request.first_s != request.first_s:
            request.first_s = self._kernel.now_s
        self._scheduler.prefilled(request.request_id)
        if request.output_tokens > 1:
            self._handoff.prefilled(request)
        else:
            self._handoff.ended_early(request)
            self._end(request)

    def _decodes(self, request: SimRequest) -> None:
        assert request.decode is not None
        self.decode_groups[request.decode.group].join(request)

    def _finished(self, request: SimRequest) -> None:
        """The last token is there."""
        self._handoff.write_output(request, request.output_tokens)
        if self.resident is not None:
            self.resident.residents.keep(request)
        self._end(request)
        self._handoff.left(request)

    def _end(self, request: SimRequest) -> None:
        self._scheduler.finished(request.request_id)
        del self.unfinished[request.request_id]
        self._in_flight -= 1
        self._done(request)

    def _preempted(self, request: SimRequest, generated: int) -> None:
        """The request comes back with what it has generated as part of its prompt; what was stored of it is a hit."""
        self.preempted += 1
        self._scheduler.failed(request.request_id)
        del self.unfinished[request.request_id]
        self._in_flight -= 1
        self._handoff.write_output(request, generated)
        self._handoff.left(request)
        request.restart(self.new_id(), generated, self.spec.geometry.block_tokens)
        self.submit(request)


def _groups(nodes: Sequence[SimNode], size: int, kind: type[Engine]) -> Iterator[list[Engine]]:
    """Every ``size`` engines, each told the number of its group."""
    engines = [engine for node in nodes for engine in node.engines if isinstance(engine, kind)]
    for number, first in enumerate(range(0, len(engines), size)):
        group = engines[first : first + size]
        for engine in group:
            engine.group = number
        yield group
