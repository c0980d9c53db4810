"""Links in closed form: what is posted is carried first in, first out, with no event of its own (paper section 5)."""

from __future__ import annotations

from dualpath.dataflow.classes import LANE_WEIGHTS, TrafficClass

KV_WEIGHT = LANE_WEIGHTS[TrafficClass.LAYER_LOAD]
LEAST_SHARE = KV_WEIGHT / (KV_WEIGHT + LANE_WEIGHTS[TrafficClass.COLLECTIVE])
"""Of a link that collectives would fill, the KV lane still gets so much."""


class Link:
    """One direction of a NIC, or a memory.

    KV traffic is served first in, first out at the rate that collectives leave; collectives take what they ask for, up to
    their weight's share of the link.

    Attributes:
        name: for reports.
        rate: bytes a second.
        busy_until_s: when the KV traffic posted so far will have been carried.
    """

    __slots__ = (
        "_collective_bytes",
        "_collective_rate",
        "_kv_rate",
        "_posted_bytes",
        "_since_s",
        "busy_until_s",
        "name",
        "rate",
    )

    def __init__(self, name: str, rate: float) -> None:
        self.name = name
        self.rate = rate
        self.busy_until_s = 0.0
        self._kv_rate = rate
        self._posted_bytes = 0.0
        self._collective_rate = 0.0
        self._collective_bytes = 0.0
        self._since_s = 0.0

    def carry(self, now_s: float, size: float) -> float:
        """Post ``size`` bytes of KV; when they will have been carried, if the collectives' rate stays."""
        start_s = self.busy_until_s
        if start_s < now_s:
            start_s = now_s
        self._posted_bytes += size
        self.busy_until_s = finish_s = start_s + size / self._kv_rate
        return finish_s

    def set_collective_rate(self, now_s: float, bytes_per_s: float) -> None:
        """From now on collectives ask for so much; what KV traffic is waiting is carried faster or slower."""
        self._collective_bytes += self._collective_rate * (now_s - self._since_s)
        self._since_s = now_s
        self._collective_rate = min(bytes_per_s, self.rate * (1 - LEAST_SHARE))
        before, self._kv_rate = self._kv_rate, self.rate - self._collective_rate
        if self.busy_until_s > now_s:
            self.busy_until_s = now_s + (self.busy_until_s - now_s) * before / self._kv_rate

    def kv_bytes(self, now_s: float) -> float:
        """KV bytes carried so far."""
        left_s = self.busy_until_s - now_s
        return self._posted_bytes - (left_s * self._kv_rate if left_s > 0 else 0.0)

    def carried_bytes(self, now_s: float) -> float:
        """All bytes carried so far."""
        return self.kv_bytes(now_s) + self._collective_bytes + self._collective_rate * (now_s - self._since_s)


class ComputeNic:
    """A GPU's compute NIC, both directions (PCIe side)."""

    __slots__ = ("read", "write")

    def __init__(self, name: str, rate: float) -> None:
        self.read = Link(f"{name} CNIC read", rate)
        self.write = Link(f"{name} CNIC write", rate)
