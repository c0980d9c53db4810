"""The compared systems and the ablation ladder as presets of settings, never other code (paper section 6, Fig. 12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dualpath.errors import SettingsError
from dualpath.settings import Placement, ReadSidePolicy, Settings


def _preset(
    settings: Settings, read_side: ReadSidePolicy, placement: Placement, *, layerwise: bool, oracle: bool = False
) -> Settings:
    return replace(
        settings,
        scheduling=replace(settings.scheduling, read_side=read_side, placement=placement),
        prefill=replace(settings.prefill, layerwise=layerwise),
        cluster=replace(settings.cluster, oracle=oracle),
    )


def basic(settings: Settings) -> Settings:
    """Prefill nodes read every hit, engines in turn, the whole KV before and after compute."""
    return _preset(settings, ReadSidePolicy.PREFILL, Placement.ROUND_ROBIN, layerwise=False)


def basic_layerwise(settings: Settings) -> Settings:
    """Basic, with one layer of KV on the device at a time."""
    return _preset(settings, ReadSidePolicy.PREFILL, Placement.ROUND_ROBIN, layerwise=True)


def dual_path_round_robin(settings: Settings) -> Settings:
    """Both read paths in turn, engines in turn: the second path without the scheduler."""
    return _preset(settings, ReadSidePolicy.ROUND_ROBIN, Placement.ROUND_ROBIN, layerwise=True)


def dualpath(settings: Settings) -> Settings:
    """The paper's system: the shorter read queue, adaptive placement, layerwise."""
    return _preset(settings, ReadSidePolicy.SHORTER_QUEUE, Placement.ADAPTIVE, layerwise=True)


def dualpath_split(settings: Settings) -> Settings:
    """DualPath with both sides reading parts of one hit."""
    return _preset(settings, ReadSidePolicy.SPLIT, Placement.ADAPTIVE, layerwise=True)


def oracle(settings: Settings) -> Settings:
    """DualPath's scheduling, memory accounting and compute, with no KV bytes moved: an upper bound."""
    return _preset(settings, ReadSidePolicy.SHORTER_QUEUE, Placement.ADAPTIVE, layerwise=True, oracle=True)


SYSTEMS: dict[str, Callable[[Settings], Settings]] = {
    "basic": basic,
    "basic+layerwise": basic_layerwise,
    "basic+layerwise+dual-path": dual_path_round_robin,
    "dualpath": dualpath,
    "dualpath-split": dualpath_split,
    "oracle": oracle,
}
"""Every system by the name that ``--system`` takes."""

LADDER: tuple[str, ...] = ("basic", "basic+layerwise", "basic+layerwise+dual-path", "dualpath", "dualpath-split")
"""The ablation: each adds one thing (layerwise, the second path, the scheduler, split reads)."""


def apply_system(settings: Settings, name: str) -> Settings:
    """``settings`` with the preset ``name`` applied and ``cluster.system`` set to it.

    Raises:
        SettingsError: there is no such system.
    """
    preset = SYSTEMS.get(name)
    if preset is None:
        raise SettingsError(f"system: {name!r} is none of {', '.join(SYSTEMS)}")
    chosen = preset(settings)
    return replace(chosen, cluster=replace(chosen.cluster, system=name))
