"""The scheduler service reports a turn's hit whatever order messages come in, and gives work to who has least to do."""

from __future__ import annotations

from array import array

from tests.support.engine_rig import GEOMETRY, NAMESPACE, REGION, cluster_spec

from dualpath.clock import ManualClock
from dualpath.control.block_index import BlockIndex
from dualpath.control.messages import (
    Assign,
    Fetch,
    Join,
    Message,
    PrefillDone,
    Stages,
    Submit,
    TurnDone,
    TurnEnded,
    WriteGrant,
    WriteRequest,
    WriteResult,
)
from dualpath.control.scheduler_service import SchedulerService
from dualpath.control.turns import EngineStatus, SamplingParams
from dualpath.kvcache.chain import block_keys
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.limits import scheduler_limits
from dualpath.storage.memory import MemoryStorage

ENGINES = ("prefill-0.0", "prefill-1.0", "decode-0.0")


class Scene:
    """A service with two prefill engines, each a group, and one decode engine."""

    def __init__(self) -> None:
        spec, clock = cluster_spec(), ManualClock()
        limits = scheduler_limits(
            spec.settings, storage_tokens_per_s=spec.storage_tokens_per_s, prefill_tokens_per_s=spec.prefill_tokens_per_s
        )
        blocks = BlockIndex(MemoryStorage(GEOMETRY.full_block_bytes), 100, GEOMETRY)
        self.service = SchedulerService(spec, CentralScheduler(limits, clock), blocks, clock, "epoch")
        for name in ENGINES:
            role = name.split("-")[0]
            region = REGION if role == "decode" else None
            self.tell(name, Join(name, role, f"group {name}", f"node {name}", 1000, 1000, f"at {name}", region))
            status = EngineStatus(name=name, role=role, node="")
            self.tell(name, Fetch(name, 0, 0, 1000 if role == "decode" else None, status))

    def tell(self, sender: str, message: Message) -> list[tuple[str, Message]]:
        """What the service sends in answer."""
        self.service.handle(sender.encode(), message)
        return [(receiver.decode(), answer) for receiver, answer in self.service.take_outbox()]

    def submit(self, request_id: str, prompt_tokens: int) -> tuple[str, Assign]:
        """The prefill engine that gets the turn, and the assignment."""
        prompt = array("I", range(prompt_tokens)).tobytes()
        block_tokens = self.service._spec.settings.cache.block_tokens
        keys = b"".join(block_keys(NAMESPACE.digest, prompt, block_tokens))
        turn = Submit(request_id, memoryview(prompt), keys, SamplingParams(), 0, "at client", 60.0)
        answers = self.tell("client", turn)
        ((name, assign),) = [
            (name, answer) for name, answer in answers if isinstance(answer, Assign) and name.startswith("prefill")
        ]
        return name, assign


def test_the_hit_is_reported_even_if_the_prefill_engines_word_comes_last() -> None:
    scene = Scene()
    _, first = scene.submit("a", 200)
    ((_, grant),) = scene.tell("decode-0.0", WriteRequest(0, None, 0, first.submit.keys))
    assert isinstance(grant, WriteGrant)
    assert grant.wanted == (True,) * (200 // GEOMETRY.block_tokens)
    scene.tell("decode-0.0", WriteResult(first.submit.keys, b""))
    scene.tell("decode-0.0", TurnEnded("a", "length", 1, 0, Stages()))
    _, second = scene.submit("b", 193)
    assert second.read_prefill_tokens + second.read_decode_tokens == 192
    ((_, done),) = scene.tell("decode-0.0", TurnEnded("b", "length", 1, 128, Stages(0.0, 1.0, 2.0, 3.0)))
    assert isinstance(done, TurnDone)
    assert (done.cached_tokens, done.read_prefill_tokens + done.read_decode_tokens) == (128, 128)
    assert (done.stages.allocation_s, done.stages.read_s, done.stages.prefill_s) == (1.0, 2.0, 3.0)
    assert scene.tell("prefill-0.0", PrefillDone("b")) == []


def test_the_prefill_group_with_the_least_to_do_gets_the_next_turn() -> None:
    scene = Scene()
    chosen = [scene.submit(request_id, tokens)[0] for request_id, tokens in (("a", 300), ("b", 100), ("c", 100), ("d", 150))]
    assert chosen == ["prefill-0.0", "prefill-1.0", "prefill-1.0", "prefill-1.0"]
    scene.tell("prefill-1.0", PrefillDone("b"))
    scene.tell("prefill-1.0", PrefillDone("c"))
    assert scene.submit("e", 10)[0] == "prefill-1.0"
    scene.tell("prefill-0.0", PrefillDone("a"))
    assert scene.submit("f", 10)[0] == "prefill-0.0"
