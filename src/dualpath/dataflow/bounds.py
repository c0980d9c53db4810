"""The no-bottleneck condition: what each resource carries when every storage NIC is saturated (paper section 4.2).

It holds for zero misses, no write-back, one path a request and traffic spread evenly over all pairs of engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

_EXACT = 1e-9


class Resource(StrEnum):
    """A link or memory that both paths share; the CNICs count per GPU, the memories per node."""

    PE_CNIC_READ = "pe-cnic-read"
    PE_CNIC_WRITE = "pe-cnic-write"
    DE_CNIC_READ = "de-cnic-read"
    DE_CNIC_WRITE = "de-cnic-write"
    PE_DRAM = "pe-dram"
    DE_DRAM = "de-dram"


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """A cluster in the paper's symbols.

    Attributes:
        prefill_nodes: P.
        decode_nodes: D.
        engines_per_node: g, GPUs of a node, each with a CNIC of its own.
        cnic_bandwidth: B, bytes a second of one CNIC in one direction.
        snic_share: s, the bandwidth of a node's storage NIC as a multiple of B.
        dram_bandwidth: M, bytes a second of a node's memory, reads and writes together.

    Raises:
        ValueError: a value is not positive.
    """

    prefill_nodes: float
    decode_nodes: float
    engines_per_node: int
    cnic_bandwidth: float
    snic_share: float
    dram_bandwidth: float

    def __post_init__(self) -> None:
        if min(self.ratio, self.engines_per_node, self.cnic_bandwidth, self.snic_share, self.dram_bandwidth) <= 0:
            raise ValueError(f"every value of {self} must be positive")

    @property
    def ratio(self) -> float:
        """P/D."""
        return self.prefill_nodes / self.decode_nodes

    @property
    def snic_bandwidth(self) -> float:
        """Bytes a second of a node's storage NIC, ``B·s``."""
        return self.cnic_bandwidth * self.snic_share


def pair_traffic(shape: ClusterShape) -> tuple[float, float]:
    """``(T_p, T_c)``: bytes a second that one (PE, DE) pair carries on the PE path and on the DE path.

    A prefill node's NIC serves ``g · D·g`` pairs, a decode node's ``g · P·g``.
    """
    squared = shape.engines_per_node**2
    return shape.snic_bandwidth / (shape.decode_nodes * squared), shape.snic_bandwidth / (shape.prefill_nodes * squared)


def loads(shape: ClusterShape, prefill_used: float = 1.0, decode_used: float = 1.0) -> dict[Resource, float]:
    """Bytes a second on each resource, when the storage NICs of prefill and of decode nodes are used so much."""
    per_engine, ratio = shape.snic_bandwidth / shape.engines_per_node, shape.ratio
    return {
        Resource.PE_CNIC_READ: 2 * per_engine * prefill_used,
        Resource.PE_CNIC_WRITE: per_engine * (prefill_used + decode_used / ratio),
        Resource.DE_CNIC_READ: per_engine * (ratio * prefill_used + 2 * decode_used),
        Resource.DE_CNIC_WRITE: per_engine * (2 * ratio * prefill_used + decode_used),
        Resource.PE_DRAM: 2 * shape.snic_bandwidth * prefill_used,
        Resource.DE_DRAM: (3 * decode_used + 2 * ratio * prefill_used) * shape.snic_bandwidth,
    }


def utilisations(shape: ClusterShape, prefill_used: float = 1.0, decode_used: float = 1.0) -> dict[Resource, float]:
    """Load over bandwidth of each resource; above 1 it is a bottleneck before the storage NICs are."""
    dram = {Resource.PE_DRAM, Resource.DE_DRAM}
    bandwidth = {resource: shape.dram_bandwidth if resource in dram else shape.cnic_bandwidth for resource in Resource}
    return {resource: load / bandwidth[resource] for resource, load in loads(shape, prefill_used, decode_used).items()}


def most_reads(shape: ClusterShape, limit: float = 1.0, *, both_paths: bool = True) -> tuple[float, float]:
    """How much of the prefill and the decode nodes' storage NICs can be used at once, each up to ``limit``, so that the
    cluster reads most and no other resource is above its bandwidth.

    A linear program in two variables: its optimum is where two of the bounds meet.
    """
    prefill, decode = utilisations(shape, 1, 0), utilisations(shape, 0, 1)
    bounds = [(prefill[one], decode[one], 1.0) for one in Resource]
    bounds += [(1, 0, limit), (0, 1, limit if both_paths else 0.0), (-1, 0, 0), (0, -1, 0)]
    corners = (_meeting(first, second) for first, second in combinations(bounds, 2))
    feasible = [
        corner for corner in corners if corner and all(a * corner[0] + b * corner[1] <= most + _EXACT for a, b, most in bounds)
    ]
    x, y = max(feasible, key=lambda used: used[0] * shape.prefill_nodes + used[1] * shape.decode_nodes)
    return x, y


def _meeting(first: tuple[float, float, float], second: tuple[float, float, float]) -> tuple[float, float] | None:
    """Where two lines ``a·x + b·y = c`` meet; None if they are parallel."""
    (a, b, c), (d, e, f) = first, second
    determinant = a * e - b * d
    return None if abs(determinant) < _EXACT else ((c * e - b * f) / determinant, (a * f - c * d) / determinant)


def binding_resource(shape: ClusterShape) -> Resource:
    """The resource with the highest utilisation, the first one if several have it."""
    used = utilisations(shape)
    return max(Resource, key=lambda resource: used[resource])


@dataclass(frozen=True, slots=True)
class RatioRange:
    """The P/D for which nothing but the storage NICs is a bottleneck, and what limits it on either side.

    It is empty when ``lowest > highest``, or when a prefill node itself cannot keep up with its storage NIC
    (``lowest`` is infinite then, and ``lowest_by`` names what cannot).
    """

    lowest: float
    lowest_by: Resource
    highest: float
    highest_by: Resource

    @property
    def is_empty(self) -> bool:
        return self.lowest > self.highest

    def __contains__(self, ratio: float) -> bool:
        return self.lowest <= ratio <= self.highest


def ratio_range(engines_per_node: int, snic_share: float, cnic_bandwidth: float, dram_bandwidth: float) -> RatioRange:
    """The bounds on P/D: ``s/(g−s)`` from below; ``(g−2s)/s``, ``(g−s)/2s`` and ``(M/Bs−3)/2`` from above."""
    g, s, memory = engines_per_node, snic_share, dram_bandwidth / (cnic_bandwidth * snic_share)
    lower = {
        Resource.PE_CNIC_READ: 0.0 if s <= g / 2 else math.inf,
        Resource.PE_DRAM: 0.0 if memory >= 2 else math.inf,
        Resource.PE_CNIC_WRITE: s / (g - s) if s < g else math.inf,
    }
    upper = {
        Resource.DE_CNIC_READ: (g - 2 * s) / s,
        Resource.DE_CNIC_WRITE: (g - s) / (2 * s),
        Resource.DE_DRAM: (memory - 3) / 2,
    }
    lowest_by = max(lower, key=lambda resource: lower[resource])
    highest_by = min(upper, key=lambda resource: upper[resource])
    return RatioRange(lower[lowest_by], lowest_by, upper[highest_by], highest_by)
