"""The prefill engine: reads its share, packs ready turns under the quota, computes, hands over (paper sections 2 and 6)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch

from dualpath.clock import Clock
from dualpath.control.messages import (
    Abandon,
    Assign,
    BlocksLost,
    DecodeShareRead,
    Granted,
    Handover,
    Message,
    PeerFenced,
    PrefillDone,
    ReadDone,
    RegionInfo,
    Released,
    Stages,
    Tokens,
    TurnFailed,
    Withdraw,
    split_keys,
)
from dualpath.control.turns import EngineStatus, TokenEvent, finish_reason
from dualpath.dataflow.plan import plan
from dualpath.engine.forward import ForwardPass, PrefillCompute
from dualpath.engine.member import Member, traffic_counters
from dualpath.engine.prefill_turn import PrefillTurn
from dualpath.errors import DeadlineExceeded, DualPathError, TransportError
from dualpath.scheduling.batching import Batching, ReadyRequest
from dualpath.traffic.buffers import SlotPool
from dualpath.traffic.manager import TrafficManager
from dualpath.transport.base import RegionDescriptor, Transport
from dualpath.types import BlockKey, ReadShare, RequestId, Side

logger = logging.getLogger(__name__)


class PrefillEngine:
    """Implements ``engine.member.Engine`` for the prefill role."""

    def __init__(
        self,
        member: Member,
        traffic: TrafficManager,
        transport: Transport,
        buffer: SlotPool,
        compute: PrefillCompute,
        batching: Batching,
        clock: Clock,
    ) -> None:
        self._member = member
        self._traffic = traffic
        self._transport = transport
        self._buffer = buffer
        self._compute = compute
        self._batching = batching
        self._clock = clock
        self._spec = member.spec.cluster
        self._geometry = self._spec.geometry
        self._deadlines = self._spec.settings.deadlines
        self._transfers = not self._spec.settings.cluster.oracle
        self._turns: dict[str, PrefillTurn] = {}
        self._ready: deque[PrefillTurn] = deque()
        self._early_grants: dict[str, tuple[int, ...]] = {}
        self._early_reads: dict[str, DecodeShareRead] = {}
        self._fenced: list[str] = []
        self._regions: dict[str, str] = {}
        self._in_forward = False
        self._work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")

    def start(self) -> None:
        """Serve from now on."""
        self._member.spawn_essential(self._serve())

    # --- engine.member.Engine -----------------------------------------------------------------------------------------

    @property
    def region(self) -> RegionInfo | None:
        return None

    @property
    def capacity(self) -> tuple[int, int]:
        return self._spec.prefill_kv_rows // self._geometry.block_tokens, self._buffer.capacity

    def load(self) -> tuple[int, int | None, EngineStatus]:
        status = EngineStatus(
            name=self._member.name,
            role=self._member.spec.role,
            node=self._member.spec.node,
            running=sum(turn.in_forward for turn in self._turns.values()),
            waiting=len(self._turns),
            buffer_blocks=self._buffer.capacity,
            buffer_blocks_free=self._buffer.free_slots,
            attention_s=self._compute.attention_s,
            peak_kv_bytes=self._compute.frames.peak_bytes,
            **traffic_counters(self._traffic),
        )
        waiting = sum(turn.assign.read_prefill_tokens for turn in self._turns.values() if not turn.read_begun)
        return self._traffic.reads.unread_tokens + waiting, None, status

    def handle(self, message: Message) -> None:
        if isinstance(message, Assign):
            self._assign(message)
        elif isinstance(message, Granted):
            self._on_granted(message)
        elif isinstance(message, DecodeShareRead):
            self._on_decode_read(message)
        elif isinstance(message, Withdraw):
            self._withdraw(message.request_id)
        elif isinstance(message, Abandon):
            self._on_abandon(message)
        elif isinstance(message, PeerFenced):
            self._on_fenced(message.name)
        else:
            logger.error("%s: unexpected %s", self._member.name, type(message).__name__)

    def forget_all(self, reason: str) -> None:
        for request_id in list(self._turns):
            self._withdraw(request_id)
        self._early_grants.clear()
        self._early_reads.clear()

    async def close(self) -> None:
        self.forget_all("closing")
        while self._in_forward:
            await asyncio.sleep(0.005)
        self._thread.shutdown(wait=True)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _assign(self, assign: Assign) -> None:
        loop = asyncio.get_running_loop()
        prompt = torch.frombuffer(bytearray(assign.submit.prompt), dtype=torch.int32).to(torch.int64)
        share = ReadShare(assign.read_prefill_tokens, assign.read_decode_tokens)
        layerwise = self._spec.settings.prefill.layerwise
        now = self._clock.now()
        turn = PrefillTurn(
            assign=assign,
            plan=plan(len(prompt), share, self._geometry, layerwise=layerwise, transfers=self._transfers),
            prompt=prompt,
            deadline=now + assign.submit.timeout_s,
            assigned_s=now,
            grant=loop.create_future(),
            decode_read=loop.create_future(),
        )
        self._turns[turn.request_id] = turn
        if (slots := self._early_grants.pop(turn.request_id, None)) is not None:
            turn.grant.set_result(slots)
        if (read := self._early_reads.pop(turn.request_id, None)) is not None:
            turn.decode_read.set_result(read)
        turn.task = self._member.spawn(self._prepare(turn))

    def _on_granted(self, message: Granted) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None:
            self._early_grants[message.request_id] = message.slots
        elif not turn.grant.done():
            turn.grant.set_result(message.slots)

    def _on_decode_read(self, message: DecodeShareRead) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None:
            self._early_reads[message.request_id] = message
        elif not turn.decode_read.done():
            turn.decode_read.set_result(message)

    def _on_abandon(self, message: Abandon) -> None:
        """The decode engine wants its slots back: at once, unless a forward is using them."""
        self._early_grants.pop(message.request_id, None)
        self._early_reads.pop(message.request_id, None)
        turn = self._turns.get(message.request_id)
        if turn is not None and turn.in_forward:
            turn.abandoned_by = message.reply_to
            turn.withdrawn = True
            return
        if turn is not None:
            self._withdraw(message.request_id)
        self._member.to_peer(message.reply_to, Released(message.request_id))

    def _withdraw(self, request_id: str) -> None:
        """Let go of a turn; one in a forward goes when that ends."""
        turn = self._turns.get(request_id)
        if turn is None:
            return
        turn.withdrawn = True
        if not turn.in_forward:
            self._drop(turn)

    def _drop(self, turn: PrefillTurn) -> None:
        self._turns.pop(turn.request_id, None)
        if turn in self._ready:
            self._ready.remove(turn)
        if turn.task is not None:
            turn.task.cancel()
        self._free_prefill_slots(turn)
        if turn.abandoned_by is not None:
            self._member.to_peer(turn.abandoned_by, Released(turn.request_id))

    def _free_prefill_slots(self, turn: PrefillTurn) -> None:
        """Free the prefill side's share, as soon as no storage read can land in it."""
        slots, turn.prefill_slots = turn.prefill_slots, ()
        if slots and turn.reading is not None:
            turn.reading.when_drained(lambda: self._buffer.free(slots))
        elif slots:
            self._buffer.free(slots)

    def _on_fenced(self, name: str) -> None:
        """Forget a peer that has ended; its memory stays mapped until no forward can be using it."""
        for turn in list(self._turns.values()):
            if turn.assign.decode == name:
                self._withdraw(turn.request_id)
        self._fenced.append(name)
        self._detach_fenced()

    def _detach_fenced(self) -> None:
        if self._in_forward:
            return
        for name in self._fenced:
            region = self._regions.pop(name, None)
            if region is not None:
                self._transport.detach(region)
        self._fenced.clear()

    # --- before the forward -------------------------------------------------------------------------------------------

    async def _prepare(self, turn: PrefillTurn) -> None:
        """Reserve and read the prefill side's share, then queue the turn: after this it is ready."""
        try:
            async with asyncio.timeout(max(0.0, turn.deadline - self._clock.now())):
                self._attach(turn)
                turn.decode_slots = await turn.grant
                keys = self._prefill_keys(turn)
                turn.prefill_slots = await self._buffer.allocate(len(keys), self._remaining(turn))
                turn.allocation_s = self._clock.now() - turn.assigned_s
                valid = await self._read(turn, keys)
                if turn.assign.read_decode_tokens:
                    tail = await turn.decode_read
                    turn.decode_slots = tail.slots or turn.decode_slots
                    valid += tail.valid_tokens if valid == turn.assign.read_prefill_tokens else 0
        except TimeoutError:
            self._fail(turn, "the hit was not read before the turn's deadline")
            return
        except DualPathError as error:
            self._fail(turn, str(error))
            return
        if self._transfers:
            turn.plan = turn.plan.shrunk(valid)
        turn.cached = turn.plan.hit_tokens
        turn.ready_s = self._clock.now()
        turn.read_s = turn.ready_s - turn.assigned_s - turn.allocation_s
        self._ready.append(turn)
        self._work.set()

    def _remaining(self, turn: PrefillTurn) -> float:
        return max(0.0, turn.deadline - self._clock.now())

    def _attach(self, turn: PrefillTurn) -> None:
        info = turn.assign.decode_region
        self._transport.attach(RegionDescriptor(info.transport, info.region, info.bytes, info.locator))
        self._regions[turn.assign.decode] = info.region

    def _prefill_keys(self, turn: PrefillTurn) -> list[BlockKey]:
        """Keys of the blocks that this side reads (none if nothing moves)."""
        if not self._transfers:
            return []
        blocks = turn.assign.read_prefill_tokens // self._geometry.block_tokens
        return split_keys(turn.assign.submit.keys)[:blocks]

    async def _read(self, turn: PrefillTurn, keys: list[BlockKey]) -> int:
        """Fill the prefill buffer; the number of usable tokens."""
        turn.read_begun = True
        share = turn.assign.read_prefill_tokens
        if not keys:
            if share:
                self._member.to_scheduler(ReadDone(turn.request_id, Side.PREFILL, share))
            return share
        turn.reading = self._traffic.read(self._buffer, keys, turn.prefill_slots)
        result = await turn.reading
        self._member.to_scheduler(ReadDone(turn.request_id, Side.PREFILL, share))
        if result.bad:
            self._member.to_scheduler(BlocksLost(b"".join(keys[index] for index, _ in result.bad)))
        return result.valid_blocks * self._geometry.block_tokens

    def _fail(self, turn: PrefillTurn, reason: str) -> None:
        self._member.to_scheduler(TurnFailed(turn.request_id, f"{self._member.name}: {reason}"))
        turn.task = None
        self._withdraw(turn.request_id)

    # --- forwards -----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Forward batch after forward batch, as long as turns are ready."""
        loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            batch = self._pack()
            if batch is None:
                self._work.clear()
                continue
            self._in_forward = True
            try:
                tokens = await loop.run_in_executor(self._thread, self._compute.run, batch)
            except (DeadlineExceeded, TransportError, RuntimeError, MemoryError) as error:  # the last two: PyTorch's
                self._after_failure(batch, str(error))
            else:
                self._after_forward(batch, tokens)
            finally:
                self._in_forward = False
                self._detach_fenced()

    def _pack(self) -> ForwardPass | None:
        pending = [ReadyRequest(RequestId(turn.request_id), turn.cached, turn.remaining) for turn in self._ready]
        chunks = self._batching.pack(pending)
        if not chunks:
            return None
        turns = list(itertools.islice(self._ready, len(chunks)))
        for _ in turns:
            self._ready.popleft()
        for turn in turns:
            turn.in_forward = True
        return ForwardPass(turns, chunks)

    def _after_failure(self, batch: ForwardPass, reason: str) -> None:
        logger.error("%s: forward failed: %s", self._member.name, reason)
        for turn in batch.turns:
            turn.in_forward = False
            self._fail(turn, reason)

    def _after_forward(self, batch: ForwardPass, first_tokens: dict[int, TokenEvent]) -> None:
        unfinished: list[PrefillTurn] = []
        for index, (turn, chunk) in enumerate(zip(batch.turns, batch.chunks, strict=True)):
            turn.in_forward = False
            if turn.withdrawn:
                self._drop(turn)
                continue
            turn.cached += chunk.new
            self._free_prefill_slots(turn)
            if turn.remaining:
                unfinished.append(turn)
            else:
                self._hand_over(turn, first_tokens[index])
        self._ready.extendleft(reversed(unfinished))

    def _hand_over(self, turn: PrefillTurn, first: TokenEvent) -> None:
        """The first token to the client, the turn to the decode engine, the news to the scheduler."""
        submit, cached = turn.assign.submit, turn.plan.hit_tokens
        ended = finish_reason(submit.sampling, first.position, first.token, self._compute.eos_token_ids)
        stages = Stages(0.0, turn.allocation_s, turn.read_s, self._clock.now() - turn.ready_s)
        self._member.to_peer(submit.reply_to, Tokens(turn.request_id, (first,)))
        self._member.to_peer(turn.assign.decode_address, Handover(turn.request_id, first, ended, cached, stages))
        self._member.to_scheduler(PrefillDone(turn.request_id))
        turn.task = None
        self._drop(turn)
