"""Dense decoders with grouped-query attention (Qwen2, Qwen2.5, Qwen3), one layer at a time (paper section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch.nn import functional

from dualpath.models.attention import (
    DecodePlan,
    HeadLayout,
    PrefillPlan,
    decode_attention,
    plan_decode,
    plan_prefill,
    prefill_attention,
)
from dualpath.models.base import DecodeBatch, ModelShape, PrefillSegment
from dualpath.models.config import ModelConfig
from dualpath.models.layers import LayerWeights, add_attention_output, add_mlp, load_layer, rms_norm
from dualpath.models.rotary import RotaryTable, rotate_
from dualpath.models.weights import Weights

_Begun = TypeVar("_Begun")


class DenseModel:
    """A ``CausalModel`` of the families in ``config.ARCHITECTURES``. Not thread-safe.

    Raises (on construction):
        ModelError: the weights do not fit the configuration.
    """

    def __init__(self, directory: Path, config: ModelConfig, shape: ModelShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        self._epsilon = config.rms_norm_eps
        self._heads = HeadLayout(config.kv_heads, config.group, config.head_dim)
        self._rotary = RotaryTable(config.rotary, config.head_dim, shape.dtype, device)
        weights = Weights(directory, config, shape.dtype, device)
        self._embedding = weights.tensor("model.embed_tokens.weight")
        self._layers = [load_layer(weights, config, layer) for layer in range(config.layers)]
        self._norm = weights.tensor("model.norm.weight")
        self._head = self._embedding if config.tied_embeddings else weights.tensor("lm_head.weight")
        self._prefill: PrefillPlan | None = None
        self._decode_batch: DecodeBatch | None = None
        self._decode: DecodePlan | None = None
        self._every_token = False

    @property
    def shape(self) -> ModelShape:
        return self._shape

    @torch.inference_mode()
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """``[n]`` int64 to hidden states ``[n, hidden_size]``."""
        return functional.embedding(token_ids, self._embedding)

    @torch.inference_mode()
    def begin_prefill(self, segments: Sequence[PrefillSegment], *, every_token: bool = False) -> None:
        """Fix the batch of the following ``prefill_layer`` calls: positions, rotary tables, masks."""
        self._every_token = every_token
        self._prefill = plan_prefill(segments, self._shape.dtype, self._device)
        self._angles = self._rotary.at(self._prefill.positions)

    @torch.inference_mode()
    def prefill_layer(self, layer: int, hidden: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Hidden states ``[Σ new, hidden_size]`` through one layer; new rows of ``kv`` are written.

        Behind the last layer, what is not generated from is not computed: ``[segments, hidden_size]``.
        """
        plan = _begun(self._prefill, "begin_prefill")
        rows = self._heads.rows(kv, self._shape.dtype)
        queries, keys_values = self._project(self._layers[layer], hidden)
        for write in plan.writes:
            rows[write.rows] = keys_values[write.states]
        chunks = plan.chunks
        if layer == self._shape.layers - 1 and not self._every_token:
            queries, hidden, chunks = queries[plan.last_tokens], hidden[plan.last_tokens], plan.last_chunks
        return self._finish(self._layers[layer], hidden, prefill_attention(queries, rows, chunks, self._heads))

    @torch.inference_mode()
    def begin_decode(self, batch: DecodeBatch) -> None:
        """Fix the batch of the following ``decode_layer`` calls; the first of them shows the pages' size."""
        self._decode_batch, self._decode = batch, None
        self._angles = self._rotary.at(torch.tensor(batch.lengths, dtype=torch.int64, device=self._device))

    @torch.inference_mode()
    def decode_layer(self, layer: int, hidden: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """Hidden states ``[batch, hidden_size]`` through one layer; the new tokens' rows of ``pages`` are written."""
        plan = self._decode or self._plan_decode(pages.shape[1])
        rows = self._heads.rows(pages, self._shape.dtype)
        queries, keys_values = self._project(self._layers[layer], hidden)
        rows.index_copy_(0, plan.slots, keys_values)
        return self._finish(self._layers[layer], hidden, decode_attention(queries, rows, plan, self._heads))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and head: ``[n, hidden_size]`` to ``[n, vocab_size]``."""
        return functional.linear(rms_norm(hidden, self._norm, self._epsilon), self._head)

    def _project(self, weights: LayerWeights, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries ``[n, heads, head_dim]`` and KV rows ``[n, 2, kv_heads, head_dim]``, positions applied."""
        normed = rms_norm(hidden, weights.input_norm, self._epsilon)
        kv_heads, head_dim = self._heads.kv_heads, self._heads.head_dim
        projected = functional.linear(normed, weights.qkv, weights.qkv_bias).view(len(hidden), -1, head_dim)
        # Turned in place, so that keys and values stay neighbours and are written as whole KV rows.
        turning = projected[:, :-kv_heads]
        if weights.qk_norm is not None:
            turning.copy_(rms_norm(turning, None, self._epsilon) * weights.qk_norm)
        rotate_(turning, *self._angles)
        return projected[:, : -2 * kv_heads], projected[:, -2 * kv_heads :].view(-1, 2, kv_heads, head_dim)

    def _plan_decode(self, page_tokens: int) -> DecodePlan:
        batch = _begun(self._decode_batch, "begin_decode")
        # A processor's attention jumps from token to token, head by head: a sequence gathered first, in order, is in
        # its cache by then, which made attention 1.1 to 1.7 times as fast. Other devices save themselves the copy.
        in_place = self._device.type != "cpu"
        self._decode = plan_decode(batch, page_tokens, self._heads, self._shape.dtype, self._device, in_place=in_place)
        return self._decode

    def _finish(self, weights: LayerWeights, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return add_mlp(add_attention_output(hidden, attended, weights), weights, self._epsilon)


def _begun(batch: _Begun | None, method: str) -> _Begun:
    if batch is None:
        raise RuntimeError(f"{method} must come before the layers")
    return batch
