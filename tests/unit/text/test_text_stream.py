"""Whole characters from single tokens, and stop strings across pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from dualpath.text.stream import StopStrings, TextStream


class Bytes:
    """Token n is the byte n; larger ones are special."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def is_silent(self, token: int) -> bool:
        return token >= 256


class SentencePiece:
    """A decoder that drops the first token's space and spells unknown characters in bytes."""

    def __init__(self) -> None:
        pieces = ["▁Hello", "▁world", "!", "<0xE4>", "<0xBD>", "<0xA0>"]
        self._backend = Backend(models.BPE({piece: index for index, piece in enumerate(pieces)}, [], byte_fallback=True))
        self._backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(list(ids))

    def is_silent(self, token: int) -> bool:
        return token > 5


def pieces(decoder: Bytes | SentencePiece, ids: Sequence[int]) -> list[str]:
    stream = TextStream(decoder)
    return [*map(stream.push, ids), stream.finish()]


def test_ascii_comes_at_once() -> None:
    assert pieces(Bytes(), b"abc") == ["a", "b", "c", ""]


def test_a_character_comes_with_its_last_byte() -> None:
    assert pieces(Bytes(), "é世👍x".encode()) == ["", "é", "", "", "世", "", "", "", "👍", "x", ""]


def test_an_incomplete_character_comes_at_the_end() -> None:
    assert pieces(Bytes(), b"a\xe4\xb8") == ["a", "", "", "\ufffd"]


def test_special_tokens_do_not_separate_bytes() -> None:
    assert pieces(Bytes(), [0xC3, 300, 0xA9]) == ["", "", "é", ""]


def test_endless_garbage_stays_bounded() -> None:
    stream = TextStream(Bytes())
    text = "".join(stream.push(0xE4) for _ in range(1000)) + stream.finish()
    assert text == "\ufffd" * 1000
    assert len(stream._window) <= 80


def test_endless_special_tokens_stay_bounded() -> None:
    stream = TextStream(Bytes())
    assert {stream.push(300) for _ in range(1000)} == {""}
    assert not stream._window


def test_spaces_between_words_stay() -> None:
    assert pieces(SentencePiece(), [0, 9, 1, 2, 1]) == ["Hello", "", " world", "!", " world", ""]


def test_characters_spelled_in_bytes() -> None:
    assert pieces(SentencePiece(), [0, 3, 4, 5, 1]) == ["Hello", "", "", "你", " world", ""]


def matched(stops: list[str], texts: list[str]) -> tuple[list[str], str | None]:
    stop = StopStrings(stops)
    return [*map(stop.push, texts), stop.finish()], stop.matched


@pytest.mark.parametrize(
    ("stops", "texts", "expected", "match"),
    [
        ([], ["a", "b"], ["a", "b", ""], None),
        (["END"], ["to E", "ND more", "and more"], ["to ", "", "", ""], "END"),
        (["END"], ["xE", "N", "x"], ["x", "", "ENx", ""], None),
        (["END"], ["xEN"], ["x", "EN"], None),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", "", ""], "\n\n"),
        (["abcd", "bc"], ["abc", "d"], ["a", "", ""], "bc"),
        (["abc", "c"], ["xab", "c"], ["x", "", ""], "abc"),
        (["b", "a"], ["xab"], ["x", ""], "a"),
        (["aab"], ["aa", "a", "b"], ["", "a", "", ""], "aab"),
    ],
)
def test_stop_strings(stops: list[str], texts: list[str], expected: list[str], match: str | None) -> None:
    assert matched(stops, texts) == (expected, match)


def test_an_empty_stop_string_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings([""])
