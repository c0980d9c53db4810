"""The two phases of decode placement, by hand-computed cases."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dualpath.scheduling.decode import DecodeChoice, LeastLoaded, balance_limit
from dualpath.scheduling.ledger import Capacity, GroupState, RequestState
from dualpath.types import GroupName, RequestId


@dataclass(eq=False)
class Engine:
    name: str
    requests: int
    tokens: int
    room_blocks: int
    allowance: int = 1000
    reserved_blocks: int = 0


@dataclass
class Waiting:
    prompt_tokens: int
    demand_blocks: int


def request(number: int, tokens: int) -> RequestState:
    return RequestState(RequestId(f"r{number}"), tokens, tokens, 0, 2, 0.0)


def group(name: str, order: int, load_tokens: int = 0, holds_tokens: int = 1000) -> GroupState:
    return GroupState(GroupName(name), order, Capacity(holds_tokens, 1000, 1000), load_tokens=load_tokens)


def groups(*states: GroupState) -> LeastLoaded:
    loads = LeastLoaded()
    for state in states:
        loads.add(state)
    return loads


def test_balance_limit_counts_requests_that_fit_the_sum_of_free_blocks() -> None:
    engines = [Engine("a", 1, 1000, 6), Engine("b", 1, 500, 5)]
    waiting = [Waiting(300, 4), Waiting(400, 7), Waiting(10, 1)]
    # 11 blocks: the first two fit, nothing behind them is looked at
    assert balance_limit(waiting, engines) == pytest.approx(1.05 * (300 + 400 + 1500) / 2)


def test_balance_limit_stops_at_the_first_request_that_does_not_fit() -> None:
    waiting = [Waiting(300, 4), Waiting(400, 8), Waiting(10, 1)]
    assert balance_limit(waiting, [Engine("a", 0, 100, 11)]) == pytest.approx(1.05 * 400)


def test_overcommitted_engines_do_not_reduce_the_others_room() -> None:
    assert balance_limit([Waiting(100, 4)], [Engine("a", 0, 0, -3), Engine("b", 0, 0, 4)]) == pytest.approx(52.5)


def test_fewest_requests_within_the_limit() -> None:
    engines = [Engine("a", 3, 100, 9), Engine("b", 2, 900, 9), Engine("c", 1, 901, 9)]
    chosen = DecodeChoice(engines, limit_tokens=1000).engine(100, 1)
    assert chosen is engines[1]  # c would pass the limit, b reaches it exactly


def test_fewest_tokens_when_all_would_pass_the_limit() -> None:
    engines = [Engine("a", 1, 990, 9), Engine("b", 2, 950, 9), Engine("c", 3, 940, 0)]
    assert DecodeChoice(engines, limit_tokens=1000).engine(100, 1) is engines[1]


def test_no_engine_without_room() -> None:
    engines = [Engine("a", 0, 0, 4), Engine("b", 0, 0, 3)]
    assert DecodeChoice(engines, limit_tokens=1e9).engine(100, 5) is None


def test_assignments_change_the_order() -> None:
    engines = [Engine("a", 0, 0, 9), Engine("b", 1, 0, 9)]
    choice = DecodeChoice(engines, limit_tokens=1e9)
    order = []
    for _ in range(4):
        engine = choice.engine(10, 1)
        assert engine is not None
        order.append(engine.name)
        engine.requests += 1
        choice.assigned(engine)
    assert order == ["a", "b", "a", "b"]


def test_an_engine_at_its_allowance_is_passed_over() -> None:
    engines = [Engine("a", 0, 0, 9, allowance=1), Engine("b", 7, 0, 9)]
    choice = DecodeChoice(engines, limit_tokens=1e9)
    assert choice.engine(10, 1) is engines[0]
    engines[0].requests += 1
    choice.assigned(engines[0])
    assert choice.engine(10, 1) is engines[1]


def test_phase_one_updates_the_load_after_each_assignment() -> None:
    states = group("a", 1), group("b", 2, load_tokens=150)
    loads = groups(*states)
    names = [chosen.name for number in range(4) if (chosen := loads.assign(request(number, 100)))]
    assert names == ["a", "a", "b", "a"]  # a: 100, 200; b: 250; a: 300
    assert [state.load_tokens for state in states] == [300, 250]
    assert [waiting.request_id for waiting in states[0].queue] == ["r0", "r1", "r3"]


def test_phase_one_sees_changes_from_outside() -> None:
    a, b = group("a", 1, load_tokens=500), group("b", 2, load_tokens=400)
    loads = groups(a, b)
    assert loads.assign(request(0, 50)) is b
    a.load_tokens -= 300
    loads.changed(a)
    assert loads.assign(request(1, 50)) is a


def test_phase_one_passes_over_groups_that_could_never_hold_the_request() -> None:
    small, large = group("small", 1, holds_tokens=0), group("large", 2, load_tokens=900)
    loads = groups(small, large)
    assert [loads.assign(request(number, 10)) for number in range(2)] == [large, large]
    loads.remove(large)
    assert loads.assign(request(3, 10)) is None


def test_phase_one_stays_right_over_many_changes() -> None:
    states = [group(f"g{order}", order) for order in range(1, 4)]
    loads = groups(*states)
    for number in range(500):
        least = min(states, key=lambda state: (state.load_tokens, state.order))
        assert loads.assign(request(number, 1 + number * 37 % 101)) is least
        drained = states[number % 3]
        drained.load_tokens //= 2
        loads.changed(drained)
