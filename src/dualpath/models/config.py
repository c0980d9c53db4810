"""A Hugging Face model directory's configuration, read and checked before any weight is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dualpath.errors import ModelError
from dualpath.models.rotary import RotaryConfig, rotary_config
from dualpath.settings import Dtype

TORCH_DTYPES = {
    Dtype.FLOAT64: torch.float64,
    Dtype.FLOAT32: torch.float32,
    Dtype.BFLOAT16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What distinguishes the dense decoders of one family; ``None`` for a bias means that the configuration says so."""

    model_type: str
    qkv_bias: bool | None
    output_bias: bool | None
    qk_norm: bool
    default_head_dim: int | None = None


ARCHITECTURES: dict[str, Architecture] = {
    "Qwen2ForCausalLM": Architecture("qwen2", qkv_bias=True, output_bias=False, qk_norm=False),
    "Qwen3ForCausalLM": Architecture("qwen3", qkv_bias=None, output_bias=None, qk_norm=True, default_head_dim=128),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense decoder with grouped-query attention. ``dtype`` is the one that the directory names."""

    architecture: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rotary: RotaryConfig
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    dtype: torch.dtype
    eos_token_ids: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    def token_layer_bytes(self, dtype: torch.dtype) -> int:
        """KV bytes of one token in one layer: ``[2, kv_heads, head_dim]``."""
        return 2 * self.kv_heads * self.head_dim * dtype.itemsize


class ConfigReader:
    """Typed access to one JSON object; every complaint names the directory and the key."""

    def __init__(self, directory: Path, values: Mapping[str, Any]) -> None:
        self.directory = directory
        self.values = values

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.directory}: {text}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{key} must be a number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"config.json has no key {key!r}")
        return value


def read_config(directory: Path | str) -> ModelConfig:
    """The configuration of the model in ``directory``.

    Raises:
        ModelError: no such directory, no model in it, or one that is not supported; names the directory and the key.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ModelError(f"{root}: no such model directory")
    if not (root / "config.json").is_file():
        raise ModelError(f"{root}: no model here, config.json is missing")
    return parse_config(root, _read_object(root / "config.json"))


def parse_config(directory: Path, values: Mapping[str, Any]) -> ModelConfig:
    """The configuration that the object of a config.json describes; ``directory`` is for messages and end tokens.

    Raises:
        ModelError: a key is missing or wrong, or the model is not supported.
    """
    reader = ConfigReader(directory, values)
    name, architecture = _architecture(reader)
    _refuse_unsupported(reader)
    return _model_config(reader, name, architecture)


def compute_dtype(config: ModelConfig, dtype: Dtype) -> torch.dtype:
    """The precision to compute in; ``auto`` means the directory's own."""
    return config.dtype if dtype is Dtype.AUTO else TORCH_DTYPES[dtype]


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: must hold a JSON object, not {type(values).__name__}")
    return values


def _architecture(reader: ConfigReader) -> tuple[str, Architecture]:
    names = reader.values.get("architectures")
    if not isinstance(names, list) or not names:
        raise reader.error("config.json has no key 'architectures'")
    for name in names:
        if isinstance(name, str) and name in ARCHITECTURES:
            return name, ARCHITECTURES[name]
    found = ", ".join(map(str, names))
    raise reader.error(f"architecture {found} is not supported; supported are {', '.join(ARCHITECTURES)}")


def _refuse_unsupported(reader: ConfigReader) -> None:
    values = reader.values
    if values.get("quantization_config"):
        raise reader.error("quantization_config: quantized weights are not supported; use an unquantized revision")
    if (activation := values.get("hidden_act", "silu")) != "silu":
        raise reader.error(f"hidden_act {activation!r} is not supported, only 'silu'")
    layer_types = values.get("layer_types")
    if layer_types is None and reader.flag("use_sliding_window", False) and values.get("sliding_window"):
        first_windowed = reader.number("max_window_layers", 28)
        layer_types = ["sliding_attention"] if first_windowed < reader.integer("num_hidden_layers") else []
    if any(kind != "full_attention" for kind in layer_types or ()):
        raise reader.error("use_sliding_window / layer_types: sliding-window attention is not supported")


def _model_config(reader: ConfigReader, name: str, architecture: Architecture) -> ModelConfig:
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    head_dim = reader.integer("head_dim", architecture.default_head_dim or max(1, hidden // heads))
    if heads % kv_heads:
        raise reader.error(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise reader.error(f"head_dim {head_dim} must be even for rotary positions")
    bias = reader.flag("attention_bias", False)
    positions = reader.integer("max_position_embeddings")
    rotary = rotary_config(reader.values, positions, reader.error)
    return ModelConfig(
        architecture=name,
        layers=reader.integer("num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.integer("intermediate_size"),
        vocab_size=reader.integer("vocab_size"),
        max_positions=max(positions, rotary.extended_positions),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        rotary=rotary,
        tied_embeddings=reader.flag("tie_word_embeddings", False),
        qkv_bias=bias if architecture.qkv_bias is None else architecture.qkv_bias,
        output_bias=bias if architecture.output_bias is None else architecture.output_bias,
        qk_norm=architecture.qk_norm,
        dtype=_stored_dtype(reader),
        eos_token_ids=_eos_token_ids(reader),
    )


def _stored_dtype(reader: ConfigReader) -> torch.dtype:
    """The dtype that the directory names (transformers 5 writes ``dtype``, earlier ones ``torch_dtype``); float32 if none."""
    name = reader.values.get("dtype") or reader.values.get("torch_dtype") or "float32"
    supported = {dtype.value: torch_dtype for dtype, torch_dtype in TORCH_DTYPES.items()}
    # float32 holds every float16 exactly; half-precision arithmetic itself overflows in these models.
    supported["float16"] = torch.float32
    if name not in supported:
        raise reader.error(f"dtype {name!r} is not supported; supported are {', '.join(supported)}")
    return supported[name]


def _eos_token_ids(reader: ConfigReader) -> tuple[int, ...]:
    """End tokens: generation_config.json's where it has some, else config.json's."""
    path = reader.directory / "generation_config.json"
    generation = _read_object(path) if path.is_file() else {}
    found = generation.get("eos_token_id")
    if found is None:
        found = reader.values.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(token, int) for token in ids):
        raise reader.error(f"eos_token_id must be token ids, not {found!r}")
    return tuple(ids)
