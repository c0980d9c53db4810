"""Attention time of a request's part of a forward batch, predicted from its token counts (paper section 6, Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dualpath.errors import SettingsError


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """Seconds over all layers: ``fixed_s + token_s · new + pair_s · new · (cached + new / 2)``, never below ``floor_s``.

    The product counts the (query, key) pairs of causal attention. Calling it with ``(cached, new)`` gives the
    prediction; it grows with both, which bisection on ``new`` relies on. The defaults are those of a small model on
    one processor core, for use until a profile is fitted.
    """

    fixed_s: float = 1e-4
    token_s: float = 2e-5
    pair_s: float = 1e-8
    floor_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if not 0.0 <= value < float("inf"):
                raise SettingsError(f"attention.{name} must be a number of seconds, 0 or more, not {value!r}")

    def __call__(self, cached: float, new: float) -> float:
        return max(self.floor_s, self.fixed_s + self.token_s * new + self.pair_s * pairs(cached, new))

    def to_dict(self) -> dict[str, float]:
        """As JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionTime:
        """The inverse of ``to_dict``.

        Raises:
            SettingsError: a key is unknown, missing, or no time.
        """
        names = {one.name for one in fields(cls)}
        if values.keys() != names or not all(isinstance(value, int | float) for value in values.values()):
            raise SettingsError(f"attention must hold numbers {', '.join(sorted(names))}, not {dict(values)!r}")
        return cls(**{name: float(value) for name, value in values.items()})


def pairs(cached: float, new: float) -> float:
    """(query, key) pairs of ``new`` tokens behind ``cached`` ones under a causal mask."""
    return new * (cached + new / 2)
