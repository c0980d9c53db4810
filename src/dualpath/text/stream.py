"""Text of a turn while it is generated: whole characters from single tokens, and stop strings across them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
_LONGEST_INCOMPLETE = 3  # bytes of a UTF-8 character that still lacks its last one
_LONGEST_WINDOW = 64


class Decoder(Protocol):
    """The part of a tokenizer that incremental decoding needs."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def is_silent(self, token: int) -> bool: ...


class TextStream:
    """Decodes one token at a time; the pieces and the last one from ``finish`` make up the text of the whole.

    Decoding is not additive: a character's bytes may be spread over tokens, and some decoders treat the first token
    apart. Each push therefore decodes a short window, the tokens of the last piece and those since, and gives what
    is new. A trailing U+FFFD may be a character that is not complete yet and is held back.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._context = 0  # tokens of the window that only give context
        self._given = 0  # characters of the window's text that were given out

    def push(self, token: int) -> str:
        """The text that this token completes, perhaps none."""
        if self._tokenizer.is_silent(token):
            return ""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        complete = len(text) if len(self._window) > _LONGEST_WINDOW else _complete_length(text)
        piece = text[self._given : complete]
        self._given = max(self._given, complete)
        if piece and complete == len(text):
            self._slide()
        return piece

    def finish(self) -> str:
        """What was held back; the stream is over."""
        return self._tokenizer.decode(self._window)[self._given :]

    def _slide(self) -> None:
        """Forget the old context: the tokens just given out are the new one."""
        del self._window[: self._context]
        self._context = len(self._window)
        self._given = len(self._tokenizer.decode(self._window))


def _complete_length(text: str) -> int:
    """Characters of ``text`` that no later token can change."""
    held = 0
    while held < _LONGEST_INCOMPLETE and text.endswith(REPLACEMENT, 0, len(text) - held):
        held += 1
    return len(text) - held


class StopStrings:
    """Cuts a text in front of the stop string that is complete first; of several, the longest.

    Text that may be the beginning of a stop string is held back until it cannot be one any more, so the result does
    not depend on how the text was cut into pieces.

    Attributes:
        matched: the stop string that was found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """The text that may be given out now; nothing more after a match."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, cut, self.matched = min(found)
            self._held = ""
            return text[:cut]
        cut = len(text) - self._possible_beginning(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """What was held back; the text is over."""
        held, self._held = self._held, ""
        return held

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        return next(
            (length for length in range(longest, 0, -1) if any(stop.startswith(text[-length:]) for stop in self._stops)), 0
        )
