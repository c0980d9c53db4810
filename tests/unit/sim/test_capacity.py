"""Service level objectives from text, and the highest rate that meets one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dualpath.costmodel.calibration import DEFAULT
from dualpath.costmodel.catalogue import MODELS, SIZES, node_named
from dualpath.costmodel.serving import Placement, served
from dualpath.errors import SettingsError
from dualpath.scheduling.baselines import apply_system
from dualpath.settings import Settings
from dualpath.sim.capacity import Bound, find_capacity, parse_objective
from dualpath.sim.presets import Sheet, cluster_of, mean_turn
from dualpath.sim.spec import ClusterSpec
from dualpath.workload.synthesis import synthesise
from dualpath.workload.trajectory import clipped, scaled

TRAJECTORIES = [clipped(scaled(one, 0.1), 800)[0] or one for one in synthesise("32K", 20, random.Random(0))]


def spec(system: str = "dualpath") -> ClusterSpec:
    node = replace(node_named("h800"), gpus=1, snic_bandwidth=1e9)
    model = served("ds-27b", MODELS["ds-27b"], SIZES["ds-27b"], Placement("h800", node, 1, 1), DEFAULT)
    return cluster_of(Sheet(model, node, 1, 1, mean_turn(TRAJECTORIES)), apply_system(Settings(), system))


def test_objectives_from_text() -> None:
    assert parse_objective("ttft=4s, TPOT.p99=50ms") == [Bound("ttft", "mean", 4.0), Bound("tpot", "p99", 0.05)]


@pytest.mark.parametrize("text", ["", "ttft", "ttft=4", "ttft=0s", "latency=4s", "ttft.p98=4s", "ttft=-1s"])
def test_no_objectives(text: str) -> None:
    with pytest.raises(SettingsError, match="--slo"):
        parse_objective(text)


def test_a_stricter_objective_allows_no_higher_rate_and_what_is_found_meets_it() -> None:
    strict, loose = parse_objective("ttft=1.15s"), parse_objective("ttft=1.6s")
    few, many = (find_capacity(spec(), TRAJECTORIES, one, precision=0.2) for one in (strict, loose))
    assert few.best is not None
    assert many.best is not None
    assert few.best.rate <= many.best.rate
    assert few.best.meets(strict)
    assert any(not level.meets(strict) for level in few.levels)
    assert f"{few.best.rate:.3f} agents/s" in few.sentence("dualpath")


def test_an_objective_that_cannot_be_met() -> None:
    found = find_capacity(spec(), TRAJECTORIES, parse_objective("ttft=1ms"))
    assert found.best is None
    assert "not met even by one agent at a time" in found.sentence("dualpath")
