"""The simulated twin of a ``LocalCluster``: the same settings, and step times from the engines' profile (paper section 7)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dualpath.costmodel.attention import AttentionTime
from dualpath.costmodel.hardware import EngineProfile
from dualpath.costmodel.timing import DecodeTime
from dualpath.errors import SettingsError
from dualpath.kvcache.layout import BlockGeometry
from dualpath.scheduling.limits import scheduler_limits
from dualpath.settings import Settings
from dualpath.sim.spec import ClusterSpec, DecodeSpec, Latencies, NodeSpec, PrefillSpec

FETCH_INTERVAL_S = 0.005
"""The service fetches for its leaders as soon as something happens; simulated leaders fetch in turn, so often."""
BATCH_BLOCKS, BATCH_BYTES = 16, 32 * 2**20
"""Most of one chain that a traffic manager has with its storage at a time."""
FAST = 1e12
"""Bytes a second of what is no limit: a memory whose traffic the copies' rate covers already."""


@dataclass(frozen=True, slots=True)
class ForwardTime:
    """``StepTime`` of a prefill engine on its own: its batch's compute, and what every batch costs besides."""

    fixed_s: float

    def step(self, most_attention_s: float, mean_new_tokens: float) -> float:
        """Seconds of a forward."""
        return self.fixed_s + most_attention_s


def local_cluster(settings: Settings, profile: EngineProfile, geometry: BlockGeometry) -> ClusterSpec:
    """The simulated cluster for what ``LocalCluster`` would be with these settings.

    Raises:
        SettingsError: engines do not fill their nodes, or a size cannot be.
    """
    cluster, times = settings.cluster, profile.times
    engines = cluster.engines_per_node
    if cluster.prefill % engines or cluster.decode % engines:
        raise SettingsError(
            f"engines_per_node: a simulated node is full; {cluster.prefill} and {cluster.decode} engines do not fill {engines}"
        )
    bandwidth = settings.storage.snic_bandwidth
    read = profile.storage_tokens_per_s * geometry.token_bytes if bandwidth is None else float(bandwidth)
    return ClusterSpec(
        system=cluster.system,
        geometry=geometry,
        node=NodeSpec(engines, read, read, times.copy_bytes_per_s, FAST),
        prefill=_prefill(settings, profile, geometry),
        decode=_decode(settings, profile, geometry),
        limits=scheduler_limits(
            settings,
            storage_tokens_per_s=read / geometry.token_bytes,
            prefill_tokens_per_s=profile.prefill_tokens_per_s,
        ),
        latencies=Latencies(times.turn_s, times.read_s, times.handoff_s, times.finish_s),
        transfers=not cluster.oracle,
        fetch_interval_s=min(FETCH_INTERVAL_S, settings.scheduling.fetch_interval_s),
        in_step=False,
        write_batch_tokens=max(1, min(BATCH_BLOCKS, BATCH_BYTES // geometry.full_block_bytes)) * geometry.block_tokens,
    )


def _prefill(settings: Settings, profile: EngineProfile, geometry: BlockGeometry) -> PrefillSpec:
    section, engines = settings.prefill, settings.cluster.engines_per_node
    frames = min(2, geometry.layers) if section.layerwise else geometry.layers
    rows = section.prefill_kv_memory // (frames * geometry.token_layer_bytes)
    times = profile.times
    return PrefillSpec(
        nodes=settings.cluster.prefill // engines,
        step_nodes=1,
        attention_time=profile.attention,
        step_time=ForwardTime(times.forward_s + times.batch_s),
        layerwise=section.layerwise,
        quota_s=section.quota_s,
        max_batch_tokens=section.max_batch_tokens,
        kv_bytes=rows * (geometry.token_layer_bytes if section.layerwise else geometry.token_bytes),
        buffer_tokens=section.prefill_buffer // geometry.slot_bytes * geometry.block_tokens * engines,
        compute_time=request_time(profile),
    )


def request_time(profile: EngineProfile) -> AttentionTime:
    """A request's own part of a forward: what is left of its time alone without what a batch pays once."""
    attention, once_s = profile.attention, profile.times.forward_s
    return replace(attention, fixed_s=max(0.0, attention.fixed_s - once_s), floor_s=max(0.0, attention.floor_s - once_s))


def _decode(settings: Settings, profile: EngineProfile, geometry: BlockGeometry) -> DecodeSpec:
    section, times, engines = settings.decode, profile.times, settings.cluster.engines_per_node
    return DecodeSpec(
        nodes=settings.cluster.decode // engines,
        step_nodes=1,
        time=DecodeTime(1, times.decode_step_s, times.decode_request_s, times.decode_context_s, step_s=times.token_s),
        kv_blocks=section.decode_kv_memory // geometry.full_block_bytes,
        buffer_tokens=section.decode_buffer // geometry.slot_bytes * geometry.block_tokens * engines,
        max_batch=section.max_decode_batch,
    )
