"""A small live cluster and its simulation: hits and bytes are equal, times are near (see ``bench/prediction.py``)."""

import random
from pathlib import Path

import pytest
from rich.console import Console

from dualpath.cli.options import Given
from dualpath.cli.profile import TypicalTurn, measured, with_turns
from dualpath.cli.replay import Replayed, Workload, run_system
from dualpath.costmodel.hardware import EngineProfile
from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.create import create_model
from dualpath.models.registry import describe_model
from dualpath.replay.driver import ReplayOptions
from dualpath.sim.local import local_cluster
from dualpath.sim.replayed import replayed
from dualpath.sim.run import Simulation, SimWorkload, simulate
from dualpath.workload.agent import theoretical_hits
from dualpath.workload.prediction import Pair, prediction
from dualpath.workload.report import SystemResult
from dualpath.workload.synthesis import demo_trajectories

KNOBS = {
    "prefill": 1,
    "decode": 2,
    "block_tokens": 16,
    "max_len": 2048,
    "snic_bandwidth": "8MB/s",
    "pending_timeout_s": 30.0,
    "prefill_buffer": "64MiB",
    "decode_buffer": "64MiB",
    "decode_kv_memory": "64MiB",
    "prefill_kv_memory": "32MiB",
}
TRAJECTORIES = demo_trajectories(random.Random(5), agents=6, turns=6, first_tokens=400, output_tokens=5, spread=0.1)
NEAR = 0.25
"""Generous: other tests, or people, may be using the machine."""
TYPICAL = TypicalTurn(prompt_tokens=500, hit_rate=0.9, max_len=520)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prediction") / "model"
    create_model(directory)
    return directory


@pytest.fixture(scope="module")
def profile(model: Path) -> EngineProfile:
    settings = Given({name: KNOBS[name] for name in ("block_tokens", "max_len")}).settings()
    return with_turns(model, settings, measured(model, settings, TYPICAL, None, Console(quiet=True)), TYPICAL)


def test_a_profile_has_what_a_simulation_needs(profile: EngineProfile) -> None:
    times = profile.times
    assert 0 < times.step_s(1, 500) < times.step_s(8, 4000)
    assert times.copy_bytes_per_s > 10e6
    assert 0 < times.turn_s < 1
    assert all(0 <= seconds < 1 for seconds in (times.batch_s, times.handoff_s, times.token_s, times.finish_s))


@pytest.mark.parametrize("system", ["basic", "dualpath"])
def test_the_cluster_predicted(system: str, model: Path, profile: EngineProfile, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(profile.to_json())
    knobs = {**KNOBS, "profile": str(tmp_path / "profile.json"), "decision_log": str(tmp_path / "decisions.log")}
    settings = Given(knobs).settings(system)
    real = run_system(model, settings, Workload(TRAJECTORIES, ReplayOptions(), 1), Console(quiet=True))
    shape = describe_model(model, settings.model.dtype)
    spec = local_cluster(settings, profile, BlockGeometry(shape.layers, 16, shape.token_layer_bytes))
    agents = SimWorkload(TRAJECTORIES, [0.0] * len(TRAJECTORIES))
    with open(tmp_path / "decisions.log", encoding="utf-8") as log:
        repeated = Simulation(spec, agents, scheduler=replayed(log)).run().result

    check_alone(real, simulate(spec, agents).result, system)
    found = prediction(real.result, repeated)
    assert all(pair.within(0) for pair in (*found.read_bytes.values(), *found.write_bytes.values())), found
    assert found.jct_s.within(NEAR), found.jct_s


def check_alone(real: Replayed, simulated: SystemResult, system: str) -> None:
    """Without the live run's decisions: totals are equal, and so is each path where sides are fixed."""
    found = prediction(real.result, simulated)
    assert found.hit_tokens == Pair(theoretical_hits(TRAJECTORIES, 16), theoretical_hits(TRAJECTORIES, 16))
    assert found.total_read_bytes.within(0), found.total_read_bytes
    assert found.total_write_bytes.within(0), found.total_write_bytes
    if system == "basic":
        assert all(pair.within(0) for pair in found.read_bytes.values()), found.read_bytes
    assert found.jct_s.within(NEAR), found.jct_s
    assert found.ttft_mean_s.within(2 * NEAR), found.ttft_mean_s
