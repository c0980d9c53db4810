"""A simulation held against the run that it predicts: bytes, hits and times, system by system (paper section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.workload.metrics import jct_s, summary
from dualpath.workload.report import SystemResult
from dualpath.workload.turn_table import TurnTable


@dataclass(frozen=True, slots=True)
class Pair:
    """One number as it was, and as it was predicted."""

    real: float
    predicted: float

    @property
    def error(self) -> float:
        """``predicted / real − 1``; 0 where both are 0."""
        if self.real == self.predicted:
            return 0.0
        return self.predicted / self.real - 1 if self.real else float("inf")

    def within(self, share: float) -> bool:
        """Whether the prediction is off by at most this share; 0 asks for equality."""
        return abs(self.error) <= share


@dataclass(frozen=True, slots=True)
class Prediction:
    """One system.

    Attributes:
        jct_s, ttft_p50_s, ttft_mean_s: seconds; 0 where no turn is complete.
        hit_tokens: prompt tokens from the cache, over all turns.
        read_bytes, write_bytes: of every node's storage NIC. Which node reads is the path that hits take.
    """

    system: str
    jct_s: Pair
    ttft_p50_s: Pair
    ttft_mean_s: Pair
    hit_tokens: Pair
    read_bytes: dict[str, Pair]
    write_bytes: dict[str, Pair]

    @property
    def total_read_bytes(self) -> Pair:
        return _total(list(self.read_bytes.values()))

    @property
    def total_write_bytes(self) -> Pair:
        return _total(list(self.write_bytes.values()))

    def path_read_bytes(self, role: str) -> Pair:
        """What the nodes of a role (``prefill``, ``decode``) read: the hits that take its path."""
        return _total([pair for node, pair in self.read_bytes.items() if node.startswith(f"{role}-")])


def prediction(real: SystemResult, predicted: SystemResult) -> Prediction:
    """The comparison.

    Raises:
        ValueError: the two ran on different nodes.
    """
    theirs, ours = ({node.name: node for node in result.nodes} for result in (real, predicted))
    if theirs.keys() != ours.keys():
        raise ValueError(f"nodes {sorted(theirs)} cannot be compared with {sorted(ours)}")
    return Prediction(
        system=real.system,
        jct_s=Pair(jct_s(real.turns), jct_s(predicted.turns)),
        ttft_p50_s=Pair(_ttft(real.turns).p50, _ttft(predicted.turns).p50),
        ttft_mean_s=Pair(_ttft(real.turns).mean, _ttft(predicted.turns).mean),
        hit_tokens=Pair(_hits(real.turns), _hits(predicted.turns)),
        read_bytes={name: Pair(theirs[name].storage_read_bytes, ours[name].storage_read_bytes) for name in sorted(theirs)},
        write_bytes={name: Pair(theirs[name].storage_write_bytes, ours[name].storage_write_bytes) for name in sorted(theirs)},
    )


@dataclass(frozen=True, slots=True)
class _Ttft:
    mean: float
    p50: float


def _ttft(turns: TurnTable) -> _Ttft:
    found = summary(turns.ttft_s())
    return _Ttft(found.mean or 0.0, found.p50 or 0.0)


def _hits(turns: TurnTable) -> int:
    return sum(turns.of_completed(turns.columns.cached_tokens))


def _total(pairs: Sequence[Pair]) -> Pair:
    return Pair(sum(pair.real for pair in pairs), sum(pair.predicted for pair in pairs))
