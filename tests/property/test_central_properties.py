"""The central scheduler under random clients, engines, losses and reports: a model of who knows what, checked all along."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.clock import ManualClock
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
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.log import RecordingScheduler, replay
from dualpath.settings import Placement, ReadSidePolicy
from dualpath.types import EngineName, GroupName, NodeName, RequestId, Role, Side

BLOCK = 8
KV_BLOCKS = {"d0": 40, "d1": 40, "d2": 60}
USABLE = {"d0": 38, "d1": 38, "d2": 57}  # above a watermark of 5 %
ENGINES = {  # name: role, group, node
    "p0": (Role.PREFILL, "pg0", "n0"),
    "p1": (Role.PREFILL, "pg0", "n0"),
    "p2": (Role.PREFILL, "pg1", "n1"),
    "d0": (Role.DECODE, "dg0", "n2"),
    "d1": (Role.DECODE, "dg0", "n2"),
    "d2": (Role.DECODE, "dg1", "n3"),
}


@dataclass
class World:
    """Drives a scheduler by a random sequence of events and keeps a model of what it must answer."""

    limits: SchedulerLimits
    choices: random.Random
    clock: ManualClock = field(default_factory=ManualClock)
    lines: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    prompts: dict[str, int] = field(default_factory=dict)
    placed: dict[str, Placed] = field(default_factory=dict)
    prefilled: set[str] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)
    submitted: int = 0
    sequence: int = 0

    def __post_init__(self) -> None:
        self.scheduler = RecordingScheduler(self.limits, self.clock, self.lines.append)
        for name in ENGINES:
            self.join(name)

    def join(self, name: str) -> None:
        role, group, node = ENGINES[name]
        engine = EngineDescription(EngineName(name), role, GroupName(group), NodeName(node), KV_BLOCKS.get(name, 0), 60)
        self.alive.add(name)
        self.take(self.scheduler.engine_joined(engine))

    def lose(self, name: str) -> None:
        self.alive.discard(name)
        needed = {
            request
            for request, placed in self.placed.items()
            if name == placed.decode or (name == placed.prefill and request not in self.prefilled)
        }
        decisions = self.scheduler.engine_lost(EngineName(name))
        assert {decision.request_id for decision in decisions if isinstance(decision, Lost)} == needed
        self.take(decisions)

    def submit(self) -> None:
        self.submitted += 1
        name = f"r{self.submitted}"
        prompt = self.choices.randint(1, 56 * BLOCK)
        hit = self.choices.randint(0, (prompt - 1) // BLOCK) * BLOCK
        self.prompts[name] = prompt
        self.take(self.scheduler.submit(RequestDescription(RequestId(name), prompt, hit, 1)))

    def could_be_held(self, request: str) -> bool:
        decodes = [name for name in self.alive if name in USABLE]
        return not decodes or any(-(-self.prompts[request] // BLOCK) + 1 <= USABLE[name] for name in decodes)

    def fetch(self, group: str) -> None:
        engines = [name for name in sorted(self.alive) if ENGINES[name][1] == group]
        if engines:
            prefill = group.startswith("p")
            fetch = self.scheduler.fetch_prefill if prefill else self.scheduler.fetch_decode
            self.take(fetch(GroupName(group), [self.report(name) for name in engines]))

    def report(self, name: str) -> EngineLoad:
        """A true report, of now or of some placements ago: unread at most what is placed, and some growth."""
        seen = max(0, self.sequence - self.choices.choice([0, 0, 1, 3]))
        prefill = ENGINES[name][0] is Role.PREFILL
        mine = [p for r, p in self.placed.items() if name in (p.prefill, p.decode) and p.sequence <= seen]
        unread = sum(p.share.of(Side.PREFILL if prefill else Side.DECODE) for p in mine)
        unread = self.choices.randint(0, unread) if self.choices.random() < 0.3 else unread
        if prefill:
            return EngineLoad(EngineName(name), seen, unread)
        held = sum(-(-self.prompts[p.request_id] // BLOCK) + 1 for p in mine)
        return EngineLoad(EngineName(name), seen, unread, max(0, KV_BLOCKS[name] - held - self.choices.choice([0, 0, 1, 5])))

    def take(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            request = decision.request_id
            assert self.ends[request] == 0
            if isinstance(decision, Placed):
                self.sequence += 1
                assert decision.sequence == self.sequence
                assert request not in self.placed
                assert {decision.prefill, decision.decode} <= self.alive
                self.placed[request] = decision
            elif isinstance(decision, Refused):
                assert request not in self.placed
                assert not self.could_be_held(request)
                self.end(request)
            else:
                self.check_partners(decision)
                self.end(request)

    def check_partners(self, lost: Lost) -> None:
        placed = self.placed.get(lost.request_id)
        prefill = placed and lost.request_id not in self.prefilled and placed.prefill in self.alive and placed.prefill
        decode = placed and placed.decode in self.alive and placed.decode
        assert (lost.prefill, lost.decode) == (prefill or None, decode or None)

    def end(self, request: str) -> None:
        self.ends[request] += 1
        self.placed.pop(request, None)
        self.prefilled.discard(request)

    def event(self) -> None:
        """Something happens to a random placed request."""
        if not self.placed:
            return
        request = RequestId(self.choices.choice(sorted(self.placed)))
        side = self.choices.choice(list(Side))
        match self.choices.randrange(4):
            case 0:
                read = self.choices.randint(0, self.placed[request].share.of(side))
                self.scheduler.read_progress(request, side, read)
            case 1 if request not in self.prefilled:
                self.prefilled.add(request)
                self.scheduler.prefilled(request)
            case 2:
                self.scheduler.finished(request)
                self.end(request)
            case _:
                self.take(self.scheduler.failed(request))

    def cancel(self) -> None:
        unfinished = [name for name in self.prompts if not self.ends[name]]
        if unfinished:
            self.take(self.scheduler.leave(RequestId(self.choices.choice(unfinished)), LossReason.CANCELLED))

    def check(self) -> None:
        """The books agree with the model."""
        status = self.scheduler.status()
        assert set(status.engines) == self.alive
        unfinished = sum(1 for name in self.prompts if not self.ends[name])
        assert (status.placed, status.waiting + status.placed) == (len(self.placed), unfinished)
        assert self.scheduler.has_waiting == (status.waiting > 0)
        assert all(self.could_be_held(name) for name in self.prompts if not self.ends[name] and name not in self.placed)
        unread: Counter[str] = Counter()
        for name, engine in status.engines.items():
            own = [r for r, p in self.placed.items() if p.decode == name or (p.prefill == name and r not in self.prefilled)]
            assert engine.requests == engine.half_placed + len(own)
            assert engine.tokens >= sum(self.prompts[r] for r in own)
            assert engine.unread_tokens >= 0
            unread[engine.node] += engine.unread_tokens
            if engine.role is Role.DECODE:
                assert engine.reserved_blocks <= USABLE[name]
                assert engine.free_blocks == USABLE[name] - engine.reserved_blocks - engine.grown_blocks
        assert {node: tokens for node, tokens in status.read_queue_tokens.items() if tokens} == +unread

    def step(self) -> None:
        self.clock.advance(0.1)
        action = self.choices.random()
        if action < 0.3:
            self.submit()
        elif action < 0.6:
            self.fetch(self.choices.choice(["pg0", "pg1", "dg0", "dg1"]))
        elif action < 0.9:
            self.event()
        elif action < 0.95:
            self.cancel()
        else:
            name = self.choices.choice(list(ENGINES))
            self.lose(name) if name in self.alive else self.join(name)

    def drain(self) -> None:
        """With all engines back and every placed request ending, everything accepted ends."""
        for name in sorted(set(ENGINES) - self.alive, reverse=True):  # the large one first, so that nothing is refused
            self.join(name)
        for _ in range(200 + 3 * self.submitted):
            for group in ("pg0", "pg1", "dg0", "dg1"):
                self.fetch(group)
            for request in list(self.placed):
                self.scheduler.finished(RequestId(request))
                self.end(request)
            if not self.scheduler.status().waiting:
                return


systems = st.builds(
    SchedulerLimits,
    block_tokens=st.just(BLOCK),
    storage_tokens_per_s=st.just(100.0),
    prefill_tokens_per_s=st.just(100.0),
    read_side=st.sampled_from(ReadSidePolicy),
    placement=st.sampled_from(Placement),
    decode_free_watermark=st.just(0.05),
    recompute_when_faster=st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(limits=systems, seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_no_request_is_lost_and_the_books_balance(limits: SchedulerLimits, seed: int, steps: int) -> None:
    world = World(limits, random.Random(seed))
    for _ in range(steps):
        world.step()
        world.check()
    world.drain()
    assert all(world.ends[name] == 1 for name in world.prompts)
    assert world.scheduler.status().late_events == 0
    for engine in world.scheduler.status().engines.values():
        assert (engine.requests, engine.tokens, engine.unread_tokens, engine.reserved_blocks) == (0, 0, 0, 0)
    assert not any(world.scheduler.status().read_queue_tokens.values())
    assert replay(world.lines) == []


@settings(deadline=None, max_examples=30)
@given(placement=st.sampled_from(Placement), seed=st.integers(0, 2**32))
def test_equal_requests_are_placed_first_in_first_out(placement: Placement, seed: int) -> None:
    choices = random.Random(seed)
    scheduler = World(SchedulerLimits(BLOCK, 100.0, 100.0, placement=placement, decode_free_watermark=0.05), choices).scheduler
    for name in ("p1", "p2", "d1", "d2"):
        scheduler.engine_lost(EngineName(name))
    for index in range(30):
        scheduler.submit(RequestDescription(RequestId(f"r{index}"), 60, 0, 1))
    order: list[str] = []
    while len(order) < 30:
        group = choices.choice(["pg0", "dg0"])
        fetch = scheduler.fetch_prefill if group == "pg0" else scheduler.fetch_decode
        for decision in fetch(GroupName(group), []):
            order.append(decision.request_id)
            scheduler.finished(decision.request_id)
    assert order == [f"r{index}" for index in range(30)]


@pytest.mark.parametrize("read_side", [ReadSidePolicy.SHORTER_QUEUE, ReadSidePolicy.SPLIT])
def test_stale_reports_do_not_herd_reads_onto_one_side(read_side: ReadSidePolicy) -> None:
    world = World(SchedulerLimits(BLOCK, 100.0, 1e6, read_side=read_side, decode_free_watermark=0.05), random.Random(0))
    for index in range(6):
        world.scheduler.submit(RequestDescription(RequestId(f"r{index}"), 65, 64, 1))
    stale = {name: EngineLoad(EngineName(name), 0, 0, None) for name in ENGINES}
    for _ in range(3):
        for group, members in (("pg0", ("p0", "p1")), ("pg1", ("p2",))):
            world.scheduler.fetch_prefill(GroupName(group), [stale[name] for name in members])
        for group, members in (("dg0", ("d0", "d1")), ("dg1", ("d2",))):
            world.scheduler.fetch_decode(GroupName(group), [stale[name] for name in members])
    queues = world.scheduler.status().read_queue_tokens
    prefill, decode = queues[NodeName("n0")] + queues[NodeName("n1")], queues[NodeName("n2")] + queues[NodeName("n3")]
    assert prefill + decode == 6 * 64
    assert min(prefill, decode) >= 2 * 64
