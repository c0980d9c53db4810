"""The caller's side: runs turns, resubmitting interrupted attempts with the tokens that have arrived (rules 2 and 10)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from dualpath.clock import Clock
from dualpath.control.channel import Port, inbox, scheduler_port, socket_address
from dualpath.control.messages import (
    CancelTurn,
    ClientPing,
    Decoder,
    Message,
    Rejected,
    Stages,
    StatusQuery,
    StatusReply,
    Submit,
    ToClient,
    Tokens,
    TurnDone,
    TurnLost,
    Welcome,
)
from dualpath.control.turns import ClusterStatus, SamplingParams, TokenEvent, TurnEvent, TurnFinished, finish_reason
from dualpath.errors import ClusterError, DeadlineExceeded, InvalidRequest, Overloaded, PromptTooLong, RequestFailed
from dualpath.kvcache.chain import block_keys
from dualpath.scheduling.decisions import LossReason
from dualpath.settings import DeadlineSettings

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 0.5
STATUS_TIMEOUT_S = 5.0
RETRY_DELAY_S = 0.2
"""Growing pause before another attempt: whatever fails attempts at once has to be noticed before the last one."""
TOKENS_GRACE_S = 5.0
"""Longest wait for tokens that the scheduler says were sent: they travel on other sockets."""


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """What a client has to know of the cluster it talks to."""

    run_directory: Path
    namespace: bytes
    block_tokens: int
    vocab_size: int
    max_context_tokens: int
    eos_token_ids: tuple[int, ...]
    max_pending: int
    deadlines: DeadlineSettings


@dataclass(slots=True)
class _Turn:
    """A turn in progress: what has arrived, over all attempts."""

    prompt: Sequence[int]
    sampling: SamplingParams
    deadline: float
    request_id: str = ""
    attempts: int = 0
    fruitless: int = 0
    tokens: list[int] = field(default_factory=list)
    early: dict[int, TokenEvent] = field(default_factory=dict)
    done: TurnDone | None = None
    failure: str | None = None
    error: Exception | None = None
    arrived: list[TokenEvent] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def accept(self, event: TokenEvent) -> None:
        """Take a token, in whatever order the engines' sockets deliver them."""
        self.early[event.position] = event
        self.fruitless = 0
        while (following := self.early.pop(len(self.tokens), None)) is not None:
            self.tokens.append(following.token)
            self.arrived.append(following)
        self.wake.set()

    @property
    def complete(self) -> bool:
        return self.done is not None and len(self.tokens) >= self.done.output_tokens


class ClusterClient:
    """Implements ``control.turns.TurnClient`` over the cluster's sockets.

    Use from one asyncio loop, between ``start`` and ``close``.
    """

    def __init__(self, profile: ClientProfile, clock: Clock) -> None:
        self._profile = profile
        self._clock = clock
        self._name = f"client-{secrets.token_hex(6)}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._turns: dict[str, _Turn] = {}
        self._queries: dict[int, asyncio.Future[ClusterStatus]] = {}
        self._numbers = itertools.count()
        self._epoch: str | None = None
        self._ready = asyncio.Event()
        self._closing = False
        self._scheduler: Port
        self._inbox: Port
        self._address = socket_address(profile.run_directory, self._name)
        self._pinger: asyncio.Task[None]
        self._pending = 0

    async def start(self) -> None:
        """Connect."""
        decoder = Decoder(ToClient)
        self._inbox = inbox(self._context, self._address, decoder, self._on_message)
        address = socket_address(self._profile.run_directory, "scheduler")
        self._scheduler = scheduler_port(self._context, address, self._name, decoder, self._on_message)
        self._pinger = asyncio.create_task(self._ping())

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the scheduler has engines of both roles.

        Raises:
            DeadlineExceeded: it has not within ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"the cluster was not ready within {timeout_s:g} s") from None

    async def close(self) -> None:
        """End every turn that still runs, then disconnect."""
        self._closing = True
        self._pinger.cancel()
        await asyncio.gather(self._pinger, return_exceptions=True)
        for turn in list(self._turns.values()):
            self._scheduler.send(CancelTurn(request_id=turn.request_id))
            turn.error = RequestFailed("the cluster is shutting down")
            turn.wake.set()
        await asyncio.sleep(0)
        self._scheduler.close(linger_s=0.2)
        self._inbox.close()
        self._context.term()

    @property
    def max_context_tokens(self) -> int:
        """Most tokens of prompt and output together."""
        return self._profile.max_context_tokens

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._profile.vocab_size

    async def status(self) -> ClusterStatus:
        """The cluster as its scheduler sees it.

        Raises:
            DeadlineExceeded: the scheduler does not answer.
        """
        query = next(self._numbers)
        future: asyncio.Future[ClusterStatus] = asyncio.get_running_loop().create_future()
        self._queries[query] = future
        self._scheduler.send(StatusQuery(query_id=query))
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(f"the scheduler did not answer within {STATUS_TIMEOUT_S:g} s") from None
        finally:
            self._queries.pop(query, None)

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, *, timeout_s: float | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        """See ``control.turns.TurnClient.generate``."""
        self._check(prompt, sampling)
        timeout_s = self._profile.deadlines.request_timeout_s if timeout_s is None else timeout_s
        turn = _Turn(prompt, sampling, self._clock.now() + timeout_s)
        self._pending += 1
        try:
            self._submit(turn)
            while True:
                await self._wait(turn, timeout_s)
                arrived, turn.arrived = turn.arrived, []
                for event in arrived:
                    yield event
                if turn.complete:
                    yield self._finished(turn)
                    return
                await self._continue(turn)
        finally:
            self._pending -= 1
            self._forget(turn)

    def _check(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        sampling.checked()
        if self._closing:
            raise RequestFailed("the cluster is shutting down")
        if not prompt:
            raise InvalidRequest("the prompt is empty")
        longest = self._profile.max_context_tokens
        if len(prompt) + sampling.max_tokens > longest:
            raise PromptTooLong(
                f"this cluster's maximum context length is {longest} tokens; the prompt has {len(prompt)} and "
                f"{sampling.max_tokens} more were asked for"
            )
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= self._profile.vocab_size:
            bad = low if low < 0 else high
            raise InvalidRequest(f"token {bad} is outside the vocabulary of {self._profile.vocab_size}")
        if self._pending >= self._profile.max_pending:
            raise Overloaded(f"{self._pending} turns are pending already, as many as this cluster accepts")

    def _submit(self, turn: _Turn) -> None:
        """Start an attempt behind the tokens that have arrived."""
        turn.attempts += 1
        turn.fruitless += 1
        turn.request_id = f"{self._name}/{next(self._numbers)}"
        turn.early.clear()
        turn.done = turn.failure = None
        tokens = array("I", turn.prompt)
        tokens.extend(turn.tokens)
        packed = tokens.tobytes()
        keys = block_keys(self._profile.namespace, packed, self._profile.block_tokens)
        self._turns[turn.request_id] = turn
        self._scheduler.send(
            Submit(
                request_id=turn.request_id,
                prompt=memoryview(packed),
                keys=b"".join(keys),
                sampling=turn.sampling,
                first_position=len(turn.tokens),
                reply_to=self._address,
                timeout_s=turn.deadline - self._clock.now(),
            )
        )

    async def _wait(self, turn: _Turn, timeout_s: float) -> None:
        """Until something has arrived for the turn.

        Raises:
            DeadlineExceeded: nothing did before the turn's deadline.
        """
        remaining = turn.deadline - self._clock.now()
        if turn.done is not None:
            remaining = min(remaining, TOKENS_GRACE_S)
        try:
            async with asyncio.timeout(max(0.0, remaining)):  # wait_for may swallow a cancellation (Python 3.11)
                await turn.wake.wait()
        except TimeoutError:
            if self._clock.now() < turn.deadline:
                turn.failure = f"{turn.done.output_tokens if turn.done else 0} tokens were announced, {len(turn.tokens)} came"
            else:
                raise DeadlineExceeded(f"the turn did not end within {timeout_s:g} s") from None
        turn.wake.clear()
        if turn.error is not None:
            raise turn.error

    async def _continue(self, turn: _Turn) -> None:
        """Start another attempt if this one has failed: at once, or a little later if it gave no new token either.

        Raises:
            RequestFailed: it was the last attempt, or the cluster shuts down.
        """
        if turn.failure is None:
            return
        await asyncio.sleep(min((turn.fruitless - 1) * RETRY_DELAY_S, max(0.0, turn.deadline - self._clock.now())))
        if turn.error is not None:
            raise turn.error
        if turn.tokens and (reason := self._ended(turn)) is not None:
            turn.done = TurnDone(turn.request_id, reason, len(turn.tokens), Stages(), 0, 0, 0)
            turn.wake.set()
            return
        if turn.fruitless >= self._profile.deadlines.max_attempts:
            raise RequestFailed(f"gave up after {turn.fruitless} attempts without a new token: {turn.failure}")
        logger.info("attempt %d of %s failed (%s); resubmitting", turn.attempts, turn.request_id, turn.failure)
        self._forget(turn)
        self._submit(turn)

    def _ended(self, turn: _Turn) -> str | None:
        """Whether the last token ended the turn, although nobody is left to say so."""
        return finish_reason(turn.sampling, len(turn.tokens) - 1, turn.tokens[-1], self._profile.eos_token_ids)

    def _forget(self, turn: _Turn) -> None:
        if self._turns.pop(turn.request_id, None) is not None and turn.done is None and not self._closing:
            self._scheduler.send(CancelTurn(request_id=turn.request_id))

    def _finished(self, turn: _Turn) -> TurnFinished:
        done = turn.done
        assert done is not None
        return TurnFinished(
            finish_reason=done.finish_reason,
            prompt_tokens=len(turn.prompt),
            output_tokens=len(turn.tokens),
            cached_tokens=min(done.cached_tokens, len(turn.prompt)),
            read_prefill_tokens=done.read_prefill_tokens,
            read_decode_tokens=done.read_decode_tokens,
            attempts=turn.attempts,
            scheduling_s=done.stages.scheduling_s,
            allocation_s=done.stages.allocation_s,
            read_s=done.stages.read_s,
            prefill_s=done.stages.prefill_s,
        )

    async def _ping(self) -> None:
        while True:
            self._scheduler.send(ClientPing())
            await asyncio.sleep(PING_INTERVAL_S if self._ready.is_set() else PING_INTERVAL_S / 10)

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Tokens):
            self._on_tokens(message)
        elif isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, StatusReply):
            future = self._queries.get(message.query_id)
            if future is not None and not future.done():
                future.set_result(message.status)
        elif isinstance(message, TurnDone | TurnLost | Rejected):
            self._on_end(message)
        else:
            raise ClusterError(f"unexpected {type(message).__name__}")

    def _on_tokens(self, message: Tokens) -> None:
        turn = self._turns.get(message.request_id)
        if turn is not None:
            for event in message.events:
                turn.accept(event)

    def _on_end(self, message: TurnDone | TurnLost | Rejected) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None:
            return
        if isinstance(message, TurnDone):
            turn.done = message
        elif isinstance(message, Rejected):
            turn.error = PromptTooLong(message.reason)
        elif message.reason == LossReason.TIMED_OUT:
            turn.error = DeadlineExceeded("the turn did not end in time")
        elif message.retryable:
            turn.failure = message.reason
        else:
            turn.error = RequestFailed(message.reason)
        turn.wake.set()

    def _on_welcome(self, message: Welcome) -> None:
        """Note the scheduler's incarnation; a new one knows none of our turns."""
        if self._epoch is not None and message.epoch != self._epoch:
            for turn in self._turns.values():
                if turn.done is None:
                    turn.failure = "the scheduler restarted"
                    turn.wake.set()
        self._epoch = message.epoch
        if message.ready:
            self._ready.set()
        else:
            self._ready.clear()
