"""What a simulated cluster consists of: nodes, rates, capacities, step times and latencies (paper section 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

from dualpath.costmodel.timing import DecodeTime
from dualpath.errors import SettingsError
from dualpath.kvcache.layout import BlockGeometry
from dualpath.scheduling.batching import AttentionTime
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.sim.steps import StepTime


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node's links, bytes a second.

    Attributes:
        engines: GPUs, each an engine with a compute NIC of its own (g).
        snic_read, snic_write: the storage NIC in each direction, or what the storage's client makes of it if that is less.
        cnic: a compute NIC, in each direction (B).
        dram: the memory, reads and writes together (M).
    """

    engines: int
    snic_read: float
    snic_write: float
    cnic: float
    dram: float


@dataclass(frozen=True, slots=True)
class PrefillSpec:
    """Prefill engines.

    Attributes:
        nodes: prefill nodes (P).
        step_nodes: nodes whose engines run in step, sharing experts; a last group may have fewer.
        attention_time: predicted attention seconds of ``(cached, new)`` over all layers, as batching wants it.
        step_time: seconds of a step of a group.
        layerwise: whether KV streams layer by layer.
        quota_s, max_batch_tokens: limits of one engine's batch.
        kv_bytes: device memory for the KV of one engine's batch.
        buffer_tokens: DRAM buffer of a node.
        collective_bytes: bytes that a new token's all-to-all moves through the engine's compute NIC, in each direction.
        compute_time: what a request's part of a step really takes, where that is not ``attention_time``.
    """

    nodes: int
    step_nodes: int
    attention_time: AttentionTime
    step_time: StepTime
    layerwise: bool
    quota_s: float
    max_batch_tokens: int
    kv_bytes: float
    buffer_tokens: int
    collective_bytes: float = 0.0
    compute_time: AttentionTime | None = None


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """Decode engines.

    Attributes:
        nodes: decode nodes (D).
        step_nodes: nodes whose engines run in step.
        time: seconds of a step of a group.
        kv_blocks: device KV pool of an engine.
        buffer_tokens: DRAM buffer of a node.
        max_batch: most sequences in one engine's step.
        collective_bytes: as for prefill, a generated token.
    """

    nodes: int
    step_nodes: int
    time: DecodeTime
    kv_blocks: int
    buffer_tokens: int
    max_batch: int = 1 << 30
    collective_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Fixed seconds that no link or GPU explains.

    Attributes:
        turn_s: from an agent's sending a turn to its submission: the client, tokenizing, hashing, matching.
        read_s: of a storage read, before the first byte.
        handoff_s: between the first token and the decode engine's having the request, beside the copy itself.
        finish_s: from the last token until the agent has the answer.
    """

    turn_s: float = 0.0
    read_s: float = 0.0
    handoff_s: float = 0.0
    finish_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster of one system.

    Attributes:
        system: name for reports.
        geometry: shape of a KV block.
        limits: the central scheduler's.
        transfers: False for the Oracle, whose plans have no moves and which holds no buffers.
        fetch_interval_s: how often each group's leader fetches while something waits.
        in_step: whether engines of ``step_nodes`` nodes run in step; else each runs on its own.
        write_batch_tokens: most tokens of one chain that are with the storage at a time; chains take turns.
        resident: whether decode engines keep the contexts of ended turns and prefill what follows them (``sim.resident``);
            ``resident_chunk_tokens`` is what an engine computes of prompts in one step at most, ``resident_attention``
            what that takes where it is not what it takes on a prefill engine.

    Raises:
        SettingsError: a count or rate is not positive.
    """

    system: str
    geometry: BlockGeometry
    node: NodeSpec
    prefill: PrefillSpec
    decode: DecodeSpec
    limits: SchedulerLimits
    latencies: Latencies = field(default_factory=Latencies)
    transfers: bool = True
    fetch_interval_s: float = 0.05
    in_step: bool = True
    write_batch_tokens: int = 1 << 30
    resident: bool = False
    resident_chunk_tokens: int = 512
    resident_attention: AttentionTime | None = None

    def __post_init__(self) -> None:
        positive = {
            "prefill nodes": self.prefill.nodes,
            "decode nodes": self.decode.nodes,
            "engines per node": self.node.engines,
            "prefill step nodes": self.prefill.step_nodes,
            "decode step nodes": self.decode.step_nodes,
            "snic read rate": self.node.snic_read,
            "snic write rate": self.node.snic_write,
            "cnic rate": self.node.cnic,
            "dram rate": self.node.dram,
            "prefill KV bytes": self.prefill.kv_bytes,
            "decode KV blocks": self.decode.kv_blocks,
            "decode batch": self.decode.max_batch,
            "fetch interval": self.fetch_interval_s,
            "write batch tokens": self.write_batch_tokens,
            "resident chunk tokens": self.resident_chunk_tokens,
        }
        for name, value in positive.items():
            if not value > 0:
                raise SettingsError(f"simulated cluster: {name} must be positive, not {value}")

    def step_engines(self, step_nodes: int) -> int:
        """Engines that run in step, of a role whose ``step_nodes`` do."""
        return step_nodes * self.node.engines if self.in_step else 1

    @property
    def prefill_row_bytes(self) -> int:
        """HBM that a token of a prefill batch takes: KV of one layer, or of all."""
        return self.geometry.token_layer_bytes if self.prefill.layerwise else self.geometry.token_bytes

    @property
    def prefill_kv_rows(self) -> int:
        """Tokens of KV, hits included, that one engine's batch may hold."""
        return int(self.prefill.kv_bytes / self.prefill_row_bytes)
