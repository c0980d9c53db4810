"""Upper bounds of throughput, by hand-computed cases and against a search."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.costmodel.shapes import ModelCost
from dualpath.dataflow.bounds import ClusterShape, most_reads, ratio_range, utilisations
from dualpath.dataflow.estimate import Efficiency, Limit, MeanTurn, estimate

GB = 1e9
PAPER = ClusterShape(2, 4, engines_per_node=8, cnic_bandwidth=50 * GB, snic_share=1, dram_bandwidth=500 * GB)
MODEL = ModelCost(token_bytes=50_000, token_flops=1e11, context_flops=0.0)
TURN = MeanTurn(prompt_tokens=20_100, new_tokens=100)
ALL = Efficiency(storage=1.0, compute=1.0)

sizes = st.floats(0.2, 20)


def test_both_paths_use_all_nics_where_nothing_else_is_full() -> None:
    assert most_reads(PAPER) == pytest.approx((1, 1))
    assert most_reads(PAPER, 0.6) == pytest.approx((0.6, 0.6))
    assert most_reads(PAPER, both_paths=False) == pytest.approx((1, 0))


@given(sizes, sizes, st.integers(1, 8), st.floats(0.1, 4), st.floats(1, 20))
def test_the_most_reads_are_allowed_and_no_grid_point_is_better(
    prefill: float, decode: float, engines: int, share: float, memory: float
) -> None:
    shape = ClusterShape(prefill, decode, engines, 50 * GB, share, memory * 50 * GB * share)
    best = most_reads(shape)
    assert all(used <= 1 + 1e-6 for used in utilisations(shape, *best).values())
    assert all(-1e-6 <= used <= 1 + 1e-6 for used in best)
    grid = [step / 20 for step in range(21)]
    allowed = [point for point in itertools.product(grid, grid) if max(utilisations(shape, *point).values()) <= 1]
    assert best[0] * prefill + best[1] * decode >= max(x * prefill + y * decode for x, y in allowed) - 1e-6


@given(sizes, sizes, st.integers(3, 8), st.floats(0.1, 1), st.floats(3.5, 20))
def test_within_the_range_of_ratios_every_nic_can_be_used(
    prefill: float, decode: float, engines: int, share: float, memory: float
) -> None:
    shape = ClusterShape(prefill, decode, engines, 50 * GB, share, memory * 50 * GB * share)
    everything = min(most_reads(shape)) > 1 - 1e-6
    assert everything == (shape.ratio in ratio_range(engines, share, 50 * GB, shape.dram_bandwidth))


def test_what_storage_network_and_compute_allow() -> None:
    # 20,000 tokens of hit are 1 GB: 2 and 6 nodes read 50 of them a second each; a turn computes 1e13 FLOP.
    storage_bound = estimate(PAPER, 1e15, MODEL, TURN, ALL)
    assert storage_bound.basic.turns_per_s == pytest.approx(100)
    assert storage_bound.dualpath.turns_per_s == pytest.approx(300)
    assert storage_bound.basic.limit is storage_bound.dualpath.limit is Limit.STORAGE
    compute_bound = estimate(PAPER, 1e14, MODEL, TURN, ALL)
    assert compute_bound.dualpath.turns_per_s == pytest.approx(160)
    assert compute_bound.dualpath.limit is Limit.COMPUTE
    assert compute_bound.speedup == pytest.approx(1.6)
    assert storage_bound.io_per_compute == pytest.approx(1e9 / 1e13)


def test_the_network_limits_a_cluster_outside_the_range() -> None:
    shape = ClusterShape(8, 1, 8, 50 * GB, 1, 500 * GB)
    found = estimate(shape, 1e18, MODEL, TURN, ALL)
    assert found.basic.limit is found.dualpath.limit is Limit.NETWORK
    assert 1 <= found.speedup < 1.2
    assert utilisations(shape)[found.binding] > 1


def test_without_hits_only_compute_limits() -> None:
    found = estimate(PAPER, 1e15, MODEL, MeanTurn(100, 100), ALL)
    assert found.speedup == 1
    assert found.basic.limit is Limit.COMPUTE


@pytest.mark.parametrize(("prompt", "new"), [(100, 0), (100, 101), (0, 0)])
def test_impossible_turns_are_refused(prompt: float, new: float) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        MeanTurn(prompt, new)
