"""From the first token to the last: HBM on the decode side, write-back, preemption (paper section 2)."""

from __future__ import annotations

from collections.abc import Callable

from dualpath.dataflow.charges import PerToken, Stage
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine, SimNode
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import ClusterSpec


class Handoff:
    """Copies prefilled prompts into HBM as it becomes free, and writes back what is new.

    A prompt's place in the DRAM buffer is free once it is both in HBM and written back. An Oracle does neither and holds
    no buffer.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: ClusterSpec,
        charges: dict[Stage, PerToken],
        decodes: Callable[[SimRequest], None],
    ) -> None:
        self._kernel = kernel
        self._decodes = decodes
        self._transfers = spec.transfers
        self._latency_s = spec.latencies.handoff_s
        self._block_tokens = spec.geometry.block_tokens
        self._kv_blocks = spec.decode.kv_blocks
        self._max_batch = spec.decode.max_batch
        copy, write = charges[Stage.HANDOFF], charges[Stage.WRITE_BACK].new
        assert copy.head == copy.tail == copy.new, "a hand-off moves all tokens of a prompt alike"
        self._copy_read, self._copy_write, self._copy_dram = copy.new.de_cnic_read, copy.new.de_cnic_write, copy.new.de_dram
        self._write_snic, self._write_dram = write.de_snic_write, write.de_dram

    def blocks(self, request: SimRequest) -> int:
        """What a request takes at first: its prompt's blocks and one more, as the scheduler reserves."""
        return 1 - (-request.prompt_tokens // self._block_tokens)

    def prefilled(self, request: SimRequest) -> None:
        """The prompt's KV is in the DRAM buffer and the turn goes on."""
        decode = request.decode
        assert decode is not None
        if decode.waiting or not self._admit(decode, request):
            decode.waiting.append(request)

    def ended_early(self, request: SimRequest) -> None:
        """The first token was the last: nothing goes to HBM, but the prompt is written back."""
        assert request.decode is not None
        request.decode.promised_blocks -= self.blocks(request)
        if self._transfers:
            self._release_at(self._write_prompt(request), request)

    def left(self, request: SimRequest) -> None:
        """A request has left HBM: who waits for it may come in."""
        decode = request.decode
        assert decode is not None
        decode.admitted -= 1
        waiting = decode.waiting
        while waiting and self._admit(decode, waiting[0]):
            waiting.popleft()

    def write_output(self, request: SimRequest, output_tokens: int) -> None:
        """Write back the blocks that a turn's output has completed; they were staged and written one by one."""
        if self._transfers:
            assert request.decode is not None
            block = self._block_tokens
            whole = (request.prompt_tokens + output_tokens - 1) // block - request.prompt_tokens // block
            self._stored(request, self._write(request.decode.node, whole * block))

    def _admit(self, decode: DecodeEngine, request: SimRequest) -> bool:
        """Take HBM and copy, if there is room."""
        blocks = self.blocks(request)
        if decode.used_blocks + blocks > self._kv_blocks or decode.admitted >= self._max_batch:
            return False
        decode.promised_blocks -= blocks
        decode.take_blocks(blocks)
        decode.admitted += 1
        request.kv_blocks = blocks
        ready_s = self._kernel.now_s
        if self._transfers:
            ready_s = self._copy(decode, request.prompt_tokens)
            written_s = self._write_prompt(request)
            if written_s > ready_s + self._latency_s:
                self._release_at(written_s, request)
                self._kernel.at(ready_s + self._latency_s, self._decodes, request)
                return True
        self._kernel.at(ready_s + self._latency_s, self._handed_off, request)
        return True

    def _handed_off(self, request: SimRequest) -> None:
        if self._transfers:
            self._release(request)
        self._decodes(request)

    def _copy(self, decode: DecodeEngine, tokens: int) -> float:
        now_s = self._kernel.now_s
        read_s = decode.cnic.read.carry(now_s, tokens * self._copy_read)
        write_s = decode.cnic.write.carry(now_s, tokens * self._copy_write)
        return max(read_s, write_s, decode.node.dram.carry(now_s, tokens * self._copy_dram))

    def _write_prompt(self, request: SimRequest) -> float:
        """Write the prompt's whole missed blocks; when they are written."""
        assert request.decode is not None
        block = self._block_tokens
        missed = request.prompt_tokens // block * block - request.hit_tokens
        return self._stored(request, self._write(request.decode.node, max(0, missed)))

    def _stored(self, request: SimRequest, written_s: float) -> float:
        """The agent's next hit is there only then."""
        if written_s > request.agent.stored_s:
            request.agent.stored_s = written_s
        return written_s

    def _write(self, node: SimNode, tokens: int) -> float:
        now_s = self._kernel.now_s
        if not tokens:
            return now_s
        written_s = node.snic_write.carry(now_s, tokens * self._write_snic)
        return max(written_s, node.dram.carry(now_s, tokens * self._write_dram))

    def _release_at(self, time_s: float, request: SimRequest) -> None:
        self._kernel.at(time_s, self._release, request)

    def _release(self, request: SimRequest) -> None:
        assert request.decode is not None
        request.decode.node.buffer.give_back(request.prompt_tokens)
