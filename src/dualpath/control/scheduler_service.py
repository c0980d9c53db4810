"""The scheduler service: decodes, matches, calls the CentralScheduler, encodes; all policy is elsewhere (paper section 6).

It is a plain object: messages go in through ``handle``, time through ``tick``, and what is to be sent comes out of
``take_outbox``. It does no I/O besides what the block index orders from the store.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable

from dualpath.clock import Clock
from dualpath.control.block_index import BlockIndex
from dualpath.control.members import ClientRecord, EngineRecord, Members
from dualpath.control.messages import (
    Assign,
    BlocksLost,
    CancelTurn,
    ClientPing,
    EngineExited,
    Fetch,
    Join,
    LauncherHello,
    Message,
    PeerFenced,
    PrefillDone,
    ReadDone,
    Rejected,
    Rejoin,
    Stages,
    StatusQuery,
    StatusReply,
    Submit,
    TurnDone,
    TurnEnded,
    TurnFailed,
    TurnLost,
    Welcome,
    Withdraw,
    WriteGrant,
    WriteRequest,
    WriteResult,
)
from dualpath.control.parked import ParkedLeaders
from dualpath.control.spec import ClusterSpec
from dualpath.control.turn_record import TurnRecord
from dualpath.control.turns import ClusterStatus
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, LossReason, Lost, Placed, Refused, RequestDescription
from dualpath.scheduling.log import RecordingScheduler
from dualpath.types import EngineName, GroupName, RequestId, Role, Side

logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_S = 10.0
"""A client silent for so long has ended; its turns are given up."""
OVERSLEPT_S = 0.25
"""Ticks further apart than this mean that this process was stopped, or got no processor."""


class SchedulerService:
    """Owner of the turns, the engines' ledger and the block index of one cluster."""

    def __init__(
        self, spec: ClusterSpec, central: CentralScheduler | RecordingScheduler, blocks: BlockIndex, clock: Clock, epoch: str
    ) -> None:
        self._spec = spec
        self._central = central
        self._blocks = blocks
        self._clock = clock
        self._epoch = epoch
        self._members = Members()
        self._turns: dict[str, TurnRecord] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._outbox: list[tuple[bytes, Message]] = []
        self._ticked_s = clock.now()
        self._placed = 0
        self._parked = ParkedLeaders(central, self._members)
        self._lookup_tokens = 0
        self._hit_tokens = 0
        self._handlers = {
            ClientPing: self._on_ping,
            Submit: self._on_submit,
            CancelTurn: self._on_cancel,
            StatusQuery: self._on_status_query,
            Join: self._on_join,
            Fetch: self._on_fetch,
            ReadDone: self._on_read_done,
            PrefillDone: self._on_prefill_done,
            TurnEnded: self._on_turn_ended,
            TurnFailed: self._on_turn_failed,
            WriteRequest: self._on_write_request,
            WriteResult: self._on_write_result,
            BlocksLost: self._on_blocks_lost,
            LauncherHello: self._on_launcher,
            EngineExited: self._on_engine_exited,
        }

    def handle(self, sender: bytes, message: Message) -> None:
        """Act on one message from the member with socket identity ``sender``."""
        self._handlers[type(message)](sender, message)  # type: ignore[operator]

    def take_outbox(self) -> list[tuple[bytes, Message]]:
        """What is to be sent, in order, as (socket identity, message)."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def tick(self) -> None:
        """Let time pass: deadlines of turns and of waits for blocks, heartbeats. Call a few times a second."""
        now = self._clock.now()
        if now - self._ticked_s > OVERSLEPT_S:  # nobody was silent then: we did not listen
            self._members.excuse(now - self._ticked_s)
        self._ticked_s = now
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in self._turns:
                self._leave(request_id, LossReason.TIMED_OUT)
        self._admit_waiting(self._blocks.expired(now))
        for engine in self._members.silent_engines(now, self._spec.settings.deadlines.heartbeat_timeout_s):
            logger.warning("%s has been silent for too long; fencing it", engine.name)
            self._lose(engine)
            self._members.ask_launcher_to_fence(engine, self._send)
        for client in self._members.silent_clients(now, CLIENT_TIMEOUT_S):
            for request_id in [turn.request_id for turn in self._turns.values() if turn.client == client.identity]:
                self._turns[request_id].failure = "its client fell silent"
                self._leave(request_id, LossReason.FAILED)  # if it was only stopped, it has to hear of this
        self.pump()

    def pump(self) -> None:
        """Fetch for the parked leaders: their long polls end as soon as there is work."""
        self._act(self._parked.everyone())

    # --- turns --------------------------------------------------------------------------------------------------------

    def _on_submit(self, sender: bytes, message: Submit) -> None:
        if message.request_id in self._turns:
            return
        now = self._clock.now()
        self._members.saw_client(ClientRecord(sender, now))
        turn = TurnRecord(message, sender, now, now + self._spec.settings.cache.pending_timeout_s)
        self._turns[message.request_id] = turn
        heapq.heappush(self._deadlines, (now + message.timeout_s, message.request_id))
        self._admit(turn, may_wait=True)

    def _admit_waiting(self, turns: Iterable[TurnRecord]) -> None:
        now = self._clock.now()
        for turn in turns:
            if turn.request_id in self._turns:
                self._admit(turn, may_wait=now < turn.wait_ends_s)

    def _admit(self, turn: TurnRecord, *, may_wait: bool) -> None:
        """Pin the turn's hit and hand it to the scheduler, as counts; or let it wait for blocks that are being written."""
        hit_tokens = self._blocks.hold(turn, may_wait=may_wait)
        if hit_tokens is None:
            return
        self._lookup_tokens += turn.prompt_tokens
        self._hit_tokens += hit_tokens
        left = turn.submit.sampling.max_tokens - turn.submit.first_position
        queued = self._central.waiting_for(Role.PREFILL)
        self._act(
            self._central.submit(RequestDescription(RequestId(turn.request_id), turn.prompt_tokens, hit_tokens, max(1, left)))
        )
        if not queued:  # else no prefill engine has room for those before it
            self._act(self._parked.prefill())
        self._act(self._parked.decode())

    def _act(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Placed):
                self._place(decision)
            elif isinstance(decision, Refused):
                turn = self._remove(decision.request_id)
                if turn is not None:
                    self._send(turn.client, Rejected(turn.request_id, decision.reason))
            else:
                self._lost(decision)

    def _place(self, placed: Placed) -> None:
        turn = self._turns[placed.request_id]
        turn.placed = placed
        self._placed += 1
        turn.scheduling_s = self._clock.now() - turn.submitted_s
        self._parked.count_prefill(turn, GroupName(self._members.engine(placed.prefill).join.group))
        prefill, decode = self._members.engine(placed.prefill), self._members.engine(placed.decode)
        region = decode.join.region
        assert region is not None
        assign = Assign(
            sequence=placed.sequence,
            submit=turn.submit,
            prefill=placed.prefill,
            decode=placed.decode,
            prefill_address=prefill.join.address,
            decode_address=decode.join.address,
            decode_region=region,
            read_prefill_tokens=placed.share.prefill_tokens,
            read_decode_tokens=placed.share.decode_tokens,
            scheduling_s=turn.scheduling_s,
        )
        if placed.share.prefill_tokens:
            turn.unread.add(Side.PREFILL)
        if placed.share.decode_tokens:
            turn.unread.add(Side.DECODE)
        if not turn.unread:
            self._blocks.unpin(turn)
        self._send(decode.identity, assign)
        self._send(prefill.identity, assign)

    def _lost(self, lost: Lost) -> None:
        """Tell the engines that still know the turn, and its client."""
        for name in (lost.prefill, lost.decode):
            engine = self._members.find_engine(name)
            if engine is not None:
                self._send(engine.identity, Withdraw(lost.request_id, lost.reason.value))
        turn = self._remove(lost.request_id)
        if turn is not None and lost.reason is not LossReason.CANCELLED:
            reason = turn.failure or lost.reason.value
            retryable = turn.retryable and lost.reason is not LossReason.TIMED_OUT
            self._send(turn.client, TurnLost(turn.request_id, reason, retryable))

    def _leave(self, request_id: str, reason: LossReason) -> None:
        """Take a turn out, wherever it is."""
        turn = self._turns.get(request_id)
        if turn is None:
            return
        decisions = self._central.leave(RequestId(request_id), reason)
        if decisions:
            self._act(decisions)
        else:  # it was still waiting for blocks, unknown to the scheduler
            self._lost(Lost(RequestId(request_id), reason, None, None))

    def _remove(self, request_id: str) -> TurnRecord | None:
        turn = self._turns.pop(request_id, None)
        if turn is not None:
            self._placed -= turn.placed is not None
            self._parked.count_prefill(turn, None)
            self._blocks.unpin(turn)
            self._blocks.unpark(turn)
        return turn

    def _on_cancel(self, sender: bytes, message: CancelTurn) -> None:
        self._leave(message.request_id, LossReason.CANCELLED)
        self.pump()

    def _on_read_done(self, sender: bytes, message: ReadDone) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None or turn.placed is None:
            return
        side = Side(message.side)
        self._central.read_progress(RequestId(message.request_id), side, message.tokens)
        turn.unread.discard(side)
        if not turn.unread:
            self._blocks.unpin(turn)

    def _on_prefill_done(self, sender: bytes, message: PrefillDone) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None:
            return
        self._central.prefilled(RequestId(message.request_id))
        self._parked.count_prefill(turn, None)
        if turn.placed is not None:
            self._act(self._parked.of_engine(turn.placed.prefill))

    def _on_turn_ended(self, sender: bytes, message: TurnEnded) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None or turn.placed is None:
            return
        self._remove(message.request_id)
        self._central.finished(RequestId(message.request_id))
        share = turn.used_share(message.cached_tokens)
        stages = Stages(turn.scheduling_s, message.stages.allocation_s, message.stages.read_s, message.stages.prefill_s)
        self._send(
            turn.client,
            TurnDone(
                request_id=turn.request_id,
                finish_reason=message.finish_reason,
                output_tokens=message.output_tokens,
                stages=stages,
                cached_tokens=message.cached_tokens,
                read_prefill_tokens=share.prefill_tokens,
                read_decode_tokens=share.decode_tokens,
            ),
        )
        self._act(self._parked.of_engine(turn.placed.prefill))
        self._act(self._parked.of_engine(turn.placed.decode))

    def _on_turn_failed(self, sender: bytes, message: TurnFailed) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None:
            return
        logger.info("%s gives up %s: %s", sender.decode(), message.request_id, message.reason)
        turn.failure, turn.retryable = message.reason, message.retryable
        self._leave(message.request_id, LossReason.FAILED)
        self.pump()

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _on_write_request(self, sender: bytes, message: WriteRequest) -> None:
        engine = self._members.find_engine(sender.decode())
        if engine is not None:
            self._send(sender, WriteGrant(message.ticket, self._blocks.begin_write(message, engine.name)))

    def _on_write_result(self, sender: bytes, message: WriteResult) -> None:
        self._admit_waiting(self._blocks.written(message))

    def _on_blocks_lost(self, sender: bytes, message: BlocksLost) -> None:
        self._blocks.lost(message.keys)

    # --- members ------------------------------------------------------------------------------------------------------

    def _on_ping(self, sender: bytes, message: ClientPing) -> None:
        self._members.saw_client(ClientRecord(sender, self._clock.now()))
        self._send(sender, Welcome(self._epoch, self._members.complete))

    def _on_join(self, sender: bytes, message: Join) -> None:
        if self._members.find_engine(message.name) is not None:
            return
        record = EngineRecord(message, sender, self._clock.now())
        if self._members.add_engine(record):
            for name in self._members.ended:
                self._send(sender, PeerFenced(name))
            self._act(self._central.engine_joined(record.description()))
            self.pump()

    def _on_fetch(self, sender: bytes, message: Fetch) -> None:
        engine = self._members.find_engine(message.name)
        if engine is None:
            if not self._members.was_lost(message.name):
                self._send(sender, Rejoin(self._epoch))
            return
        engine.saw(message, self._clock.now())
        group = GroupName(engine.join.group)
        if engine.role is Role.PREFILL:
            self._act(self._central.fetch_prefill(group, [engine.load()]))
        else:
            self._act(self._central.fetch_decode(group, [engine.load()]))

    def _lose(self, engine: EngineRecord) -> None:
        """Take an engine out of scheduling; its memory is not safe before PeerFenced."""
        if self._members.mark_lost(engine):
            self._act(self._central.engine_lost(EngineName(engine.name)))
            self._admit_waiting(self._blocks.writer_lost(engine.name))
            self.pump()

    def _on_engine_exited(self, sender: bytes, message: EngineExited) -> None:
        engine = self._members.lost_or_live(message.name)
        if engine is not None:
            self._lose(engine)
            self._members.remove_engine(engine)
            self._blocks.writer_ended(engine.name)
        if self._members.note_end(message.name):
            for other in self._members.engines():
                self._send(other.identity, PeerFenced(message.name))

    def _on_launcher(self, sender: bytes, message: LauncherHello) -> None:
        if self._members.saw_launcher(sender, message.restarts):
            for engine in self._members.lost():
                self._members.ask_launcher_to_fence(engine, self._send)
        self._send(sender, Welcome(self._epoch, self._members.complete))

    def _on_status_query(self, sender: bytes, message: StatusQuery) -> None:
        counts = self._blocks.counts()
        status = ClusterStatus(
            engines=tuple(engine.status for engine in self._members.engines()),
            waiting=len(self._turns) - self._placed,
            running=self._placed,
            stored_blocks=counts.stored,
            stored_bytes=counts.stored * self._spec.geometry.full_block_bytes,
            pinned_blocks=counts.pinned,
            pending_blocks=counts.pending,
            evicted_blocks=counts.evicted,
            lookup_tokens=self._lookup_tokens,
            hit_tokens=self._hit_tokens,
            restarts=self._members.restarts,
        )
        self._send(sender, StatusReply(message.query_id, status))

    def _send(self, identity: bytes, message: Message) -> None:
        self._outbox.append((identity, message))
