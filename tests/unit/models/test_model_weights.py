"""Loading safetensors: shards, fused projections, dtypes, complaints that name the tensor, fingerprints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dualpath.errors import ModelError
from dualpath.models import weights as weights_module
from dualpath.models.base import PrefillSegment
from dualpath.models.config import read_config
from dualpath.models.create import create_model
from dualpath.models.registry import FACTORIES, describe_model, load_model, resolve_device
from dualpath.models.weights import INDEX_FILE, SINGLE_FILE, Weights, fingerprint
from dualpath.settings import Dtype

torch.set_num_threads(1)

Edit = Callable[[dict[str, torch.Tensor]], object]


@pytest.fixture(params=["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return small(tmp_path / "model", request.param)


def small(directory: Path, architecture: str = "Qwen2ForCausalLM", seed: int = 0, tied: bool = False) -> Path:
    create_model(
        directory,
        architecture=architecture,
        layers=2,
        hidden=16,
        heads=4,
        kv_heads=2,
        head_dim=6,
        intermediate=20,
        vocab=260,
        tied=tied,
        seed=seed,
    )
    return directory


def edit(directory: Path, change: Edit) -> None:
    tensors = load_file(directory / SINGLE_FILE)
    change(tensors)
    save_file(tensors, directory / SINGLE_FILE)


def shard(directory: Path, files: int = 3) -> None:
    """Replace the single file by shards and an index."""
    tensors = load_file(directory / SINGLE_FILE)
    (directory / SINGLE_FILE).unlink()
    names = {name: f"model-{number % files + 1:05d}-of-{files:05d}.safetensors" for number, name in enumerate(tensors)}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in tensors if names[name] == file}, directory / file)
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def logits(directory: Path, dtype: Dtype = Dtype.FLOAT32) -> torch.Tensor:
    model = load_model(directory, dtype, "cpu")
    model.begin_prefill([PrefillSegment(0, 0, 3)])
    hidden = model.embed(torch.tensor([1, 2, 3]))
    for layer in range(model.shape.layers):
        hidden = model.prefill_layer(layer, hidden, torch.zeros(3, model.shape.token_layer_bytes, dtype=torch.uint8))
    return model.logits(hidden)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to the last bits: where weights lie in memory decides how a single row's products are summed."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_shards_load_as_the_single_file_does(directory: Path) -> None:
    whole = logits(directory)
    shard(directory)
    assert_same(logits(directory), whole)


def test_weights_are_converted_to_the_asked_dtype(directory: Path) -> None:
    weights = Weights(directory, read_config(directory), torch.bfloat16, torch.device("cpu"))
    stored = load_file(directory / SINGLE_FILE)
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(weights.tensor(name), stored[name].to(torch.bfloat16))
    parts = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    assert torch.equal(weights.stacked(parts), torch.cat([stored[part] for part in parts]).to(torch.bfloat16))
    assert logits(directory, Dtype.FLOAT64).dtype is torch.float64


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight is missing"),
        (lambda tensors: tensors.pop("lm_head.weight"), "lm_head.weight is missing"),
        (lambda tensors: tensors.update({"model.extra": torch.zeros(1)}), "model.extra is not part of"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(15)}),
            r"model.norm.weight has shape \(15,\), its configuration says \(16,\)",
        ),
    ],
)
def test_wrong_tensors_are_named(directory: Path, change: Edit, complaint: str) -> None:
    edit(directory, change)
    with pytest.raises(ModelError, match=f"model: tensor {complaint}"):
        load_model(directory, Dtype.FLOAT32, "cpu")


def test_known_redundant_tensors_are_ignored(tmp_path: Path) -> None:
    directory = small(tmp_path / "model", tied=True)
    before = logits(directory)
    redundant = {"lm_head.weight": torch.ones(260, 16), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    edit(directory, lambda tensors: tensors.update(redundant))
    assert_same(logits(directory), before)


def test_missing_and_broken_files(directory: Path) -> None:
    shard(directory)
    lost = directory / "model-00002-of-00003.safetensors"
    lost.rename(directory / "elsewhere")
    with pytest.raises(ModelError, match=r"shard model-00002-of-00003\.safetensors.* is missing"):
        load_model(directory)
    lost.write_bytes(b"not tensors")
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors: is no safetensors file"):
        load_model(directory)
    (directory / INDEX_FILE).write_text('{"weights": 1}')
    with pytest.raises(ModelError, match="is no index of shards"):
        load_model(directory)
    (directory / INDEX_FILE).unlink()
    with pytest.raises(ModelError, match=f"neither {SINGLE_FILE} nor {INDEX_FILE}"):
        describe_model(directory)


def test_fingerprint_is_of_content_not_of_place(tmp_path: Path) -> None:
    first = small(tmp_path / "a")
    shutil.copytree(first, tmp_path / "b")
    assert fingerprint(first) == fingerprint(tmp_path / "b")
    assert len(fingerprint(first)) == 64


def test_fingerprint_tells_weights_configurations_and_shards_apart(tmp_path: Path) -> None:
    found = {fingerprint(small(tmp_path / str(seed), seed=seed)) for seed in range(3)}
    directory = tmp_path / "0"
    edit(directory, lambda tensors: tensors["model.layers.1.mlp.down_proj.weight"][15, 19].add_(1e-3))
    found.add(fingerprint(directory))
    (directory / "config.json").write_text((directory / "config.json").read_text().replace("1000000.0", "20000.0"))
    found.add(fingerprint(directory))
    shard(directory)
    found.add(fingerprint(directory))
    assert len(found) == 6


def test_large_files_are_sampled_over_their_whole_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "_WHOLE_BYTES", 4096)
    monkeypatch.setattr(weights_module, "_SAMPLE_BYTES", 512)
    directory = small(tmp_path / "model")
    path = directory / SINGLE_FILE
    content = bytearray(path.read_bytes())
    assert len(content) > 10 * 4096
    original, seen = fingerprint(directory), []
    for position in range(len(content) // 3, len(content), 97):
        content[position] ^= 1
        path.write_bytes(content)
        seen.append(fingerprint(directory) != original)
        content[position] ^= 1
    assert any(seen[-len(seen) // 4 :])
    assert any(seen[: len(seen) // 4])
    assert not all(seen)


def test_described_without_weights(directory: Path) -> None:
    described = describe_model(directory, Dtype.BFLOAT16)
    assert described == load_model(directory, Dtype.BFLOAT16, "cpu").shape
    assert described.token_layer_bytes == 2 * 2 * 6 * 2
    assert described.dtype is torch.bfloat16
    path = directory / SINGLE_FILE
    path.write_bytes(path.read_bytes()[:-4])
    assert describe_model(directory).layers == 2
    with pytest.raises(ModelError, match="is no safetensors file"):
        load_model(directory)


def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ModelError, match="device 'abacus' cannot be used here"):
        resolve_device("abacus")


def test_every_architecture_that_is_read_can_be_built() -> None:
    from dualpath.models.config import ARCHITECTURES

    assert FACTORIES.keys() == ARCHITECTURES.keys()
