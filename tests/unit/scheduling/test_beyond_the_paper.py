"""Two knobs beyond the paper: new tokens that weigh more on prefill engines, and turns that go on where their context is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dualpath.clock import ManualClock
from dualpath.errors import UnknownEngine
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import EngineDescription, LossReason, Lost, Placed, RequestDescription
from dualpath.scheduling.limits import SchedulerLimits, scheduler_limits
from dualpath.scheduling.log import RecordingScheduler, decode, replay
from dualpath.settings import SchedulingSettings, Settings
from dualpath.types import EngineName, GroupName, NodeName, RequestId, Role

LIMITS = SchedulerLimits(block_tokens=10, storage_tokens_per_s=100, prefill_tokens_per_s=100, beta_s=50)
D0 = EngineName("d0")
Scheduler = CentralScheduler | RecordingScheduler


def joined(scheduler: Scheduler) -> Scheduler:
    """Two prefill engines of one group, and a decode engine."""
    for name, role in (("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE)):
        group = GroupName(role.value)
        scheduler.engine_joined(EngineDescription(EngineName(name), role, group, NodeName(role.value), 1000, 1000))
    return scheduler


def placed(scheduler: Scheduler, *requests: tuple[str, int, int]) -> dict[str, str]:
    """The prefill engine of each request, by its name, prompt and hit."""
    for name, prompt, hit in requests:
        scheduler.submit(RequestDescription(RequestId(name), prompt, hit, 5))
    decisions = scheduler.fetch_prefill(GroupName("prefill"), []) + scheduler.fetch_decode(GroupName("decode"), [])
    return {decision.request_id: decision.prefill for decision in decisions if isinstance(decision, Placed)}


def test_the_weight_is_off_unless_asked_for() -> None:
    assert SchedulingSettings().prefill_new_weight == LIMITS.prefill_new_weight == 0.0
    assert LIMITS.prefill_load(100, 0) == LIMITS.prefill_load(100, 90) == 100
    settings = Settings(scheduling=SchedulingSettings(prefill_new_weight=3.5))
    assert scheduler_limits(settings, storage_tokens_per_s=1, prefill_tokens_per_s=1).prefill_new_weight == 3.5


@pytest.mark.parametrize(("prompt", "hit", "load"), [(100, 90, 100), (100, 50, 250), (101, 100, 101), (7, 0, 35)])
def test_a_request_counts_as_its_prompt_or_its_weighted_new_tokens(prompt: int, hit: int, load: int) -> None:
    assert replace(LIMITS, prefill_new_weight=5.0).prefill_load(prompt, hit) == load


@pytest.mark.parametrize(("weight", "engine"), [(0.0, "p0"), (5.0, "p1")])
def test_nobody_is_placed_behind_many_new_tokens(weight: float, engine: str) -> None:
    scheduler = joined(CentralScheduler(replace(LIMITS, prefill_new_weight=weight), ManualClock()))
    requests = (("many new", 100, 0), ("long context", 200, 190), ("next", 100, 90))
    assert placed(scheduler, *requests) == {"many new": "p0", "long context": "p1", "next": engine}


def test_the_weighted_load_leaves_as_it_came() -> None:
    scheduler = joined(CentralScheduler(replace(LIMITS, prefill_new_weight=5.0), ManualClock()))
    placed(scheduler, ("a", 100, 0), ("b", 200, 190))
    engines = scheduler.status().engines
    assert (engines[EngineName("p0")].tokens, engines[EngineName("p1")].tokens, engines[D0].tokens) == (500, 200, 300)
    scheduler.prefilled(RequestId("a"))
    scheduler.cancel(RequestId("b"))
    engines = scheduler.status().engines
    assert (engines[EngineName("p0")].tokens, engines[EngineName("p1")].tokens, engines[D0].tokens) == (0, 0, 100)


def test_beta_counts_weighted_tokens() -> None:
    scheduler = joined(CentralScheduler(replace(LIMITS, prefill_new_weight=60.0), ManualClock()))
    assert len(placed(scheduler, ("a", 100, 0), ("b", 100, 0), ("c", 10, 0))) == 2


def test_a_log_from_before_the_knob_replays_as_the_paper_has_it() -> None:
    lines: list[str] = []
    scheduler = joined(RecordingScheduler(LIMITS, ManualClock(), lines.append))
    placed(scheduler, ("a", 100, 0), ("b", 200, 190), ("c", 100, 90))
    start = json.loads(lines[0])
    del start[2][0]["prefill_new_weight"]
    old = [json.dumps(start), *lines[1:]]
    assert decode(old[0]).arguments == (LIMITS,)
    assert replay(old) == []


def test_another_weight_is_in_the_log() -> None:
    limits = replace(LIMITS, prefill_new_weight=5.0)
    lines: list[str] = []
    scheduler = joined(RecordingScheduler(limits, ManualClock(), lines.append))
    assert placed(scheduler, ("a", 100, 0), ("b", 200, 190), ("c", 100, 90))["c"] == "p1"
    assert decode(lines[0]).arguments == (limits,)
    assert replay(lines) == []


def test_a_resumed_turn_is_on_its_decode_engines_books_until_it_ends() -> None:
    lines: list[str] = []
    scheduler = joined(RecordingScheduler(LIMITS, ManualClock(), lines.append))
    scheduler.resumed(RequestDescription(RequestId("a"), 105, 100, 5), D0)
    scheduler.resumed(RequestDescription(RequestId("a"), 105, 100, 5), D0)  # known already
    status = scheduler.status()
    ledger = status.engines[D0]
    assert (ledger.requests, ledger.tokens, ledger.reserved_blocks, ledger.unread_tokens) == (1, 105, 12, 0)
    assert (status.waiting, status.placed, status.sequence, status.late_events) == (0, 1, 1, 1)
    assert not scheduler.has_waiting
    assert placed(scheduler, ("b", 100, 90))
    scheduler.finished(RequestId("a"))
    assert scheduler.status().engines[D0].requests == 1
    assert replay(lines) == []


def test_a_resumed_turn_goes_with_its_engine_or_when_it_fails() -> None:
    scheduler = joined(CentralScheduler(LIMITS, ManualClock()))
    a, b = RequestId("a"), RequestId("b")
    for request in (a, b):
        scheduler.resumed(RequestDescription(request, 105, 100, 5), D0)
    assert scheduler.failed(a) == [Lost(a, LossReason.FAILED, None, D0)]
    assert scheduler.engine_lost(D0) == [Lost(b, LossReason.ENGINE_LOST, None, None)]
    with pytest.raises(UnknownEngine, match="there is no decode engine d0"):
        scheduler.resumed(RequestDescription(a, 105, 100, 5), D0)
