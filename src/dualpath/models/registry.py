"""From a model directory to a ``CausalModel``: architecture names and their lazily imported classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from dualpath.errors import ModelError
from dualpath.models.base import CausalModel, ModelShape
from dualpath.models.config import ModelConfig, compute_dtype, read_config
from dualpath.models.weights import fingerprint
from dualpath.settings import Dtype

Factory = Callable[[Path, ModelConfig, ModelShape, torch.device], CausalModel]


def _dense() -> Factory:
    from dualpath.models.dense import DenseModel

    return DenseModel


FACTORIES: dict[str, Callable[[], Factory]] = {
    "Qwen2ForCausalLM": _dense,
    "Qwen3ForCausalLM": _dense,
}
"""Architecture, as config.json names it, to a function that imports and returns its factory."""


def load_model(directory: Path | str, dtype: Dtype = Dtype.AUTO, device: str = "auto") -> CausalModel:
    """The model in ``directory``, its weights on ``device``.

    Raises:
        ModelError: no model there, one that is not supported, weights that do not fit, or no such device.
    """
    config = read_config(directory)
    target = resolve_device(device)
    return FACTORIES[config.architecture]()(Path(directory), config, _shape(directory, config, dtype), target)


def describe_model(directory: Path | str, dtype: Dtype = Dtype.AUTO) -> ModelShape:
    """The shape of the model in ``directory``; reads configuration and fingerprint, loads no weights.

    Raises:
        ModelError: no model there, or one that is not supported.
    """
    return _shape(directory, read_config(directory), dtype)


def resolve_device(device: str) -> torch.device:
    """A torch device from its name; ``auto`` is the first accelerator, or the CPU where there is none.

    Raises:
        ModelError: no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} cannot be used here: {error}") from error
    return target


def _shape(directory: Path | str, config: ModelConfig, dtype: Dtype) -> ModelShape:
    computed = compute_dtype(config, dtype)
    return ModelShape(
        architecture=config.architecture,
        fingerprint=fingerprint(directory),
        layers=config.layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        token_layer_bytes=config.token_layer_bytes(computed),
        max_positions=config.max_positions,
        dtype=computed,
        eos_token_ids=config.eos_token_ids,
    )
