"""Seconds of one step of a group of prefill engines, compute and layerwise overlap in closed form (paper sections 2 and 6)."""

from __future__ import annotations

from typing import Protocol


class StepTime(Protocol):
    """Compute of a forward of engines that run in step."""

    def step(self, most_attention_s: float, mean_new_tokens: float) -> float:
        """Seconds: the slowest engine's attention, and everything else for so many new tokens an engine on average."""
        ...


def overlapped(compute_s: float, transfer_s: float, layers: int) -> float:
    """A layerwise step: transfers of neighbouring layers hide behind compute, the first layer's load and the last one's
    store do not."""
    return max(compute_s, transfer_s) + transfer_s / layers
