"""The building blocks of a dense decoder layer: norm, fused projections, gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from dualpath.models.config import ModelConfig
from dualpath.models.weights import Weights


def rms_norm(states: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension.

    In float64 it repeats Hugging Face's operations one by one, float32 intermediates included, so that a float64 model
    is an exact reference; other dtypes take the fused operator.
    """
    if states.dtype is not torch.float64:
        return functional.rms_norm(states, states.shape[-1:], weight, epsilon)
    single = states.to(torch.float32)
    variance = single.pow(2).mean(-1, keepdim=True)
    normed = (single * torch.rsqrt(variance + epsilon)).to(states.dtype)
    return normed if weight is None else weight * normed


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Projections that share an input are fused; those that end in a residual are transposed views.

    Attributes:
        qkv: ``[(heads + 2 · kv_heads) · head_dim, hidden]``.
        qk_norm: ``[heads + kv_heads, head_dim]``, each query head's norm weight, then each key head's (Qwen3).
        output: ``[heads · head_dim, hidden]``.
        gate_up: ``[2 · intermediate, hidden]``.
        down: ``[intermediate, hidden]``.
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def load_layer(weights: Weights, config: ModelConfig, layer: int) -> LayerWeights:
    """The weights of one layer, fused."""
    prefix = f"model.layers.{layer}."
    attention = f"{prefix}self_attn."
    inputs = ("q_proj", "k_proj", "v_proj")
    return LayerWeights(
        input_norm=weights.tensor(f"{prefix}input_layernorm.weight"),
        qkv=weights.stacked([f"{attention}{name}.weight" for name in inputs]),
        qkv_bias=weights.stacked([f"{attention}{name}.bias" for name in inputs]) if config.qkv_bias else None,
        qk_norm=_qk_norm(weights, config, attention) if config.qk_norm else None,
        output=weights.tensor(f"{attention}o_proj.weight").t(),
        output_bias=weights.tensor(f"{attention}o_proj.bias") if config.output_bias else None,
        mlp_norm=weights.tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=weights.stacked([f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"]),
        down=weights.tensor(f"{prefix}mlp.down_proj.weight").t(),
    )


def _qk_norm(weights: Weights, config: ModelConfig, attention: str) -> torch.Tensor:
    queries = weights.tensor(f"{attention}q_norm.weight").expand(config.heads, -1)
    keys = weights.tensor(f"{attention}k_norm.weight").expand(config.kv_heads, -1)
    return torch.cat((queries, keys))


def add_attention_output(hidden: torch.Tensor, attended: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
    """The residual stream after attention."""
    if weights.output_bias is None:
        return torch.addmm(hidden, attended, weights.output)
    return hidden + torch.addmm(weights.output_bias, attended, weights.output)


def add_mlp(hidden: torch.Tensor, weights: LayerWeights, epsilon: float) -> torch.Tensor:
    """The residual stream after the SiLU-gated MLP."""
    gate, up = functional.linear(rms_norm(hidden, weights.mlp_norm, epsilon), weights.gate_up).chunk(2, dim=-1)
    return torch.addmm(hidden, functional.silu(gate).mul_(up), weights.down)
