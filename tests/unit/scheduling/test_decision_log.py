"""The decision log: lines that read back as what they were, and replay."""

from __future__ import annotations

import json

import pytest

from dualpath.clock import ManualClock
from dualpath.errors import ProtocolError
from dualpath.scheduling.decisions import EngineDescription, EngineLoad, LossReason, Lost, Placed, RequestDescription
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.log import Call, RecordingScheduler, decode, encode, replay
from dualpath.settings import ReadSidePolicy
from dualpath.types import EngineName, GroupName, NodeName, ReadShare, RequestId, Role, Side

LIMITS = SchedulerLimits(
    block_tokens=10,
    storage_tokens_per_s=100.0,
    prefill_tokens_per_s=100.0,
    read_side=ReadSidePolicy.SPLIT,
    node_storage_tokens_per_s={NodeName("slow"): 10.0},
)


def recorded() -> list[str]:
    lines: list[str] = []
    clock = ManualClock(100.0)
    scheduler = RecordingScheduler(LIMITS, clock, lines.append)
    for role, name in ((Role.PREFILL, "p0"), (Role.DECODE, "d0")):
        scheduler.engine_joined(EngineDescription(EngineName(name), role, GroupName(name), NodeName("slow"), 100, 100))
    for name in ("a", "b", "c"):
        clock.advance(0.5)
        scheduler.submit(RequestDescription(RequestId(name), 105, 100, 5))
    scheduler.submit(RequestDescription(RequestId("huge"), 10**6, 0, 5))
    assert scheduler.fetch_prefill(GroupName("p0"), [EngineLoad(EngineName("p0"), 0, 0)]) == []
    assert len(scheduler.fetch_decode(GroupName("d0"), [EngineLoad(EngineName("d0"), 0, 0, 100)])) == 3
    scheduler.read_progress(RequestId("a"), Side.PREFILL, 50)
    scheduler.prefilled(RequestId("a"))
    scheduler.finished(RequestId("a"))
    scheduler.cancel(RequestId("b"))
    scheduler.leave(RequestId("b"), LossReason.TIMED_OUT)
    scheduler.engine_lost(EngineName("d0"))
    assert scheduler.status().late_events == 1
    return lines


def test_a_recorded_run_replays_without_mismatch() -> None:
    lines = recorded()
    assert len(lines) == 1 + 2 + 4 + 2 + 6
    assert all("\n" not in line for line in lines)
    assert replay(lines) == []


def test_another_decision_is_a_mismatch() -> None:
    lines = recorded()
    at, call = next((i, c) for i, c in enumerate(map(decode, lines)) if c.method == "fetch_decode")
    first = call.decisions[0]
    assert isinstance(first, Placed)
    other = Placed(first.request_id, first.prefill, first.decode, ReadShare(0, 100), first.sequence)
    lines[at] = encode(Call(call.method, call.time_s, call.arguments, (other, *call.decisions[1:])))
    (mismatch,) = replay(lines)
    assert mismatch.startswith(f"line {at + 1}: fetch_decode decided")


def test_a_missing_call_is_a_mismatch() -> None:
    lines = recorded()
    del lines[3]  # the first submit
    assert replay(lines)


@pytest.mark.parametrize(
    "call",
    [
        Call("start", 0.0, (LIMITS,)),
        Call(
            "leave",
            1.5,
            (RequestId("r"), LossReason.TIMED_OUT),
            (Lost(RequestId("r"), LossReason.FAILED, None, EngineName("d")),),
        ),
        Call("fetch_decode", 2.0, (GroupName("g"), [EngineLoad(EngineName("d"), 3, 4, None)])),
        Call("read_progress", 2.0, (RequestId("r"), Side.DECODE, 7)),
    ],
)
def test_lines_read_back(call: Call) -> None:
    again = decode(encode(call))
    assert again == call
    assert [type(argument) for argument in again.arguments] == [type(argument) for argument in call.arguments]


@pytest.mark.parametrize(
    "line", ["", "{}", "[1,2]", '["submit",0,[{"type":"Nothing"}],[]]', '["submit",0,[{"type":"Placed"}],[]]']
)
def test_other_lines_are_errors(line: str) -> None:
    with pytest.raises(ProtocolError, match="no line of a decision log"):
        decode(line)


def test_a_log_begins_with_its_limits() -> None:
    with pytest.raises(ProtocolError, match="begins with its limits"):
        replay(recorded()[1:])


def test_lines_are_plain_json() -> None:
    method, time_s, arguments, decisions = json.loads(recorded()[0])
    assert (method, time_s, decisions) == ("start", 100.0, [])
    assert arguments[0]["block_tokens"] == 10
