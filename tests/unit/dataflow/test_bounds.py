"""The no-bottleneck condition against the paper's example and against the plans' own moves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.dataflow.bounds import (
    ClusterShape,
    Resource,
    binding_resource,
    loads,
    pair_traffic,
    ratio_range,
    utilisations,
)
from dualpath.dataflow.charges import charge
from dualpath.dataflow.plan import plan
from dualpath.kvcache.layout import BlockGeometry
from dualpath.types import ReadShare

GEOMETRY = BlockGeometry(layers=3, block_tokens=4, token_layer_bytes=5)

shapes = st.builds(
    ClusterShape,
    prefill_nodes=st.integers(1, 50),
    decode_nodes=st.integers(1, 50),
    engines_per_node=st.integers(1, 16),
    cnic_bandwidth=st.floats(1e9, 1e11),
    snic_share=st.floats(0.1, 10),
    dram_bandwidth=st.floats(1e10, 1e12),
)


def per_hit_byte(on_pe_path: bool) -> dict[Resource, float]:
    """Bytes on each resource for a byte of hit in the limit of zero misses: the slope between two hits."""
    small, large = (ReadShare(n, 0) if on_pe_path else ReadShare(0, n) for n in (40, 400))
    less, more = (charge(plan(share.hit_tokens + 1, share, GEOMETRY).moves)._asdict() for share in (small, large))
    names = {resource: resource.value.replace("-", "_") for resource in Resource}
    return {resource: (more[name] - less[name]) / (360 * GEOMETRY.token_bytes) for resource, name in names.items()}


@settings(deadline=None, max_examples=100)
@given(shape=shapes)
def test_expressions_equal_the_sum_over_the_plans(shape: ClusterShape) -> None:
    prefill_path, decode_path = pair_traffic(shape)
    g, on_pe, on_de = shape.engines_per_node, per_hit_byte(True), per_hit_byte(False)
    pairs = {  # pairs of engines that meet in one GPU, or in one node's memory
        resource: (shape.decode_nodes if resource.startswith("pe") else shape.prefill_nodes)
        * (g if "cnic" in resource else g * g)
        for resource in Resource
    }
    summed = {r: (prefill_path * on_pe[r] + decode_path * on_de[r]) * pairs[r] for r in Resource}
    assert summed == pytest.approx(loads(shape))


@settings(deadline=None, max_examples=100)
@given(shape=shapes)
def test_the_range_is_where_no_resource_is_a_bottleneck(shape: ClusterShape) -> None:
    allowed = ratio_range(shape.engines_per_node, shape.snic_share, shape.cnic_bandwidth, shape.dram_bandwidth)
    most = max(utilisations(shape).values())
    if abs(most - 1) > 1e-6:
        assert (shape.ratio in allowed) == (most < 1)


def test_the_papers_example() -> None:
    allowed = ratio_range(engines_per_node=8, snic_share=1, cnic_bandwidth=50e9, dram_bandwidth=500e9)
    assert allowed.lowest == pytest.approx(1 / 7)
    assert allowed.highest == pytest.approx(7 / 2)
    assert (allowed.lowest_by, allowed.highest_by) == (Resource.PE_CNIC_WRITE, Resource.DE_CNIC_WRITE)
    assert 2 / 4 in allowed
    assert 4 not in allowed


def test_the_default_of_2p4d_binds_nowhere() -> None:
    shape = ClusterShape(2, 4, 8, 50e9, 1, 500e9)
    assert loads(shape)[Resource.DE_DRAM] == pytest.approx(4 * 50e9)
    assert binding_resource(shape) is Resource.DE_DRAM
    assert utilisations(shape)[Resource.DE_DRAM] == pytest.approx(0.4)


@pytest.mark.parametrize(("g", "s", "memory", "by"), [(2, 1.5, 500e9, "pe-cnic-read"), (8, 1, 90e9, "pe-dram")])
def test_a_prefill_node_that_cannot_keep_up_has_no_ratio(g: int, s: float, memory: float, by: str) -> None:
    allowed = ratio_range(g, s, 50e9, memory)
    assert allowed.lowest_by == by
    assert 1 not in allowed


def test_shapes_are_positive() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ClusterShape(2, 4, 8, 0, 1, 500e9)
