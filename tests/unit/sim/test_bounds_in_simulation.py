"""Outside the no-bottleneck range the simulated cluster runs into the resource that section 4.2 names, inside into its NICs."""

from __future__ import annotations

from statistics import fmean

import pytest

from dualpath.costmodel.timing import DecodeTime, PrefillTime
from dualpath.dataflow.bounds import ClusterShape, Resource, binding_resource, utilisations
from dualpath.kvcache.layout import BlockGeometry
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.sim.run import Simulation, SimWorkload
from dualpath.sim.spec import ClusterSpec, DecodeSpec, NodeSpec, PrefillSpec
from dualpath.workload.report import Utilisation
from dualpath.workload.trajectory import Trajectory, Turn

GEOMETRY = BlockGeometry(layers=8, block_tokens=16, token_layer_bytes=1000)
CNIC = 1e9
KINDS = {
    Resource.PE_CNIC_READ: ("prefill", "CNIC read"),
    Resource.PE_CNIC_WRITE: ("prefill", "CNIC write"),
    Resource.DE_CNIC_READ: ("decode", "CNIC read"),
    Resource.DE_CNIC_WRITE: ("decode", "CNIC write"),
    Resource.PE_DRAM: ("prefill", "DRAM"),
    Resource.DE_DRAM: ("decode", "DRAM"),
}


def cluster(shape: ClusterShape) -> ClusterSpec:
    """Engines that compute next to nothing, with plenty of memory: only links can limit it."""
    snic = shape.snic_bandwidth
    prefill_time = PrefillTime(GEOMETRY.layers, token_s=1e-9, pair_s=0.0)
    return ClusterSpec(
        system="dualpath",
        geometry=GEOMETRY,
        node=NodeSpec(shape.engines_per_node, snic, snic, CNIC, shape.dram_bandwidth),
        prefill=PrefillSpec(
            nodes=int(shape.prefill_nodes),
            step_nodes=1,
            attention_time=prefill_time,
            step_time=prefill_time,
            layerwise=True,
            quota_s=1.0,
            max_batch_tokens=10**6,
            kv_bytes=1e12,
            buffer_tokens=10**7,
        ),
        decode=DecodeSpec(
            nodes=int(shape.decode_nodes),
            step_nodes=1,
            time=DecodeTime(GEOMETRY.layers, 1e-6, 0.0),
            kv_blocks=10**6,
            buffer_tokens=10**7,
        ),
        limits=SchedulerLimits(GEOMETRY.block_tokens, snic / GEOMETRY.token_bytes, 1e9),
    )


def used(shape: ClusterShape) -> tuple[dict[Resource, float], float]:
    """Mean utilisation of each resource and of the storage NICs between a fifth and three fifths of a run of hits only."""
    engines = int((shape.prefill_nodes + shape.decode_nodes) * shape.engines_per_node)
    turns = (Turn(4000, 2), *(Turn(15, 2) for _ in range(24)))
    agents = [Trajectory(f"agent-{number}", turns) for number in range(12 * engines)]
    found = Simulation(cluster(shape), SimWorkload(agents, [0.0] * len(agents))).run().result.utilisation
    assert found is not None
    resources = {resource: _mean(found, *kind) for resource, kind in KINDS.items()}
    return resources, (_mean(found, "prefill", "SNIC read") + _mean(found, "decode", "SNIC read")) / 2


def _mean(found: Utilisation, role: str, kind: str) -> float:
    series = [shares for name, shares in found.series.items() if name.startswith(role) and name.endswith(kind)]
    length = len(series[0])
    return fmean(fmean(shares[length // 5 : 3 * length // 5 + 1]) for shares in series)


def shape(prefill: int, decode: int, engines: int, snic_share: float, dram: float) -> ClusterShape:
    return ClusterShape(prefill, decode, engines, CNIC, snic_share, dram)


@pytest.mark.parametrize(
    "outside",
    [
        shape(4, 1, 4, 2.0, 1e12),
        shape(1, 4, 4, 2.0, 1e12),
        shape(1, 1, 8, 2.0, 4e9),
        shape(2, 1, 8, 2.0, 6e9),
    ],
)
def test_outside_the_range_the_named_resource_is_the_busiest(outside: ClusterShape) -> None:
    expected = utilisations(outside)
    assert max(expected.values()) > 1
    found, snic = used(outside)
    named = binding_resource(outside)
    assert found[named] == max(found.values())
    assert found[named] > 0.8
    assert snic < 0.8


@pytest.mark.parametrize("inside", [shape(2, 4, 8, 1.0, 1e12), shape(1, 1, 8, 1.0, 1e10)])
def test_inside_the_range_storage_nics_are_what_fills(inside: ClusterShape) -> None:
    assert max(utilisations(inside).values()) < 1
    found, snic = used(inside)
    assert snic > 0.9
    assert snic > max(found.values())
