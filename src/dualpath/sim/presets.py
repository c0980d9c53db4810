"""Simulated clusters from data sheets: a model, a kind of node, how many of each, and a system's settings
(paper section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dualpath.costmodel.calibration import DEFAULT, Calibration
from dualpath.costmodel.catalogue import Node
from dualpath.costmodel.serving import ServedModel
from dualpath.dataflow.estimate import MeanTurn
from dualpath.errors import SettingsError
from dualpath.kvcache.layout import BlockGeometry
from dualpath.scheduling.limits import scheduler_limits
from dualpath.settings import Settings
from dualpath.sim.spec import ClusterSpec, DecodeSpec, Latencies, NodeSpec, PrefillSpec
from dualpath.workload.trajectory import Trajectory

BUFFER_BYTES = 80e9
"""DRAM buffer of a node (paper section 7)."""
MOST_BATCH_TOKENS = 32_768
FETCH_INTERVAL_S = 0.1
"""Leaders' fetches while requests wait; a prefill step takes several times as long."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A cluster as data sheets describe it.

    Attributes:
        model: on the nodes.
        node: of both roles.
        prefill_nodes, decode_nodes: P and D.
        turn: the workload's mean turn; it turns β from seconds into tokens.
        buffer_bytes: DRAM buffer of a node.
        calibration: free parameters.
    """

    model: ServedModel
    node: Node
    prefill_nodes: int
    decode_nodes: int
    turn: MeanTurn
    buffer_bytes: float = BUFFER_BYTES
    calibration: Calibration = DEFAULT

    @property
    def storage_bytes_per_s(self) -> float:
        """What a node reads a second: its NIC's share that the storage client makes of it."""
        return min(self.node.snic_bandwidth, self.calibration.client_ceiling) * self.calibration.storage_share


def cluster_of(sheet: Sheet, settings: Settings) -> ClusterSpec:
    """The simulated cluster of the system that ``settings`` describe.

    Raises:
        SettingsError: a size cannot be.
    """
    model, node, free = sheet.model, sheet.node, sheet.calibration
    block_tokens = settings.cache.block_tokens
    geometry = BlockGeometry(model.layers, block_tokens, model.token_layer_bytes)
    buffer_tokens = int(sheet.buffer_bytes / geometry.token_bytes)
    kv_blocks = int(model.decode_kv_bytes / geometry.full_block_bytes)
    if buffer_tokens < block_tokens or kv_blocks < 2:
        raise SettingsError(f"buffers of {sheet.buffer_bytes:,.0f} bytes and {kv_blocks} KV blocks are too small")
    read = sheet.storage_bytes_per_s
    return ClusterSpec(
        system=settings.cluster.system,
        geometry=geometry,
        node=NodeSpec(node.gpus, read, read, node.cnic_bandwidth, node.dram_bandwidth),
        prefill=PrefillSpec(
            nodes=sheet.prefill_nodes,
            step_nodes=model.prefill_step_nodes,
            attention_time=model.prefill,
            step_time=model.prefill,
            layerwise=settings.prefill.layerwise,
            quota_s=settings.prefill.quota_s,
            max_batch_tokens=MOST_BATCH_TOKENS,
            kv_bytes=model.prefill_kv_bytes,
            buffer_tokens=buffer_tokens,
            collective_bytes=model.collective_bytes,
        ),
        decode=DecodeSpec(
            nodes=sheet.decode_nodes,
            step_nodes=model.decode_step_nodes,
            time=model.decode,
            kv_blocks=kv_blocks,
            buffer_tokens=buffer_tokens,
            collective_bytes=model.collective_bytes,
        ),
        limits=scheduler_limits(
            settings,
            storage_tokens_per_s=read / geometry.token_bytes,
            prefill_tokens_per_s=prefill_tokens_per_s(model, sheet.turn, settings.prefill.quota_s),
        ),
        latencies=Latencies(turn_s=free.turn_s, read_s=free.read_latency_s, handoff_s=free.handoff_s),
        transfers=not settings.cluster.oracle,
        fetch_interval_s=FETCH_INTERVAL_S,
    )


def prefill_tokens_per_s(model: ServedModel, turn: MeanTurn, quota_s: float) -> float:
    """Prompt tokens, hits included, that a prefill engine gets through a second in batches of mean turns."""
    attention_s = model.prefill(turn.hit_tokens, turn.new_tokens)
    requests = max(1.0, quota_s / attention_s)
    return requests * turn.prompt_tokens / model.prefill.step(requests * attention_s, requests * turn.new_tokens)


def mean_turn(trajectories: Sequence[Trajectory]) -> MeanTurn:
    """The average over all turns of all trajectories, with exact (not whole-block) hits."""
    steps = [step for trajectory in trajectories for step in trajectory.steps()]
    prompt = fmean(step.prompt_tokens for step in steps)
    return MeanTurn(prompt, prompt - fmean(step.hit_tokens for step in steps))
