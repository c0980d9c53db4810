"""The compute of a decode engine: one token for every running sequence (paper section 2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dualpath.control.turns import SamplingParams, TokenEvent
from dualpath.engine.device_pool import DevicePool
from dualpath.engine.sampler import sample
from dualpath.models.base import CausalModel, DecodeBatch


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """A sequence's part of one step: its pages, the KV tokens before this one, its last token and the next position."""

    pages: Sequence[int]
    kv_tokens: int
    last_token: int
    sampling: SamplingParams
    position: int


@dataclass(slots=True)
class DecodeCompute:
    """The model and its paged pool. ``step`` runs on the compute thread only."""

    model: CausalModel
    pool: DevicePool
    device: torch.device
    attention_s: float = 0.0

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.model.shape.eos_token_ids

    def step(self, rows: Sequence[DecodeRow]) -> list[TokenEvent]:
        """The next token of every row, whose last token's KV is written to its page."""
        started = time.perf_counter()
        with torch.inference_mode():
            tokens = torch.tensor([row.last_token for row in rows], dtype=torch.int64, device=self.device)
            lengths = [row.kv_tokens for row in rows]
            self.model.begin_decode(DecodeBatch([row.pages for row in rows], lengths))
            hidden = self.model.embed(tokens)
            for layer in range(self.model.shape.layers):
                hidden = self.model.decode_layer(layer, hidden, self.pool.layer(layer))
            sampled = sample(
                self.model.logits(hidden),
                [row.sampling for row in rows],
                [row.position for row in rows],
                self.eos_token_ids,
            )
        self.attention_s += time.perf_counter() - started
        return [
            TokenEvent(row.position, one.token, one.logprob, one.top_logprobs) for row, one in zip(rows, sampled, strict=True)
        ]
