"""Configurations of real models."""

from __future__ import annotations

from typing import Any

QWEN_32B: dict[str, Any] = {
    "model_type": "qwen2",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 27_648,
}
"""Qwen2.5-32B."""
