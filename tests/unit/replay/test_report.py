"""The report's numbers, its fields, and the table."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dualpath.replay.report import NodeCounters, SystemResult, build_report, installed_versions, write_report
from dualpath.replay.table import render_nodes, render_table
from dualpath.types import Role
from dualpath.workload.timeline import StageDurations, TurnId, TurnTimeline, digest

NODES = (
    NodeCounters("p0", Role.PREFILL, 300, 0, 100.0, 2.0),
    NodeCounters("p1", Role.PREFILL, 100, 0, 100.0, 1.0),
    NodeCounters("d0", Role.DECODE, 200, 50, None, 0.0),
)


def turn(agent: str, number: int, start_s: float, output: list[int], **changes: Any) -> TurnTimeline:
    """A turn whose first token takes 1 s and every further one 0.5 s."""
    last_s = start_s + 1 + 0.5 * (len(output) - 1)
    base = TurnTimeline(
        id=TurnId(agent, number),
        submitted_s=start_s,
        first_token_s=start_s + 1,
        second_token_s=start_s + 1.5,
        last_token_s=last_s,
        finished_s=last_s,
        prompt_tokens=100,
        output_tokens=len(output),
        cached_tokens=64,
        hit_tokens=90,
        tokens_digest=digest(output),
        stages=StageDurations(0.1, 0.2, 0.3, 0.4),
    )
    return dataclasses.replace(base, **changes)


def result(system: str, *turns: TurnTimeline, **changes: Any) -> SystemResult:
    return dataclasses.replace(SystemResult(system, turns, NODES, wall_s=8.0, block_tokens=64), **changes)


BASIC = result("basic", turn("a", 0, 0.0, [1, 2, 3]), turn("a", 1, 2.0, [4, 5, 6]), turn("b", 0, 0.0, [7, 8, 9]))
FAILED = turn("b", 0, 0.5, [], first_token_s=None, second_token_s=None, cached_tokens=0, error="lost")
OTHER = result("dualpath", turn("a", 0, 0.0, [1, 2, 3]), turn("a", 1, 1.0, [4, 5, 7]), FAILED)
ORACLE = result("oracle", turn("a", 0, 0.0, [0, 0]), transfers=False)


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


def test_the_report_is_json(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    report = build_report([BASIC], {"prefill": 1, "role": Role.PREFILL})
    write_report(path, report)
    read = json.loads(path.read_text())
    assert read["settings"] == {"prefill": 1, "role": "prefill"}
    assert read["versions"] == installed_versions()
    assert {"python", "torch"} <= set(read["versions"])
    assert read["systems"] == report["systems"]


def rendered(*results: SystemResult) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_table(build_report(results, {}, {})))
    return console.export_text()


def test_a_narrow_table_leaves_the_ratios_out_and_cuts_nothing() -> None:
    report = build_report([BASIC, OTHER, BASIC, OTHER], {}, {})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_table(report, console.width))
    console.print(render_nodes(report))
    shown = console.export_text()
    assert "theoretical hit rate" in shown
    assert "vs first" not in shown
    assert "…" not in shown
    assert "vs first" in rendered(BASIC, OTHER)


def test_table_sets_systems_beside_each_other() -> None:
    lines = rendered(BASIC, OTHER).splitlines()
    cells = {line.strip("│").split("│")[0].strip(): [cell.strip() for cell in line.split("│")[2:-1]] for line in lines}
    assert cells["JCT"] == ["4.00 s", "3.00 s", "0.75×"]
    assert cells["read"] == ["300.0 ms", "300.0 ms", "1.00×"]
    assert cells["hit rate"] == ["64.0%", "64.0%", ""]
    assert cells["busiest SNIC"] == ["75.0%", "100.0%", ""]
    assert cells["identical turns"] == ["3", "1", ""]
    assert "mean nothing" not in "\n".join(lines)


def test_table_marks_a_system_that_moves_no_bytes() -> None:
    text = rendered(BASIC, ORACLE)
    assert "oracle*" in text
    assert "* moves no KV bytes; its tokens mean nothing" in text
