"""The report's numbers and its fields."""

import dataclasses
from typing import Any

import pytest
from tests.support.system_results import BASIC, NODES, ORACLE, OTHER, result

from dualpath.workload.report import NodeCounters, SystemResult, Utilisation, build_report


def entry(*results: SystemResult) -> dict[str, Any]:
    found: dict[str, Any] = build_report(results, {}, {})["systems"][-1]
    return found


def test_numbers_of_one_system() -> None:
    found = entry(BASIC)
    expected = {
        "system": "basic",
        "tokens_valid": True,
        "jct_s": 4.0,
        "agents": 2,
        "agents_completed": 2,
        "turns": 3,
        "completed": 3,
        "failed": 0,
        "agents_per_s": 0.5,
        "hit_rate": 0.64,
        "theoretical_hit_rate": 0.64,
        "theoretical_hit_rate_exact": 0.9,
        "total_input_tokens": 300,
        "total_output_tokens": 9,
        "ttft_s": {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0},
        "ttst_s": {"mean": 0.5, "p50": 0.5, "p90": 0.5, "p99": 0.5},
        "tpot_s": {"mean": 0.5, "p50": 0.5, "p90": 0.5, "p99": 0.5},
        "storage_max_over_mean": 1.5,
        "attention_time_max_over_mean": pytest.approx(4 / 3),
        "duration": 8.0,
        "request_throughput": 3 / 8,
        "output_throughput": 9 / 8,
        "total_token_throughput": 309 / 8,
        "mean_ttft_ms": 1000.0,
        "median_tpot_ms": 500.0,
        "p99_e2el_ms": 2000.0,
        "mean_itl_ms": 500.0,
        "time_to_second_token": {"unit": "ms", "avg": 500.0, "p50": 500.0, "p90": 500.0, "p99": 500.0},
        "identical_turns": 3,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["ttft_breakdown_s"] == pytest.approx({"scheduling": 0.1, "allocation": 0.2, "read": 0.3, "prefill": 0.4})
    assert found["agent_s"]["mean"] == 3.0


def test_utilisation_is_bytes_over_what_the_limit_allows() -> None:
    nodes = entry(BASIC)["nodes"]
    assert [node["storage_utilization"] for node in nodes] == [0.75, 0.25, None]
    assert nodes[2] == {
        "name": "d0",
        "role": "decode",
        "storage_read_bytes": 200,
        "storage_write_bytes": 50,
        "storage_utilization": None,
        "attention_s": 0.0,
    }


def test_failed_turns_count_but_do_not_distort() -> None:
    found = entry(OTHER)
    assert (found["turns"], found["completed"], found["failed"], found["agents_completed"]) == (3, 2, 1, 1)
    assert (found["hit_rate"], found["total_input_tokens"], found["ttft_s"]["mean"]) == (0.64, 200, 1.0)


def test_identical_turns_and_the_oracle() -> None:
    systems = build_report([ORACLE, BASIC, OTHER], {}, {})["systems"]
    assert [system["identical_turns"] for system in systems] == [None, 3, 1]
    assert [system["tokens_valid"] for system in systems] == [False, True, True]
    assert len({system["tokens_digest"] for system in systems}) == 3


def test_a_replay_without_turns_is_a_report_of_nothing() -> None:
    found = entry(result("basic", wall_s=0.0))
    assert (found["jct_s"], found["hit_rate"], found["ttft_s"]["p99"], found["request_throughput"]) == (0.0, None, None, None)
    assert found["nodes"][0]["storage_utilization"] is None


def test_a_simulation_has_no_tokens_to_compare() -> None:
    simulated = dataclasses.replace(BASIC, timelines=None)
    first, second = build_report([simulated, OTHER], {}, {})["systems"]
    assert (first["tokens_digest"], first["identical_turns"]) == (None, None)
    assert second["identical_turns"] == 2
    replayed = entry(BASIC)
    assert {name: first[name] for name in first if name not in ("tokens_digest", "identical_turns")} == {
        name: replayed[name] for name in replayed if name not in ("tokens_digest", "identical_turns")
    }


def test_what_a_real_cluster_does_not_measure_has_no_key() -> None:
    found = entry(BASIC)
    assert "utilisation" not in found
    assert not {"cnic_read_bytes", "cnic_write_bytes", "dram_bytes"} & set(found["nodes"][0])


def test_bytes_of_compute_nics_and_memory() -> None:
    node: NodeCounters = dataclasses.replace(NODES[0], cnic_read_bytes=0, cnic_write_bytes=2, dram_bytes=3)
    (reported,) = entry(dataclasses.replace(BASIC, nodes=[node]))["nodes"]
    assert [reported[name] for name in ("cnic_read_bytes", "cnic_write_bytes", "dram_bytes")] == [0, 2, 3]


def test_utilisation_over_time() -> None:
    measured = dataclasses.replace(BASIC, utilisation=Utilisation(0.5, {"p0 SNIC read": (0.25, 1.0)}))
    assert entry(measured)["utilisation"] == {"interval_s": 0.5, "series": {"p0 SNIC read": [0.25, 1.0]}}
