"""A simulation held against a run."""

from dataclasses import replace

import pytest

from dualpath.types import Role
from dualpath.workload.prediction import Pair, prediction
from dualpath.workload.report import NodeCounters, SystemResult
from dualpath.workload.turn_table import TurnTable


def run(seconds: float, read_bytes: tuple[int, int]) -> SystemResult:
    turns = TurnTable(["agent"])
    turns.append(0, 0, 10.0, 10.0 + seconds, 12.0, 13.0, 10.0 + 2 * seconds, 100, 5, 64, 70, 0.0, 0.0, 0.0, 0.0)
    nodes = [
        NodeCounters("prefill-node-0", Role.PREFILL, read_bytes[0], 0, None, 0.0),
        NodeCounters("decode-node-0", Role.DECODE, read_bytes[1], 7, None, 0.0),
    ]
    return SystemResult("dualpath", turns, nodes, 1.0, 16)


def test_times_bytes_and_hits_side_by_side() -> None:
    found = prediction(run(2.0, (30, 10)), run(1.5, (20, 20)))
    assert found.jct_s == Pair(4.0, 3.0)
    assert found.jct_s.error == pytest.approx(-0.25)
    assert found.ttft_p50_s == found.ttft_mean_s == Pair(2.0, 1.5)
    assert found.hit_tokens == Pair(64, 64)
    assert found.total_read_bytes == Pair(40, 40)
    assert found.path_read_bytes("prefill") == Pair(30, 20)
    assert found.write_bytes["decode-node-0"].within(0)
    assert not found.read_bytes["decode-node-0"].within(0.9)


def test_something_predicted_where_nothing_was_is_never_near() -> None:
    assert Pair(0, 0).within(0)
    assert not Pair(0, 1).within(1e9)


def test_other_nodes_are_no_comparison() -> None:
    real = run(1.0, (1, 1))
    with pytest.raises(ValueError, match="cannot be compared"):
        prediction(real, replace(real, nodes=real.nodes[:1]))
