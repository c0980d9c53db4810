"""A turn on its way through the simulated cluster (paper section 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.types import RequestId

if TYPE_CHECKING:
    from dualpath.sim.agents import SimAgent
    from dualpath.sim.handoff import BufferPlace
    from dualpath.sim.nodes import DecodeEngine, PrefillEngine

NEVER = float("nan")


class SimRequest:
    """One turn; when it is preempted it comes back under a new id with what it has generated as part of its prompt.

    Attributes:
        request_id: of this attempt.
        agent: whose turn it is.
        turn: its number.
        prompt_tokens, hit_tokens: of this attempt; the hit is whole blocks.
        output_tokens: tokens that this attempt still has to generate.
        generated_before: tokens that earlier attempts have generated.
        cached, new: tokens in buffers, and those to be computed (as batching wants them).
        head, tail: hit tokens that the prefill and the decode side read.
        reused_tokens: prompt tokens that the first attempt takes from storage.
        unread: sides that are still reading.
        sent_s, placed_s, granted_s, read_s, first_s, second_s: stamps in virtual seconds; those of the first attempt.
        joined_step: step of its decode group at which it began to decode.
        kv_blocks: blocks that it holds in its decode engine's HBM.
        place: its prompt's place in the decode node's buffer, once that holds all of it.
    """

    __slots__ = (
        "agent",
        "cached",
        "decode",
        "first_s",
        "generated_before",
        "granted_s",
        "head",
        "hit_tokens",
        "joined_step",
        "kv_blocks",
        "new",
        "output_tokens",
        "place",
        "placed_s",
        "prefill",
        "prompt_tokens",
        "read_s",
        "request_id",
        "reused_tokens",
        "second_s",
        "sent_s",
        "tail",
        "turn",
        "unread",
    )

    def __init__(
        self, request_id: RequestId, agent: SimAgent, turn: int, prompt: int, hit: int, output: int, sent_s: float
    ) -> None:
        self.request_id = request_id
        self.agent = agent
        self.turn = turn
        self.prompt_tokens = prompt
        self.hit_tokens = hit
        self.output_tokens = output
        self.generated_before = 0
        self.sent_s = sent_s
        self.cached = self.reused_tokens = hit
        self.new = prompt - hit
        self.head = self.tail = self.unread = 0
        self.placed_s = self.granted_s = self.read_s = self.first_s = self.second_s = NEVER
        self.prefill: PrefillEngine | None = None
        self.decode: DecodeEngine | None = None
        self.joined_step = 0
        self.kv_blocks = 0
        self.place: BufferPlace | None = None

    def restart(self, request_id: RequestId, generated: int, block_tokens: int) -> None:
        """Become a new attempt whose prompt ends with the ``generated`` tokens; KV exists for all but the last of them."""
        stored = (self.prompt_tokens + generated - 1) // block_tokens * block_tokens
        self.request_id = request_id
        self.prompt_tokens += generated
        self.output_tokens -= generated
        self.generated_before += generated
        self.hit_tokens = self.cached = stored
        self.new = self.prompt_tokens - stored
        self.head = self.tail = 0
        self.prefill = self.decode = None
