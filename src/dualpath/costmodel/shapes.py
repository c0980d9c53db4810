"""Bytes per token and FLOPs per token of a model, and the ratio of the two that makes agents I/O-bound (paper Table 1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelCost:
    """A model's cost as a function of context.

    A new token at context ``L`` costs ``token_flops + context_flops · L`` FLOPs (the paper's f(L)); its KV takes
    ``token_bytes`` over all layers (the paper's b).
    """

    token_bytes: int
    token_flops: float
    context_flops: float

    def flops(self, context: float) -> float:
        """FLOPs of one new token after ``context`` tokens."""
        return self.token_flops + self.context_flops * context

    def io_per_compute(self, context: float, append: float) -> float:
        """Bytes of KV read per FLOP of a turn that appends ``append`` tokens to ``context`` cached ones."""
        return context * self.token_bytes / (append * self.flops(context))


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model's cost does not say.

    Attributes:
        layers: of the model.
        weight_bytes: of all weights, at the precision that they are served in.
        hidden_size: width of what experts exchange.
        prefill_step_nodes, decode_step_nodes: nodes over which weights are spread and whose engines run in step.
    """

    layers: int
    weight_bytes: float
    hidden_size: int = 0
    prefill_step_nodes: int = 1
    decode_step_nodes: int = 1


@dataclass(frozen=True, slots=True)
class DenseShape:
    """A dense decoder with grouped-query attention and a gated MLP."""

    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int

    @property
    def layer_parameters(self) -> int:
        """Weights of all layers' projections (embedding, head and norms left out)."""
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    def cost(self, element_bytes: int) -> ModelCost:
        """The cost with KV elements of ``element_bytes``: two FLOPs a weight, four a head dimension and context token."""
        return ModelCost(
            token_bytes=2 * self.layers * self.kv_heads * self.head_dim * element_bytes,
            token_flops=2.0 * self.layer_parameters,
            context_flops=4.0 * self.layers * self.heads * self.head_dim,
        )


PAPER_MODELS: dict[str, ModelCost] = {
    "Qwen2.5-32B": ModelCost(262_144, 2 * 31.98e9, 4 * 40 * 128 * 64),
    "Qwen3-235B": ModelCost(96_256, 2 * 22e9, 4 * 64 * 128 * 94),
    "GPT-OSS-120B": ModelCost(18_432, 2 * 5.1e9 + 4 * 128 * 4096 * 18, 4 * 4096 * 18),
    "DeepSeek-V3.2": ModelCost(40_016, 2 * 35.15e9 + 2 * 1088 * 128 * 61 * 2048, 2 * 64 * 128 * 61),
    "DeepSeek-V3": ModelCost(40_016, 2 * 35.15e9, 2 * 1088 * 128 * 61),
}
"""The models of Table 1 with the precisions it assumes."""
