"""Simulated nodes and the engines on them (paper section 2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dualpath.sim.links import ComputeNic, Link
from dualpath.sim.memory import Buffer
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import NodeSpec
from dualpath.types import EngineName, GroupName, NodeName, Role


class SimNode:
    """A machine: storage NIC, memory, DRAM buffer, and engines of one role."""

    __slots__ = ("buffer", "dram", "engines", "group", "name", "role", "snic_read", "snic_write")

    def __init__(
        self, role: Role, number: int, spec: NodeSpec, buffer_tokens: int, granted: Callable[[SimRequest], None]
    ) -> None:
        self.name = NodeName(f"{role.value}-node-{number}")
        self.group = GroupName(self.name)
        self.role = role
        self.snic_read = Link(f"{self.name} SNIC read", spec.snic_read)
        self.snic_write = Link(f"{self.name} SNIC write", spec.snic_write)
        self.dram = Link(f"{self.name} DRAM", spec.dram)
        self.buffer: Buffer[SimRequest] = Buffer(buffer_tokens, granted)
        kind = PrefillEngine if role is Role.PREFILL else DecodeEngine
        first = number * spec.engines
        self.engines: list[PrefillEngine | DecodeEngine] = [kind(self, first + n, spec.cnic) for n in range(spec.engines)]


class PrefillEngine:
    """A prefill GPU; ``ready`` are the requests whose hits are in buffers, in order of readiness."""

    __slots__ = ("attention_s", "cnic", "group", "name", "node", "ready")

    def __init__(self, node: SimNode, number: int, cnic_rate: float) -> None:
        self.node = node
        self.name = EngineName(f"prefill-{number}")
        self.cnic = ComputeNic(self.name, cnic_rate)
        self.ready: deque[SimRequest] = deque()
        self.group: int = 0
        self.attention_s = 0.0


class DecodeEngine:
    """A decode GPU.

    Attributes:
        group: number of its decode group, and ``place`` its place in it.
        running: requests that decode, oldest first.
        waiting: prefilled requests that wait for HBM or for a place in the batch.
        admitted: requests in HBM, decoding or just being copied there.
        promised_blocks: what requests placed here will need when they are admitted.
        collective_rate: bytes a second that collectives take of its compute NIC, as last told.
        unread_tokens: hit tokens that this engine's side has still to read.
        used_blocks, most_used_blocks: of its KV pool, now and ever.
        context_tokens: KV tokens of what runs, as of the step at which each began.
    """

    __slots__ = (
        "admitted",
        "cnic",
        "collective_rate",
        "context_tokens",
        "group",
        "most_used_blocks",
        "name",
        "node",
        "place",
        "promised_blocks",
        "running",
        "unread_tokens",
        "used_blocks",
        "waiting",
    )

    def __init__(self, node: SimNode, number: int, cnic_rate: float) -> None:
        self.node = node
        self.name = EngineName(f"decode-{number}")
        self.cnic = ComputeNic(self.name, cnic_rate)
        self.group = 0
        self.place = 0
        self.running: dict[SimRequest, None] = {}
        self.waiting: deque[SimRequest] = deque()
        self.admitted = 0
        self.promised_blocks = 0
        self.collective_rate = 0.0
        self.unread_tokens = 0
        self.used_blocks = 0
        self.most_used_blocks = 0
        self.context_tokens = 0

    def take_blocks(self, blocks: int) -> None:
        """Account for blocks that have been found free."""
        self.used_blocks += blocks
        if self.used_blocks > self.most_used_blocks:
            self.most_used_blocks = self.used_blocks
