"""The cost of any model of the known families, from its Hugging Face configuration (paper Table 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dualpath.costmodel.shapes import DenseShape, ModelCost, ModelSize
from dualpath.errors import ModelError
from dualpath.knobs import did_you_mean

_FP8_LATENT_SCALE_BYTES, _INDEX_SCALE_BYTES = 16, 4
"""DeepSeek-V3.2 keeps the latent in fp8 with four fp32 scales, and an indexer key in fp8 with one."""


def cost_of_config(config: Mapping[str, Any], *, element_bytes: int = 2) -> ModelCost:
    """FLOPs and stored KV bytes of a token of the model that ``config`` describes.

    ``element_bytes`` is the size of a KV element (2: bf16, 1: fp8). DeepSeek-V3.2's indexer keys are stored too.

    Raises:
        ModelError: the family is unknown, or a key that the family needs is missing or no number.
    """
    kind = str(config.get("model_type"))
    if kind not in _FAMILIES:
        supported = f"supported are {', '.join(_FAMILIES)}"
        raise ModelError(f"model_type {kind!r} is not supported{did_you_mean(kind, _FAMILIES)}; {supported}")
    return _FAMILIES[kind](_Numbers(config), element_bytes)


def size_of_config(config: Mapping[str, Any], *, element_bytes: int = 2) -> ModelSize:
    """Layers and weights of the model that ``config`` describes, weights at ``element_bytes`` each; on one node a role.

    Raises:
        ModelError: as for ``cost_of_config``.
    """
    cost_of_config(config, element_bytes=element_bytes)  # finds out what is wrong with it
    number = _Numbers(config)
    layers, hidden = number("num_hidden_layers"), number("hidden_size")
    experts = number.optional("n_routed_experts") or number.optional("num_experts") or number.optional("num_local_experts")
    weights = 2.0 * hidden * number("vocab_size", 1)
    if experts:
        expert = 3 * hidden * number("moe_intermediate_size", number.optional("intermediate_size") or 1)
        attention = 4 * hidden * hidden
        weights += layers * (attention + expert * (experts + number("n_shared_experts", 0)))
    else:
        weights += _grouped(number).layer_parameters
    return ModelSize(layers, weights * element_bytes, hidden if experts else 0)


class _Numbers:
    """Whole numbers of a configuration by key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def __call__(self, key: str, default: int | None = None) -> int:
        value = self._config.get(key)
        if value is None:
            value = default
        # What has a default of 0 may be absent from a model; everything else is a size.
        if not isinstance(value, int) or isinstance(value, bool) or value < (0 if default == 0 else 1):
            raise ModelError(f"configuration: {key} must be a positive whole number, not {value!r}")
        return value

    def optional(self, key: str) -> int | None:
        """The number, or None if the key is absent or null."""
        return None if self._config.get(key) is None else self(key)

    def full_attention_layers(self) -> int:
        """Layers that attend to all of the context (``layer_types``), all of them if nothing is said."""
        kinds = self._config.get("layer_types")
        if not kinds:
            return self("num_hidden_layers")
        if not isinstance(kinds, list):
            raise ModelError(f"configuration: layer_types must be a list, not {kinds!r}")
        return sum(kind == "full_attention" for kind in kinds)


def _grouped(number: _Numbers) -> DenseShape:
    heads = number("num_attention_heads")
    return DenseShape(
        layers=number("num_hidden_layers"),
        hidden_size=number("hidden_size"),
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", number("hidden_size") // heads),
        intermediate_size=number("intermediate_size"),
    )


def _dense(number: _Numbers, element_bytes: int) -> ModelCost:
    return _grouped(number).cost(element_bytes)


def _mixture(number: _Numbers, element_bytes: int) -> ModelCost:
    """Grouped-query attention and, in every layer, the experts that a token goes to (Qwen3-MoE, GPT-OSS).

    Layers with a sliding window read at most the window from storage and compute over it only: a constant.
    """
    shape = _grouped(number)
    attention = 2 * shape.hidden_size * shape.head_dim * (shape.heads + shape.kv_heads)
    expert = 3 * shape.hidden_size * number("moe_intermediate_size", shape.intermediate_size)
    active, experts = number("num_experts_per_tok"), number.optional("num_experts") or number("num_local_experts")
    parameters = shape.layers * (attention + active * expert + shape.hidden_size * experts)
    full = number.full_attention_layers()
    per_context = 4.0 * shape.heads * shape.head_dim
    window = number.optional("sliding_window") if full < shape.layers else None
    return ModelCost(
        token_bytes=2 * full * shape.kv_heads * shape.head_dim * element_bytes,
        token_flops=2.0 * parameters + per_context * (shape.layers - full) * (window or 0),
        context_flops=per_context * full,
    )


def _deepseek(number: _Numbers, element_bytes: int) -> ModelCost:
    """Latent attention (absorbed, as in decode-style prefill behind a hit), experts, and V3.2's sparse attention.

    With an indexer (``index_topk``), attention sees that many tokens at most, and only the indexer all of the context.
    """
    layers, hidden, heads = number("num_hidden_layers"), number("hidden_size"), number("num_attention_heads")
    latent, rope = number("kv_lora_rank"), number("qk_rope_head_dim")
    nope, value = number("qk_nope_head_dim"), number("v_head_dim")
    query_rank = number.optional("q_lora_rank")
    queries = heads * (nope + rope)
    parameters = layers * (
        (query_rank * (hidden + queries) if query_rank else hidden * queries)
        + hidden * (latent + rope)
        + latent * heads * (nope + value)
        + heads * value * hidden
    )
    dense_layers = number("first_k_dense_replace", 0)
    expert = 3 * hidden * number("moe_intermediate_size")
    active = number("num_experts_per_tok") + number("n_shared_experts", 0)
    parameters += dense_layers * 3 * hidden * number("intermediate_size")
    parameters += (layers - dense_layers) * (active * expert + hidden * number("n_routed_experts"))
    per_context = 2.0 * (2 * latent + rope) * heads * layers
    token_bytes = layers * (latent * element_bytes + rope * 2 + (_FP8_LATENT_SCALE_BYTES if element_bytes == 1 else 0))
    chosen = number.optional("index_topk")
    if chosen is None:
        return ModelCost(token_bytes, 2.0 * parameters, per_context)
    index_heads, index_dim = number("index_n_heads"), number("index_head_dim")
    parameters += layers * ((query_rank or hidden) * index_heads * index_dim + hidden * (index_dim + index_heads))
    return ModelCost(
        token_bytes=token_bytes + layers * (index_dim + _INDEX_SCALE_BYTES),
        token_flops=2.0 * parameters + per_context * chosen,
        context_flops=2.0 * index_heads * index_dim * layers,
    )


_FAMILIES: dict[str, Callable[[_Numbers, int], ModelCost]] = {
    "qwen2": _dense,
    "qwen3": _dense,
    "llama": _dense,
    "qwen3_moe": _mixture,
    "gpt_oss": _mixture,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek,
}
