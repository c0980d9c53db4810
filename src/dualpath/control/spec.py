"""What the launcher writes down for every process of a cluster, as JSON in the run directory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dualpath.errors import ClusterError
from dualpath.kvcache.chain import CacheNamespace
from dualpath.kvcache.layout import BlockGeometry
from dualpath.settings import Settings
from dualpath.storage.registry import StorageSpec


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of one cluster share.

    ``namespace`` separates this model's block keys from all others'; ``snic_bandwidth`` bytes a
    second a node, ``storage_tokens_per_s`` and ``prefill_tokens_per_s`` what α and β are converted with.
    """

    run_directory: str
    model_directory: str
    model_fingerprint: str
    store_directory: str
    namespace: CacheNamespace
    geometry: BlockGeometry
    max_context_tokens: int
    settings: Settings
    storage_tokens_per_s: float
    prefill_tokens_per_s: float
    attention: dict[str, float]

    @property
    def storage(self) -> StorageSpec:
        """How to open the store."""
        section = self.settings.storage
        return StorageSpec(self.namespace, self.store_directory, section.storage_threads, section.verify_checksums)

    @property
    def store_capacity_blocks(self) -> int:
        return max(1, self.settings.storage.store_capacity // self.geometry.full_block_bytes)

    @property
    def decode_buffer_blocks(self) -> int:
        return self.settings.decode.decode_buffer // self.geometry.slot_bytes

    @property
    def prefill_buffer_blocks(self) -> int:
        return self.settings.prefill.prefill_buffer // self.geometry.slot_bytes

    @property
    def decode_kv_blocks(self) -> int:
        return self.settings.decode.decode_kv_memory // self.geometry.full_block_bytes

    @property
    def prefill_frames(self) -> int:
        """Layers of a forward batch's KV that a prefill engine holds at a time (layerwise: two, one being filled)."""
        layers = self.geometry.layers
        return min(2, layers) if self.settings.prefill.layerwise else layers

    @property
    def prefill_kv_rows(self) -> int:
        """Tokens whose KV fits a prefill engine's device memory in one forward batch."""
        return self.settings.prefill.prefill_kv_memory // (self.prefill_frames * self.geometry.token_layer_bytes)


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process. ``name`` is new for every incarnation, ``node`` and ``group`` are not."""

    cluster: ClusterSpec
    name: str
    role: str
    node: str
    group: str


def write_spec(spec: ClusterSpec | EngineSpec, path: Path) -> None:
    """Store a spec where a process will read it."""
    path.write_bytes(msgspec.json.encode(spec))


def read_engine_spec(path: Path) -> EngineSpec:
    """The engine spec at ``path``.

    Raises:
        ClusterError: it is not there, or is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineSpec)
    except (OSError, msgspec.MsgspecError) as error:
        raise ClusterError(f"{path} is no engine spec: {error}") from error


def read_cluster_spec(path: Path) -> ClusterSpec:
    """The cluster spec at ``path``.

    Raises:
        ClusterError: it is not there, or is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterSpec)
    except (OSError, msgspec.MsgspecError) as error:
        raise ClusterError(f"{path} is no cluster spec: {error}") from error
