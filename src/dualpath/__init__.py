"""DualPath: both storage paths for multi-turn agents on prefill/decode-disaggregated clusters (arXiv 2602.21548)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualpath.cluster.local import Generation, LocalCluster
    from dualpath.control.turns import SamplingParams

__all__ = ["Generation", "LocalCluster", "SamplingParams"]

_HOMES = {
    "Generation": "dualpath.cluster.local",
    "LocalCluster": "dualpath.cluster.local",
    "SamplingParams": "dualpath.control.turns",
}


def __getattr__(name: str) -> Any:
    """Import the public API when it is used, so that ``import dualpath`` does not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dualpath' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
