"""Traffic classes and their lanes: inference collectives first, KV traffic in what is idle (paper section 5)."""

from __future__ import annotations

from enum import StrEnum


class TrafficClass(StrEnum):
    """Why bytes move."""

    COLLECTIVE = "collective"
    STORAGE_READ = "storage-read"
    LAYER_LOAD = "layer-load"
    LAYER_STORE = "layer-store"
    HANDOFF = "handoff"
    WRITE_BACK = "write-back"


LANE_WEIGHTS: dict[TrafficClass, int] = {
    TrafficClass.COLLECTIVE: 192,
    TrafficClass.STORAGE_READ: 1,
    TrafficClass.LAYER_LOAD: 1,
    TrafficClass.LAYER_STORE: 1,
    TrafficClass.HANDOFF: 1,
    TrafficClass.WRITE_BACK: 1,
}
"""Arbiter weight of each class: collectives get about 99 % of a contended link, the rest cannot starve (A.1)."""
