"""What a profile run measures of an engine and its storage; the scheduler, the batching and the simulator predict with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dualpath.costmodel.attention import AttentionTime
from dualpath.errors import SettingsError

_RATES = ("prefill_tokens_per_s", "storage_tokens_per_s")


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """What a simulation of this machine's engines needs beside ``AttentionTime``; seconds, unless the name says otherwise.

    The defaults are those of a small model on one processor core.

    Attributes:
        forward_s: the part of a lone request's forward time that a batch of several pays only once.
        decode_step_s, decode_request_s, decode_context_s: a decode step takes ``step + request · n + context · tokens`` for
            ``n`` sequences with so many tokens of context in all.
        copy_bytes_per_s: between buffers, and between buffers and the device.
        turn_s: from an agent's sending a turn to both engines' having it: hashing, matching, scheduling, messages.
        read_s: of a storage read, before its first byte.
        batch_s: of a prefill batch, beside compute and copies: packing it, streaming its layers, sending its tokens.
        handoff_s: from the first token until the decode engine has the turn, beside the copy itself.
        token_s: of a decode step, beside compute: composing it and sending its tokens.
        finish_s: from the last token until the agent knows that it was the last.
    """

    forward_s: float = 0.0
    decode_step_s: float = 1.5e-3
    decode_request_s: float = 3e-4
    decode_context_s: float = 1e-7
    copy_bytes_per_s: float = 2e9
    turn_s: float = 2e-3
    read_s: float = 1e-3
    batch_s: float = 2e-3
    handoff_s: float = 2e-3
    token_s: float = 5e-4
    finish_s: float = 1e-3

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if not 0.0 <= value < float("inf"):
                raise SettingsError(f"profile: times.{name} must be a number, 0 or more, not {value!r}")
        if not self.copy_bytes_per_s:
            raise SettingsError("profile: times.copy_bytes_per_s must be positive")

    def step_s(self, requests: int, context_tokens: int) -> float:
        """Seconds of a decode step's compute."""
        return self.decode_step_s + self.decode_request_s * requests + self.decode_context_s * context_tokens

    def to_dict(self) -> dict[str, float]:
        """As JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineTimes:
        """The inverse of ``to_dict``; what is missing has its default, keys that other versions wrote besides are ignored.

        Raises:
            SettingsError: a value is no such number.
        """
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        for name, value in known.items():
            if not isinstance(value, int | float):
                raise SettingsError(f"profile: times.{name} must be a number, not {value!r}")
        return cls(**{name: float(value) for name, value in known.items()})


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Rates of one engine.

    ``prefill_tokens_per_s`` turns the paper's β from seconds into tokens, ``storage_tokens_per_s`` α: tokens of KV
    that one node's storage NIC reads in a second. ``times`` are for simulating the engine. The defaults stand in until a
    profile is measured.
    """

    attention: AttentionTime = field(default_factory=AttentionTime)
    prefill_tokens_per_s: float = 10_000.0
    storage_tokens_per_s: float = 20_000.0
    times: EngineTimes = field(default_factory=EngineTimes)

    def __post_init__(self) -> None:
        for name in _RATES:
            if not 0.0 < getattr(self, name) < float("inf"):
                raise SettingsError(f"profile: {name} must be a positive number, not {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        rates = {name: getattr(self, name) for name in _RATES}
        return {"attention": self.attention.to_dict()} | rates | {"times": self.times.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineProfile:
        """The inverse of ``to_dict``; ``times`` may be missing, keys that other versions wrote besides are ignored.

        Raises:
            SettingsError: a key is missing, or its value is of the wrong kind.
        """
        for name in _RATES:
            if not isinstance(values.get(name), int | float):
                raise SettingsError(f"profile: {name} must be a number, not {values.get(name)!r}")
        attention, times = values.get("attention"), values.get("times", {})
        for name, value in (("attention", attention), ("times", times)):
            if not isinstance(value, Mapping):
                raise SettingsError(f"profile: {name} must be an object, not {value!r}")
        assert isinstance(attention, Mapping)
        prefill, storage = (float(values[name]) for name in _RATES)
        return cls(AttentionTime.from_dict(attention), prefill, storage, EngineTimes.from_dict(times))

    def to_json(self) -> str:
        """As the text of a profile file."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> EngineProfile:
        """The inverse of ``to_json``.

        Raises:
            SettingsError: the text is no profile.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise SettingsError(f"profile: no JSON: {error}") from error
        if not isinstance(values, dict):
            raise SettingsError("profile: must be a JSON object")
        return cls.from_dict(values)
