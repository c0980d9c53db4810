"""Small random models as complete Hugging Face directories, for demonstrations and tests without a download."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dualpath.errors import ModelError
from dualpath.models.config import ARCHITECTURES, ModelConfig, compute_dtype, parse_config
from dualpath.models.weights import SINGLE_FILE, expected_shapes
from dualpath.settings import Dtype

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] if message['content'] is string else '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_BYTES = 256
_MIN_VOCAB = _BYTES + len(SPECIAL_TOKENS)
_SHARPNESS = 2.0
"""Gain of query and key weights: attention must single tokens out, or no output would depend on the far context."""


@dataclass(frozen=True, slots=True)
class CreatedModel:
    """What was written: the model's parameters and the KV bytes of one token over all layers."""

    directory: Path
    parameters: int
    token_bytes: int


def create_model(
    directory: Path | str,
    *,
    architecture: str = "Qwen2ForCausalLM",
    layers: int = 4,
    hidden: int = 128,
    heads: int = 8,
    kv_heads: int = 8,
    head_dim: int = 16,
    intermediate: int = 256,
    vocab: int = 512,
    max_positions: int = 32_768,
    tied: bool = True,
    dtype: Dtype = Dtype.FLOAT32,
    seed: int = 0,
) -> CreatedModel:
    """Write a random model that both this project and transformers load, tokenizer and chat template included.

    The defaults are a model for agent demonstrations: much KV (4 KiB a token) for little compute. Its weights are
    scaled so that greedy output is varied and depends on all of the context.

    Raises:
        ModelError: the directory is not empty, or the sizes make no model.
    """
    root = Path(directory)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ModelError(f"{root}: exists and is not an empty directory; nothing was written")
    if architecture not in ARCHITECTURES:
        raise ModelError(f"architecture {architecture} is not supported; supported are {', '.join(ARCHITECTURES)}")
    if vocab < _MIN_VOCAB:
        raise ModelError(f"vocab must be at least {_MIN_VOCAB} (every byte and {', '.join(SPECIAL_TOKENS)}), not {vocab}")
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": tied,
    }
    values = _config_values(architecture, dtype, sizes)
    config = parse_config(root, values)
    root.mkdir(parents=True, exist_ok=True)
    _write_json(root / "config.json", values)
    return _write_model(root, config, seed)


def _config_values(architecture: str, dtype: Dtype, sizes: Mapping[str, int]) -> dict[str, Any]:
    stored = Dtype.FLOAT32 if dtype is Dtype.AUTO else dtype
    return {
        "architectures": [architecture],
        "model_type": ARCHITECTURES[architecture].model_type,
        **sizes,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": _special_id(TURN_END),
        "pad_token_id": _special_id(END_OF_TEXT),
        "torch_dtype": stored.value,
    }


def _write_model(root: Path, config: ModelConfig, seed: int) -> CreatedModel:
    dtype = compute_dtype(config, Dtype.AUTO)
    weights = random_weights(config, dtype, seed)
    save_file(weights, root / SINGLE_FILE, metadata={"format": "pt"})
    ends = [_special_id(TURN_END), _special_id(END_OF_TEXT)]
    _write_json(root / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[1], "do_sample": False})
    build_tokenizer(config.vocab_size).save(str(root / "tokenizer.json"))
    _write_json(root / "tokenizer_config.json", _tokenizer_config(config))
    parameters = sum(weight.numel() for weight in weights.values())
    return CreatedModel(root, parameters, config.layers * config.token_layer_bytes(dtype))


def random_weights(config: ModelConfig, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Weights by Hugging Face name; the same for the same configuration and seed whatever the dtype."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        weights[name] = _scaled(name, noise).to(dtype)
    return weights


def _scaled(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Unit-variance outputs for matrices; layers outweigh the embedding, so that a tied head does not echo its input."""
    if name.endswith("norm.weight"):
        weight = 1.0 + 0.1 * noise
        return weight * math.sqrt(_SHARPNESS) if name.endswith(("q_norm.weight", "k_norm.weight")) else weight
    if name.endswith(".bias"):
        return 0.1 * noise
    gain = _SHARPNESS if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
    return noise * (gain / math.sqrt(noise.shape[-1]))


def build_tokenizer(vocab: int) -> Tokenizer:
    """A byte-level tokenizer of ``vocab`` tokens: each byte, the special tokens, and words that only decoding uses."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = (f"Ġw{number}" for number in range(vocab - _MIN_VOCAB))
    ids = {text: number for number, text in enumerate((*alphabet, *SPECIAL_TOKENS, *words))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return tokenizer


def _special_id(text: str) -> int:
    return _BYTES + SPECIAL_TOKENS.index(text)


def _tokenizer_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
