"""The scheduler service when members fall silent, end or come back, or when it was itself stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.engine_rig import GEOMETRY, NAMESPACE, REGION, cluster_spec

from dualpath.clock import ManualClock
from dualpath.control.block_index import BlockIndex
from dualpath.control.messages import (
    ClientPing,
    EngineExited,
    Fence,
    Fetch,
    Join,
    LauncherHello,
    Message,
    PeerFenced,
    Submit,
    TurnLost,
    WriteGrant,
    WriteRequest,
)
from dualpath.control.scheduler_service import CLIENT_TIMEOUT_S, SchedulerService
from dualpath.control.turns import EngineStatus, SamplingParams
from dualpath.kvcache.chain import block_keys
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.limits import scheduler_limits
from dualpath.storage.base import BlockWrite
from dualpath.storage.memory import MemoryStorage

TICK_S = 0.05
KEYS = block_keys(NAMESPACE.digest, range(4 * GEOMETRY.block_tokens), GEOMETRY.block_tokens)


class Rig:
    """A service with one engine of each role, a client and a launcher, and time that passes when told to."""

    def __init__(self) -> None:
        spec = cluster_spec()
        self.clock = ManualClock()
        self.storage = MemoryStorage(GEOMETRY.full_block_bytes)
        self.heartbeat_timeout_s = spec.settings.deadlines.heartbeat_timeout_s
        limits = scheduler_limits(spec.settings, storage_tokens_per_s=1e6, prefill_tokens_per_s=1e4)
        central = CentralScheduler(limits, self.clock)
        blocks = BlockIndex(self.storage, 100, GEOMETRY)
        self.service = SchedulerService(spec, central, blocks, self.clock, "epoch")

    def say(self, sender: str, message: Message) -> list[tuple[str, Message]]:
        """Deliver a message; what is sent in answer."""
        self.service.handle(sender.encode(), message)
        return self.take()

    def take(self) -> list[tuple[str, Message]]:
        return [(identity.decode(), message) for identity, message in self.service.take_outbox()]

    def join(self, name: str) -> list[tuple[str, Message]]:
        role, region = name.split("-")[0], REGION if name.startswith("decode") else None
        return self.say(name, Join(name, role, f"{role}-group", f"{role}-node", 100, 100, f"at {name}", region))

    def fetch(self, name: str) -> None:
        role = name.split("-")[0]
        self.say(name, Fetch(name, 0, 0, 100, EngineStatus(name=name, role=role, node=f"{role}-node")))

    def submit(self, request_id: str = "turn") -> list[tuple[str, Message]]:
        prompt = bytes(4 * 10)
        return self.say("client", Submit(request_id, memoryview(prompt), b"", SamplingParams(), 0, "at client", 100.0))

    def pass_time(self, seconds: float, *speakers: str) -> list[tuple[str, Message]]:
        """Tick by tick, with these members heard of at each; everything that is sent."""
        sent = []
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            for speaker in speakers:
                if speaker == "client":
                    self.service.handle(b"client", ClientPing())
                else:
                    self.fetch(speaker)
            self.service.tick()
            sent += self.take()
        return sent


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig()
    for name in ("prefill-0.0", "decode-0.0"):
        one.join(name)
    one.say("client", ClientPing())
    one.say("launcher", LauncherHello(0))
    yield one
    one.storage.close()


def fenced(sent: list[tuple[str, Message]]) -> list[str]:
    return [message.name for _, message in sent if isinstance(message, Fence)]


def lost(sent: list[tuple[str, Message]]) -> list[TurnLost]:
    return [message for receiver, message in sent if receiver == "client" and isinstance(message, TurnLost)]


def test_a_silent_engine_is_fenced_once_and_its_turns_are_lost(rig: Rig) -> None:
    rig.submit()
    sent = rig.pass_time(2 * rig.heartbeat_timeout_s, "prefill-0.0", "client")
    assert fenced(sent) == ["decode-0.0"]
    assert [message.retryable for message in lost(sent)] == [True]


def test_time_in_which_the_scheduler_did_not_listen_counts_against_nobody(rig: Rig) -> None:
    rig.submit()
    rig.clock.advance(3 * max(rig.heartbeat_timeout_s, CLIENT_TIMEOUT_S))
    rig.service.tick()
    assert rig.take() == []
    sent = rig.pass_time(0.9 * rig.heartbeat_timeout_s)
    assert fenced(sent) == []
    assert fenced(rig.pass_time(0.2 * rig.heartbeat_timeout_s)) == ["prefill-0.0", "decode-0.0"]


def test_an_engine_that_fell_silent_while_there_was_no_launcher_is_fenced_by_the_next_one(rig: Rig) -> None:
    rig.say("launcher", LauncherHello(0))
    rig.pass_time(2 * rig.heartbeat_timeout_s, "prefill-0.0")
    assert fenced(rig.say("launcher", LauncherHello(0))) == []
    assert fenced(rig.say("another launcher", LauncherHello(0))) == ["decode-0.0"]
    rig.say("another launcher", EngineExited("decode-0.0"))
    assert fenced(rig.say("a third launcher", LauncherHello(0))) == []


def test_every_engine_hears_once_of_every_end_before_or_after_it_joins(rig: Rig) -> None:
    told = rig.say("launcher", EngineExited("decode-1.0"))
    assert [receiver for receiver, message in told if message == PeerFenced("decode-1.0")] == ["decode-0.0", "prefill-0.0"]
    assert rig.say("launcher", EngineExited("decode-1.0")) == []
    assert ("prefill-1.0", PeerFenced("decode-1.0")) in rig.join("prefill-1.0")


def test_the_turns_of_a_silent_client_are_lost_and_it_is_told_in_case_it_was_only_stopped(rig: Rig) -> None:
    rig.submit()
    sent = rig.pass_time(CLIENT_TIMEOUT_S + 1.0, "prefill-0.0", "decode-0.0")
    assert [(message.reason, message.retryable) for message in lost(sent)] == [("its client fell silent", True)]
    assert len(rig.submit("another")) > 0, "a client that speaks again is served"


def test_a_client_that_only_ever_submitted_is_missed_too(rig: Rig) -> None:
    rig.say("stranger", Submit("turn", memoryview(bytes(40)), b"", SamplingParams(), 0, "at stranger", 100.0))
    sent = rig.pass_time(CLIENT_TIMEOUT_S + 1.0, "prefill-0.0", "decode-0.0", "client")
    assert [receiver for receiver, message in sent if isinstance(message, TurnLost)] == ["stranger"]


def test_blocks_that_a_lost_writer_finished_all_the_same_are_deleted_at_its_end(rig: Rig) -> None:
    granted = rig.say("decode-0.0", WriteRequest(0, None, 0, b"".join(KEYS[:2])))
    assert granted == [("decode-0.0", WriteGrant(0, (True, True)))]
    rig.pass_time(2 * rig.heartbeat_timeout_s, "prefill-0.0", "client")
    data = memoryview(bytearray(GEOMETRY.full_block_bytes))
    rig.storage.write([BlockWrite(KEYS[0], None, 0, data), BlockWrite(KEYS[1], KEYS[0], 1, data)])
    rig.join("decode-0.1")
    rig.say("decode-0.1", WriteRequest(0, None, 0, KEYS[0]))  # this one is somebody else's now
    rig.say("launcher", EngineExited("decode-0.0"))
    assert [block.key for block in rig.storage.scan()] == [KEYS[0]]
