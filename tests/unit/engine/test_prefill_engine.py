"""The prefill engine lets go of a turn at once, unless a forward or a storage read still uses the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import torch
from tests.support.engine_rig import (
    GEOMETRY,
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
    BlocksLost,
    DecodeShareRead,
    Granted,
    Handover,
    PeerFenced,
    PrefillDone,
    ReadDone,
    Released,
    TurnFailed,
    Withdraw,
)
from dualpath.control.turns import TokenEvent
from dualpath.engine.forward import ForwardPass
from dualpath.engine.layer_loop import FrameMemory
from dualpath.engine.prefill import PrefillEngine
from dualpath.errors import ClusterError, TransportError
from dualpath.scheduling.batching import Batching
from dualpath.storage.base import ReadOutcome
from dualpath.traffic.manager import TrafficManager

RELEASED = ("at decode-0.0", Released("a"))


class ScriptedCompute:
    """The first token is 5, as soon as the gate lets the forward pass; or the forward fails."""

    eos_token_ids = ()
    attention_s = 0.0

    def __init__(self) -> None:
        self.frames = FrameMemory.allocate("prefill/kv", GEOMETRY, 2, 64, torch.device("cpu"))
        self.gate = Gate()
        self.failure: Exception | None = None
        self.chunks: list[list[tuple[int, int]]] = []
        self.slots: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def run(self, batch: ForwardPass) -> dict[int, TokenEvent]:
        self.chunks.append([(chunk.cached, chunk.new) for chunk in batch.chunks])
        self.slots += [(turn.prefill_slots, turn.decode_slots) for turn in batch.turns]
        self.gate.passing()
        if self.failure is not None:
            raise self.failure
        return {index: TokenEvent(0, 5) for index in batch.finishing()}


class Scene:
    """A prefill engine with four buffer slots that computes at most eight new tokens at a time."""

    def __init__(self) -> None:
        self.member = RecordingMember("prefill")
        self.transport, self.storage = HeldTransport(), HeldStorage()
        self.traffic = TrafficManager(self.storage, self.transport, GEOMETRY, self.member.spec.cluster.settings.deadlines)
        self.buffer = self.traffic.add_pool("prefill/buffer", 4 * GEOMETRY.slot_bytes)
        self.compute = ScriptedCompute()
        batching = Batching(
            lambda cached, new: 0.0, quota_s=1.0, max_batch_tokens=8, kv_rows=64, block_tokens=GEOMETRY.block_tokens
        )
        self.engine = PrefillEngine(
            self.member,  # type: ignore[arg-type]
            self.traffic,
            self.transport,
            self.buffer,
            self.compute,  # type: ignore[arg-type]
            batching,
            MonotonicClock(),
        )
        self.engine.start()

    async def hear(self, *messages: object) -> None:
        for message in messages:
            self.engine.handle(message)  # type: ignore[arg-type]
        await settled()

    @property
    def turns(self) -> int:
        return self.engine.load()[2].waiting

    async def close(self) -> None:
        self.transport.held = self.storage.held = False
        self.compute.gate.open()
        await self.engine.close()
        self.transport.end()
        self.storage.end()
        await self.member.close()


def run(story: Callable[[Scene], Awaitable[None]]) -> None:
    """Play a story on a scene of its own."""

    async def play() -> None:
        scene = Scene()
        try:
            await story(scene)
        finally:
            await scene.close()

    asyncio.run(play())


GRANT = Granted("a", (9, 8, 7, 6))
ABANDON = Abandon("a", "at decode-0.0")


@pytest.mark.parametrize("grant_first", [False, True])
def test_a_split_read_is_computed_in_chunks_and_handed_over(grant_first: bool) -> None:
    async def story(scene: Scene) -> None:
        messages = [assignment("a", 14, read_prefill=4, read_decode=0), GRANT]
        await scene.hear(*(reversed(messages) if grant_first else messages))
        assert scene.compute.chunks == [[(4, 8)], [(12, 2)]]
        assert scene.compute.slots == [((0,), (9, 8, 7, 6)), ((), (9, 8, 7, 6))]
        (handover,) = scene.member.messages(Handover)
        assert (handover.first.token, handover.finish_reason, handover.cached_tokens) == (5, None, 4)
        assert scene.member.messages(PrefillDone) == [PrefillDone("a")]
        assert (scene.buffer.used, scene.turns) == (0, 0)

    run(story)


@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize(("head_ok", "tail_blocks", "cached"), [(True, 2, 12), (True, 1, 8), (False, 2, 0)])
def test_the_tail_counts_only_behind_a_whole_head(read_first: bool, head_ok: bool, tail_blocks: int, cached: int) -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        tail = DecodeShareRead("a", 4 * tail_blocks)
        assign = assignment("a", 14, read_prefill=4, read_decode=8)
        await scene.hear(*([GRANT, tail, assign] if read_first else [assign, GRANT, tail]))
        assert scene.compute.chunks == []
        ((blocks, future),) = scene.storage.reads
        future.set_result([ReadOutcome.OK if head_ok else ReadOutcome.CORRUPT])
        await settled()
        assert scene.compute.chunks[0][0][0] == cached
        assert [handover.cached_tokens for handover in scene.member.messages(Handover)] == [cached]
        assert [lost.keys for lost in scene.member.messages(BlocksLost)] == ([] if head_ok else [blocks[0].key])
        assert [done.tokens for done in scene.member.messages(ReadDone)] == [4]

    run(story)


def test_abandoned_before_its_forward() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        await scene.hear(assignment("a", 14, read_prefill=8), GRANT)
        await scene.hear(ABANDON)
        assert RELEASED in scene.member.sent
        assert (scene.buffer.used, scene.turns) == (2, 0), "the storage still fills its own slots"
        scene.storage.end()
        await settled()
        assert scene.buffer.used == 0
        assert scene.compute.chunks == []

    run(story)


@pytest.mark.parametrize("withdrawn_too", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_abandoned_during_its_forward(withdrawn_too: bool, fails: bool) -> None:
    async def story(scene: Scene) -> None:
        scene.compute.gate.shut()
        scene.compute.failure = TransportError("gone") if fails else None
        await scene.hear(assignment("a", 14, read_prefill=4), GRANT)
        await scene.compute.gate.wait_entered()
        if withdrawn_too:
            await scene.hear(Withdraw("a", "cancelled"))
        await scene.hear(ABANDON)
        assert RELEASED not in scene.member.sent, "the forward still writes the decode engine's slots"
        assert scene.buffer.used == 1
        scene.compute.gate.open()
        await settled()
        assert scene.member.sent.count(RELEASED) == 1
        assert (scene.buffer.used, scene.turns) == (0, 0)
        assert len(scene.compute.chunks) == 1
        assert not scene.member.messages(Handover)

    run(story)


def test_abandoned_after_its_handover_and_before_its_assignment() -> None:
    async def story(scene: Scene) -> None:
        await scene.hear(assignment("a", 5), Granted("a", (1, 2)))
        assert len(scene.member.messages(Handover)) == 1
        await scene.hear(ABANDON)
        assert scene.member.sent.count(RELEASED) == 1
        await scene.hear(Granted("b", (1, 2)), Abandon("b", "at decode-0.0"), assignment("b", 5))
        assert scene.member.sent[-1] == ("at decode-0.0", Released("b"))
        assert len(scene.compute.chunks) == 1, "slots that were taken back are not written"

    run(story)


def test_a_failed_forward_fails_its_turns_and_the_engine_goes_on() -> None:
    async def story(scene: Scene) -> None:
        scene.compute.failure = RuntimeError("out of device memory")
        await scene.hear(assignment("a", 14, read_prefill=4), GRANT)
        assert [failed.request_id for failed in scene.member.messages(TurnFailed)] == ["a"]
        assert (scene.buffer.used, scene.turns) == (0, 0)
        scene.compute.failure = None
        await scene.hear(assignment("b", 5), Granted("b", (1, 2)))
        assert [handover.request_id for handover in scene.member.messages(Handover)] == ["b"]

    run(story)


def test_an_engine_whose_memory_is_still_in_use_after_a_forward_ends_without_releasing_anything() -> None:
    async def story(scene: Scene) -> None:
        scene.compute.gate.shut()
        scene.compute.failure = ClusterError("posts are still in flight")
        await scene.hear(assignment("a", 14, read_prefill=4), GRANT)
        await scene.compute.gate.wait_entered()
        await scene.hear(ABANDON)
        scene.compute.gate.open()
        await settled()
        serving = scene.member.tasks.pop(0)
        assert isinstance(serving.exception(), ClusterError)
        await scene.engine.close()
        assert RELEASED not in scene.member.sent
        assert scene.buffer.used == 1

    run(story)


def test_a_fenced_peer_stays_mapped_while_a_forward_runs() -> None:
    async def story(scene: Scene) -> None:
        scene.compute.gate.shut()
        await scene.hear(assignment("a", 5), Granted("a", (1, 2)))
        await scene.compute.gate.wait_entered()
        await scene.hear(PeerFenced("decode-0.0"))
        assert scene.transport.attached == {REGION.region}
        scene.compute.gate.open()
        await settled()
        assert scene.transport.attached == set()
        assert not scene.member.messages(Handover)
        assert scene.turns == 0

    run(story)


def test_turns_wait_in_order_for_buffer_slots() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        for name in ("a", "b", "c"):
            await scene.hear(assignment(name, 13, read_prefill=12), Granted(name, (1, 2, 3, 4)))
        assert (scene.buffer.used, scene.buffer.waiting) == (3, 2)
        await scene.hear(Withdraw("b", "cancelled"))
        assert scene.buffer.waiting == 1
        for _ in range(2):
            scene.storage.end()
            await settled()
        assert [handover.request_id for handover in scene.member.messages(Handover)] == ["a", "c"]
        assert (scene.buffer.used, scene.turns) == (0, 0)

    run(story)


def test_hits_that_wait_for_a_grant_are_reported_as_unread() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.held = True
        await scene.hear(assignment("a", 14, read_prefill=8, read_decode=0))
        assert scene.engine.load()[0] == 8
        await scene.hear(GRANT)
        assert scene.engine.load()[0] == 8, "asked for now, and not read"
        scene.storage.held = False
        scene.storage.end()
        await settled()
        assert scene.engine.load()[0] == 0

    run(story)
