"""Write-back of one turn's completed blocks, in chain order: permission, staging, storage, publication (paper section 2)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dualpath.control.messages import Message, WriteGrant, WriteRequest, WriteResult
from dualpath.control.spec import ClusterSpec
from dualpath.errors import DualPathError
from dualpath.kvcache.chain import extend_keys
from dualpath.storage.base import WriteOutcome
from dualpath.traffic.buffers import SlotPool
from dualpath.traffic.manager import TrafficManager
from dualpath.traffic.slices import PagePool
from dualpath.types import BlockKey


class WriteTickets:
    """Write requests on their way to the index owner and back."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[tuple[bool, ...]]] = {}

    def request(self, parent: BlockKey | None, depth: int, keys: Sequence[BlockKey]) -> asyncio.Future[tuple[bool, ...]]:
        """Announce blocks as being written; resolves to which of them are wanted."""
        ticket = next(self._numbers)
        future: asyncio.Future[tuple[bool, ...]] = asyncio.get_running_loop().create_future()
        self._open[ticket] = future
        self._send(WriteRequest(ticket, parent, depth, b"".join(keys)))
        return future

    def granted(self, grant: WriteGrant) -> None:
        future = self._open.pop(grant.ticket, None)
        if future is not None and not future.done():
            future.set_result(grant.wanted)

    def result(self, published: Sequence[BlockKey], failed: Sequence[BlockKey]) -> None:
        """Tell the index owner what became of granted blocks."""
        if published or failed:
            self._send(WriteResult(b"".join(published), b"".join(failed)))

    def refuse_all(self) -> None:
        """The index owner is gone: nothing that was announced will be granted."""
        for future in self._open.values():
            if not future.done():
                future.set_result(())
        self._open.clear()


@dataclass(frozen=True, slots=True)
class DecodeMemory:
    """A decode engine's memory as traffic sees it: prompts' buffer, staging for write-back, device pages."""

    buffer: SlotPool
    staging: SlotPool
    pages: PagePool


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive blocks of the chain with one ticket, lying in buffer slots or in one device page."""

    parent: BlockKey | None
    depth: int
    keys: Sequence[BlockKey]
    slots: Sequence[int]
    page: int | None
    grant: asyncio.Future[tuple[bool, ...]]


class ChainWriter:
    """Grows one turn's chain of keys and writes its new blocks. Lives on the control loop.

    The turn's buffer slots may be freed after ``slots_free``, its pages after ``pages_free``.
    """

    def __init__(self, traffic: TrafficManager, memory: DecodeMemory, tickets: WriteTickets, spec: ClusterSpec) -> None:
        self._traffic = traffic
        self._memory = memory
        self._tickets = tickets
        self._namespace = spec.namespace.digest
        self._block_tokens = spec.geometry.block_tokens
        self._timeout_s = spec.settings.deadlines.transfer_timeout_s
        self._moves = not spec.settings.cluster.oracle
        self._keys: list[BlockKey] = []
        self._pieces: asyncio.Queue[_Piece | None] = asyncio.Queue()
        self.slots_free = asyncio.Event()
        self.pages_free = asyncio.Event()
        self._pages_held = 0
        self._ended = False
        self.slots_free.set()

    def start(self, keys: Sequence[BlockKey], hit_blocks: int, slots: Sequence[int]) -> None:
        """Begin with the prompt's whole blocks, of which the first ``hit_blocks`` are stored already."""
        self._keys = list(keys)
        missed = self._keys[hit_blocks:]
        if missed:
            self.slots_free.clear()
            self._add(hit_blocks, missed, slots[hit_blocks : len(keys)], None)

    def completed(self, tokens: Sequence[int], page: int) -> None:
        """One more block of ``tokens`` is complete, in device page ``page``."""
        parent = self._keys[-1] if self._keys else None
        self._keys += extend_keys(self._namespace, parent, tokens, self._block_tokens)
        self._pages_held += 1
        self._add(len(self._keys) - 1, self._keys[-1:], (), page)

    def end(self) -> None:
        """No more blocks will come."""
        self._ended = True
        self._pieces.put_nowait(None)
        self._page_copied(0)

    def _add(self, depth: int, keys: Sequence[BlockKey], slots: Sequence[int], page: int | None) -> None:
        parent = self._keys[depth - 1] if depth else None
        grant = self._tickets.request(parent, depth, keys)
        self._pieces.put_nowait(_Piece(parent, depth, keys, slots, page, grant))

    def _page_copied(self, pages: int = 1) -> None:
        self._pages_held -= pages
        if self._ended and not self._pages_held:
            self.pages_free.set()

    async def run(self) -> None:
        """Write piece after piece until the end."""
        while (piece := await self._pieces.get()) is not None:
            wanted = await piece.grant
            chosen = [index for index, yes in enumerate(wanted) if yes]
            if not self._moves:
                self._tickets.result([piece.keys[index] for index in chosen], [])
                self._released(piece)
            elif piece.page is None:
                if chosen:
                    await self._write(piece, chosen, self._memory.buffer, [piece.slots[index] for index in chosen])
                self._released(piece)
            else:
                await self._write_page(piece, piece.page, chosen)

    def _released(self, piece: _Piece) -> None:
        if piece.page is None:
            self.slots_free.set()
        else:
            self._page_copied()

    async def _write_page(self, piece: _Piece, page: int, chosen: Sequence[int]) -> None:
        """Through a staging slot, so that the page is free once it is copied."""
        staging = self._memory.staging
        slots: tuple[int, ...] = ()
        try:
            if chosen:
                slots = await staging.allocate(1, self._timeout_s)
                await self._traffic.stage(staging, slots, self._memory.pages, [page])
        except DualPathError:
            self._tickets.result([], piece.keys)
            chosen = ()
        finally:
            self._released(piece)
        if chosen:
            await self._write(piece, chosen, staging, slots)
        elif slots:
            staging.free(slots)

    async def _write(self, piece: _Piece, chosen: Sequence[int], pool: SlotPool, slots: Sequence[int]) -> None:
        """Store the chosen blocks out of a pool's slots; staging slots are freed behind them."""
        blocks = [
            self._traffic.block_write(
                pool, slot, piece.keys[index], piece.keys[index - 1] if index else piece.parent, piece.depth + index
            )
            for index, slot in zip(chosen, slots, strict=True)
        ]
        writing = self._traffic.writes.write(blocks)
        if pool is self._memory.staging:
            writing.when_drained(lambda: pool.free(slots))
        outcomes = await writing
        done = [block.key for block, outcome in zip(blocks, outcomes, strict=True) if outcome is WriteOutcome.OK]
        lost = [block.key for block, outcome in zip(blocks, outcomes, strict=True) if outcome is not WriteOutcome.OK]
        self._tickets.result(done, lost)
        if pool is self._memory.buffer:
            await writing.wait_drained()
