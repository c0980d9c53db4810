"""From settings and a model directory to the spec of a cluster, with every size checked against what it has to hold."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from dualpath.control.spec import ClusterSpec, EngineSpec
from dualpath.costmodel.hardware import EngineProfile
from dualpath.errors import SettingsError
from dualpath.kvcache.chain import CacheNamespace
from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.base import ModelShape
from dualpath.models.registry import describe_model
from dualpath.settings import Settings
from dualpath.types import Role


def build_spec(settings: Settings, model_directory: Path, run_directory: Path, store_directory: Path) -> ClusterSpec:
    """What all processes of the cluster will be told.

    Raises:
        ModelError: the directory is no model that this project can run.
        SettingsError: a buffer or pool cannot hold what it has to; names the setting.
    """
    shape = describe_model(model_directory, settings.model.dtype)
    geometry = BlockGeometry(shape.layers, settings.cache.block_tokens, shape.token_layer_bytes)
    profile = read_profile(settings.cluster.profile)
    rate = settings.storage.snic_bandwidth
    spec = ClusterSpec(
        run_directory=str(run_directory),
        model_directory=str(model_directory),
        model_fingerprint=shape.fingerprint,
        store_directory=str(store_directory),
        namespace=namespace(shape, geometry),
        geometry=geometry,
        max_context_tokens=0,
        settings=settings,
        storage_tokens_per_s=profile.storage_tokens_per_s if rate is None else rate / geometry.token_bytes,
        prefill_tokens_per_s=profile.prefill_tokens_per_s,
        attention=profile.attention.to_dict(),
    )
    return _with_context_limit(spec, shape)


def namespace(shape: ModelShape, geometry: BlockGeometry) -> CacheNamespace:
    """What keeps this model's blocks apart from all others' (rule 4)."""
    return CacheNamespace(
        model_fingerprint=shape.fingerprint,
        dtype=str(shape.dtype),
        block_tokens=geometry.block_tokens,
        block_bytes=geometry.full_block_bytes,
    )


def read_profile(path: str | None) -> EngineProfile:
    """The measured profile, or defaults.

    Raises:
        SettingsError: the file is not there, or is no profile.
    """
    if path is None:
        return EngineProfile()
    try:
        return EngineProfile.from_json(Path(path).read_text())
    except OSError as error:
        raise SettingsError(f"profile: cannot read {path}: {error.strerror}") from error


def _with_context_limit(spec: ClusterSpec, shape: ModelShape) -> ClusterSpec:
    """The spec with the longest context that every pool can hold.

    Raises:
        SettingsError: that is less than the user asked for, or than a block.
    """
    tokens = spec.geometry.block_tokens
    watermark = int(spec.decode_kv_blocks * spec.settings.scheduling.decode_free_watermark) + 2
    limits = {
        "prefill_kv_memory": spec.prefill_kv_rows // tokens * tokens,
        "prefill_buffer": spec.prefill_buffer_blocks * tokens,
        "decode_buffer": spec.decode_buffer_blocks * tokens,
        "decode_kv_memory": (spec.decode_kv_blocks - watermark) * tokens,
    }
    if spec.settings.decode.write_back_buffer < spec.geometry.slot_bytes:
        raise SettingsError(f"write_back_buffer: holds not even one block of {spec.geometry.slot_bytes} bytes")
    knob, most = min(limits.items(), key=lambda item: item[1])
    asked = spec.settings.model.max_len
    if asked is not None and asked > shape.max_positions:
        raise SettingsError(f"max_len: {asked} exceeds the model's {shape.max_positions} positions")
    if most < max(2, min(tokens, asked or tokens)) or (asked is not None and most < asked):
        raise SettingsError(
            f"{knob}: holds {max(0, most)} tokens of KV ({spec.geometry.token_bytes} bytes each), "
            f"which is less than {'max_len ' + str(asked) if asked else 'one block'}"
        )
    return replace(spec, max_context_tokens=min(most, asked or shape.max_positions))


def engine_spec(cluster: ClusterSpec, role: Role, index: int, incarnation: int) -> EngineSpec:
    """The spec of one engine: engines of a role share a node, ``engines_per_node`` at a time."""
    node = f"{role.value}-node-{index // cluster.settings.cluster.engines_per_node}"
    return EngineSpec(cluster=cluster, name=f"{role.value}-{index}.{incarnation}", role=role.value, node=node, group=node)
