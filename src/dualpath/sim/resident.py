"""The rival without a reload: turns that go on where their context still is, prefilled by the decode engine itself
(paper section 7's comparison that is missing)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dualpath.scheduling.batching import Batching, Chunk
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import RequestDescription
from dualpath.sim.agents import SimAgent
from dualpath.sim.decode import DecodeGroup
from dualpath.sim.handoff import Handoff
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import ClusterSpec


class Context(NamedTuple):
    """What an ended turn has left in a decode engine's HBM."""

    engine: DecodeEngine
    tokens: int
    blocks: int


class Residents:
    """Contexts of ended turns in the HBM that decode engines do not need; the least recently used goes first.

    A context goes when its agent comes again, wherever that turn runs, or when its engine needs the room. Everything is
    in the storage too, so dropping it costs nothing.

    Attributes:
        resumed, evicted: turns that went on where their context was, and contexts dropped for want of room.
        most_blocks: the most blocks that any engine's requests and contexts held together.
    """

    def __init__(self, kv_blocks: int, block_tokens: int) -> None:
        self.resumed = self.evicted = 0
        self.most_blocks = 0
        self._kv_blocks = kv_blocks
        self._block_tokens = block_tokens
        self._contexts: dict[SimAgent, Context] = {}
        self._by_engine: dict[DecodeEngine, OrderedDict[SimAgent, None]] = {}
        self._blocks: dict[DecodeEngine, int] = {}

    def blocks(self, engine: DecodeEngine) -> int:
        """HBM blocks that contexts hold on an engine."""
        return self._blocks.get(engine, 0)

    def keep(self, request: SimRequest) -> None:
        """A turn has ended and left HBM: what it held stays as a context (its last token has no KV)."""
        engine = request.decode
        assert engine is not None
        tokens = request.prompt_tokens + request.output_tokens - 1
        context = Context(engine, tokens, -(-tokens // self._block_tokens))
        self.drop(request.agent)
        self._contexts[request.agent] = context
        self._by_engine.setdefault(engine, OrderedDict())[request.agent] = None
        self._blocks[engine] = self.blocks(engine) + context.blocks
        self.make_room(engine)

    def drop(self, agent: SimAgent) -> Context | None:
        """Forget an agent's context, if there is one."""
        context = self._contexts.pop(agent, None)
        if context is not None:
            del self._by_engine[context.engine][agent]
            self._blocks[context.engine] -= context.blocks
        return context

    def make_room(self, engine: DecodeEngine) -> None:
        """Requests have taken blocks: contexts make way until all fit."""
        contexts = self._by_engine.get(engine)
        while contexts and engine.used_blocks + self._blocks[engine] > self._kv_blocks:
            self.evicted += 1
            self.drop(next(iter(contexts)))
        held = engine.used_blocks + self.blocks(engine)
        if held > self.most_blocks:
            self.most_blocks = held

    def resume(self, request: SimRequest, most_batch: int) -> bool:
        """Give the request its context's place and what more it needs, if there is room beside what is promised to others.

        The context is gone in any case: what runs elsewhere leaves another one.
        """
        context = self.drop(request.agent)
        if context is None:
            return False
        engine = context.engine
        blocks = 1 - (-request.prompt_tokens // self._block_tokens)
        room = self._kv_blocks - engine.used_blocks - engine.promised_blocks
        if blocks > room or engine.waiting or engine.admitted >= most_batch:
            return False
        hit = min(context.tokens, request.agent.sizes[request.turn].hit_tokens, request.prompt_tokens - 1)
        request.decode = engine
        request.hit_tokens = request.cached = hit
        request.new = request.prompt_tokens - hit
        request.kv_blocks = blocks
        engine.take_blocks(blocks)
        engine.admitted += 1
        self.resumed += 1
        self.make_room(engine)
        return True


class ResidentGroup(DecodeGroup):
    """Decode engines that also compute the new tokens of resumed turns: a chunk of them rides along with a step.

    In a step each engine computes at most ``resident_chunk_tokens`` of the turns that wait on it, in order. The slowest
    engine's attention, of decode and chunks together, and the experts' time for all tokens make the step's length, for
    everyone. What the chunks' all-to-all takes of the compute NICs is left out: no prompt's KV competes with it here.

    Attributes:
        chunk_tokens: prompt tokens computed so far.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: ClusterSpec,
        engines: Sequence[DecodeEngine],
        finished: Callable[[SimRequest], None],
        preempted: Callable[[SimRequest, int], None],
        prefilled: Callable[[SimRequest], bool],
        residents: Residents,
    ) -> None:
        """``prefilled`` is told when a resumed turn has its first token; it answers whether there are more to come."""
        super().__init__(kernel, spec, engines, finished, preempted)
        self.chunk_tokens = 0
        self._prefilled = prefilled
        self._residents = residents
        self._attention_time = spec.resident_attention or spec.prefill.attention_time
        self._prefill_step = spec.prefill.step_time.step
        self._layers = spec.geometry.layers
        self._batching = Batching(
            self._attention_time,
            quota_s=float("inf"),
            max_batch_tokens=spec.resident_chunk_tokens,
            kv_rows=spec.decode.kv_blocks * spec.geometry.block_tokens,
            block_tokens=spec.geometry.block_tokens,
        )
        self._ready: list[deque[SimRequest]] = [deque() for _ in engines]
        self._chunks: list[tuple[SimRequest, Chunk]] = []
        self._new_tokens = 0

    def prefill(self, request: SimRequest) -> None:
        """The request's context is in HBM: its new tokens are computed from the next step on, then it decodes."""
        assert request.decode is not None
        self._ready[request.decode.place].append(request)
        self._comes()

    def _advance(self) -> list[SimRequest]:
        self._end_chunks()
        joined = super()._advance()
        self._pack()
        return joined

    def _end_chunks(self) -> None:
        """The step's chunks are computed; a prompt's last one has given the first token."""
        chunks, self._chunks = self._chunks, []
        for request, chunk in chunks:
            request.cached += chunk.new
            request.new -= chunk.new
            self.chunk_tokens += chunk.new
            if chunk.last:
                assert request.decode is not None
                self._ready[request.decode.place].popleft()
                if self._prefilled(request):
                    self._joining.append(request)

    def _pack(self) -> None:
        self._new_tokens = 0
        for ready in self._ready:
            if ready:
                packed = self._batching.pack(ready)
                self._chunks.extend(zip(ready, packed, strict=False))
                self._new_tokens += sum(chunk.new for chunk in packed)

    def _has_work(self) -> bool:
        return bool(self._chunks) or super()._has_work()

    def _step_seconds(self) -> float:
        if not self._chunks:
            return super()._step_seconds()
        engine_s = list(self._engine_s)
        for request, chunk in self._chunks:
            assert request.decode is not None
            engine_s[request.decode.place] += self._attention_time(chunk.cached, chunk.new) / self._layers
        count = len(self.engines)
        experts_s = self._prefill_step(0.0, self._new_tokens / count) - self._prefill_step(0.0, 0.0)
        return self._time.step(max(engine_s), self._requests / count) + experts_s

    def _next_change(self) -> int:
        return self._step + 1 if self._chunks else super()._next_change()

    def _grow(self, request: SimRequest) -> None:
        super()._grow(request)
        if request.decode is not None:
            self._residents.make_room(request.decode)


class ResidentPath:
    """A turn's way through a cluster if its context is still in HBM: no read, no buffer, no prefill engine, no hand-off.

    Attributes:
        residents: the contexts.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: ClusterSpec,
        scheduler: CentralScheduler,
        handoff: Handoff,
        end: Callable[[SimRequest], None],
    ) -> None:
        """``end`` is called with a turn whose first token is its last."""
        self.residents = Residents(spec.decode.kv_blocks, spec.geometry.block_tokens)
        self._kernel = kernel
        self._scheduler = scheduler
        self._handoff = handoff
        self._end = end
        self._most_batch = spec.decode.max_batch
        self._block_tokens = spec.geometry.block_tokens

    def begin(self, request: SimRequest) -> bool:
        """Whether the turn goes on where its context is; the scheduler then has it on that decode engine's books."""
        if not self.residents.resume(request, self._most_batch):
            return False
        assert request.decode is not None
        hit = request.hit_tokens // self._block_tokens * self._block_tokens
        self._scheduler.resumed(
            RequestDescription(request.request_id, request.prompt_tokens, hit, request.output_tokens), request.decode.name
        )
        if request.placed_s != request.placed_s:
            request.placed_s = request.granted_s = request.read_s = self._kernel.now_s
        return True

    def prefilled(self, request: SimRequest) -> bool:
        """The first token is there; whether there are more to come."""
        if request.first_s != request.first_s:
            request.first_s = self._kernel.now_s
        self._handoff.write_prompt(request)
        if request.output_tokens > 1:
            return True
        assert request.decode is not None
        request.decode.used_blocks -= request.kv_blocks
        request.kv_blocks = 0
        self.residents.keep(request)
        self._end(request)
        self._handoff.left(request)
        return False
