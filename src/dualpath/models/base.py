"""What an engine needs of a model: one layer at a time, with the KV in memory that the engine owns (paper section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What others may know of a model.

    ``token_layer_bytes`` is the KV of one token in one layer; ``max_positions`` the longest context; ``fingerprint``
    identifies architecture, revision and weights (part of every block key).
    """

    architecture: str
    fingerprint: str
    layers: int
    hidden_size: int
    vocab_size: int
    token_layer_bytes: int
    max_positions: int
    dtype: torch.dtype
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefillSegment:
    """One request's part of a forward batch.

    Its KV rows are ``[kv_start, kv_start + cached + new)`` of the batch's KV buffer, the first ``cached`` already
    filled; its new tokens (one at least) are the next ``new`` rows of the hidden states, at positions ``cached …``.
    """

    kv_start: int
    cached: int
    new: int


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One decode step: a token each for several sequences.

    Attributes:
        tables: per sequence, its pages in order, as plain integers so that nothing waits for the device; at least
            ``lengths // page_tokens + 1`` long. Where reading in place pays, neighbouring pages are not gathered.
        lengths: per sequence, tokens before this one; the new token's KV goes to that position.
    """

    tables: Sequence[Sequence[int]]
    lengths: Sequence[int]


class CausalModel(Protocol):
    """A decoder-only language model, one layer at a time. Not thread-safe.

    A forward is: ``begin_prefill`` or ``begin_decode`` once, ``embed`` once, the layer method for every layer in
    order, ``logits`` once. Tensors live on the model's device.
    """

    @property
    def shape(self) -> ModelShape: ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """``[n]`` int64 to hidden states ``[n, hidden_size]``."""
        ...

    def begin_prefill(self, segments: Sequence[PrefillSegment], *, every_token: bool = False) -> None:
        """Fix the batch of the following ``prefill_layer`` calls (positions, rotary tables, masks).

        The last layer gives the hidden states of each segment's last token only, the ones that generation needs, unless
        those of ``every_token`` are wanted.
        """
        ...

    def prefill_layer(self, layer: int, hidden: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Hidden states ``[Σ new, hidden_size]`` through one layer; the last one's are ``[segments, hidden_size]``.

        ``kv`` is ``[rows, token_layer_bytes]`` uint8, contiguous, the layer's KV of the batch: each segment's new rows
        are written, all of its rows attended to, causally.
        """
        ...

    def begin_decode(self, batch: DecodeBatch) -> None:
        """Fix the batch of the following ``decode_layer`` calls."""
        ...

    def decode_layer(self, layer: int, hidden: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """Hidden states ``[batch, hidden_size]`` through one layer.

        ``pages`` is ``[pages, page_tokens, token_layer_bytes]`` uint8, contiguous, the layer's part of the device pool:
        the new tokens' KV is written, each sequence attends to all of its own.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and head: ``[n, hidden_size]`` to ``[n, vocab_size]``."""
        ...
