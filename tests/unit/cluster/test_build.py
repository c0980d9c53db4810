"""Specs of clusters: the longest context that every memory holds, and which knob is to blame when it is too short."""

from pathlib import Path
from typing import Any

import pytest

from dualpath.cluster.build import build_spec, engine_spec
from dualpath.control.spec import ClusterSpec, read_cluster_spec, read_engine_spec, write_spec
from dualpath.costmodel.hardware import EngineProfile
from dualpath.errors import ClusterError, SettingsError
from dualpath.knobs import with_knobs
from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.create import create_model
from dualpath.settings import Settings
from dualpath.types import Role

GEOMETRY = BlockGeometry(layers=2, block_tokens=16, token_layer_bytes=2 * 2 * 16 * 4)
POSITIONS = 1000
PLENTY = 1 << 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    create_model(directory, layers=2, hidden=32, heads=2, kv_heads=2, intermediate=32, vocab=320, max_positions=POSITIONS)
    return directory


def build(model: Path, **knobs: Any) -> ClusterSpec:
    plenty = dict.fromkeys(("prefill_buffer", "decode_buffer", "decode_kv_memory", "prefill_kv_memory"), PLENTY)
    return build_spec(with_knobs(Settings(), {"block_tokens": 16, **plenty, **knobs}), model, Path("/run"), Path("/store"))


def test_with_plenty_of_memory_the_model_is_the_limit(model: Path) -> None:
    spec = build(model)
    assert spec.geometry == GEOMETRY
    assert spec.max_context_tokens == POSITIONS
    assert build(model, max_len=100).max_context_tokens == 100
    assert build(model, max_len=POSITIONS).max_context_tokens == POSITIONS


@pytest.mark.parametrize(
    ("knob", "size", "tokens"),
    [
        ("prefill_buffer", 10 * GEOMETRY.slot_bytes + 1, 160),
        ("decode_buffer", 11 * GEOMETRY.slot_bytes - 1, 160),
        # One page beyond the prompt's, one for growth: what the scheduler keeps back is never a request's.
        ("decode_kv_memory", 12 * GEOMETRY.full_block_bytes, 160),
        # Two layers at a time.
        ("prefill_kv_memory", 170 * 2 * GEOMETRY.token_layer_bytes, 160),
    ],
)
def test_the_smallest_memory_limits_the_context_and_is_named(model: Path, knob: str, size: int, tokens: int) -> None:
    assert build(model, decode_free_watermark=0, **{knob: size}).max_context_tokens == tokens
    assert build(model, decode_free_watermark=0, max_len=tokens, **{knob: size}).max_context_tokens == tokens
    with pytest.raises(SettingsError, match=f"^{knob}: holds {tokens} tokens of KV .*less than max_len {tokens + 1}"):
        build(model, decode_free_watermark=0, max_len=tokens + 1, **{knob: size})
    with pytest.raises(SettingsError, match=f"^{knob}: holds 0 tokens of KV .*less than one block"):
        build(model, **{knob: 1})


def test_the_decode_watermark_takes_its_share(model: Path) -> None:
    size = 100 * GEOMETRY.full_block_bytes
    assert build(model, decode_kv_memory=size, decode_free_watermark=0.5).max_context_tokens == (100 - 50 - 2) * 16


def test_without_layerwise_prefill_the_whole_kv_has_to_fit(model: Path) -> None:
    spec = build(model, prefill_kv_memory=170 * 2 * GEOMETRY.token_layer_bytes, layerwise=False)
    assert spec.prefill_frames == GEOMETRY.layers == 2
    assert spec.prefill_kv_rows == 170


def test_more_than_the_model_has_positions_is_refused(model: Path) -> None:
    with pytest.raises(SettingsError, match=f"max_len: {POSITIONS + 1} exceeds the model's {POSITIONS} positions"):
        build(model, max_len=POSITIONS + 1)


def test_a_staging_buffer_below_a_block_is_refused(model: Path) -> None:
    with pytest.raises(SettingsError, match="write_back_buffer"):
        build(model, write_back_buffer=GEOMETRY.slot_bytes - 1)


def test_rates_come_from_the_profile_unless_the_snic_is_limited(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(EngineProfile(prefill_tokens_per_s=123.0, storage_tokens_per_s=456.0).to_json())
    spec = build(model, profile=path)
    assert (spec.prefill_tokens_per_s, spec.storage_tokens_per_s) == (123.0, 456.0)
    limited = build(model, profile=path, snic_bandwidth=100 * GEOMETRY.token_bytes)
    assert (limited.prefill_tokens_per_s, limited.storage_tokens_per_s) == (123.0, 100.0)
    assert build(model).storage_tokens_per_s == EngineProfile().storage_tokens_per_s


def test_engines_of_a_role_share_nodes(model: Path) -> None:
    spec = build(model, decode=5, engines_per_node=2)
    engines = [engine_spec(spec, Role.DECODE, index, 3) for index in range(5)]
    assert [engine.name for engine in engines] == [f"decode-{index}.3" for index in range(5)]
    assert [engine.node for engine in engines] == [f"decode-node-{node}" for node in (0, 0, 1, 1, 2)]
    assert all(engine.group == engine.node for engine in engines)


def test_specs_survive_their_files(model: Path, tmp_path: Path) -> None:
    spec = build(model, read_side="split", dtype="float64")
    path = tmp_path / "spec.json"
    write_spec(spec, path)
    assert read_cluster_spec(path) == spec
    with pytest.raises(ClusterError, match="is no engine spec"):
        read_engine_spec(path)
    engine = engine_spec(spec, Role.PREFILL, 0, 0)
    write_spec(engine, path)
    assert read_engine_spec(path) == engine
    with pytest.raises(ClusterError, match="is no cluster spec"):
        read_cluster_spec(tmp_path / "nope")
