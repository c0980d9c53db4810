"""Weights from safetensors files: found, checked by name and shape, and loaded straight to their dtype and device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from dualpath.errors import ModelError
from dualpath.models.config import ModelConfig

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_WHOLE_BYTES = 64 * 2**20
_SAMPLE_BYTES = 64 * 2**10
_HEADER_LENGTH_BYTES = 8

Shape = tuple[int, ...]


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that a model of this configuration has, by its Hugging Face name."""
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    layer_shapes = _layer_shapes(config)
    for layer in range(config.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes |= {"self_attn.q_proj.bias": (queries,), "self_attn.k_proj.bias": (keys,), "self_attn.v_proj.bias": (keys,)}
    if config.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


class Weights:
    """The tensors of one directory, loaded one by one.

    Raises (on construction):
        ModelError: no safetensors files, or a tensor is missing, unexpected or of another shape; names the tensor.
    """

    def __init__(self, directory: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._directory = directory
        self._dtype = dtype
        self._device = device
        self._files = {path: _open(path) for path in weight_files(directory)}
        self._shapes = expected_shapes(config)
        self._owner = {name: file for file in self._files.values() for name in file.keys()}  # noqa: SIM118
        self._check(config)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, in the model's dtype on its device."""
        loaded: torch.Tensor = self._owner[name].get_tensor(name)
        return loaded.to(self._device, self._dtype)

    def stacked(self, names: Sequence[str]) -> torch.Tensor:
        """Several tensors one below the other, as one weight of a fused projection; only one source is held at a time."""
        rows = [self._shapes[name][0] for name in names]
        fused = torch.empty((sum(rows), *self._shapes[names[0]][1:]), dtype=self._dtype, device=self._device)
        for part, name in zip(torch.split(fused, rows), names, strict=True):
            part.copy_(self._owner[name].get_tensor(name))
        return fused

    def _check(self, config: ModelConfig) -> None:
        for name, shape in self._shapes.items():
            if name not in self._owner:
                raise ModelError(f"{self._directory}: tensor {name} is missing")
            found = tuple(self._owner[name].get_slice(name).get_shape())
            if found != shape:
                raise ModelError(f"{self._directory}: tensor {name} has shape {found}, its configuration says {shape}")
        for name in sorted(self._owner.keys() - self._shapes.keys()):
            # Copies that some writers add: a tied head, rotary frequencies.
            if not (name == "lm_head.weight" and config.tied_embeddings) and not name.endswith("rotary_emb.inv_freq"):
                raise ModelError(f"{self._directory}: tensor {name} is not part of {config.architecture}")


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model: ``model.safetensors``, or the shards that its index names.

    Raises:
        ModelError: neither is there, or the index is malformed or names a file that is not there.
    """
    if (directory / SINGLE_FILE).is_file():
        return [directory / SINGLE_FILE]
    index = directory / INDEX_FILE
    if not index.is_file():
        raise ModelError(f"{directory}: no weights here, neither {SINGLE_FILE} nor {INDEX_FILE}")
    shards = [directory / name for name in sorted(set(_weight_map(index).values()))]
    for shard in shards:
        if not shard.is_file():
            raise ModelError(f"{directory}: shard {shard.name}, named by {INDEX_FILE}, is missing")
    return shards


def fingerprint(directory: Path | str) -> str:
    """BLAKE2b of what a model computes with: config.json, and size, header and content of each weight file.

    Content is read whole up to 64 MiB a file; of a larger one, 64 KiB pieces spread evenly over it.

    Raises:
        ModelError: the directory holds no model.
    """
    root = Path(directory)
    digest = hashlib.blake2b(digest_size=32)
    try:
        digest.update((root / "config.json").read_bytes())
        for path in weight_files(root):
            for piece in _identifying_pieces(path):
                digest.update(piece)
    except OSError as error:
        raise ModelError(f"{root}: cannot be read: {error}") from error
    return digest.hexdigest()


def _identifying_pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name}:{size}:".encode()
    with path.open("rb") as file:
        length = file.read(_HEADER_LENGTH_BYTES)
        yield length
        yield file.read(min(int.from_bytes(length, "little"), _WHOLE_BYTES))
        start = file.tell()
        pieces = _WHOLE_BYTES // _SAMPLE_BYTES
        step = _SAMPLE_BYTES if size <= _WHOLE_BYTES else max(_SAMPLE_BYTES, (size - start) // pieces)
        for offset in range(start, size, step):
            file.seek(offset)
            yield file.read(_SAMPLE_BYTES)


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{index}: is no index of shards: {error!r}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index}: weight_map must map tensor names to file names")
    return weight_map


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: is no safetensors file: {error}") from error
