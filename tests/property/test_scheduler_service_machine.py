"""The scheduler service under any order of messages: it never fails, every turn ends once, and in the end nothing is held."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.service_rig import BLOCK, Sent, ServiceRig, chain, only

from dualpath.control.messages import (
    Assign,
    BlocksLost,
    CancelTurn,
    EngineExited,
    PrefillDone,
    ReadDone,
    Rejected,
    Rejoin,
    Stages,
    TurnDone,
    TurnEnded,
    TurnFailed,
    TurnLost,
    Withdraw,
    WriteResult,
)
from dualpath.types import Side

CLIENTS = ("client-0", "client-1")
SLOTS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
CAPACITY_BLOCKS = 24
PICK = st.integers(0, 1 << 16)
"""Which of what there is, modulo how many there are."""


def prompt(family: int, length: int) -> list[int]:
    """Prompts of one family share all of the shorter one."""
    return list(range(1000 * family, 1000 * family + length))


class ServiceMachine(RuleBasedStateMachine):
    """Random clients and engines, and a model that knows which turns have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = ServiceRig(CAPACITY_BLOCKS, pending_timeout_s=1.0, decode_free_watermark=0)
        self.incarnations = Counter[str]()
        self.engines: dict[str, str] = {}
        self.turns: dict[str, str] = {}
        self.live: set[str] = set()
        self.ends = Counter[str]()
        self.cancelled: set[str] = set()
        self.assigns: dict[str, Assign] = {}
        self.writes: list[tuple[str, list[bytes]]] = []
        self.sequence = 0

    # --- what the service says ----------------------------------------------------------------------------------------

    def observe(self, sent: Sent) -> None:
        for receiver, message in sent:
            if isinstance(message, TurnDone | TurnLost | Rejected):
                assert self.turns[message.request_id] == receiver
                assert message.request_id in self.live
                self.live.discard(message.request_id)
                self.ends[message.request_id] += 1
            elif isinstance(message, Assign):
                assert receiver in (message.prefill, message.decode)
                assert {message.prefill, message.decode} <= set(self.engines.values())
                assert message.submit.request_id in self.live
                self.assigns[message.submit.request_id] = message
                assert message.sequence in (self.sequence, self.sequence + 1)
                self.sequence = message.sequence
            elif isinstance(message, Withdraw):
                assert receiver in self.engines.values()
                assert message.request_id in self.turns

    def pick(self, among: list[str], number: int) -> str:
        return among[number % len(among)]

    # --- clients ------------------------------------------------------------------------------------------------------

    @initialize()
    def start(self) -> None:
        for slot in SLOTS:
            self.join(slot)

    @rule(family=st.integers(0, 2), length=st.integers(1, 60), pick=PICK, timeout_s=st.sampled_from((0.5, 100.0)))
    def submit(self, family: int, length: int, pick: int, timeout_s: float) -> None:
        request_id, client = f"turn-{len(self.turns)}", CLIENTS[pick % 2]
        self.turns[request_id] = client
        self.live.add(request_id)
        self.observe(self.rig.submit(request_id, prompt(family, length), client, timeout_s))

    @precondition(lambda self: self.live)
    @rule(pick=PICK)
    def submit_again(self, pick: int) -> None:
        request_id = self.pick(sorted(self.live), pick)
        assert self.rig.submit(request_id, prompt(0, 3), self.turns[request_id]) == []

    @precondition(lambda self: self.turns)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        request_id = self.pick(list(self.turns), pick)
        sent = self.rig.say(self.turns[request_id], CancelTurn(request_id))
        if request_id in self.live:
            self.live.discard(request_id)
            self.cancelled.add(request_id)
        self.observe(sent)

    # --- engines, about turns (also such as have ended, or are not placed yet) -------------------------------------------

    @precondition(lambda self: self.turns)
    @rule(pick=PICK, side=st.sampled_from(list(Side)), blocks=st.integers(0, 20))
    def read_done(self, pick: int, side: Side, blocks: int) -> None:
        self.observe(self.rig.say("prefill-0.0", ReadDone(self.pick(list(self.turns), pick), side, blocks * BLOCK)))

    @precondition(lambda self: self.turns)
    @rule(pick=PICK)
    def prefill_done(self, pick: int) -> None:
        self.observe(self.rig.say("prefill-0.0", PrefillDone(self.pick(list(self.turns), pick))))

    @precondition(lambda self: self.turns)
    @rule(pick=PICK)
    def turn_ended(self, pick: int) -> None:
        request_id = self.pick(list(self.turns), pick)
        placed = request_id in self.live and request_id in self.assigns
        sent = self.rig.say("decode-0.0", TurnEnded(request_id, "length", 4, 0, Stages()))
        assert [done.request_id for _, done in only(TurnDone, sent)] == ([request_id] if placed else [])
        self.observe(sent)

    @precondition(lambda self: self.turns)
    @rule(pick=PICK, retryable=st.booleans())
    def turn_failed(self, pick: int, retryable: bool) -> None:
        self.observe(self.rig.say("decode-0.0", TurnFailed(self.pick(list(self.turns), pick), "no page", retryable)))

    @precondition(lambda self: self.live & set(self.assigns))
    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        request_id = self.pick(sorted(self.live & set(self.assigns)), pick)
        self.observe(self.rig.finish(self.assigns[request_id]))

    # --- engines, about blocks ------------------------------------------------------------------------------------------

    @precondition(lambda self: any(name.startswith("decode") for name in self.engines.values()))
    @rule(family=st.integers(0, 2), length=st.integers(BLOCK, 60), skipped=st.integers(0, 5), pick=PICK)
    def request_write(self, family: int, length: int, skipped: int, pick: int) -> None:
        name = self.pick(sorted(name for name in self.engines.values() if name.startswith("decode")), pick)
        tokens = prompt(family, length)
        first = min(skipped, len(chain(tokens)) - 1)
        wanted = self.rig.request_write(name, tokens, first)
        self.writes.append((name, [key for key, yes in zip(chain(tokens)[first:], wanted, strict=True) if yes]))
        assert self.rig.status().stored_blocks + self.rig.status().pending_blocks <= CAPACITY_BLOCKS

    @precondition(lambda self: self.writes)
    @rule(pick=PICK, failures=st.integers(0, 3))
    def write_result(self, pick: int, failures: int) -> None:
        """Also from engines that were given up meanwhile."""
        name, keys = self.writes.pop(pick % len(self.writes))
        good = max(0, len(keys) - failures)
        self.observe(self.rig.say(name, WriteResult(b"".join(keys[:good]), b"".join(keys[good:]))))

    @rule(family=st.integers(0, 2), pick=PICK)
    def blocks_lost(self, family: int, pick: int) -> None:
        keys = chain(prompt(family, 60))
        self.observe(self.rig.say("decode-0.0", BlocksLost(keys[pick % len(keys)])))

    # --- members --------------------------------------------------------------------------------------------------------

    def join(self, slot: str) -> None:
        name = f"{slot}.{self.incarnations[slot]}"
        self.incarnations[slot] += 1
        self.engines[slot] = name
        self.observe(self.rig.join(name, kv_blocks=20, buffer_blocks=20))

    @rule(slot=st.sampled_from(SLOTS), restarted=st.booleans())
    def engine_exits(self, slot: str, restarted: bool) -> None:
        if (name := self.engines.pop(slot, None)) is not None:
            self.observe(self.rig.say("launcher", EngineExited(name)))
        if restarted:
            self.join(slot)

    @rule(slot=st.sampled_from(SLOTS))
    def engine_falls_silent(self, slot: str) -> None:
        silent = self.engines.get(slot)
        speaking = [name for name in self.engines.values() if name != silent]
        self.observe(self.rig.pass_time(5.5, "launcher", *CLIENTS, *speaking))
        self.engines.pop(slot, None)
        assert silent not in [engine.name for engine in self.rig.status().engines]

    @rule(slot=st.sampled_from(SLOTS), unread=st.integers(0, 100), free=st.integers(0, 20), late=st.booleans())
    def report(self, slot: str, unread: int, free: int, late: bool) -> None:
        name = self.engines.get(slot)
        if name is None:
            assert only(Rejoin, self.rig.fetch(f"{slot}.99")) != []
            return
        seen = max(0, self.sequence - 2) if late else self.sequence
        self.observe(self.rig.fetch(name, seen=seen, unread=unread, free=free if slot.startswith("decode") else None))

    @rule(seconds=st.sampled_from((0.1, 0.6, 1.2)))
    def time_passes(self, seconds: float) -> None:
        self.observe(self.rig.pass_time(seconds, "launcher", *CLIENTS, *self.engines.values()))

    # --- what holds -----------------------------------------------------------------------------------------------------

    @invariant()
    def the_service_knows_the_turns_that_have_not_ended(self) -> None:
        status = self.rig.status()
        assert status.waiting + status.running == len(self.live)
        assert all(count == 1 for count in self.ends.values())

    def teardown(self) -> None:
        for slot in SLOTS:
            if slot not in self.engines:
                self.join(slot)
        for name in self.engines.values():  # nothing is in use beyond the ledger
            self.observe(self.rig.fetch(name, seen=self.sequence, free=20 if name.startswith("decode") else None))
        while self.writes:
            self.write_result(0, 0)
        self.time_passes(1.2)
        while placed := self.live & set(self.assigns):
            for request_id in sorted(placed):
                self.observe(self.rig.finish(self.assigns[request_id]))
            assert not self.live & placed
        assert not self.live  # whatever could be held was placed, the rest was refused
        assert set(self.ends) | self.cancelled == set(self.turns)
        assert not set(self.ends) & self.cancelled
        self.rig.assert_idle()
        self.rig.storage.close()


ServiceMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=40)
TestService = ServiceMachine.TestCase
