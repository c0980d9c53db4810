"""The decode engine: grants buffer, reads its share, decodes in continuous batches, writes blocks back (paper section 2)."""

from __future__ import annotations

import asyncio
import logging
from array import array
from concurrent.futures import ThreadPoolExecutor

from dualpath.clock import Clock
from dualpath.control.messages import (
    Assign,
    BlocksLost,
    DecodeShareRead,
    Granted,
    Handover,
    Message,
    PeerFenced,
    ReadDone,
    RegionInfo,
    Released,
    Tokens,
    TurnEnded,
    TurnFailed,
    Withdraw,
    WriteGrant,
    split_keys,
)
from dualpath.control.turns import EngineStatus, TokenEvent, finish_reason
from dualpath.dataflow.plan import plan
from dualpath.engine.chain_writer import ChainWriter, DecodeMemory, WriteTickets
from dualpath.engine.decode_compute import DecodeCompute, DecodeRow
from dualpath.engine.decode_turn import DecodeTurn
from dualpath.engine.member import Member, traffic_counters
from dualpath.engine.reclaim import Reclaim
from dualpath.errors import DualPathError
from dualpath.traffic.manager import TrafficManager
from dualpath.traffic.reads import Reading
from dualpath.types import ReadShare, Side

logger = logging.getLogger(__name__)


class DecodeEngine:
    """Implements ``engine.member.Engine`` for the decode role."""

    def __init__(
        self,
        member: Member,
        traffic: TrafficManager,
        memory: DecodeMemory,
        compute: DecodeCompute,
        region: RegionInfo,
        clock: Clock,
    ) -> None:
        self._member = member
        self._traffic = traffic
        self._buffer = memory.buffer
        self._memory = memory
        self._compute = compute
        self._pool = compute.pool
        self._region = region
        self._clock = clock
        self._spec = member.spec.cluster
        self._geometry = self._spec.geometry
        self._transfers = not self._spec.settings.cluster.oracle
        self._tickets = WriteTickets(member.to_scheduler)
        self._turns: dict[str, DecodeTurn] = {}
        self._reclaim = Reclaim(member, memory.buffer, compute.pool, self._pages_came)
        self._running: list[DecodeTurn] = []
        self._stepping: list[DecodeTurn] = []
        self._work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")

    def start(self) -> None:
        """Serve from now on."""
        self._member.spawn_essential(self._serve())

    # --- engine.member.Engine -----------------------------------------------------------------------------------------

    @property
    def region(self) -> RegionInfo | None:
        return self._region

    @property
    def capacity(self) -> tuple[int, int]:
        return self._pool.capacity, self._buffer.capacity

    def load(self) -> tuple[int, int | None, EngineStatus]:
        held_back = sum(self._demand(turn) for turn in self._turns.values() if not turn.pages and not turn.ended)
        free = self._pool.free_pages - held_back
        status = EngineStatus(
            name=self._member.name,
            role=self._member.spec.role,
            node=self._member.spec.node,
            running=len(self._running),
            waiting=len(self._turns) - len(self._running),
            kv_blocks=self._pool.capacity,
            kv_blocks_free=self._pool.free_pages,
            buffer_blocks=self._buffer.capacity,
            buffer_blocks_free=self._buffer.free_slots,
            attention_s=self._compute.attention_s,
            **traffic_counters(self._traffic),
        )
        waiting = sum(turn.assign.read_decode_tokens for turn in self._turns.values() if not turn.read_begun)
        return self._traffic.reads.unread_tokens + waiting, free, status

    def handle(self, message: Message) -> None:
        if isinstance(message, Assign):
            self._assign(message)
        elif isinstance(message, Handover):
            self._on_handover(message)
        elif isinstance(message, WriteGrant):
            self._tickets.granted(message)
        elif isinstance(message, Withdraw):
            self._withdraw(message.request_id)
        elif isinstance(message, Released):
            self._reclaim.released(message.request_id)
        elif isinstance(message, PeerFenced):
            self._on_fenced(message.name)
        else:
            logger.error("%s: unexpected %s", self._member.name, type(message).__name__)

    def forget_all(self, reason: str) -> None:
        self._tickets.refuse_all()
        for request_id in list(self._turns):
            self._withdraw(request_id)

    async def close(self) -> None:
        self.forget_all("closing")
        while self._stepping:
            await asyncio.sleep(0.005)
        self._thread.shutdown(wait=True)

    def _demand(self, turn: DecodeTurn) -> int:
        """Pages that a turn starts with: its prompt's and one to grow into (the ledger's HBM demand)."""
        return self._geometry.blocks(turn.prompt_tokens) + 1

    # --- messages -----------------------------------------------------------------------------------------------------

    def _assign(self, assign: Assign) -> None:
        tokens = array("I", bytes(assign.submit.prompt))
        share = ReadShare(assign.read_prefill_tokens, assign.read_decode_tokens)
        settings = self._spec.settings
        turn = DecodeTurn(
            assign=assign,
            plan=plan(len(tokens), share, self._geometry, layerwise=settings.prefill.layerwise, transfers=self._transfers),
            tokens=tokens,
            deadline=self._clock.now() + assign.submit.timeout_s,
            handover=asyncio.get_running_loop().create_future(),
            writer=ChainWriter(self._traffic, self._memory, self._tickets, self._spec),
        )
        self._turns[turn.request_id] = turn
        turn.task = self._member.spawn(self._prepare(turn))

    def _on_handover(self, message: Handover) -> None:
        """The prefill engine is done with our slots, wanted or not."""
        turn = self._turns.get(message.request_id)
        if turn is not None and not turn.handover.done():
            turn.granted = False
            turn.handover.set_result(message)
        else:
            self._reclaim.released(message.request_id)

    def _on_fenced(self, name: str) -> None:
        """A peer has ended: it can write into our buffer no more."""
        self._reclaim.fenced(name)
        for turn in list(self._turns.values()):
            if turn.assign.prefill == name and turn.granted:
                turn.granted = False
                self._fail(turn, f"{name} ended during prefill")

    def _withdraw(self, request_id: str) -> None:
        """Let go of a turn; what others still touch is freed when they have confirmed."""
        turn = self._turns.pop(request_id, None)
        if turn is None:
            return
        turn.ended = True
        if turn.task is not None:
            turn.task.cancel()
        if turn in self._running:
            self._running.remove(turn)
        turn.writer.end()
        self._reclaim.slots(turn)
        if not turn.copying and turn not in self._stepping:
            self._reclaim.pages(turn)

    def _fail(self, turn: DecodeTurn, reason: str) -> None:
        self._member.to_scheduler(TurnFailed(turn.request_id, f"{self._member.name}: {reason}"))
        self._withdraw(turn.request_id)

    def _pages_came(self) -> None:
        """Those who waited for pages may go on."""
        self._work.set()
        self._member.report_soon()

    # --- before decoding ----------------------------------------------------------------------------------------------

    async def _prepare(self, turn: DecodeTurn) -> None:
        """From the assignment until the turn decodes: buffer, read share, handover, device memory, in this order."""
        try:
            async with asyncio.timeout(self._remaining(turn)):
                await self._gather(turn)
                handover = turn.handover.result()
                self._member.spawn(turn.writer.run())
                hit_blocks = handover.cached_tokens // self._geometry.block_tokens
                keys = split_keys(turn.assign.submit.keys)
                turn.writer.start(keys, hit_blocks, turn.slots)
                turn.position = handover.first.position
                turn.tokens.append(handover.first.token)
                if handover.finish_reason is None:
                    await self._load(turn)
        except TimeoutError:
            self._fail(turn, "the prompt was not prefilled before the turn's deadline")
            return
        except DualPathError as error:
            self._fail(turn, str(error))
            return
        if handover.finish_reason is not None:
            self._end(turn, handover.finish_reason)
        else:
            self._reclaim.slots(turn)

    def _remaining(self, turn: DecodeTurn) -> float:
        return max(0.0, turn.deadline - self._clock.now())

    async def _gather(self, turn: DecodeTurn) -> None:
        """Until our buffer holds the whole prompt's KV."""
        blocks = self._geometry.blocks(turn.prompt_tokens)
        turn.slots = await self._buffer.allocate(blocks, self._remaining(turn))
        turn.granted = True
        self._member.to_peer(turn.assign.prefill_address, Granted(turn.request_id, turn.slots))
        if turn.assign.read_decode_tokens:
            valid = await self._read(turn)
            self._member.to_scheduler(ReadDone(turn.request_id, Side.DECODE, turn.assign.read_decode_tokens))
            self._member.to_peer(turn.assign.prefill_address, DecodeShareRead(turn.request_id, valid, turn.slots))
        await turn.handover

    async def _read(self, turn: DecodeTurn) -> int:
        """Fill our part of the buffer with the tail of the hit; its usable tokens."""
        turn.read_begun = True
        if not self._transfers:
            return turn.assign.read_decode_tokens
        block_tokens = self._geometry.block_tokens
        first = turn.assign.read_prefill_tokens // block_tokens
        blocks = range(first, first + turn.assign.read_decode_tokens // block_tokens)
        keys = split_keys(turn.assign.submit.keys)[blocks.start : blocks.stop]
        turn.reading = self._traffic.read(self._buffer, keys, turn.slots[blocks.start : blocks.stop])
        result = await turn.reading
        if result.stalled:
            await self._exchange_slots(turn, turn.reading, range(first + result.valid_blocks, first + turn.reading.issued))
        if result.bad:
            self._member.to_scheduler(BlocksLost(b"".join(keys[index] for index, _ in result.bad)))
        return result.valid_blocks * block_tokens

    async def _exchange_slots(self, turn: DecodeTurn, reading: Reading, blocks: range) -> None:
        """Other slots for blocks whose late bytes must not land on what the prefill engine will write there.

        It has not touched any so far: it waits for our share. The old ones are free when the read has drained.
        """
        old = turn.slots
        kept, late = old[: blocks.start] + old[blocks.stop :], old[blocks.start : blocks.stop]
        turn.slots, turn.reading = kept, None
        reading.when_drained(lambda: self._buffer.free(late))
        fresh = await self._buffer.allocate(len(late), self._remaining(turn), ahead=True)
        turn.slots = old[: blocks.start] + fresh + old[blocks.stop :]

    async def _load(self, turn: DecodeTurn) -> None:
        """Device memory for the prompt, then the copy into it; after this the turn decodes."""
        turn.pages = await self._pool.allocate(self._demand(turn))
        if self._transfers:
            await self._hand_off(turn)
        turn.kv_tokens = turn.prompt_tokens
        turn.started_s = self._clock.now()
        self._running.append(turn)
        self._work.set()

    async def _hand_off(self, turn: DecodeTurn) -> None:
        """Copy the prompt's KV into the pages; a turn that is withdrawn meanwhile gives them back when the copy is over."""
        turn.copying = True
        try:
            await self._traffic.hand_off(self._buffer, turn.slots, self._memory.pages, turn.pages, turn.prompt_tokens)
        finally:
            turn.copying = False
            if turn.ended:
                self._reclaim.pages(turn)

    # --- decoding -----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Step after step, as long as sequences run."""
        while True:
            await self._work.wait()
            batch = self._compose()
            if not batch:
                self._work.clear()
                continue
            try:
                events = await self._step(batch)
            except (RuntimeError, MemoryError) as error:  # what PyTorch raises when a device fails or is full
                self._after_failure(batch, str(error))
                continue
            for turn, event in zip(batch, events, strict=True):
                self._after_step(turn, event)

    async def _step(self, batch: list[DecodeTurn]) -> list[TokenEvent]:
        """The batch's next tokens; while the device computes them, nobody else may free the pages."""
        rows = [self._row(turn) for turn in batch]
        self._stepping = batch
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._compute.step, rows)
        finally:
            self._stepping = []

    def _after_failure(self, batch: list[DecodeTurn], reason: str) -> None:
        logger.error("%s: step failed: %s", self._member.name, reason)
        for turn in batch:
            if not turn.ended:
                self._fail(turn, reason)
            else:
                self._reclaim.pages(turn)

    def _row(self, turn: DecodeTurn) -> DecodeRow:
        return DecodeRow(turn.pages, turn.kv_tokens, turn.last_token, turn.assign.submit.sampling, turn.position + 1)

    def _compose(self) -> list[DecodeTurn]:
        """The sequences of the next step, each with a page for its token; the youngest give way if pages are short."""
        candidates = self._running[: self._spec.settings.decode.max_decode_batch]
        grown = [turn for turn in candidates if not turn.ended and self._grow(turn)]
        batch = [turn for turn in grown if not turn.ended]
        if len(self._running) > len(batch):
            self._running = [turn for turn in self._running if turn not in batch] + batch
        return batch

    def _grow(self, turn: DecodeTurn) -> bool:
        """Make sure that there is a page for the next token; False if the turn gave way or has to wait for pages."""
        if turn.kv_tokens // self._geometry.block_tokens < len(turn.pages):
            return True
        page = self._pool.grow(turn.pages[-1])
        while page is None and not self._reclaim.pages_coming:
            youngest = max(self._running, key=lambda other: other.started_s)
            logger.info("%s: preempting %s", self._member.name, youngest.request_id)
            self._fail(youngest, "preempted: no device memory left")
            if youngest is turn:
                return False
            page = self._pool.grow(turn.pages[-1])
        if page is not None:
            turn.pages.append(page)
        return page is not None

    def _after_step(self, turn: DecodeTurn, event: TokenEvent) -> None:
        if turn.ended:
            self._reclaim.pages(turn)
            return
        turn.kv_tokens += 1
        block_tokens = self._geometry.block_tokens
        if turn.kv_tokens % block_tokens == 0:
            page = turn.pages[turn.kv_tokens // block_tokens - 1]
            turn.writer.completed(turn.tokens[turn.kv_tokens - block_tokens : turn.kv_tokens], page)
        turn.tokens.append(event.token)
        turn.position = event.position
        submit = turn.assign.submit
        self._member.to_peer(submit.reply_to, Tokens(turn.request_id, (event,)))
        reason = finish_reason(submit.sampling, event.position, event.token, self._compute.eos_token_ids)
        if reason is not None:
            self._end(turn, reason)

    def _end(self, turn: DecodeTurn, reason: str) -> None:
        """The last token is out: every block that it completed has been announced before this message."""
        handover = turn.handover.result()
        self._member.to_scheduler(
            TurnEnded(turn.request_id, reason, turn.position + 1, handover.cached_tokens, handover.stages)
        )
        turn.task = None
        self._withdraw(turn.request_id)
        self._member.report_soon()
