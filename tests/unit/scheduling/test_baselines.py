"""The systems are the presets that the design names."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from dualpath.errors import SettingsError
from dualpath.scheduling.baselines import LADDER, SYSTEMS, apply_system
from dualpath.settings import Placement, ReadSidePolicy, SchedulingSettings, Settings

P, R = Placement, ReadSidePolicy


@pytest.mark.parametrize(
    ("name", "read_side", "placement", "layerwise", "oracle"),
    [
        ("basic", R.PREFILL, P.ROUND_ROBIN, False, False),
        ("basic+layerwise", R.PREFILL, P.ROUND_ROBIN, True, False),
        ("basic+layerwise+dual-path", R.ROUND_ROBIN, P.ROUND_ROBIN, True, False),
        ("dualpath", R.SHORTER_QUEUE, P.ADAPTIVE, True, False),
        ("dualpath-split", R.SPLIT, P.ADAPTIVE, True, False),
        ("oracle", R.SHORTER_QUEUE, P.ADAPTIVE, True, True),
    ],
)
def test_presets(name: str, read_side: ReadSidePolicy, placement: Placement, layerwise: bool, oracle: bool) -> None:
    chosen = apply_system(Settings(), name)
    assert (chosen.scheduling.read_side, chosen.scheduling.placement) == (read_side, placement)
    assert (chosen.prefill.layerwise, chosen.cluster.oracle, chosen.cluster.system) == (layerwise, oracle, name)


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_a_preset_overrides_an_earlier_one_and_keeps_everything_else(name: str) -> None:
    settings = replace(Settings(), scheduling=SchedulingSettings(alpha_s=1.5))
    assert apply_system(apply_system(settings, "oracle"), name) == apply_system(settings, name)
    assert apply_system(settings, name).scheduling.alpha_s == 1.5
    assert apply_system(settings, name).decode == settings.decode


def test_each_rung_of_the_ladder_changes_something() -> None:
    rungs = [replace(apply_system(Settings(), name), cluster=Settings().cluster) for name in LADDER]
    assert all(lower != upper for lower, upper in pairwise(rungs))


def test_an_unknown_system_lists_the_names() -> None:
    with pytest.raises(SettingsError, match=r"system: 'basik' is none of basic, .*oracle"):
        apply_system(Settings(), "basik")
