"""Incremental text equals text decoded at once, and stop strings do not depend on how a text is cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dualpath.text.stream import StopStrings, TextStream
from dualpath.text.tokenizer import Tokenizer


def byte_pair_tokenizer() -> Tokenizer:
    """All bytes, and merges that cut characters at odd places."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = [splitter.pre_tokenize_str(text)[0][0] for text in ("世", "界", "👍", "é", " the")]
    merges = [(letters[0], letters[1]) for letters in spelled] + [(spelled[2][2], spelled[2][3])]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = Backend(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(backend, {"eos_token": "<|end|>"}, {})


TOKENIZER = byte_pair_tokenizer()
TEXTS = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("世界👍é the\ufffd")), max_size=40)


def streamed(ids: list[int]) -> str:
    stream = TextStream(TOKENIZER)
    return "".join(map(stream.push, ids)) + stream.finish()


@given(TEXTS)
@settings(deadline=None, max_examples=120)
def test_streamed_text_is_the_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert streamed(ids) == text
    assert b"".join(map(TOKENIZER.token_bytes, ids)) == text.encode()


@given(st.lists(st.integers(0, TOKENIZER.vocab_size + 3), max_size=60))
@settings(deadline=None, max_examples=300)
def test_streamed_tokens_are_the_decoded_tokens(ids: list[int]) -> None:
    assert streamed(ids) == TOKENIZER.decode(ids)


@given(TEXTS)
@settings(deadline=None, max_examples=100)
def test_nothing_given_out_is_a_broken_character(text: str) -> None:
    stream = TextStream(TOKENIZER)
    given_out = ""
    for token in TOKENIZER.encode(text):
        given_out += stream.push(token)
        assert text.startswith(given_out)


def cut_at_first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """By definition: the stop string that ends first, of several the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


SMALL = st.text(alphabet="abc", max_size=25)


@given(st.lists(SMALL, max_size=8), st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4))
@settings(deadline=None, max_examples=200)
def test_stop_strings_by_definition(texts: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    given_out = "".join(map(matcher.push, texts)) + matcher.finish()
    expected, found = cut_at_first_stop("".join(texts), stops)
    assert (given_out, matcher.matched is not None) == (expected, found)


@given(SMALL, st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4))
@settings(deadline=None, max_examples=120)
def test_text_is_held_back_no_longer_than_needed(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    given_out = matcher.push(text)
    held = text[len(given_out) :]
    if matcher.matched is None and held:
        assert any(stop.startswith(held) for stop in stops)
