"""From placement to readiness: buffers in their order, then the storage reads of both sides (paper section 2)."""

from __future__ import annotations

from collections.abc import Callable

from dualpath.dataflow.charges import PerToken
from dualpath.scheduling.central import CentralScheduler
from dualpath.sim.kernel import Kernel
from dualpath.sim.request import SimRequest
from dualpath.types import Side

_PREFILL_SIDE, _DECODE_SIDE = Side.PREFILL, Side.DECODE


class Reads:
    """Reserves a placed request's buffers and reads its hit.

    The decode node's buffer comes first, for the whole prompt, then the prefill node's, for what its side reads: nobody
    holds a later one while waiting for an earlier one.
    """

    def __init__(
        self,
        kernel: Kernel,
        scheduler: CentralScheduler,
        charges: PerToken,
        latency_s: float,
        ready: Callable[[SimRequest], None],
    ) -> None:
        self._kernel = kernel
        self._scheduler = scheduler
        self._latency_s = latency_s
        self._ready = ready
        self._head_snic, self._head_dram = charges.head.pe_snic_read, charges.head.pe_dram
        self._tail_snic, self._tail_dram = charges.tail.de_snic_read, charges.tail.de_dram

    def begin(self, request: SimRequest) -> None:
        """Reserve, then read."""
        assert request.decode is not None
        request.decode.unread_tokens += request.tail  # what still waits for a buffer is not read either
        request.decode.node.buffer.ask(request.prompt_tokens, request)

    def skip(self, request: SimRequest) -> None:
        """The Oracle holds no buffers and moves no bytes: the hit is there at once."""
        _stamp_granted(request, self._kernel.now_s)
        if request.head:
            self._scheduler.read_progress(request.request_id, _PREFILL_SIDE, request.head)
        if request.tail:
            self._scheduler.read_progress(request.request_id, _DECODE_SIDE, request.tail)
        request.head = request.tail = 0
        self._done(request)

    def decode_granted(self, request: SimRequest) -> None:
        """The decode node's buffer has room for the whole prompt."""
        if request.head:
            assert request.prefill is not None
            request.prefill.node.buffer.ask(request.head, request)
        else:
            self.granted(request)

    def granted(self, request: SimRequest) -> None:
        """All buffers are there."""
        kernel, head, tail = self._kernel, request.head, request.tail
        now_s = kernel.now_s
        _stamp_granted(request, now_s)
        if not head and not tail:
            self._done(request)
            return
        assert request.prefill is not None
        assert request.decode is not None
        request.unread = bool(head) + bool(tail)
        if head:
            node = request.prefill.node
            read_s = node.snic_read.carry(now_s, head * self._head_snic)
            stored_s = node.dram.carry(now_s, head * self._head_dram)
            kernel.at(max(read_s, stored_s) + self._latency_s, self._head_read, request)
        if tail:
            node = request.decode.node
            read_s = node.snic_read.carry(now_s, tail * self._tail_snic)
            stored_s = node.dram.carry(now_s, tail * self._tail_dram)
            kernel.at(max(read_s, stored_s) + self._latency_s, self._tail_read, request)

    def _head_read(self, request: SimRequest) -> None:
        self._scheduler.read_progress(request.request_id, _PREFILL_SIDE, request.head)
        self._side_read(request)

    def _tail_read(self, request: SimRequest) -> None:
        assert request.decode is not None
        request.decode.unread_tokens -= request.tail
        self._scheduler.read_progress(request.request_id, _DECODE_SIDE, request.tail)
        self._side_read(request)

    def _side_read(self, request: SimRequest) -> None:
        request.unread -= 1
        if not request.unread:
            self._done(request)

    def _done(self, request: SimRequest) -> None:
        if request.read_s != request.read_s:
            request.read_s = self._kernel.now_s
        self._ready(request)


def _stamp_granted(request: SimRequest, now_s: float) -> None:
    if request.granted_s != request.granted_s:  # a later attempt keeps the first one's stamps
        request.granted_s = now_s
