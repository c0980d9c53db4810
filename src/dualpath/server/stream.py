"""A turn's events as pieces of text with their tokens, and pieces as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from dualpath.control.turns import SamplingParams, TokenEvent, TurnClient, TurnFinished
from dualpath.errors import RequestFailed
from dualpath.server.metrics import TurnTimer
from dualpath.text.stream import StopStrings, TextStream
from dualpath.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token of the output; its text begins at character ``offset``."""

    event: TokenEvent
    offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that became certain, and the tokens that begin in it."""

    text: str = ""
    tokens: tuple[PlacedToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended. ``cached_tokens`` is None where the turn was ended here before anybody said."""

    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


class TurnText:
    """Assembles the text of one turn: whole characters, cut at stop strings, without the token that ended it.

    A token in ``ending_ids`` waits for the next event, which tells whether it ended the turn (it then has no text) or
    was an ordinary one.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], ending_ids: frozenset[int]) -> None:
        self._stream = TextStream(tokenizer)
        self._stops = StopStrings(stops)
        self._ending_ids = ending_ids
        self._ending: TokenEvent | None = None
        self._waiting: list[PlacedToken] = []
        self._decoded = 0
        self._released = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the text is complete."""
        return self._stops.matched is not None

    def push(self, event: TokenEvent) -> Delta:
        """What this token makes certain, perhaps nothing."""
        text = self._take_ending()
        if event.token in self._ending_ids:
            self._ending = event
        else:
            text += self._take(event)
        return self._release(text)

    def finish(self, finish_reason: str) -> Delta:
        """The rest of the text."""
        text = "" if finish_reason == "stop" else self._take_ending()
        text += self._stops.push(self._stream.finish()) + self._stops.finish()
        delta = self._release(text)
        return delta if self.stopped else Delta(delta.text, delta.tokens + tuple(self._waiting))

    def _take_ending(self) -> str:
        ending, self._ending = self._ending, None
        return "" if ending is None else self._take(ending)

    def _take(self, event: TokenEvent) -> str:
        self._waiting.append(PlacedToken(event, self._decoded))
        piece = self._stream.push(event.token)
        self._decoded += len(piece)
        return self._stops.push(piece)

    def _release(self, text: str) -> Delta:
        self._released += len(text)
        tokens = tuple(token for token in self._waiting if token.offset < self._released)
        del self._waiting[: len(tokens)]
        return Delta(text, tokens)


async def turn_deltas(
    client: TurnClient, prompt: Sequence[int], sampling: SamplingParams, text: TurnText, timer: TurnTimer
) -> AsyncGenerator[Delta | Outcome, None]:
    """The pieces of one turn, an Outcome last. Closing it, or finding a stop string, cancels the turn in the cluster.

    Raises:
        DualPathError: whatever ends the turn before its time.
    """
    received, cached_tokens = 0, None
    async with aclosing(client.generate(prompt, sampling)) as events:
        async for event in events:
            if isinstance(event, TurnFinished):
                yield text.finish(event.finish_reason)
                reason = "stop" if text.stopped else event.finish_reason
                timer.finished(reason, event.prompt_tokens)
                yield Outcome(reason, event.prompt_tokens, event.output_tokens, event.cached_tokens)
                return
            received += 1
            timer.token()
            cached_tokens = event.cached_tokens if cached_tokens is None else cached_tokens
            yield text.push(event)
            if text.stopped:
                timer.finished("stop", len(prompt))
                yield Outcome("stop", len(prompt), received, cached_tokens)
                return
    raise RequestFailed("the cluster dropped the turn without an end")


class EventStream:
    """A response of server-sent events, begun with the first of them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def event(self, payload: dict[str, Any]) -> None:
        """Send one JSON event."""
        await self._write(msgspec.json.encode(payload))

    async def done(self) -> None:
        """Send OpenAI's end mark."""
        await self._write(b"[DONE]")

    async def close(self) -> None:
        """End the response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, data: bytes) -> None:
        if not self.started:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self.started = True
        await self._send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
