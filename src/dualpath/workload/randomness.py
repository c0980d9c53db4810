"""The part of the standard random generator's interface that workloads draw from; a generator is always passed in."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Random(Protocol):
    """A seeded generator, e.g. ``random.Random(seed)``."""

    def choice(self, seq: Sequence[T], /) -> T: ...

    def choices(self, population: Sequence[T], /, *, k: int) -> list[T]: ...

    def lognormvariate(self, mu: float, sigma: float, /) -> float: ...

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...

    def uniform(self, a: float, b: float, /) -> float: ...
