"""The decode engine gives memory back when, and only when, nobody uses it any more; pages run short; ends carry the hit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import torch
from tests.support.engine_rig import (
    GEOMETRY,
    NO_STAGES,
    REGION,
    Gate,
    HeldStorage,
    HeldTransport,
    RecordingMember,
    assignment,
    settled,
)

from dualpath.clock import MonotonicClock
from dualpath.control.messages import (
    Abandon,
    DecodeShareRead,
    Granted,
    Handover,
    PeerFenced,
    Released,
    TurnEnded,
    TurnFailed,
    Withdraw,
    WriteGrant,
    WriteRequest,
    WriteResult,
)
from dualpath.control.turns import TokenEvent
from dualpath.engine.chain_writer import DecodeMemory
from dualpath.engine.decode import DecodeEngine
from dualpath.engine.decode_compute import DecodeRow
from dualpath.engine.device_pool import DevicePool
from dualpath.settings import DeadlineSettings, Settings
from dualpath.traffic.manager import TrafficManager
from dualpath.traffic.slices import PagePool


class ScriptedCompute:
    """Every sequence's next token is 7, as soon as the gate lets it pass; or the device fails."""

    eos_token_ids = ()
    attention_s = 0.0

    def __init__(self, pool: DevicePool) -> None:
        self.pool = pool
        self.gate = Gate()
        self.failure: Exception | None = None
        self.batches: list[list[int]] = []

    def step(self, rows: Sequence[DecodeRow]) -> list[TokenEvent]:
        self.batches.append([row.kv_tokens for row in rows])
        self.gate.passing()
        if self.failure is not None:
            raise self.failure
        return [TokenEvent(row.position, 7) for row in rows]


class Scene:
    """A decode engine with ``pages`` device pages and 16 buffer slots; grants of its writes come at once unless held."""

    def __init__(self, pages: int = 32, settings: Settings | None = None) -> None:
        self.member = RecordingMember("decode", settings)
        self.transport, self.storage = HeldTransport(), HeldStorage()
        self.traffic = TrafficManager(self.storage, self.transport, GEOMETRY, self.member.spec.cluster.settings.deadlines)
        self.buffer = self.traffic.add_pool("decode/buffer", 16 * GEOMETRY.slot_bytes)
        self.staging = self.traffic.add_pool("decode/staging", 2 * GEOMETRY.slot_bytes)
        self.pool = DevicePool(GEOMETRY, pages, torch.device("cpu"))
        self.compute = ScriptedCompute(self.pool)
        memory = DecodeMemory(self.buffer, self.staging, PagePool("decode/kv", pages))
        self.engine = DecodeEngine(
            self.member,  # type: ignore[arg-type]
            self.traffic,
            memory,
            self.compute,  # type: ignore[arg-type]
            REGION,
            MonotonicClock(),
        )
        self.engine.start()
        self.answered = 0

    async def assign(self, request_id: str, prompt_tokens: int, **values: int) -> None:
        self.engine.handle(assignment(request_id, prompt_tokens, **values))
        await settled()

    async def hand_over(self, request_id: str, finish_reason: str | None = None, cached_tokens: int = 0) -> None:
        self.engine.handle(Handover(request_id, TokenEvent(0, 5), finish_reason, cached_tokens, NO_STAGES))
        await settled()

    async def grant_writes(self, wanted: bool = False) -> None:
        """Answer every WriteRequest so far."""
        requests = self.member.messages(WriteRequest)
        for request in requests[self.answered :]:
            self.engine.handle(WriteGrant(request.ticket, (wanted,) * (len(request.keys) // 16)))
        self.answered = len(requests)
        await settled()

    async def withdraw(self, request_id: str) -> None:
        self.engine.handle(Withdraw(request_id, "cancelled"))
        await settled()

    @property
    def in_use(self) -> tuple[int, int]:
        """Buffer slots and device pages."""
        return self.buffer.used, self.pool.capacity - self.pool.free_pages

    async def close(self) -> None:
        self.compute.gate.open()
        self.transport.held = self.storage.held = False
        await self.engine.close()
        self.transport.end()
        self.storage.end()
        await self.member.close()


def run(story: Callable[[Scene], Awaitable[None]], **scene: Any) -> None:
    """Play a story on a scene of its own."""

    async def play() -> None:
        stage = Scene(**scene)
        try:
            await story(stage)
        finally:
            await stage.close()

    asyncio.run(play())


def test_a_turn_decodes_to_its_end_and_leaves_nothing_in_use() -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 9, read_decode=8, max_tokens=4)
        assert [granted.slots for granted in scene.member.messages(Granted)] == [(0, 1, 2)]
        await scene.hand_over("a", cached_tokens=8)
        await scene.grant_writes()
        (ended,) = scene.member.messages(TurnEnded)
        assert (ended.finish_reason, ended.output_tokens, ended.cached_tokens) == ("length", 4, 8)
        assert scene.compute.batches == [[9], [10], [11]]
        assert scene.in_use == (0, 0)
        assert not scene.member.messages(Abandon)

    run(story)


def test_a_first_token_that_ends_the_turn_takes_no_pages() -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 9)
        await scene.hand_over("a", finish_reason="stop")
        assert [ended.output_tokens for ended in scene.member.messages(TurnEnded)] == [1]
        assert scene.in_use == (3, 0), "its prompt is still to be written"
        await scene.grant_writes(wanted=True)
        assert [len(result.published) for result in scene.member.messages(WriteResult)] == [2 * 16]
        assert scene.in_use == (0, 0)

    run(story)


def test_withdrawn_while_its_prompt_is_copied_to_the_device() -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 9)
        scene.transport.held = True
        await scene.hand_over("a")
        await scene.grant_writes()
        await scene.withdraw("a")
        assert scene.in_use == (3, 4), "the copy still reads the slots and writes the pages"
        scene.transport.end()
        await settled()
        assert scene.in_use == (0, 0)
        assert scene.compute.batches == []

    run(story)


def test_withdrawn_during_a_step() -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 9)
        scene.compute.gate.shut()
        await scene.hand_over("a")
        await scene.grant_writes()
        await scene.compute.gate.wait_entered()
        await scene.withdraw("a")
        assert scene.in_use == (0, 4), "the step still writes the pages"
        scene.compute.gate.open()
        await settled()
        assert scene.in_use == (0, 0)
        assert len(scene.compute.batches) == 1

    run(story)


def test_a_failed_step_fails_its_turns_and_frees_their_pages() -> None:
    async def story(scene: Scene) -> None:
        scene.compute.failure = RuntimeError("out of device memory")
        scene.compute.gate.shut()
        for request_id in ("a", "b", "c"):
            await scene.assign(request_id, 9)
            await scene.hand_over(request_id)
        await scene.grant_writes()
        scene.compute.gate.open_once()
        await scene.compute.gate.wait_entered()  # the second step: with b and c
        await scene.withdraw("c")
        scene.compute.gate.open()
        await settled()
        assert [(failed.request_id, failed.retryable) for failed in scene.member.messages(TurnFailed)] == [
            ("a", True),
            ("b", True),
        ]
        assert scene.in_use == (0, 0)

    run(story)


@pytest.mark.parametrize("answer", ["released", "handed over", "fenced"])
def test_withdrawn_before_the_handover_the_slots_wait_for_the_prefill_engine(answer: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 9)
        await scene.withdraw("a")
        assert scene.member.sent[-1] == ("at prefill-0.0", Abandon("a", "at decode-0.0"))
        assert scene.in_use == (3, 0)
        if answer == "released":
            scene.engine.handle(Released("a"))
        elif answer == "handed over":  # the two messages have crossed
            await scene.hand_over("a")
        else:
            scene.engine.handle(PeerFenced("prefill-0.0"))
        await settled()
        assert scene.in_use == (0, 0)

    run(story)


def test_a_turn_whose_prefill_engine_has_ended_fails() -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 9)
        scene.engine.handle(PeerFenced("prefill-9.0"))
        assert not scene.member.messages(TurnFailed)
        scene.engine.handle(PeerFenced("prefill-0.0"))
        await settled()
        assert [failed.request_id for failed in scene.member.messages(TurnFailed)] == ["a"]
        assert scene.in_use == (0, 0)

    run(story)


def test_withdrawn_while_storage_fills_its_slots() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        await scene.assign("a", 9, read_decode=8)
        assert len(scene.storage.reads) == 1
        await scene.withdraw("a")
        scene.engine.handle(Released("a"))
        await settled()
        assert scene.in_use == (3, 0), "the storage still writes them"
        scene.storage.end()
        await settled()
        assert scene.in_use == (0, 0)

    run(story)


def test_a_stalled_read_gets_other_slots_before_those_who_wait_for_all() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        await scene.assign("a", 33, read_decode=32)
        await scene.assign("b", 62)  # the whole buffer
        await asyncio.sleep(0.1)
        assert not scene.member.messages(DecodeShareRead), "eight other slots are not free"
        scene.storage.end()
        await settled()
        (share,) = scene.member.messages(DecodeShareRead)
        assert share.valid_tokens == 0
        assert len(set(share.slots)) == 9
        await scene.hand_over("a", finish_reason="stop")
        await scene.grant_writes()
        assert [granted.request_id for granted in scene.member.messages(Granted)] == ["a", "b"]

    run(story, settings=Settings(deadlines=DeadlineSettings(stall_timeout_s=0.02)))


def test_slots_and_pages_stay_until_their_blocks_are_written() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        await scene.assign("a", 7, max_tokens=5)
        await scene.hand_over("a")  # block 0 is the prompt's; the first output token completes block 1
        assert [ended.output_tokens for ended in scene.member.messages(TurnEnded)] == [5]
        assert scene.in_use == (2, 3)
        await scene.grant_writes(wanted=True)
        assert len(scene.storage.writes) == 1, "one chain is written in order"
        assert scene.in_use == (2, 3)
        scene.storage.end()
        await settled()
        assert scene.in_use == (0, 0), "what is staged needs its page no longer"
        assert len(scene.storage.writes) == 2
        assert scene.staging.used == 1
        scene.storage.end()
        await settled()
        assert scene.staging.used == 0

    run(story)


def test_the_youngest_gives_way_when_pages_run_short() -> None:
    async def story(scene: Scene) -> None:
        scene.compute.gate.shut()
        for request_id in ("old", "young"):
            await scene.assign(request_id, 8, max_tokens=20)
            await scene.hand_over(request_id)
        scene.compute.gate.open()
        for _ in range(20):
            await scene.grant_writes()
        assert [failed.request_id for failed in scene.member.messages(TurnFailed)] == ["young"]
        assert [(ended.request_id, ended.output_tokens) for ended in scene.member.messages(TurnEnded)] == [("old", 20)]
        assert scene.in_use == (0, 0)

    run(story, pages=10)  # one turn needs seven


def test_running_sequences_wait_for_pages_that_are_coming() -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 7, max_tokens=3)
        await scene.hand_over("a")
        assert len(scene.member.messages(TurnEnded)) == 1
        assert scene.in_use[1] == 3, "the block that its output completed is not copied yet"
        await scene.assign("b", 4, max_tokens=12)
        await scene.hand_over("b")
        assert not scene.member.messages(TurnFailed)
        assert len(scene.member.messages(TurnEnded)) == 1, "b has used up its two pages"
        for _ in range(10):
            await scene.grant_writes()
        assert len(scene.member.messages(TurnEnded)) == 2
        assert not scene.member.messages(TurnFailed)
        assert scene.in_use == (0, 0)

    run(story, pages=5)


def test_reports_hold_back_what_assigned_turns_will_need() -> None:
    async def story(scene: Scene) -> None:
        await scene.assign("a", 9)
        _, free, status = scene.engine.load()
        assert (free, status.kv_blocks_free, status.waiting) == (28, 32, 1)
        scene.transport.held = True
        await scene.hand_over("a")
        _, free, status = scene.engine.load()
        assert (free, status.kv_blocks_free) == (28, 28)
        scene.transport.end()

    run(story)


def test_hits_that_wait_for_a_buffer_are_reported_as_unread() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        await scene.assign("reading", 57, read_decode=56)
        await scene.assign("waiting", 33, read_decode=32)
        assert scene.buffer.free_slots < 9, "the second has to wait for slots"
        assert scene.engine.load()[0] == 56 + 32
        scene.storage.held = False
        scene.storage.end()
        await settled()
        assert scene.engine.load()[0] == 32
        await scene.withdraw("waiting")
        assert scene.engine.load()[0] == 0

    run(story)
