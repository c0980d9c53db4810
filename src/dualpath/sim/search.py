"""Looking for a better cluster of as many nodes: P/D ratio first, then the scheduler's knobs (paper sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cluster to try.

    Attributes:
        prefill_nodes, decode_nodes: P and D.
        alpha_s, beta_s, quota_s: the scheduler's knobs, seconds.
        buffer_bytes: DRAM buffer of a node.
    """

    prefill_nodes: int
    decode_nodes: int
    alpha_s: float = 3.0
    beta_s: float = 5.0
    quota_s: float = 0.3
    buffer_bytes: float = 80e9

    @property
    def text(self) -> str:
        """For people."""
        knobs = f"alpha {self.alpha_s:g} s, beta {self.beta_s:g} s, quota {self.quota_s * 1e3:g} ms"
        return f"{self.prefill_nodes}P{self.decode_nodes}D, {knobs}, buffer {self.buffer_bytes / 1e9:g} GB"


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate's job completion time; None and why where it cannot be."""

    candidate: Candidate
    jct_s: float | None
    reason: str = ""


KNOBS: dict[str, tuple[float, ...]] = {
    "quota_s": (0.15, 0.3, 0.6),
    "beta_s": (2.0, 5.0, 10.0),
    "alpha_s": (1.0, 3.0, 10.0),
    "buffer_bytes": (40e9, 80e9, 160e9),
}
"""What is tried of each, in order of effect, one knob at a time."""

Run = Callable[[Sequence[Candidate]], list[Tried]]


def search(start: Candidate, run: Run) -> list[Tried]:
    """Everything that was tried, the start first: all ratios of as many nodes, then every knob at the best ratio.

    ``run`` tries candidates, side by side if it can.
    """
    tried = run([start, *(one for one in ratios(start) if one != start)])
    best = best_of(tried)
    if best is None:
        return tried
    for name, values in KNOBS.items():
        candidates = [_changed(best.candidate, {name: value}) for value in values]
        tried += run([one for one in candidates if all(one != known.candidate for known in tried)])
        best = best_of(tried) or best
    return tried


def _changed(candidate: Candidate, knobs: dict[str, Any]) -> Candidate:
    return replace(candidate, **knobs)


def ratios(start: Candidate) -> Iterator[Candidate]:
    """Every split of the start's nodes."""
    nodes = start.prefill_nodes + start.decode_nodes
    for prefill in range(1, nodes):
        yield replace(start, prefill_nodes=prefill, decode_nodes=nodes - prefill)


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """The one that is done first; None if nothing can be."""
    possible = [(one.jct_s, number) for number, one in enumerate(tried) if one.jct_s is not None]
    return tried[min(possible)[1]] if possible else None
