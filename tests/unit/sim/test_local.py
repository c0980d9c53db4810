"""The simulated twin of a local cluster: its spec, waiting for write-back, and placements out of a decision log."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from dualpath.costmodel.attention import AttentionTime
from dualpath.costmodel.hardware import EngineProfile, EngineTimes
from dualpath.errors import ClusterError, ProtocolError, SettingsError
from dualpath.knobs import with_knobs
from dualpath.kvcache.layout import BlockGeometry
from dualpath.scheduling.baselines import apply_system
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.log import RecordingScheduler
from dualpath.settings import Settings
from dualpath.sim.kernel import Kernel
from dualpath.sim.local import local_cluster, request_time
from dualpath.sim.replayed import placements, replayed
from dualpath.sim.run import Simulation, SimWorkload, simulate
from dualpath.sim.spec import ClusterSpec
from dualpath.workload.agent import theoretical_hits
from dualpath.workload.report import SystemResult
from dualpath.workload.synthesis import demo_trajectories
from dualpath.workload.trajectory import Trajectory, Turn

GEOMETRY = BlockGeometry(layers=4, block_tokens=16, token_layer_bytes=1024)
PROFILE = EngineProfile(
    AttentionTime(2e-3, 1e-5, 1e-9, 1.5e-3),
    storage_tokens_per_s=50_000.0,
    times=EngineTimes(forward_s=1e-3, batch_s=3e-3, turn_s=4e-3, read_s=5e-3, handoff_s=6e-3, finish_s=7e-3),
)


def settings(system: str = "dualpath", **knobs: Any) -> Settings:
    return with_knobs(apply_system(Settings(), system), {"block_tokens": 16, **knobs})


def spec_of(system: str = "dualpath", **knobs: Any) -> ClusterSpec:
    return local_cluster(settings(system, **knobs), PROFILE, GEOMETRY)


def agents(count: int = 6) -> list[Trajectory]:
    return demo_trajectories(random.Random(3), agents=count, turns=5, first_tokens=200)


def workload(trajectories: Sequence[Trajectory]) -> SimWorkload:
    return SimWorkload(trajectories, [0.0] * len(trajectories))


def nodes_bytes(result: SystemResult) -> dict[str, tuple[int, int]]:
    return {node.name: (node.storage_read_bytes, node.storage_write_bytes) for node in result.nodes}


def test_sizes_are_those_of_the_live_cluster() -> None:
    spec = spec_of(
        decode=2,
        decode_kv_memory="1MiB",
        prefill_buffer="3MiB",
        decode_buffer="2MiB",
        prefill_kv_memory="1MiB",
        max_decode_batch=3,
    )
    assert (spec.prefill.nodes, spec.decode.nodes, spec.node.engines) == (1, 2, 1)
    assert spec.decode.kv_blocks == 16
    assert spec.decode.max_batch == 3
    assert spec.prefill.buffer_tokens == 3 * 2**20 // 65536 * 16
    assert spec.decode.buffer_tokens == 2 * 2**20 // 65536 * 16
    assert spec.prefill_kv_rows == 2**20 // (2 * 1024)  # two frames, layerwise
    assert spec_of("basic", prefill_kv_memory="1MiB").prefill_kv_rows == 2**20 // (4 * 1024)


def test_rates_are_the_limits_or_the_profiles() -> None:
    assert spec_of(snic_bandwidth="20MB/s").node.snic_read == 20e6
    assert spec_of(snic_bandwidth="20MB/s").limits.storage_tokens_per_s == 20e6 / 4096
    unlimited = spec_of()
    assert unlimited.node.snic_read == 50_000 * 4096
    assert unlimited.limits.storage_tokens_per_s == 50_000
    assert unlimited.limits.prefill_tokens_per_s == PROFILE.prefill_tokens_per_s


def test_what_a_batch_pays_once_is_not_paid_by_every_request() -> None:
    own = request_time(PROFILE)
    alone = PROFILE.attention(512, 64)
    assert own(512, 64) == pytest.approx(alone - 1e-3)
    assert spec_of().prefill.step_time.step(3 * own(512, 64), 0.0) == pytest.approx(3 * alone - 2e-3 + 3e-3)


def test_engines_that_do_not_fill_nodes_are_refused() -> None:
    with pytest.raises(SettingsError, match="engines_per_node"):
        spec_of(prefill=3, decode=2, engines_per_node=2)


def test_engines_of_a_node_run_on_their_own() -> None:
    simulation = Simulation(spec_of(prefill=2, decode=4, engines_per_node=2), workload(agents()))
    assert [node.name for node in simulation.cluster.nodes] == ["prefill-node-0", "decode-node-0", "decode-node-1"]
    assert [len(group.engines) for group in simulation.cluster.prefill_groups] == [1, 1]
    result = simulation.run().result
    assert result.turns.completed() == len(result.turns) > 0
    assert sum(node.attention_s for node in result.nodes) > 0


@pytest.mark.parametrize("system", ["basic", "basic+layerwise", "dualpath", "dualpath-split"])
def test_every_hit_is_read_and_every_new_block_written(system: str) -> None:
    trajectories = agents()
    result = simulate(spec_of(system, prefill=2, decode=2, snic_bandwidth="20MB/s"), workload(trajectories)).result
    hits = theoretical_hits(trajectories, 16)
    assert sum(result.turns.columns.cached_tokens) == hits
    assert sum(node.storage_read_bytes for node in result.nodes) == hits * 4096
    ends = [list(one.steps())[-1] for one in trajectories]
    blocks = sum((step.prompt_tokens + step.turn.requested_tokens - 1) // 16 for step in ends)
    assert sum(node.storage_write_bytes for node in result.nodes) == blocks * GEOMETRY.full_block_bytes
    assert all(not node.storage_read_bytes for node in result.nodes if system.startswith("basic") and node.role == "decode")


def test_the_oracle_moves_nothing() -> None:
    result = simulate(spec_of("oracle"), workload(agents())).result
    assert not any(read or written for read, written in nodes_bytes(result).values())


def test_a_turn_waits_until_its_hit_is_stored() -> None:
    """1,600 tokens at 4 KiB each take 6.55 s at 1 MB/s; the next turn cannot use them before."""
    turns = (Turn(1600, 2), Turn(16, 2))
    spec = spec_of(snic_bandwidth="1MB/s")
    columns = simulate(spec, workload([Trajectory("a", turns)])).result.turns.columns
    written_s = 1600 * 4096 / 1e6
    assert columns.scheduling_s[1] == pytest.approx(columns.first_token_s[0] + written_s - columns.submitted_s[1], abs=0.02)


def test_chains_are_written_in_turn() -> None:
    """A batch is 16 blocks: two chains of 32 that come together are both done at about the end, not one at half time."""
    trajectories = [Trajectory(name, (Turn(512, 1), Turn(16, 1))) for name in "ab"]
    spec = spec_of(snic_bandwidth="1MB/s")
    waits = simulate(spec, workload(trajectories)).result.turns.columns.scheduling_s[2:]
    assert sorted(waits) == pytest.approx([3 * 256 * 4096e-6, 4 * 256 * 4096e-6], abs=0.05)
    alone = simulate(replace(spec, write_batch_tokens=1 << 30), workload(trajectories)).result.turns.columns.scheduling_s[2:]
    assert sorted(alone) == pytest.approx([2 * 256 * 4096e-6, 4 * 256 * 4096e-6], abs=0.05)


def recorded(spec: ClusterSpec, trajectories: Sequence[Trajectory]) -> tuple[SystemResult, list[str]]:
    """A run and its decision log, with the engines' names as a live cluster has them."""
    lines: list[str] = []

    def recording(spec: ClusterSpec, kernel: Kernel) -> CentralScheduler:
        return cast(CentralScheduler, RecordingScheduler(spec.limits, kernel, lines.append))

    result = Simulation(spec, workload(trajectories), scheduler=recording).run().result
    names = [f"{role}-{number}" for role in ("prefill", "decode") for number in range(2)]
    for name in names:
        lines = [line.replace(f'"{name}"', f'"{name}.1"') for line in lines]
    return result, lines


@pytest.mark.parametrize("system", ["basic", "basic+layerwise+dual-path", "dualpath", "dualpath-split"])
def test_a_decision_log_gives_every_node_the_same_bytes(system: str) -> None:
    """Even where times are others: the log is of a cluster with slower engines and faster storage."""
    trajectories = agents(9)
    fast = spec_of(system, prefill=2, decode=2, snic_bandwidth="80MB/s")
    real, lines = recorded(fast, trajectories)
    slow = spec_of(system, prefill=2, decode=2, snic_bandwidth="10MB/s")
    repeated = Simulation(slow, workload(trajectories), scheduler=replayed(lines)).run().result
    assert nodes_bytes(repeated) == nodes_bytes(real)
    assert repeated.turns.completed() == len(real.turns)


def test_a_log_of_other_agents_is_refused() -> None:
    spec = spec_of()
    _, lines = recorded(spec, agents(2))
    with pytest.raises(ClusterError, match="decision log places no"):
        Simulation(spec, workload(agents(3)), scheduler=replayed(lines)).run()


def test_a_line_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no line of a decision log"):
        placements(["{}"])
