"""Every trace format on small hand-written samples, and the complaints about broken ones."""

import json
from typing import Any

import pytest

from dualpath.errors import TraceError
from dualpath.workload.trace import Trajectory, Turn, read_trace, write_mooncake, write_trace


def jsonl(*objects: Any) -> list[str]:
    return [json.dumps(one) + "\n" for one in objects]


def test_native_round_trip_omits_defaults() -> None:
    trajectories = [Trajectory("a", (Turn(10, 5, 1.5, 2), Turn(3, 1, kept_tokens=4))), Trajectory("b", (Turn(7, 0),))]
    lines = list(write_trace(trajectories))
    assert json.loads(lines[1]) == {"id": "b", "turns": [{"appended_tokens": 7, "output_tokens": 0}]}
    assert read_trace(lines, "x") == trajectories


def test_coding_sessions_follow_the_replay_rule() -> None:
    turns = [
        [0.0, 1000, 0, 50, 0.0, 5.0],
        [9.0, 1100, 960, 20, 3.0, 3.0],  # shares 15 blocks, all full ones of 1000: the whole history stays
        [20.0, 1130, 1024, 0, 4.0, 3.0],  # shares 16 of 17 full blocks of 1100: cut
        [30.0, 700, 640, 10, 5.0, 3.0],  # shrunken
        [31.0, 704, 704, 10, 0.0, 3.0],  # all of it is a prefix, and shorter than the history
    ]
    (trajectory,) = read_trace(jsonl({"id": "s", "turns": turns}), "x")
    assert trajectory == Trajectory(
        "s",
        (
            Turn(1000, 50),
            Turn(50, 20, 3.0),
            Turn(106, 0, 4.0, kept_tokens=1024),
            Turn(60, 10, 5.0, kept_tokens=640),
            Turn(0, 10, kept_tokens=704),
        ),
    )
    assert [step.prompt_tokens for step in trajectory.steps()] == [row[1] for row in turns]


def test_repair_runs_drop_reasoning() -> None:
    turns = [
        [0, 1000, 100, 60],
        [5, 1050, 30, 0],  # 1000 + 40 came back
        [4, 1060, 20, 50],  # shorter than the history of 1080: the output is gone; the clock went back
        [9, 500, 10, 0],  # shorter than the prompt before
    ]
    (trajectory,) = read_trace(jsonl({"id": "r", "turns": turns}), "x")
    assert trajectory.turns == (
        Turn(1000, 100, reasoning_tokens=60),
        Turn(10, 30, 5.0),
        Turn(10, 20, 0.0, reasoning_tokens=20, kept_tokens=1050),
        Turn(1, 10, 5.0, kept_tokens=499),
    )


def test_kv_cache_tester_document_on_one_line_or_many() -> None:
    document = {
        "id": "t",
        "block_size": 4,
        "requests": [
            {"t": 0.0, "in": 9, "out": 2, "hash_ids": [1, 2], "think_time": 0.0, "api_time": 1.0},
            {"t": 5.0, "in": 13, "out": 1, "hash_ids": [1, 2, 3], "think_time": 3.5},
            {"t": 6.0, "in": 12, "out": 1, "hash_ids": [1, 9, 8]},
            {"t": 8.0, "in": 14, "out": 1, "hash_ids": [1, 2, 3], "think_time": 0.0},
        ],
    }
    (trajectory,) = read_trace(jsonl(document), "x")
    assert trajectory.turns == (Turn(9, 2), Turn(2, 1, 3.5), Turn(8, 1, 1.0, kept_tokens=4), Turn(1, 1))
    assert read_trace(json.dumps(document, indent=2).splitlines(), "x") == [trajectory]


def test_kv_cache_tester_refuses_nested_sub_agents() -> None:
    nested = {"type": "subagent", "t": 1.0, "requests": [{"in": 1}]}
    document = {"id": "t", "block_size": 64, "requests": [nested]}
    with pytest.raises(TraceError, match=r"x:1: requests\[0\]\.type: nested sub-agents"):
        read_trace(jsonl(document), "x")


def assistant(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


def test_mini_swe_agent() -> None:
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    reasoning = {"completion_tokens_details": {"reasoning_tokens": 7}}
    messages = [system, user, assistant(100, 10, **reasoning), user, assistant(120, 5, completion_tokens_details=None), user]
    (run,) = read_trace(json.dumps({"instance_id": "i", "messages": messages}, indent=1).splitlines(), "x")
    assert run == Trajectory("i", (Turn(100, 10, reasoning_tokens=7), Turn(17, 5)))


def test_mini_swe_agent_keeps_usage_in_the_response_too() -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 3}
    message = {"role": "assistant", "content": "", "extra": {"response": {"usage": usage}}}
    assert read_trace(jsonl({"messages": [message]}), "dir/run.json") == [Trajectory("dir/run.json", (Turn(8, 3),))]


def test_mooncake_with_sessions() -> None:
    lines = jsonl(
        {"session_id": "a", "timestamp": 500, "input_length": 100, "output_length": 10},
        {"session_id": "b", "input_length": 7, "output_length": 1, "hash_ids": [3]},
        {"session_id": "a", "delay": 2000, "input_length": 30, "output_length": 4},
        {"session_id": "a", "timestamp": 4000, "input_length": 5, "output_length": 1},
        {"session_id": "a", "input_length": 6, "output_length": 1},
    )
    assert read_trace(lines, "x") == [
        Trajectory("a", (Turn(100, 10, 0.5), Turn(30, 4, 2.0), Turn(5, 1, 3.5), Turn(6, 1))),
        Trajectory("b", (Turn(7, 1),)),
    ]


def test_mooncake_without_sessions_follows_shared_full_blocks() -> None:
    lines = jsonl(
        {"timestamp": 0, "input_length": 1100, "output_length": 100, "hash_ids": [0, 1, 2]},
        {"timestamp": 100, "input_length": 1300, "output_length": 10, "hash_ids": [0, 5, 6]},  # the system prompt only
        {"timestamp": 4000, "input_length": 1250, "output_length": 20, "hash_ids": [0, 1, 7]},  # continues the first
        {"timestamp": 5000, "input_length": 600, "output_length": 5, "hash_ids": [0, 8]},
        {"timestamp": 9000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 9]},  # the first again, shorter
    )
    assert read_trace(lines, "x") == [
        Trajectory("line-1", (Turn(1100, 100), Turn(50, 20, 4.0), Turn(6, 5, 5.0, kept_tokens=1024))),
        Trajectory("line-2", (Turn(1300, 10, 0.1),)),
        Trajectory("line-4", (Turn(600, 5, 5.0),)),
    ]


def test_mooncake_written_as_aiperf_replays_it() -> None:
    trajectory = Trajectory("a", (Turn(100, 10, 1.0), Turn(20, 5, 2.0), Turn(3, 1, 4.0, kept_tokens=50), Turn(2, 0, 0.25)))
    assert [json.loads(line) for line in write_mooncake([trajectory])] == [
        {"session_id": "a", "timestamp": 1000, "input_length": 100, "output_length": 10},
        {"session_id": "a", "delay": 2000, "input_length": 20, "output_length": 5},
        {"session_id": "a/2", "timestamp": 7000, "input_length": 53, "output_length": 1},
        {"session_id": "a/2", "delay": 250, "input_length": 2, "output_length": 1},
    ]


def test_mooncake_refuses_self_contained_rows() -> None:
    row = {"session_id": "a", "input_length": 1, "output_length": 1, "context_mode": "message_array_with_responses"}
    with pytest.raises(TraceError, match="context_mode"):
        read_trace(jsonl(row), "x")


GOOD = {"id": "a", "turns": [{"appended_tokens": 1, "output_tokens": 1}]}


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "x:1: the trace is empty"),
        (["\n", "  \n"], "x:1: the trace is empty"),
        (['{"id": "a", "turns": [{"app'], "x:1: no JSON"),
        (["{\n", '"id": "a",\n', '"turns": [\n'], "x:3: no JSON"),
        ([json.dumps(GOOD), '{"id": "b", "tur'], "x:2: no JSON"),
        (jsonl(GOOD, [1]), "x:2: must be a JSON object, not list"),
        (jsonl({"prompt": "hello"}), "x:1: no known trace format"),
        (jsonl({"id": "a", "turns": []}), "x:1: turns: must be a list with at least one entry"),
        (jsonl(GOOD, {"id": "b"}), "x:2: turns: is missing"),
        (jsonl(GOOD, {"turns": GOOD["turns"]}), "x:2: id: is missing"),
        (jsonl({"id": 3, "turns": GOOD["turns"]}), "x:1: id: must be text, not 3"),
        (jsonl({"id": "a", "turns": [{"appended_tokens": 1}]}), "x:1: turns[0].output_tokens: is missing"),
        (jsonl({"id": "a", "turns": [{"appended_tokens": -1, "output_tokens": 1}]}), "x:1: turns[0].appended_tokens: "),
        (jsonl({"id": "a", "turns": [{"appended_tokens": True, "output_tokens": 1}]}), "x:1: turns[0].appended_tokens: "),
        (jsonl({"id": "a", "turns": [{"appended_tokens": 1, "output_tokens": 1, "gap_s": -2}]}), "x:1: turns[0].gap_s: "),
        (["{" + json.dumps(GOOD)[1:-3] + ', "gap_s": NaN}]}'], "x:1: turns[0].gap_s: must be a number, not nan"),
        (jsonl({"id": "a", "turns": [{"appended_tokens": 1, "output_tokens": 1, "reasoning_tokens": 2}]}), "reasoning_tokens"),
        (jsonl({"id": "a", "turns": [{"appended_tokens": 1, "output_tokens": 1, "kept_tokens": 9}]}), "turns[0].kept_tokens"),
        (jsonl({"id": "a", "turns": [{"appended_tokens": 1, "output_tokens": 1}, 7]}), "x:1: turns[1]: must be an object"),
        (jsonl({"id": "a", "turns": [[0, 5, 0, 1, 0, 0], [0, 5, 0]]}), "x:1: turns[1]: must be a list of start_s"),
        (jsonl({"id": "a", "turns": [[0, 5, 0, 1, 0, 0], [0, 5, "0", 1, 0, 0]]}), "x:1: turns[1].hit_tokens: "),
        (jsonl({"id": "a", "turns": [[0, 0, 0, 1, 0, 0]]}), "x:1: turns[0].input_tokens: must be a whole number, 1 or more"),
        (jsonl({"id": "a", "turns": [[0, 5, -1, 0]]}), "x:1: turns[0].completion_tokens: "),
        (jsonl({"id": "a", "requests": []}), "x:1: block_size: is missing"),
        (jsonl({"id": "a", "block_size": 64, "requests": []}), "x:1: requests: must be a list with at least one entry"),
        (jsonl({"id": "a", "block_size": 0, "requests": [{}]}), "x:1: block_size: must be a whole number, 1 or more"),
        (jsonl({"id": "a", "block_size": 64, "requests": [{"t": 0, "hash_ids": "1"}]}), "x:1: requests[0].hash_ids: "),
        (jsonl({"messages": [{"role": "user"}]}), "x:1: messages: no assistant message"),
        (jsonl({"messages": [{"role": "assistant"}]}), "x:1: messages[0].usage: is missing"),
        (jsonl({"messages": [assistant(0, 1)]}), "x:1: messages[0].usage.prompt_tokens: "),
        (jsonl({"input_length": 3}), "x:1: timestamp: is missing"),
        (jsonl({"timestamp": 0, "input_length": 3}), "x:1: output_length: is missing"),
        (jsonl({"timestamp": "0", "input_length": 3, "output_length": 1}), "x:1: timestamp: must be a number, not '0'"),
        (jsonl({"session_id": "s", "input_length": 0, "output_length": 1}), "x:1: turns[0].appended_tokens"),
    ],
)
def test_holes_are_named(lines: list[str], complaint: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(lines, "x")
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("x:")


def test_complaints_stay_short() -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(jsonl({"id": ["long"] * 10_000, "turns": GOOD["turns"]}), "x")
    assert len(str(caught.value)) < 200
