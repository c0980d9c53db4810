"""A client's turns over lost attempts, disorderly sockets and restarts, with the scheduler played by the test."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dualpath.clock import MonotonicClock
from dualpath.control import client as client_module
from dualpath.control.client import ClientProfile, ClusterClient
from dualpath.control.messages import (
    CancelTurn,
    Message,
    Rejected,
    Stages,
    StatusQuery,
    StatusReply,
    Submit,
    Tokens,
    TurnDone,
    TurnLost,
    Welcome,
)
from dualpath.control.turns import ClusterStatus, SamplingParams, TokenEvent, TurnEvent, TurnFinished
from dualpath.errors import DeadlineExceeded, InvalidRequest, Overloaded, PromptTooLong, RequestFailed
from dualpath.kvcache.chain import block_keys
from dualpath.settings import DeadlineSettings

EOS = 99
NAMESPACE = bytes(16)
PROMPT = list(range(10))


class RecordingPort:
    """Stands in for the connection to the scheduler."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Rig:
    """A client without sockets."""

    def __init__(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "run_directory": Path("/nowhere"),
            "namespace": NAMESPACE,
            "block_tokens": 4,
            "vocab_size": 100,
            "max_context_tokens": 40,
            "eos_token_ids": (EOS,),
            "max_pending": 2,
            "deadlines": DeadlineSettings(max_attempts=2),
        }
        self.client = ClusterClient(ClientProfile(**(values | changes)), MonotonicClock())
        self.client._context.term()
        self.port = RecordingPort()
        self.client._scheduler = self.port  # type: ignore[assignment]

    def hear(self, *messages: Message) -> None:
        for message in messages:
            self.client._on_message(message)

    @property
    def submits(self) -> list[Submit]:
        return [message for message in self.port.sent if isinstance(message, Submit)]

    @property
    def cancelled(self) -> list[str]:
        return [message.request_id for message in self.port.sent if isinstance(message, CancelTurn)]

    def begin(self, max_tokens: int = 8, timeout_s: float | None = 20.0, **params: Any) -> AsyncGenerator[TurnEvent, None]:
        return self.client.generate(PROMPT, SamplingParams(max_tokens=max_tokens, **params), timeout_s=timeout_s)


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_DELAY_S", 0.0)


def tokens(request_id: str, *positions_and_tokens: tuple[int, int]) -> Tokens:
    return Tokens(request_id, tuple(TokenEvent(position, token) for position, token in positions_and_tokens))


def done(request_id: str, output_tokens: int, reason: str = "length", cached: int = 0) -> TurnDone:
    return TurnDone(request_id, reason, output_tokens, Stages(1.0, 2.0, 3.0, 4.0), cached, cached, 0)


def scenario(body: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that is a coroutine."""

    def test() -> None:
        asyncio.run(asyncio.wait_for(body(), 20.0))

    test.__name__ = test.__qualname__ = body.__name__
    return test


async def collect(stream: AsyncGenerator[TurnEvent, None]) -> tuple[list[int], TurnFinished]:
    """The turn's tokens, which come in order of their positions, and its end, which comes last."""
    events = [event async for event in stream]
    *token_events, finished = events
    assert isinstance(finished, TurnFinished)
    found = [event for event in token_events if isinstance(event, TokenEvent)]
    assert [event.position for event in found] == list(range(len(found))) == list(range(len(token_events)))
    return [event.token for event in found], finished


async def settle(rig: Rig, submits: int) -> Submit:
    """Wait until so many attempts have been submitted; the last one."""
    while len(rig.submits) < submits:
        await asyncio.sleep(0)
    assert len(rig.submits) == submits
    return rig.submits[-1]


@scenario
async def test_a_turn_is_submitted_with_its_keys_and_ends_when_all_tokens_are_there() -> None:
    rig = Rig()
    turn = asyncio.create_task(collect(rig.begin()))
    submit = await settle(rig, 1)
    assert array("I", bytes(submit.prompt)).tolist() == PROMPT
    assert submit.keys == b"".join(block_keys(NAMESPACE, PROMPT, 4))
    assert (submit.first_position, submit.reply_to) == (0, rig.client._address)
    assert 19.0 < submit.timeout_s <= 20.0
    # The end comes on another socket than the tokens, which come in any order.
    rig.hear(tokens(submit.request_id, (2, 12)), done(submit.request_id, 3, cached=8), tokens(submit.request_id, (1, 11)))
    await asyncio.sleep(0.01)
    assert not turn.done()
    rig.hear(tokens(submit.request_id, (0, 10)))
    output, finished = await turn
    assert output == [10, 11, 12]
    assert (finished.finish_reason, finished.prompt_tokens, finished.output_tokens) == ("length", 10, 3)
    assert (finished.cached_tokens, finished.read_prefill_tokens, finished.attempts) == (8, 8, 1)
    assert (finished.scheduling_s, finished.allocation_s, finished.read_s, finished.prefill_s) == (1.0, 2.0, 3.0, 4.0)
    assert rig.cancelled == []


@scenario
async def test_a_lost_attempt_is_continued_behind_the_tokens_that_arrived() -> None:
    rig = Rig()
    turn = asyncio.create_task(collect(rig.begin()))
    first = await settle(rig, 1)
    # Position 3 came before position 2, which was lost with the engine.
    rig.hear(tokens(first.request_id, (0, 10), (1, 11), (3, 13)), TurnLost(first.request_id, "engine-lost", True))
    second = await settle(rig, 2)
    assert second.request_id != first.request_id
    assert array("I", bytes(second.prompt)).tolist() == [*PROMPT, 10, 11]
    assert second.keys == b"".join(block_keys(NAMESPACE, [*PROMPT, 10, 11], 4))
    assert second.first_position == 2
    rig.hear(tokens(first.request_id, (2, 66)))  # the old attempt has nothing to say any more
    rig.hear(tokens(second.request_id, (2, 12), (3, 14)), done(second.request_id, 4, cached=12))
    output, finished = await turn
    assert output == [10, 11, 12, 14]
    assert (finished.attempts, finished.output_tokens) == (2, 4)
    assert finished.cached_tokens == len(PROMPT)  # what earlier attempts stored of the output is no hit of the prompt


@scenario
async def test_attempts_without_a_token_are_counted_and_a_token_starts_the_count_again() -> None:
    rig = Rig()
    turn = asyncio.create_task(collect(rig.begin()))
    first = await settle(rig, 1)
    rig.hear(TurnLost(first.request_id, "engine-lost", True))
    second = await settle(rig, 2)
    rig.hear(tokens(second.request_id, (0, 10)), TurnLost(second.request_id, "engine-lost", True))
    third = await settle(rig, 3)
    rig.hear(TurnLost(third.request_id, "engine-lost", True))
    fourth = await settle(rig, 4)
    rig.hear(TurnLost(fourth.request_id, "no page", True))
    with pytest.raises(RequestFailed, match="gave up after 2 attempts without a new token: no page"):
        await turn


@scenario
async def test_a_turn_whose_last_token_arrived_needs_no_other_attempt() -> None:
    for last, reason in ((12, "length"), (EOS, "stop")):
        rig = Rig()
        turn = asyncio.create_task(collect(rig.begin(max_tokens=3 if reason == "length" else 8)))
        first = await settle(rig, 1)
        rig.hear(tokens(first.request_id, (0, 10), (1, 11), (2, last)), TurnLost(first.request_id, "engine-lost", True))
        output, finished = await turn
        assert (output, finished.finish_reason, finished.attempts) == ([10, 11, last], reason, 1)
        assert len(rig.submits) == 1


@scenario
async def test_a_new_scheduler_knows_no_turns_and_gets_them_again() -> None:
    rig = Rig()
    rig.hear(Welcome("one", True))
    turn = asyncio.create_task(collect(rig.begin()))
    first = await settle(rig, 1)
    rig.hear(Welcome("one", True), tokens(first.request_id, (0, 10)))
    await asyncio.sleep(0.01)
    assert len(rig.submits) == 1
    rig.hear(Welcome("two", False))
    second = await settle(rig, 2)
    assert second.first_position == 1
    rig.hear(tokens(second.request_id, (1, 11)), done(second.request_id, 2))
    assert (await turn)[0] == [10, 11]


@scenario
async def test_a_refusal_and_a_final_loss_end_the_turn_with_their_reasons() -> None:
    for end, error, says in (
        (lambda name: Rejected(name, "too many blocks"), PromptTooLong, "too many blocks"),
        (lambda name: TurnLost(name, "a broken model", False), RequestFailed, "a broken model"),
        (lambda name: TurnLost(name, "timed-out", False), DeadlineExceeded, "did not end in time"),
    ):
        rig = Rig()
        turn = asyncio.create_task(collect(rig.begin()))
        submit = await settle(rig, 1)
        rig.hear(end(submit.request_id))
        with pytest.raises(error, match=says):
            await turn
        assert len(rig.submits) == 1


@scenario
async def test_closing_the_stream_cancels_the_turn_unless_it_has_ended() -> None:
    rig = Rig()
    stream = rig.begin()
    first = asyncio.ensure_future(anext(stream))
    submit = await settle(rig, 1)
    rig.hear(tokens(submit.request_id, (0, 10)))
    assert await first == TokenEvent(0, 10)
    assert rig.cancelled == []
    await stream.aclose()
    assert rig.cancelled == [submit.request_id]
    rig.hear(tokens(submit.request_id, (1, 11)), done(submit.request_id, 2))  # too late to matter
    turn = asyncio.create_task(collect(rig.begin()))
    second = await settle(rig, 2)
    rig.hear(tokens(second.request_id, (0, 10)), done(second.request_id, 1))
    await turn
    assert rig.cancelled == [submit.request_id]


@scenario
async def test_the_deadline_ends_the_turn_and_cancels_it() -> None:
    rig = Rig()
    with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s"):
        await collect(rig.begin(timeout_s=0.05))
    assert rig.cancelled == [rig.submits[0].request_id]


@scenario
async def test_tokens_that_were_announced_and_never_came_are_generated_again() -> None:
    rig = Rig()
    client_module_grace = client_module.TOKENS_GRACE_S
    client_module.TOKENS_GRACE_S = 0.05
    try:
        turn = asyncio.create_task(collect(rig.begin()))
        first = await settle(rig, 1)
        rig.hear(tokens(first.request_id, (0, 10)), done(first.request_id, 2))
        second = await settle(rig, 2)
        rig.hear(tokens(second.request_id, (1, 11)), done(second.request_id, 2))
        assert (await turn)[0] == [10, 11]
    finally:
        client_module.TOKENS_GRACE_S = client_module_grace


@scenario
async def test_too_much_at_once_is_refused_and_room_comes_back() -> None:
    rig = Rig()
    streams = [rig.begin() for _ in range(2)]
    running = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await settle(rig, 2)
    with pytest.raises(Overloaded, match="2 turns are pending"):
        await anext(rig.begin())
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    third = asyncio.create_task(collect(rig.begin()))
    submit = await settle(rig, 3)
    rig.hear(tokens(submit.request_id, (0, 10)), done(submit.request_id, 1))
    await third


@scenario
async def test_what_could_never_be_served_is_refused_before_it_is_sent() -> None:
    rig = Rig()
    for error, says, prompt, params in (
        (InvalidRequest, "empty", [], {}),
        (InvalidRequest, "token 100 is outside the vocabulary of 100", [100], {}),
        (InvalidRequest, "token -1 is outside", [-1], {}),
        (PromptTooLong, "is 40 tokens; the prompt has 33 and 8 more", [1] * 33, {}),
        (InvalidRequest, "top_p must be", [1], {"top_p": 0.0}),
        (InvalidRequest, "min_tokens must be", [1], {"min_tokens": 9}),
    ):
        sampling = SamplingParams(**({"max_tokens": 8} | params))
        with pytest.raises(error, match=says):
            await anext(rig.client.generate(prompt, sampling))
    assert rig.port.sent == []


@scenario
async def test_giving_up_just_as_something_arrives_is_still_giving_up() -> None:
    """A wait that ends and is cancelled in the same turn of the loop must not lose the cancellation."""
    rig = Rig()
    turn = asyncio.create_task(collect(rig.begin()))
    submit = await settle(rig, 1)
    await asyncio.sleep(0.01)
    rig.hear(tokens(submit.request_id, (0, 5)))
    await asyncio.sleep(0)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert rig.cancelled == [submit.request_id]
    query = asyncio.create_task(rig.client.status())
    while not any(isinstance(message, StatusQuery) for message in rig.port.sent):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    rig.hear(
        StatusReply(next(message.query_id for message in rig.port.sent if isinstance(message, StatusQuery)), ClusterStatus())
    )
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
