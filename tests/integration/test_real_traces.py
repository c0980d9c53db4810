"""Every reader on whole real traces: nothing is lost, and the prompts sent have the recorded lengths."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualpath.workload.trace import Trajectory, clipped, read_trace, scaled, write_mooncake, write_trace

TRACES = Path(os.environ.get("DUALPATH_TRACES", Path(__file__).resolve().parents[2] / "../shared/traces"))

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no traces in {TRACES}; set DUALPATH_TRACES")


def load(name: str) -> tuple[list[Trajectory], list[Any]]:
    """The trajectories of a file, and its lines as plain JSON."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is absent")
    lines = path.read_text(encoding="utf-8").splitlines()
    return read_trace(lines, name), [json.loads(line) for line in lines]


def sent(trajectories: list[Trajectory]) -> Iterator[tuple[int, int]]:
    return ((step.prompt_tokens, step.turn.output_tokens) for one in trajectories for step in one.steps())


def hit_rate(trajectories: list[Trajectory]) -> float:
    steps = [step for one in trajectories for step in one.steps()]
    return sum(step.hit_tokens for step in steps) / sum(step.prompt_tokens for step in steps)


def test_coding_sessions() -> None:
    trajectories, lines = load("coding_sessions.jsonl")
    assert [trajectory.id for trajectory in trajectories] == [line["id"] for line in lines]
    rows = [row for line in lines for row in line["turns"]]
    assert list(sent(trajectories)) == [(row[1], row[3]) for row in rows]
    assert [turn.gap_s for trajectory in trajectories for turn in trajectory.turns] == [row[4] for row in rows]
    # Stored outputs count as hits too, earlier inputs alone are what the trace counts.
    recorded = sum(row[2] for row in rows) / sum(row[1] for row in rows)
    assert recorded <= hit_rate(trajectories) < recorded + 0.02
    assert sum(turn.kept_tokens is not None for one in trajectories for turn in one.turns) == 3760


def test_repair_runs() -> None:
    trajectories, lines = load("swebench_runs.jsonl")
    rows = [row for line in lines for row in line["turns"]]
    assert list(sent(trajectories)) == [(row[1], row[2]) for row in rows]
    returned = sum(turn.returned_tokens for trajectory in trajectories for turn in trajectory.turns)
    assert returned == sum(max(0, row[2] - row[3]) for row in rows)


def test_mooncake_conversations() -> None:
    trajectories, lines = load("raw/mooncake_conversation_head.jsonl")
    assert sorted(sent(trajectories)) == sorted((line["input_length"], line["output_length"]) for line in lines)
    assert max(len(trajectory.turns) for trajectory in trajectories) > 10
    assert min(len(trajectory.turns) for trajectory in trajectories) == 1


@pytest.mark.parametrize("number", ["0032", "0504"])
def test_kv_cache_tester_agrees_with_the_derived_sessions(number: str) -> None:
    (session,), (document,) = load(f"raw/trace_{number}.json")
    assert list(sent([session])) == [(request["in"], request["out"]) for request in document["requests"]]
    derived = {trajectory.id: trajectory for trajectory in load("coding_sessions.jsonl")[0]}
    assert derived[f"session-{number}"].turns == session.turns


def test_mini_swe_agent_agrees_with_the_derived_runs() -> None:
    paths = sorted((TRACES / "text").glob("*.json"))
    if not paths:
        pytest.skip(f"no mini-swe-agent trajectories in {TRACES / 'text'}")
    derived = {trajectory.id: trajectory for trajectory in load("swebench_runs.jsonl")[0]}
    for path in paths:
        (run,) = read_trace(path.read_text(encoding="utf-8").splitlines(), path.name)
        usages = [message["usage"] for message in json.loads(path.read_text())["messages"] if "usage" in message]
        assert list(sent([run])) == [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages]
        assert list(sent([derived[run.id]])) == list(sent([run]))


@pytest.mark.parametrize("name", ["coding_sessions.jsonl", "swebench_runs.jsonl", "raw/mooncake_conversation_head.jsonl"])
def test_real_traces_survive_writing_scaling_and_clipping(name: str) -> None:
    trajectories, _ = load(name)
    assert read_trace(write_trace(trajectories), name) == trajectories
    written = read_trace(write_mooncake(trajectories), name)
    assert sum(len(one.turns) for one in written) == sum(len(one.turns) for one in trajectories)
    for trajectory in trajectories:
        assert len(scaled(trajectory, 0.02).turns) == len(trajectory.turns)
        fitting, dropped = clipped(trajectory, 65_536)
        assert (len(fitting.turns) if fitting else 0) + dropped == len(trajectory.turns)
