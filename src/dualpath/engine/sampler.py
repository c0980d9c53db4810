"""Tokens from logits: greedy or sampled, with randomness keyed by (seed, position) so that no state crosses engines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from dualpath.control.turns import SamplingParams

_RANDOM_BITS = 52


class SampledToken(NamedTuple):
    """One chosen token; log-probabilities, likeliest first, only where its parameters ask for them."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@torch.inference_mode()
def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    eos_token_ids: Sequence[int],
) -> list[SampledToken]:
    """One token for each row of ``logits`` ``[n, vocab]``.

    ``positions`` count each turn's output from 0. A row's token depends on its own logits, parameters and position
    alone: never on the batch it stands in. All greedy rows share one argmax. ``logits`` is left as it was.
    """
    allowed = _without_early_ends(logits, params, positions, eos_token_ids)
    tokens: list[int] = allowed.argmax(dim=-1).tolist()
    for row, (param, position) in enumerate(zip(params, positions, strict=True)):
        if param.temperature > 0.0:
            tokens[row] = _draw(allowed[row], param, position)
    return [
        SampledToken(token) if param.logprobs is None else _with_logprobs(logits[row], token, param.logprobs)
        for row, (token, param) in enumerate(zip(tokens, params, strict=True))
    ]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position) alone: 52 bits of BLAKE2b, the same on every machine and device."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _RANDOM_BITS)) / 2.0**_RANDOM_BITS


def filtered_probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution ``[vocab]`` (float64, not renormalised) that one row of logits is sampled from.

    Temperature first, then the ``top_k`` likeliest, then the fewest of these whose share of their mass reaches ``top_p``.
    Among equal logits the smaller token id counts as likelier.
    """
    # Subtracting the maximum first keeps tiny temperatures from overflowing.
    scaled = (logits.double() - logits.max().double()) / params.temperature
    probabilities = scaled.softmax(dim=-1)
    if not params.top_k and params.top_p >= 1.0:
        return probabilities
    ranked, order = torch.sort(probabilities, descending=True, stable=True)
    if params.top_k:
        ranked = ranked[: params.top_k]
    before = ranked.cumsum(dim=-1) - ranked
    kept = order[: len(ranked)][before < params.top_p * ranked.sum()]
    return torch.zeros_like(probabilities).index_copy_(0, kept, probabilities[kept])


def _without_early_ends(
    logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int], eos_token_ids: Sequence[int]
) -> torch.Tensor:
    """Logits in which rows below ``min_tokens`` cannot choose a token that would end the turn."""
    allowed = logits
    for row, (param, position) in enumerate(zip(params, positions, strict=True)):
        if position >= param.min_tokens:
            continue
        if allowed is logits:
            allowed = logits.clone()
        ending = [token for token in _ending_tokens(param, eos_token_ids) if 0 <= token < logits.shape[-1]]
        allowed[row, ending] = float("-inf")
    return allowed


def _ending_tokens(params: SamplingParams, eos_token_ids: Iterable[int]) -> tuple[int, ...]:
    return params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos_token_ids)


def _draw(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """Inverse of the cumulative distribution in token order: one uniform number decides."""
    cumulative = filtered_probabilities(logits, params).cumsum(dim=-1)
    target = cumulative[-1] * uniform(params.seed, position)
    return int(torch.searchsorted(cumulative, target, right=True))


def _with_logprobs(logits: torch.Tensor, token: int, count: int) -> SampledToken:
    logprobs = logits.double().log_softmax(dim=-1)
    values, tokens = logprobs.topk(min(count, len(logprobs)))
    likeliest = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return SampledToken(token, float(logprobs[token]), likeliest)
