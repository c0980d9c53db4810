"""Giving a decode turn's memory back, each part as soon as nobody touches it any more (paper section 2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dualpath.control.messages import Abandon
from dualpath.engine.chain_writer import ChainWriter
from dualpath.engine.decode_turn import DecodeTurn
from dualpath.engine.device_pool import DevicePool
from dualpath.engine.member import Member
from dualpath.traffic.buffers import SlotPool


class Reclaim:
    """Buffer slots and device pages on their way back to their pools. Lives on the control loop.

    ``pages_coming`` counts pages that will be free without anybody's doing; ``on_pages`` is told when some are.
    """

    def __init__(self, member: Member, buffer: SlotPool, pool: DevicePool, on_pages: Callable[[], None]) -> None:
        self.pages_coming = 0
        self._member = member
        self._buffer = buffer
        self._pool = pool
        self._on_pages = on_pages
        self._slots_coming: dict[str, DecodeTurn] = {}

    def slots(self, turn: DecodeTurn) -> None:
        """Take a turn's slots, if it has any, and free them when all who may use them have confirmed."""
        if turn.slots:
            slots, turn.slots = turn.slots, ()
            self._slots_coming[turn.request_id] = turn
            self._member.spawn(self._free_slots(turn, slots))

    def pages(self, turn: DecodeTurn) -> None:
        """Free a turn's pages, now or when the last of them has been copied for its write-back."""
        pages, turn.pages = turn.pages, []
        if not pages:
            return
        if turn.writer.pages_free.is_set():
            self._pool.free(pages)
        else:
            self.pages_coming += len(pages)
            self._member.spawn(self._free_copied(turn.writer, pages))

    def released(self, request_id: str) -> None:
        """The prefill engine does not touch the turn's slots any more."""
        turn = self._slots_coming.get(request_id)
        if turn is not None:
            turn.released.set()

    def fenced(self, prefill: str) -> None:
        """This prefill engine has ended and touches nothing any more."""
        for turn in self._slots_coming.values():
            if turn.assign.prefill == prefill:
                turn.released.set()

    async def _free_slots(self, turn: DecodeTurn, slots: tuple[int, ...]) -> None:
        """Wait for the prefill engine, the storage reads, the handoff and the write-back, in this order."""
        try:
            if turn.granted:
                self._member.to_peer(turn.assign.prefill_address, Abandon(turn.request_id, self._member.address))
                await turn.released.wait()
            if turn.reading is not None:
                await turn.reading.wait_drained()
            if turn.task is not None:  # cancelled during the copy to the device, it ends when that does
                await asyncio.wait((turn.task,))
            await turn.writer.slots_free.wait()
        finally:
            self._slots_coming.pop(turn.request_id, None)
        self._buffer.free(slots)

    async def _free_copied(self, writer: ChainWriter, pages: list[int]) -> None:
        await writer.pages_free.wait()
        self.pages_coming -= len(pages)
        self._pool.free(pages)
        self._on_pages()
