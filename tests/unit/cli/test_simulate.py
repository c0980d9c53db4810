"""``dualpath simulate``: reports as a replay's, capacity, and input that makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.model_configs import QWEN_32B

from dualpath.cli.simulate import simulate
from dualpath.errors import DualPathError

FEW = ("--model", "ds-660b", "--trace", "table2:32K", "--agents", "6", "--scale", "0.3")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(simulate, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def report(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "report.json"
    run(*arguments, "--json", str(path))
    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=pytest.fail)
    return found


def test_the_report_is_a_replays_with_utilisation_over_time(tmp_path: Path) -> None:
    found = report(tmp_path, *FEW, "--system", "basic,dualpath,dualpath-split,oracle")
    systems = {entry["system"]: entry for entry in found["systems"]}
    assert list(systems) == ["basic", "dualpath", "dualpath-split", "oracle"]
    assert len({entry["completed"] for entry in systems.values()}) == 1
    basic, oracle = systems["basic"], systems["oracle"]
    assert basic["failed"] == 0
    assert basic["hit_rate"] == basic["theoretical_hit_rate"]
    assert sum(node["storage_read_bytes"] for node in basic["nodes"] if node["role"] == "decode") == 0
    assert sum(node["storage_read_bytes"] for node in oracle["nodes"]) == 0
    names = basic["utilisation"]["series"]
    for resource in ("prefill-node-1 SNIC read", "decode-31 CNIC write", "decode-node-3 DRAM", "prefill-group-0 GPUs"):
        assert all(0 <= share <= 1 + 1e-9 for share in names[resource])


def test_the_same_seed_gives_the_same_report(tmp_path: Path) -> None:
    arguments = (*FEW, "--arrival-rate", "0.5", "--system", "dualpath")
    first, again = (report(tmp_path, *arguments, "--seed", "3") for _ in range(2))
    assert first == again
    assert report(tmp_path, *arguments, "--seed", "4") != first


def test_pauses_between_turns_count_only_if_asked_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    turns = [{"appended_tokens": 500, "output_tokens": 3}, {"appended_tokens": 20, "output_tokens": 3, "gap_s": 100.0}]
    trace.write_text(json.dumps({"id": "a", "turns": turns}) + "\n")
    arguments = ("--model", "ds-27b", "--cluster", "1P1D", "--trace", str(trace), "--system", "dualpath")
    without, with_gaps = (report(tmp_path, *arguments, *more)["systems"][0]["jct_s"] for more in ((), ("--gaps",)))
    assert with_gaps == pytest.approx(without + 100)


def test_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_32B))
    output = run("--model", str(tmp_path), "--cluster", "1P2D", "--trace", "table2:32K", "--agents", "2", "--scale", "0.2")
    assert "TTFT mean" in output


def test_a_turn_that_fits_nowhere_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    small, large = (
        {"id": name, "turns": [{"appended_tokens": size, "output_tokens": 2}]} for name, size in (("s", 100), ("l", 10**6))
    )
    trace.write_text(f"{json.dumps(small)}\n{json.dumps(large)}\n")
    result = CliRunner().invoke(simulate, ["--model", "ds-660b", "--trace", str(trace)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "1 agents ended at a turn that no engine could ever hold, for example a prompt of 1000000 tokens" in result.output


def test_capacity_within_an_objective(tmp_path: Path) -> None:
    few_gpus = ("--cluster", "1P1D", "--gpus", "1", "--snic-bandwidth", "1GB/s")
    arguments = ("--model", "ds-27b", *few_gpus, "--trace", "table2:32K", "--scale", "0.02", "--system", "basic")
    path = tmp_path / "capacity.json"
    output = " ".join(run(*arguments, "--find-capacity", "--slo", "ttft=1.3s,tpot=30ms", "--json", str(path)).split())
    found = json.loads(path.read_text())["capacity"]["basic"]
    assert f"{found['agents_per_s']:.3f} agents/s" in output
    assert found["agents_per_s"] in {level["rate"] for level in found["levels"]}
    assert "agents/s within TTFT mean <= 1.3 s, TPOT mean <= 0.03 s" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "ds-66b"), "did you mean 'ds-660b'"),
        (("--model", "ds-660b", "--hardware", "h80"), "did you mean 'h800'"),
        (("--model", "ds-660b", "--cluster", "2D4P"), "--cluster: '2D4P'"),
        (("--model", "ds-660b", "--cluster", "1P4D"), "prefill: a GPU of 80 GB cannot hold 84 GB of weights"),
        (("--model", "ds-660b", "--system", "best"), "system: best; choose from"),
        (("--model", "ds-660b", "--trace", "table2:65K"), "no such set; did you mean '64K'"),
        (("--model", "ds-660b", "--buffer", "0"), "--buffer must be positive"),
        (("--model", "ds-660b", "--buffer", "10kB"), "too small"),
        (("--model", "ds-660b", "--slo", "ttft<4"), "--slo: 'ttft<4' is no bound"),
        (("--model", "ds-660b", "--snic-bandwidth", "0"), "--snic-bandwidth must be positive"),
    ],
)
def test_what_makes_no_sense_is_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(DualPathError, match=message.replace("(", r"\(")):
        CliRunner().invoke(simulate, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    "arguments", [("--agents", "0"), ("--arrival-rate", "-1"), ("--arrival-rate", "nan"), ("--scale", "0")]
)
def test_numbers_out_of_range_are_usage_errors(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(simulate, ["--model", "ds-660b", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.output


def test_traces_without_turns_and_clusters_that_hold_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"id": "a", "turns": []}\n')
    with pytest.raises(DualPathError, match="turns: must be a list with at least one entry"):
        CliRunner().invoke(simulate, ["--model", "ds-660b", "--trace", str(trace)], catch_exceptions=False)
    trace.write_text('{"id": "a", "turns": [{"appended_tokens": 900000, "output_tokens": 1}]}\n')
    with pytest.raises(DualPathError, match="not one turn could be held"):
        CliRunner().invoke(simulate, ["--model", "ds-660b", "--trace", str(trace)], catch_exceptions=False)
