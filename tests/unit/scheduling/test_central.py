"""The central scheduler's states, events and corner cases, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualpath.clock import ManualClock
from dualpath.errors import SettingsError, UnknownEngine
from dualpath.scheduling.central import RAMP_REQUESTS, CentralScheduler
from dualpath.scheduling.decisions import (
    Decision,
    EngineDescription,
    EngineLoad,
    LossReason,
    Lost,
    Placed,
    Refused,
    RequestDescription,
)
from dualpath.scheduling.limits import SchedulerLimits, scheduler_limits
from dualpath.settings import ClusterSettings, Placement, ReadSidePolicy, SchedulingSettings, Settings
from dualpath.types import EngineName, GroupName, NodeName, ReadShare, RequestId, Role, Side

LIMITS = SchedulerLimits(
    block_tokens=10, storage_tokens_per_s=100, prefill_tokens_per_s=100, alpha_s=3, beta_s=5, decode_free_watermark=0.1
)
NO_LOADS: list[EngineLoad] = []


class Cluster:
    """A scheduler with engines ``p0 p1 …`` and ``d0 d1 …``; by default each is its own group and node."""

    def __init__(self, limits: SchedulerLimits = LIMITS, prefill: int = 1, decode: int = 1, group: bool = False) -> None:
        self.clock = ManualClock()
        self.scheduler = CentralScheduler(limits, self.clock)
        self._group = group
        for index in range(prefill):
            self.join(f"p{index}")
        for index in range(decode):
            self.join(f"d{index}")

    def join(self, name: str, kv_blocks: int = 100, buffer_blocks: int = 100) -> list[Decision]:
        role = Role.PREFILL if name[0] == "p" else Role.DECODE
        if role is Role.PREFILL and kv_blocks == 100:
            kv_blocks = 0
        group = GroupName(name[0] if self._group else name)
        engine = EngineDescription(EngineName(name), role, group, NodeName(f"node-{name}"), kv_blocks, buffer_blocks)
        return self.scheduler.engine_joined(engine)

    def submit(self, *names: str, prompt: int = 55, hit: int = 50, output: int = 10) -> list[Decision]:
        decisions: list[Decision] = []
        for name in names:
            decisions += self.scheduler.submit(RequestDescription(RequestId(name), prompt, hit, output))
        return decisions

    def fetch(self, group: str, *loads: EngineLoad) -> list[Decision]:
        fetch = self.scheduler.fetch_prefill if group[0] == "p" else self.scheduler.fetch_decode
        return fetch(GroupName(group), loads)

    def placed(self, *groups: str) -> dict[str, tuple[str, str]]:
        decisions = [decision for group in groups for decision in self.fetch(group)]
        return {d.request_id: (d.prefill, d.decode) for d in decisions if isinstance(d, Placed)}

    def place(self, *names: str, prompt: int = 55, hit: int = 50) -> None:
        self.submit(*names, prompt=prompt, hit=hit)
        assert set(self.placed("p0", "d0")) == set(names)

    def ledger(self, name: str) -> tuple[int, int, int, int]:
        """Requests, tokens, unread tokens and reserved blocks of an engine."""
        engine = self.scheduler.status().engines[EngineName(name)]
        return engine.requests, engine.tokens, engine.unread_tokens, engine.reserved_blocks

    def lost(self, name: str) -> list[Decision]:
        return self.scheduler.engine_lost(EngineName(name))


def load(name: str, seen: int, unread: int = 0, free: int | None = None) -> EngineLoad:
    return EngineLoad(EngineName(name), seen, unread, free)


def test_the_call_that_completes_a_placement_returns_it() -> None:
    cluster = Cluster()
    cluster.submit("a")
    assert cluster.fetch("p0") == []
    assert cluster.ledger("p0") == (1, 55, 0, 0)
    assert cluster.fetch("d0") == [Placed(RequestId("a"), EngineName("p0"), EngineName("d0"), ReadShare(50, 0), 1)]
    cluster.submit("b")
    assert cluster.fetch("d0") == []
    (second,) = cluster.fetch("p0")
    assert second == Placed(RequestId("b"), EngineName("p0"), EngineName("d0"), ReadShare(0, 50), 2)


def test_the_ledger_follows_a_life() -> None:
    cluster = Cluster()
    cluster.place("a")
    request = RequestId("a")
    assert (cluster.ledger("p0"), cluster.ledger("d0")) == ((1, 55, 50, 0), (1, 55, 0, 7))
    cluster.scheduler.read_progress(request, Side.PREFILL, 20)
    assert cluster.scheduler.status().read_queue_tokens == {"node-p0": 30, "node-d0": 0}
    cluster.scheduler.read_progress(request, Side.PREFILL, 10)  # late news never put tokens back
    assert cluster.ledger("p0")[2] == 30
    cluster.scheduler.prefilled(request)
    assert (cluster.ledger("p0"), cluster.ledger("d0")) == ((0, 0, 0, 0), (1, 55, 0, 7))
    cluster.scheduler.finished(request)
    status = cluster.scheduler.status()
    assert cluster.ledger("d0") == (0, 0, 0, 0)
    assert (status.waiting, status.placed, status.late_events) == (0, 0, 0)


def test_finished_may_overtake_prefilled() -> None:
    cluster = Cluster()
    cluster.place("a")
    cluster.scheduler.finished(RequestId("a"))
    assert (cluster.ledger("p0"), cluster.ledger("d0")) == ((0, 0, 0, 0), (0, 0, 0, 0))
    cluster.scheduler.prefilled(RequestId("a"))
    assert cluster.scheduler.status().late_events == 1


def test_prefilled_ends_all_reads() -> None:
    cluster = Cluster(replace(LIMITS, read_side=ReadSidePolicy.SPLIT))
    cluster.place("a", prompt=105, hit=100)
    assert (cluster.ledger("p0")[2], cluster.ledger("d0")[2]) == (50, 50)
    cluster.scheduler.prefilled(RequestId("a"))
    assert (cluster.ledger("p0")[2], cluster.ledger("d0")[2]) == (0, 0)


def test_beta_bounds_a_prefill_engine_and_frees_it_when_prefilled() -> None:
    cluster = Cluster(prefill=1, decode=1)
    cluster.submit("a", "b", "c", prompt=290, hit=0)
    assert cluster.fetch("p0") == []
    assert cluster.ledger("p0")[:2] == (2, 580)  # β is 500: the second passes it
    assert set(cluster.placed("d0")) == {"a", "b"}
    cluster.scheduler.prefilled(RequestId("a"))
    assert set(cluster.placed("p0")) == {"c"}


def test_a_decode_engine_keeps_the_watermark_free() -> None:
    cluster = Cluster()  # 100 blocks, 10 of them kept free: 90
    cluster.submit("a", prompt=440, hit=0)  # 44 + 1
    cluster.submit("b", prompt=431, hit=0)  # 44 + 1
    cluster.submit("c", prompt=5, hit=0)
    cluster.fetch("p0")
    cluster.scheduler.prefilled(RequestId("a"))
    assert set(cluster.placed("d0", "p0")) == {"a", "b"}
    assert cluster.ledger("d0")[3] == 90
    cluster.scheduler.finished(RequestId("a"))
    assert set(cluster.placed("d0", "p0")) == {"c"}


@pytest.mark.parametrize(
    ("prompt", "hit", "output", "expected"),
    [
        (890, 0, 1, None),
        (891, 0, 1, "91 KV blocks above the watermark of a decode engine, the most there is 90"),
        (500, 0, 501, None),
        (500, 0, 502, "101 KV blocks of a decode engine for prompt and output, the most there is 100"),
        (890, 800, 1, None),
    ],
)
def test_refusal_names_the_numbers(prompt: int, hit: int, output: int, expected: str | None) -> None:
    decisions = Cluster().submit("a", prompt=prompt, hit=hit, output=output)
    if expected is None:
        assert decisions == []
    else:
        (refused,) = decisions
        assert isinstance(refused, Refused)
        assert expected in refused.reason
        assert f"a prompt of {prompt} tokens" in refused.reason


def test_refusal_for_a_decode_buffer_and_for_prefill_engines() -> None:
    cluster = Cluster(replace(LIMITS, read_side=ReadSidePolicy.PREFILL), prefill=0, decode=0)
    cluster.join("d0", buffer_blocks=30)
    (refused,) = cluster.submit("a", prompt=301, hit=0)
    assert isinstance(refused, Refused)
    assert "31 buffer blocks of a decode engine, the most there is 30" in refused.reason
    cluster.join("p0", kv_blocks=20, buffer_blocks=10)
    (refused,) = cluster.submit("b", prompt=201, hit=110)
    assert isinstance(refused, Refused)
    assert "21 KV blocks of a prefill engine, the most there is 20" in refused.reason
    assert "11 buffer blocks of a prefill engine for the hit, the most there is 10" in refused.reason
    assert cluster.submit("c", prompt=200, hit=100) == []


def test_any_engine_that_could_hold_a_request_is_enough() -> None:
    cluster = Cluster(prefill=1, decode=0)
    cluster.join("d0", kv_blocks=10)
    cluster.join("d1", kv_blocks=100)
    assert cluster.submit("big", prompt=300, hit=0) == []
    assert cluster.placed("p0", "d0", "d1") == {"big": ("p0", "d1")}


def test_without_engines_requests_wait() -> None:
    cluster = Cluster(prefill=0, decode=0)
    assert cluster.submit("a") == []
    cluster.join("p0")
    cluster.join("d0")
    assert cluster.placed("p0", "d0") == {"a": ("p0", "d0")}


def test_what_no_engine_can_hold_any_more_is_refused_and_blocks_nobody() -> None:
    cluster = Cluster(prefill=1, decode=1)
    cluster.join("d1", kv_blocks=200, buffer_blocks=200)
    cluster.submit("big", prompt=1500, hit=0)
    assert cluster.fetch("p0") == []
    (refused,) = cluster.lost("d1")
    assert isinstance(refused, Refused)
    assert refused.request_id == "big"
    assert "151 KV blocks above the watermark of a decode engine, the most there is 90" in refused.reason
    assert cluster.ledger("p0") == (0, 0, 0, 0)
    cluster.submit("a")
    assert cluster.placed("d0", "p0") == {"a": ("p0", "d0")}


def test_when_the_last_engine_of_a_role_goes_requests_wait_for_the_next() -> None:
    cluster = Cluster(prefill=1, decode=1)
    cluster.submit("a")
    cluster.submit("small", prompt=5, hit=0)
    assert cluster.lost("d0") == []
    (refused,) = cluster.join("d0", kv_blocks=4)
    assert isinstance(refused, Refused)
    assert refused.request_id == "a"
    assert cluster.placed("d0", "p0") == {"small": ("p0", "d0")}


def test_a_hit_must_be_whole_blocks_and_leave_a_token() -> None:
    for hit in (5, 60, -10):
        with pytest.raises(ValueError, match="whole blocks"):
            Cluster().submit("a", prompt=60, hit=hit)


def test_phase_one_balances_groups_with_their_private_queues() -> None:
    cluster = Cluster(prefill=0, decode=3)
    for index, prompt in enumerate((300, 100, 100, 100, 100)):
        cluster.submit(f"r{index}", prompt=prompt, hit=0)
    for group in ("d2", "d1", "d0"):
        cluster.fetch(group)
    # r0 to d0; r1, r3 to d1; r2, r4 to d2
    assert [cluster.ledger(f"d{index}")[:2] for index in range(3)] == [(1, 300), (2, 200), (2, 200)]


def test_losing_a_side_while_half_placed_puts_the_request_first_again() -> None:
    cluster = Cluster(prefill=2, decode=0)
    cluster.submit("a", "b", prompt=300, hit=0)
    cluster.fetch("p0")
    cluster.submit("c", prompt=300, hit=0)
    assert cluster.lost("p0") == []
    cluster.fetch("p1")
    cluster.join("d0")
    assert cluster.placed("d0") == {"a": ("p1", "d0"), "b": ("p1", "d0")}


@pytest.mark.parametrize("placement", list(Placement))
def test_half_placements_never_wait_for_each_other_after_a_loss(placement: Placement) -> None:
    cluster = Cluster(replace(LIMITS, placement=placement), prefill=2, decode=1)
    cluster.submit("a", "b", prompt=600, hit=0)  # each fills a prefill engine, d0 has room for one
    cluster.fetch("p0")
    cluster.fetch("p1")
    cluster.lost("p0")
    # b must not keep p1 while a, first in d0's queue, waits for it
    assert cluster.placed("d0", "p1", "d0") == {"a": ("p1", "d0")}
    cluster.scheduler.finished(RequestId("a"))
    assert cluster.placed("d0", "p1", "d0") == {"b": ("p1", "d0")}


def test_losing_a_decode_engine_while_half_placed_keeps_the_order() -> None:
    cluster = Cluster(prefill=0, decode=2, group=True)
    cluster.submit("a", "b", "c", "d", prompt=400, hit=0)
    cluster.fetch("d")
    assert [cluster.ledger(name)[0] for name in ("d0", "d1")] == [2, 2]
    assert cluster.lost("d0") == []
    cluster.scheduler.cancel(RequestId("b"))
    cluster.scheduler.cancel(RequestId("d"))
    cluster.fetch("d")
    cluster.join("p0")
    assert list(cluster.placed("p")) == ["a", "c"]
    assert cluster.scheduler.status().waiting == 0


def test_losing_a_group_returns_its_private_queue() -> None:
    cluster = Cluster(prefill=1, decode=2)
    cluster.submit("a", "b", "c", "d", prompt=440, hit=0)
    cluster.fetch("d0")  # a, c to d0 (both fit); b, d wait for d1
    assert cluster.lost("d1") == []
    for name in ("a", "c"):
        cluster.scheduler.cancel(RequestId(name))
    cluster.fetch("d0")
    assert cluster.ledger("d0") == (2, 880, 0, 90)


def test_losing_an_engine_loses_what_is_placed_on_it_and_names_the_partner() -> None:
    cluster = Cluster()
    cluster.place("a", "b")
    cluster.scheduler.prefilled(RequestId("b"))
    reason = LossReason.ENGINE_LOST
    assert cluster.lost("p0") == [Lost(RequestId("a"), reason, None, EngineName("d0"))]  # b needs p0 no more
    assert cluster.ledger("d0") == (1, 55, 0, 7)
    assert cluster.lost("d0") == [Lost(RequestId("b"), reason, None, None)]
    assert cluster.lost("d0") == []


def test_losing_a_decode_engine_names_the_prefill_engine() -> None:
    cluster = Cluster()
    cluster.place("a")
    assert cluster.lost("d0") == [Lost(RequestId("a"), LossReason.ENGINE_LOST, EngineName("p0"), None)]
    assert cluster.ledger("p0") == (0, 0, 0, 0)
    assert cluster.scheduler.status().read_queue_tokens == {"node-p0": 0}


def test_every_way_out_names_the_engines_that_know_the_request() -> None:
    cluster = Cluster()
    cluster.place("a", "b", "c")
    cluster.submit("d", "e")
    cluster.fetch("p0")
    p0, d0 = EngineName("p0"), EngineName("d0")
    cluster.scheduler.prefilled(RequestId("b"))
    leave = cluster.scheduler.leave
    assert cluster.scheduler.failed(RequestId("a")) == [Lost(RequestId("a"), LossReason.FAILED, p0, d0)]
    assert cluster.scheduler.cancel(RequestId("b")) == [Lost(RequestId("b"), LossReason.CANCELLED, None, d0)]
    assert leave(RequestId("c"), LossReason.TIMED_OUT) == [Lost(RequestId("c"), LossReason.TIMED_OUT, p0, d0)]
    assert leave(RequestId("d"), LossReason.TIMED_OUT) == [Lost(RequestId("d"), LossReason.TIMED_OUT, None, None)]
    assert cluster.scheduler.cancel(RequestId("e")) == [Lost(RequestId("e"), LossReason.CANCELLED, None, None)]
    assert (cluster.ledger("p0"), cluster.ledger("d0")) == ((0, 0, 0, 0), (0, 0, 0, 0))
    assert cluster.fetch("d0") == []


def test_events_about_unknown_requests_are_counted() -> None:
    cluster = Cluster()
    cluster.submit("waiting")
    scheduler = cluster.scheduler
    for request in (RequestId("waiting"), RequestId("never")):
        scheduler.read_progress(request, Side.DECODE, 5)
        scheduler.prefilled(request)
        scheduler.finished(request)
    assert scheduler.cancel(RequestId("never")) == []
    cluster.submit("waiting")
    assert scheduler.status().late_events == 8
    assert scheduler.status().waiting == 1


def test_unknown_engines_have_to_join_again() -> None:
    cluster = Cluster(prefill=2)
    with pytest.raises(UnknownEngine) as caught:
        cluster.fetch("p7", load("p7", 0))
    assert caught.value.names == ("p7",)
    with pytest.raises(UnknownEngine) as caught:
        cluster.fetch("p0", load("p0", 0), load("p1", 0), load("p9", 0))
    assert caught.value.names == ("p1", "p9")
    with pytest.raises(UnknownEngine):
        cluster.fetch("d9")


def test_reports_take_reads_off_the_oldest_first() -> None:
    cluster = Cluster(replace(LIMITS, read_side=ReadSidePolicy.PREFILL))
    cluster.place("a", "b", "c")
    cluster.fetch("p0", load("p0", seen=3, unread=80))
    assert cluster.ledger("p0")[2] == 80
    cluster.scheduler.read_progress(RequestId("a"), Side.PREFILL, 50)  # was read in the report already
    assert cluster.ledger("p0")[2] == 80
    cluster.scheduler.read_progress(RequestId("b"), Side.PREFILL, 50)
    assert cluster.ledger("p0")[2] == 50


def test_stale_reports_do_not_hide_later_placements() -> None:
    cluster = Cluster(replace(LIMITS, read_side=ReadSidePolicy.PREFILL))
    cluster.place("a", "b", "c")
    cluster.fetch("p0", load("p0", seen=1, unread=0))  # has read a; has not heard of b and c
    assert cluster.ledger("p0")[2] == 100
    cluster.fetch("p0", load("p0", seen=3, unread=900))  # there is no more than was placed
    assert cluster.ledger("p0")[2] == 150


def test_free_blocks_follow_reports_with_later_placements_on_top() -> None:
    cluster = Cluster()
    cluster.place("a")  # 7 blocks of 90

    def free() -> int:
        return cluster.scheduler.status().engines[EngineName("d0")].free_blocks

    assert free() == 83
    cluster.fetch("d0", load("d0", seen=1, free=88))  # 12 in use: decode has grown by 5
    assert free() == 78
    cluster.place("b")
    assert free() == 71
    cluster.fetch("d0", load("d0", seen=1, free=88))  # the same report again does not know b
    assert free() == 71
    cluster.fetch("d0", load("d0", seen=2, free=100))  # freed, but a and b have not ended here
    assert free() == 76
    cluster.fetch("d0", load("d0", seen=2, free=10))
    assert free() == 0
    cluster.submit("c", prompt=5, hit=0)
    assert cluster.placed("p0", "d0") == {}
    cluster.scheduler.finished(RequestId("a"))
    cluster.scheduler.finished(RequestId("b"))
    assert free() == 90


def test_strict_round_robin_takes_turns_over_the_whole_cluster() -> None:
    cluster = Cluster(replace(LIMITS, placement=Placement.ROUND_ROBIN), prefill=2, decode=3)
    cluster.submit(*"abcdef", prompt=50, hit=0)
    cluster.fetch("p0")
    placed = cluster.placed("d2")
    assert placed == {name: (f"p{i % 2}", f"d{i % 3}") for i, name in enumerate("abcdef")}


def test_strict_round_robin_waits_for_the_engine_whose_turn_it_is() -> None:
    cluster = Cluster(replace(LIMITS, placement=Placement.ROUND_ROBIN), prefill=2, decode=2)
    cluster.submit("a", prompt=600, hit=0)
    cluster.submit("b", "c", prompt=10, hit=0)
    assert cluster.placed("p0", "p1", "d0", "d1") == {"a": ("p0", "d0"), "b": ("p1", "d1")}  # p0 is above β
    cluster.submit("d", prompt=400, hit=0)
    cluster.scheduler.prefilled(RequestId("a"))
    assert cluster.placed("p1", "d0") == {"c": ("p0", "d0"), "d": ("p1", "d1")}
    cluster.submit("e", prompt=500, hit=0)  # 51 blocks; d0 has 90 − 61 − 2
    cluster.scheduler.finished(RequestId("b"))
    assert cluster.placed("p0", "d0", "d1") == {}
    cluster.scheduler.finished(RequestId("a"))
    assert cluster.placed("d1") == {"e": ("p0", "d0")}


def test_round_robin_goes_on_after_an_engine_is_lost() -> None:
    cluster = Cluster(replace(LIMITS, placement=Placement.ROUND_ROBIN), prefill=1, decode=3)
    cluster.submit("a", "b", prompt=10, hit=0)
    assert cluster.placed("p0", "d0") == {"a": ("p0", "d0"), "b": ("p0", "d1")}
    cluster.lost("d0")
    cluster.submit("c", "d", prompt=10, hit=0)
    assert cluster.placed("p0", "d1") == {"c": ("p0", "d2"), "d": ("p0", "d1")}
    cluster.submit("e", prompt=10, hit=0)
    cluster.fetch("d1")  # half placed on d2
    cluster.lost("d2")
    assert cluster.placed("p0", "d1") == {"e": ("p0", "d1")}
    cluster.lost("d1")
    assert cluster.ledger("p0") == (0, 0, 0, 0)


def test_an_engine_that_comes_back_is_not_flooded() -> None:
    cluster = Cluster(prefill=1, decode=2)
    cluster.place("first")
    cluster.scheduler.prefilled(RequestId("first"))
    cluster.lost("d1")
    cluster.join("d1")
    names = [f"r{index}" for index in range(20)]
    cluster.submit(*names, prompt=10, hit=0)
    cluster.fetch("d0")
    cluster.fetch("d1")
    assert cluster.ledger("d1")[0] == RAMP_REQUESTS  # although its tokens are the fewest
    assert cluster.ledger("d0")[0] == 1 + 16
    ended = next(name for name, (_, decode) in cluster.placed("p0").items() if decode == "d1")
    cluster.scheduler.finished(RequestId(ended))
    cluster.submit("x", "y", "z", prompt=10, hit=0)
    cluster.fetch("d1")
    assert cluster.ledger("d1")[0] == RAMP_REQUESTS + 1


def test_engines_that_join_before_the_first_placement_are_not_held_back() -> None:
    cluster = Cluster()
    cluster.place(*[f"r{index}" for index in range(2 * RAMP_REQUESTS)], prompt=11, hit=10)


def test_an_engine_that_joins_twice_is_given_up_first() -> None:
    cluster = Cluster()
    cluster.place("a")
    assert cluster.join("d0") == [Lost(RequestId("a"), LossReason.ENGINE_LOST, EngineName("p0"), None)]
    cluster.submit("b")
    assert cluster.placed("p0", "d0") == {"b": ("p0", "d0")}


def test_recompute_when_faster_drops_the_hit() -> None:
    limits = replace(LIMITS, recompute_when_faster=True, prefill_tokens_per_s=101)
    cluster = Cluster(limits)
    cluster.submit("a")
    cluster.fetch("p0")
    (placed,) = cluster.fetch("d0")
    assert isinstance(placed, Placed)
    assert placed.share == ReadShare(0, 0)
    assert cluster.ledger("p0") == (1, 55, 0, 0)


def test_the_longest_wait_is_the_oldest_unplaced_request() -> None:
    cluster = Cluster()
    cluster.place("a")
    cluster.clock.advance(2)
    cluster.submit("b")
    cluster.clock.advance(3)
    assert cluster.scheduler.status().longest_wait_s == 3.0


def test_waiting_is_whatever_is_not_placed_on_both_sides() -> None:
    cluster = Cluster()
    scheduler = cluster.scheduler
    assert not scheduler.has_waiting
    cluster.submit("a", "b")
    cluster.submit("refused", prompt=10_000)
    cluster.fetch("d0")
    assert scheduler.has_waiting  # half placed
    cluster.fetch("p0")
    assert not scheduler.has_waiting
    scheduler.finished(RequestId("a"))
    assert not scheduler.has_waiting
    cluster.submit("c")
    scheduler.cancel(RequestId("c"))
    assert not scheduler.has_waiting
    cluster.submit("d")
    cluster.lost("d0")  # ends b, while d waits for an engine to come back
    assert scheduler.has_waiting
    cluster.join("d0")
    assert set(cluster.placed("p0", "d0")) == {"d"}
    assert not scheduler.has_waiting


def test_limits_come_from_settings_with_rates_as_fallback() -> None:
    given = Settings(
        scheduling=SchedulingSettings(storage_tokens_per_s=7.0), cluster=ClusterSettings(recompute_when_faster=True)
    )
    limits = scheduler_limits(given, storage_tokens_per_s=1.0, prefill_tokens_per_s=20.0)
    assert (limits.storage_tokens_per_s, limits.prefill_tokens_per_s, limits.beta_tokens) == (7.0, 20.0, 100.0)
    assert (limits.block_tokens, limits.recompute_when_faster) == (64, True)
    with pytest.raises(SettingsError, match="prefill_tokens_per_s must be positive"):
        scheduler_limits(given, storage_tokens_per_s=1.0, prefill_tokens_per_s=0.0)
