"""From the first token to the last: HBM on the decode side, write-back, preemption (paper section 2)."""

from __future__ import annotations

from collections.abc import Callable

from dualpath.dataflow.charges import PerToken, Stage
from dualpath.sim.agents import SimAgent
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine, SimNode
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import ClusterSpec


class BufferPlace:
    """A prompt's place in a decode node's DRAM buffer, free when its ``users`` (copy into HBM, write-back) have let go."""

    __slots__ = ("node", "tokens", "users")

    def __init__(self, node: SimNode, tokens: int, users: int) -> None:
        self.node = node
        self.tokens = tokens
        self.users = users

    def let_go(self) -> None:
        """A user is done."""
        self.users -= 1
        if not self.users:
            self.node.buffer.give_back(self.tokens)


class Writing:
    """Tokens of an agent's chain that are still to be written from a node, a batch at a time; out of ``place``, if any."""

    __slots__ = ("agent", "node", "place", "tokens")

    def __init__(self, agent: SimAgent, node: SimNode, tokens: int, place: BufferPlace | None) -> None:
        self.agent = agent
        self.node = node
        self.tokens = tokens
        self.place = place


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
        stored: Callable[[SimRequest], None],
        admitted: Callable[[DecodeEngine], None] | None = None,
    ) -> None:
        """``decodes`` takes a request whose KV is in HBM, ``stored`` one that waited for its hit to be written; ``admitted``
        is told of an engine whose requests have taken more HBM."""
        self._kernel = kernel
        self._decodes = decodes
        self._stored = stored
        self._admitted = admitted
        self._transfers = spec.transfers
        self._latency_s = spec.latencies.handoff_s
        self._block_tokens = spec.geometry.block_tokens
        self._kv_blocks = spec.decode.kv_blocks
        self._max_batch = spec.decode.max_batch
        self._write_tokens = spec.write_batch_tokens
        # The agent's next turn and the end of the copy into HBM are at least so far away.
        self._unnoticed_s = min(spec.latencies.turn_s, spec.latencies.handoff_s)
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
        if self._transfers:
            request.place = BufferPlace(decode.node, request.prompt_tokens, 2)
            self._write_prompt(request, request.place)
        if decode.waiting or not self._admit(decode, request):
            decode.waiting.append(request)

    def ended_early(self, request: SimRequest) -> None:
        """The first token was the last: nothing goes to HBM, but the prompt is written back."""
        assert request.decode is not None
        request.decode.promised_blocks -= self.blocks(request)
        if self._transfers:
            self._write_prompt(request, BufferPlace(request.decode.node, request.prompt_tokens, 1))

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
            if whole:
                self._write(Writing(request.agent, request.decode.node, whole * block, None))

    def write_prompt(self, request: SimRequest) -> None:
        """Write back the blocks that a prompt has completed which was computed in HBM, next to its context."""
        if self._transfers:
            assert request.decode is not None
            whole = request.prompt_tokens // self._block_tokens - request.hit_tokens // self._block_tokens
            if whole:
                self._write(Writing(request.agent, request.decode.node, whole * self._block_tokens, None))

    def _admit(self, decode: DecodeEngine, request: SimRequest) -> bool:
        """Take HBM and copy, if there is room."""
        blocks = self.blocks(request)
        if decode.used_blocks + blocks > self._kv_blocks or decode.admitted >= self._max_batch:
            return False
        decode.promised_blocks -= blocks
        decode.take_blocks(blocks)
        decode.admitted += 1
        request.kv_blocks = blocks
        if self._admitted is not None:
            self._admitted(decode)
        ready_s = self._kernel.now_s
        if self._transfers:
            ready_s = self._copy(decode, request.prompt_tokens)
        self._kernel.at(ready_s + self._latency_s, self._handed_off, request)
        return True

    def _handed_off(self, request: SimRequest) -> None:
        if request.place is not None:
            request.place.let_go()
            request.place = None
        self._decodes(request)

    def _copy(self, decode: DecodeEngine, tokens: int) -> float:
        now_s = self._kernel.now_s
        read_s = decode.cnic.read.carry(now_s, tokens * self._copy_read)
        write_s = decode.cnic.write.carry(now_s, tokens * self._copy_write)
        return max(read_s, write_s, decode.node.dram.carry(now_s, tokens * self._copy_dram))

    def _write_prompt(self, request: SimRequest, place: BufferPlace) -> None:
        """Write the prompt's whole missed blocks; then its place is not needed for that any more."""
        block = self._block_tokens
        missed = request.prompt_tokens // block * block - request.hit_tokens
        if missed > 0:
            self._write(Writing(request.agent, place.node, missed, place))
        else:
            place.let_go()

    def _write(self, writing: Writing) -> None:
        """Write a chain's tokens. Where they are written before anybody could need that, it takes no event."""
        place = writing.place
        if writing.tokens <= self._write_tokens and (place is None or place.users > 1):
            written_s = self._carry(writing.node, writing.tokens)
            if written_s - self._kernel.now_s <= self._unnoticed_s:
                if place is not None:
                    place.let_go()
                return
            writing.tokens = 0
            writing.agent.writing += 1
            self._kernel.at(written_s, self._written, writing)
            return
        writing.agent.writing += 1
        self._write_batch(writing)

    def _write_batch(self, writing: Writing) -> None:
        """A batch more; several chains are written at a time, a batch of each in turn."""
        tokens = min(writing.tokens, self._write_tokens)
        writing.tokens -= tokens
        self._kernel.at(self._carry(writing.node, tokens), self._written, writing)

    def _carry(self, node: SimNode, tokens: int) -> float:
        now_s = self._kernel.now_s
        written_s = node.snic_write.carry(now_s, tokens * self._write_snic)
        return max(written_s, node.dram.carry(now_s, tokens * self._write_dram))

    def _written(self, writing: Writing) -> None:
        if writing.tokens:
            self._write_batch(writing)
            return
        if writing.place is not None:
            writing.place.let_go()
        agent = writing.agent
        agent.writing -= 1
        if not agent.writing and agent.waiting is not None:
            request, agent.waiting = agent.waiting, None
            self._stored(request)
