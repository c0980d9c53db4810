"""What a profile run measures of an engine and its storage; the scheduler and the batching predict with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualpath.costmodel.attention import AttentionTime
from dualpath.errors import SettingsError

_RATES = ("prefill_tokens_per_s", "storage_tokens_per_s")


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Rates of one engine.

    ``prefill_tokens_per_s`` turns the paper's β from seconds into tokens, ``storage_tokens_per_s`` α: tokens of KV
    that one node's storage NIC reads in a second. The defaults stand in until a profile is measured.
    """

    attention: AttentionTime = field(default_factory=AttentionTime)
    prefill_tokens_per_s: float = 10_000.0
    storage_tokens_per_s: float = 20_000.0

    def __post_init__(self) -> None:
        for name in _RATES:
            if not 0.0 < getattr(self, name) < float("inf"):
                raise SettingsError(f"profile: {name} must be a positive number, not {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {"attention": self.attention.to_dict()} | {name: getattr(self, name) for name in _RATES}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineProfile:
        """The inverse of ``to_dict``; keys that other versions wrote besides are ignored.

        Raises:
            SettingsError: a key is missing, or its value is of the wrong kind.
        """
        for name in _RATES:
            if not isinstance(values.get(name), int | float):
                raise SettingsError(f"profile: {name} must be a number, not {values.get(name)!r}")
        attention = values.get("attention")
        if not isinstance(attention, Mapping):
            raise SettingsError(f"profile: attention must be an object, not {attention!r}")
        return cls(AttentionTime.from_dict(attention), *(float(values[name]) for name in _RATES))

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
