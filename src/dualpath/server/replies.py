"""OpenAI's response objects: chat and text completions, whole and in chunks, with log probabilities and usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dualpath.server.stream import Delta, Outcome, PlacedToken
from dualpath.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Completed:
    """A whole turn: its pieces, and how it ended."""

    deltas: tuple[Delta, ...]
    outcome: Outcome

    @property
    def whole(self) -> Delta:
        """All pieces in one."""
        tokens = tuple(token for delta in self.deltas for token in delta.tokens)
        return Delta("".join(delta.text for delta in self.deltas), tokens)


class ReplyFormat(Protocol):
    """What chat and text completions do differently. ``logprobs`` says whether the client asked for them."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def opening(self) -> dict[str, Any] | None:
        """The choice of the chunk before all text."""
        ...

    def piece(self, delta: Delta, logprobs: bool) -> dict[str, Any]:
        """The choice of a chunk with text."""
        ...

    def ending(self, finish_reason: str) -> dict[str, Any]:
        """The choice of the chunk after all text."""
        ...

    def choice(self, index: int, completed: Completed, logprobs: bool) -> dict[str, Any]:
        """A choice of a whole response."""
        ...


class ChatFormat:
    """``/v1/chat/completions``."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self) -> dict[str, Any] | None:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, delta: Delta, logprobs: bool) -> dict[str, Any]:
        return self._chunk({"content": delta.text}, self._logprobs(delta.tokens) if logprobs else None)

    def ending(self, finish_reason: str) -> dict[str, Any]:
        return self._chunk({}, finish_reason=finish_reason)

    def choice(self, index: int, completed: Completed, logprobs: bool) -> dict[str, Any]:
        whole = completed.whole
        return {
            "index": index,
            "message": {"role": "assistant", "content": whole.text, "refusal": None},
            "logprobs": self._logprobs(whole.tokens) if logprobs else None,
            "finish_reason": completed.outcome.finish_reason,
        }

    def _chunk(
        self, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any]:
        content = []
        for placed in tokens:
            event = placed.event
            alternatives = [self._token(token, logprob) for token, logprob in event.top_logprobs]
            content.append({**self._token(event.token, event.logprob), "top_logprobs": alternatives})
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token)
        return {"token": token_text(data), "logprob": logprob, "bytes": list(data)}


class CompletionFormat:
    """``/v1/completions``."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self) -> dict[str, Any] | None:
        return None

    def piece(self, delta: Delta, logprobs: bool) -> dict[str, Any]:
        return self._choice(0, delta, logprobs, None)

    def ending(self, finish_reason: str) -> dict[str, Any]:
        return self._choice(0, Delta(), False, finish_reason)

    def choice(self, index: int, completed: Completed, logprobs: bool) -> dict[str, Any]:
        return self._choice(index, completed.whole, logprobs, completed.outcome.finish_reason)

    def _choice(self, index: int, delta: Delta, logprobs: bool, finish_reason: str | None) -> dict[str, Any]:
        shown = self._logprobs(delta.tokens) if logprobs else None
        return {"index": index, "text": delta.text, "logprobs": shown, "finish_reason": finish_reason}

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any]:
        return {
            "tokens": [self._text(placed.event.token) for placed in tokens],
            "token_logprobs": [placed.event.logprob for placed in tokens],
            "top_logprobs": [self._alternatives(placed) for placed in tokens],
            "text_offset": [placed.offset for placed in tokens],
        }

    def _alternatives(self, placed: PlacedToken) -> dict[str, float | None]:
        """The likeliest tokens and the chosen one; of tokens with the same text the likelier counts."""
        event = placed.event
        shown = {self._text(token): logprob for token, logprob in reversed(event.top_logprobs)}
        return {self._text(event.token): event.logprob} | shown

    def _text(self, token: int) -> str:
        return token_text(self._tokenizer.token_bytes(token), "bytes:")


def token_text(data: bytes, escape_prefix: str = "") -> str:
    r"""A token as text; bytes that are only part of a character are written as ``\xe4\xbd``, as OpenAI does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return escape_prefix + "".join(f"\\x{byte:02x}" for byte in data)


def usage(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """OpenAI's usage object over the turns of a request; the hit is null where a turn's is unknown."""
    prompt_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    output_tokens = sum(outcome.output_tokens for outcome in outcomes)
    cached = [outcome.cached_tokens for outcome in outcomes if outcome.cached_tokens is not None]
    known = len(cached) == len(outcomes)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(cached)} if known else None,
    }


@dataclass(frozen=True, slots=True)
class Reply:
    """One response: the fields that all of its objects share, around a format's choices."""

    format: ReplyFormat
    request_id: str
    created: int
    model: str
    logprobs: bool
    include_usage: bool

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before all text."""
        choice = self.format.opening()
        return [] if choice is None else [self._chunk([choice])]

    def piece(self, delta: Delta) -> list[dict[str, Any]]:
        """Chunks for a piece of text; none where there is nothing to say."""
        worth_sending = delta.text or (self.logprobs and delta.tokens)
        return [self._chunk([self.format.piece(delta, self.logprobs)])] if worth_sending else []

    def ending(self, outcome: Outcome) -> list[dict[str, Any]]:
        """Chunks after all text."""
        last = self._chunk([self.format.ending(outcome.finish_reason)])
        return [last, {**self._chunk([]), "usage": usage([outcome])}] if self.include_usage else [last]

    def whole(self, turns: Sequence[Completed]) -> dict[str, Any]:
        """The response in one object."""
        choices = [self.format.choice(index, completed, self.logprobs) for index, completed in enumerate(turns)]
        return {**self._head(self.format.whole_object), "choices": choices, "usage": usage([turn.outcome for turn in turns])}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head(self.format.chunk_object), "choices": choices}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.format.id_prefix + self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }
