"""A scheduler service without sockets: clients, engines and a launcher that say what a test wants, and time that obeys it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, TypeVar

from tests.support.engine_rig import GEOMETRY, NAMESPACE, REGION, cluster_spec

from dualpath.clock import ManualClock
from dualpath.control.block_index import BlockIndex
from dualpath.control.messages import (
    Assign,
    ClientPing,
    Fetch,
    Join,
    LauncherHello,
    Message,
    PrefillDone,
    ReadDone,
    Stages,
    StatusQuery,
    StatusReply,
    Submit,
    TurnEnded,
    WriteGrant,
    WriteRequest,
    WriteResult,
)
from dualpath.control.scheduler_service import SchedulerService
from dualpath.control.turns import ClusterStatus, EngineStatus, SamplingParams
from dualpath.knobs import with_knobs
from dualpath.kvcache.chain import block_keys
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.limits import scheduler_limits
from dualpath.settings import Settings
from dualpath.storage.base import BlockWrite
from dualpath.storage.memory import MemoryStorage
from dualpath.types import BlockKey, Side

BLOCK = GEOMETRY.block_tokens
TICK_S = 0.1
EPOCH = "epoch"

Sent = list[tuple[str, Message]]
"""Messages in order, each with whom it is for."""

MessageType = TypeVar("MessageType", bound=Message)


def only(kind: type[MessageType], sent: Sent) -> list[tuple[str, MessageType]]:
    """The messages of one kind."""
    return [(receiver, message) for receiver, message in sent if isinstance(message, kind)]


def chain(tokens: Sequence[int]) -> list[BlockKey]:
    """Keys of the whole blocks of ``tokens``."""
    return block_keys(NAMESPACE.digest, tokens, BLOCK)


class ServiceRig:
    """One service, ``service``, over a real scheduler and a real index; ``knobs`` are settings by name."""

    def __init__(self, capacity_blocks: int = 100, **knobs: Any) -> None:
        settings = with_knobs(Settings(), {"block_tokens": BLOCK, **knobs})
        self.clock = ManualClock()
        self.storage = MemoryStorage(GEOMETRY.full_block_bytes)
        limits = scheduler_limits(settings, storage_tokens_per_s=1e6, prefill_tokens_per_s=1e4)
        self.central = CentralScheduler(limits, self.clock)
        self.blocks = BlockIndex(self.storage, capacity_blocks, GEOMETRY)
        self.service = SchedulerService(cluster_spec(settings), self.central, self.blocks, self.clock, EPOCH)
        self._tickets = 0

    def say(self, sender: str, message: Message) -> Sent:
        """Deliver a message; what is sent then."""
        self.service.handle(sender.encode(), message)
        return self.take()

    def take(self) -> Sent:
        return [(identity.decode(), message) for identity, message in self.service.take_outbox()]

    def pass_time(self, seconds: float, *speakers: str) -> Sent:
        """Tick by tick, while these members are heard of; all that is sent."""
        sent: Sent = []
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            for speaker in speakers:
                if speaker == "launcher":
                    sent += self.say(speaker, LauncherHello(0))
                elif speaker.startswith("client"):
                    sent += self.say(speaker, ClientPing())
                else:
                    sent += self.fetch(speaker)
            self.service.tick()
            sent += self.take()
        return sent

    # --- engines ------------------------------------------------------------------------------------------------------

    def join(self, *names: str, kv_blocks: int = 50, buffer_blocks: int = 50) -> Sent:
        """Engines such as ``prefill-0`` join; each is its own group and node."""
        sent: Sent = []
        for name in names:
            role = name.split("-")[0]
            region = REGION if role == "decode" else None
            sent += self.say(name, Join(name, role, name, name, kv_blocks, buffer_blocks, f"at {name}", region))
        return sent

    def fetch(self, name: str, *, seen: int = 1 << 30, unread: int = 0, free: int | None = None) -> Sent:
        status = EngineStatus(name=name, role=name.split("-")[0], node=name, running=7)
        return self.say(name, Fetch(name, seen, unread, free, status))

    def request_write(self, name: str, tokens: Sequence[int], first_block: int = 0) -> tuple[bool, ...]:
        """An engine asks to write the blocks of ``tokens`` from ``first_block`` on; which it is to write."""
        keys = chain(tokens)
        self._tickets += 1
        parent = keys[first_block - 1] if first_block else None
        sent = self.say(name, WriteRequest(self._tickets, parent, first_block, b"".join(keys[first_block:])))
        ((receiver, grant),) = only(WriteGrant, sent)
        assert (receiver, grant.ticket) == (name, self._tickets)
        return grant.wanted

    def store(self, name: str, tokens: Sequence[int]) -> Sent:
        """An engine writes all blocks of ``tokens`` that are new, and says so."""
        keys = chain(tokens)
        new = [key for key, wanted in zip(keys, self.request_write(name, tokens), strict=True) if wanted]
        for key in new:
            depth = keys.index(key)
            data = memoryview(bytes(GEOMETRY.full_block_bytes))
            self.storage.write([BlockWrite(key, keys[depth - 1] if depth else None, depth, data)]).result()
        return self.say(name, WriteResult(b"".join(new), b""))

    # --- turns --------------------------------------------------------------------------------------------------------

    def submit(
        self, request_id: str, tokens: Sequence[int], client: str = "client-0", timeout_s: float = 100.0, max_tokens: int = 4
    ) -> Sent:
        sampling = SamplingParams(max_tokens=max_tokens)
        packed = array("I", tokens).tobytes()
        return self.say(
            client, Submit(request_id, memoryview(packed), b"".join(chain(tokens)), sampling, 0, "at client", timeout_s)
        )

    def place(self, request_id: str, tokens: Sequence[int], client: str = "client-0") -> Assign:
        """Submit a turn that is placed at once."""
        (_, assign), _ = only(Assign, self.submit(request_id, tokens, client))
        return assign

    def finish(self, assign: Assign, output_tokens: int = 4) -> Sent:
        """Everything that both engines say of a turn that goes well."""
        request_id = assign.submit.request_id
        sent: Sent = []
        for name, side, tokens in (
            (assign.prefill, Side.PREFILL, assign.read_prefill_tokens),
            (assign.decode, Side.DECODE, assign.read_decode_tokens),
        ):
            if tokens:
                sent += self.say(name, ReadDone(request_id, side, tokens))
        sent += self.say(assign.prefill, PrefillDone(request_id))
        hit = assign.read_prefill_tokens + assign.read_decode_tokens
        stages = Stages(9.0, 0.1, 0.2, 0.3)
        return sent + self.say(assign.decode, TurnEnded(request_id, "length", output_tokens, hit, stages))

    # --- what is left -------------------------------------------------------------------------------------------------

    def status(self) -> ClusterStatus:
        ((_, reply),) = only(StatusReply, self.say("client-0", StatusQuery(5)))
        assert reply.query_id == 5
        return reply.status

    def assert_idle(self) -> None:
        """No turn, no pin, no pending block, nothing on the ledger."""
        status = self.status()
        counts = (status.waiting, status.running, status.pinned_blocks, status.pending_blocks)
        assert counts == (0, 0, 0, 0), status
        self.assert_ledger_is_empty()

    def assert_ledger_is_empty(self) -> None:
        books = self.central.status()
        assert (books.waiting, books.placed) == (0, 0)
        assert set(books.read_queue_tokens.values()) <= {0}
        for engine in books.engines.values():
            held = (engine.requests, engine.half_placed, engine.tokens, engine.unread_tokens, engine.reserved_blocks)
            assert held == (0, 0, 0, 0, 0), engine
