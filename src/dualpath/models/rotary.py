"""Rotary position tables: plain, linearly scaled, Llama-3 and YaRN frequencies, numerically as Hugging Face computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dualpath.errors import ModelError

_SCALED_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """How positions turn into angles.

    ``original_positions`` is the context before scaling, ``attention_scale`` multiplies cosine and sine (YaRN); the
    other fields mean what Hugging Face's keys of these names mean.
    """

    kind: str
    theta: float
    original_positions: int
    factor: float = 1.0
    attention_scale: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    @property
    def extended_positions(self) -> int:
        """The context that YaRN reaches; directories name the unscaled one as their longest."""
        return int(self.original_positions * self.factor) if self.kind == "yarn" else 0


def rotary_config(values: Mapping[str, Any], max_positions: int, error: Callable[[str], ModelError]) -> RotaryConfig:
    """The rotary part of a config.json: ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling``.

    Raises:
        ModelError: a kind or a key that is not supported.
    """
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    given = values.get(key) or {}
    if not isinstance(given, dict):
        raise error(f"{key} must be an object, not {given!r}")
    kind = str(given.get("rope_type", given.get("type", "default")))
    if kind not in _SCALED_KEYS:
        raise error(f"{key}: rope type {kind!r} is not supported; supported are {', '.join(_SCALED_KEYS)}")
    partial = given.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise error(f"partial_rotary_factor {partial} is not supported, only 1")
    numbers = _numbers(given, key, _SCALED_KEYS[kind], error)
    theta = numbers.get("rope_theta", values.get("rope_theta") or _DEFAULT_THETA)
    return RotaryConfig(
        kind=kind,
        theta=float(theta),
        original_positions=int(numbers.get("original_max_position_embeddings", max_positions)),
        factor=numbers.get("factor", 1.0),
        attention_scale=_attention_scale(numbers) if kind == "yarn" else 1.0,
        beta_fast=numbers.get("beta_fast") or 32.0,
        beta_slow=numbers.get("beta_slow") or 1.0,
        truncate=bool(given.get("truncate", True)),
        low_freq_factor=numbers.get("low_freq_factor", 1.0),
        high_freq_factor=numbers.get("high_freq_factor", 4.0),
    )


def _numbers(
    given: Mapping[str, Any], key: str, required: Sequence[str], error: Callable[[str], ModelError]
) -> dict[str, float]:
    numbers = {name: float(value) for name, value in given.items() if isinstance(value, int | float)}
    for name in required:
        if numbers.get(name, 0.0) <= 0.0:
            raise error(f"{key}.{name} must be a positive number, not {given.get(name)!r}")
    return numbers


def _attention_scale(numbers: Mapping[str, float]) -> float:
    """YaRN's factor on cosine and sine: as given, or from ``mscale`` and ``mscale_all_dim``, or from ``factor``."""
    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    factor = numbers["factor"]
    if numbers.get("mscale") and numbers.get("mscale_all_dim"):
        return _mscale(factor, numbers["mscale"]) / _mscale(factor, numbers["mscale_all_dim"])
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


class RotaryTable:
    """Cosines and sines of positions. Angles are float32 whatever the model's dtype, as in Hugging Face."""

    def __init__(self, config: RotaryConfig, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies = _FREQUENCIES[config.kind](config, head_dim).to(device)
        self._scale = config.attention_scale
        self._dtype = dtype

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[n]`` positions to cosine and signed sine, each ``[n, 1, head_dim]``; the sine's first half is negated."""
        angles = positions[:, None].float() * self._frequencies
        cosine, sine = (angles.cos() * self._scale).to(self._dtype), (angles.sin() * self._scale).to(self._dtype)
        return torch.cat((cosine, cosine), dim=-1)[:, None], torch.cat((-sine, sine), dim=-1)[:, None]


def rotate_(heads: torch.Tensor, cosine: torch.Tensor, signed_sine: torch.Tensor) -> None:
    """Turn heads ``[n, heads, head_dim]`` by their positions' angles, in place."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    heads.mul_(cosine).addcmul_(swapped, signed_sine)


def _powers(config: RotaryConfig, head_dim: int) -> torch.Tensor:
    return torch.pow(config.theta, torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def _plain(config: RotaryConfig, head_dim: int) -> torch.Tensor:
    return 1.0 / _powers(config, head_dim)


def _linear(config: RotaryConfig, head_dim: int) -> torch.Tensor:
    return _plain(config, head_dim) / config.factor


def _llama3(config: RotaryConfig, head_dim: int) -> torch.Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between interpolated."""
    frequencies = _plain(config, head_dim)
    wavelengths = 2 * math.pi / frequencies
    longest = config.original_positions / config.low_freq_factor
    shortest = config.original_positions / config.high_freq_factor
    smooth = (config.original_positions / wavelengths - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    stretched = frequencies / config.factor
    between = (1 - smooth) * stretched + smooth * frequencies
    kept = torch.where(wavelengths < shortest, frequencies, between)
    return torch.where(wavelengths > longest, stretched, kept)


def _yarn(config: RotaryConfig, head_dim: int) -> torch.Tensor:
    """Dimensions that turn often keep their frequency, slow ones are stretched by ``factor`` (arXiv 2309.00071)."""
    powers = _powers(config, head_dim)
    low = _turning_dimension(config, head_dim, config.beta_fast)
    high = _turning_dimension(config, head_dim, config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    kept = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return 1.0 / (config.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _turning_dimension(config: RotaryConfig, head_dim: int, turns: float) -> float:
    """The dimension that makes ``turns`` full turns over the original context."""
    return head_dim * math.log(config.original_positions / (turns * 2 * math.pi)) / (2 * math.log(config.theta))


_FREQUENCIES: dict[str, Callable[[RotaryConfig, int], torch.Tensor]] = {
    "default": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
