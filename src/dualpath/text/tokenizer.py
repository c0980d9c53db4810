"""A model directory's tokenizer: text to tokens, tokens to text, and the bytes behind one token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from dualpath.errors import InvalidRequest, ModelError
from dualpath.text.chat import ChatTemplate, load_templates

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "▁"


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary (GPT-2's printable stand-ins)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_alphabet()


class Tokenizer:
    """A Hugging Face fast tokenizer with the special tokens and chat templates of its directory. Thread-safe.

    Attributes:
        special_tokens: the named special tokens (``eos_token`` …) as text.
        eos_token_ids: tokens that end a turn, as the tokenizer and the generation config name them.
        vocab_size: one more than the largest token id.
        chat: the chat template, None where the directory has none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any],
        templates: Mapping[str, str],
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self._backend = backend
        self.special_tokens = _named_tokens(config)
        _apply_config(backend, config, self.special_tokens)
        added = backend.get_added_tokens_decoder()
        self._special_ids = {token.content: number for number, token in added.items() if token.special}
        self._hidden_ids = frozenset(self._special_ids.values())
        self._added_ids = frozenset(added)
        self.eos_token_ids = frozenset({*eos_token_ids, *self._ids_of("eos_token")})
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        # The decoder's own description says how pieces spell bytes and spaces.
        decoder = "" if backend.decoder is None else backend.decoder.__getstate__().decode()
        self._byte_level, self._metaspace = "ByteLevel" in decoder, _METASPACE in decoder
        self.chat = ChatTemplate(templates, self.special_tokens) if templates else None

    @classmethod
    def from_directory(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a Hugging Face model directory.

        Raises:
            ModelError: ``tokenizer.json`` is missing, or one of the directory's files is malformed; names the file.
        """
        directory = Path(path)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{directory} has no tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more precise
            raise ModelError(f"{file} is no tokenizer: {error}") from error
        config = {**_read_json(directory / "special_tokens_map.json"), **_read_json(directory / "tokenizer_config.json")}
        ends = _read_json(directory / "generation_config.json").get("eos_token_id")
        eos_token_ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
        return cls(backend, config, load_templates(directory, config), eos_token_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of ``text``, with the directory's beginning and end tokens unless ``add_special_tokens`` is off.

        Special tokens that are spelled out in the text become those tokens. Other threads run meanwhile.

        Raises:
            InvalidRequest: the text is no valid Unicode (a lone surrogate).
        """
        try:
            # Unlike `encode`, the batch call releases the interpreter lock.
            encoding = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("the text is no valid Unicode: it contains a lone surrogate") from error
        return list(encoding.ids)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Tokens of a conversation up to where the assistant's next message begins.

        Raises:
            InvalidRequest: there is no chat template, or it refuses the messages.
        """
        if self.chat is None:
            raise InvalidRequest("the model has no chat template; use /v1/completions")
        text = self.chat.render(messages, tools=tools, template_arguments=template_arguments)
        return self.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of tokens; ids outside the vocabulary have none, bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def is_silent(self, token: int) -> bool:
        """Whether a token has no text of its own: a special one, or an id outside the vocabulary."""
        return token in self._hidden_ids or self._backend.id_to_token(token) is None

    def special_token_id(self, text: str) -> int | None:
        """The special token spelled exactly ``text``."""
        return self._special_ids.get(text)

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a token stands for, perhaps only a part of a character; empty outside the vocabulary."""
        piece = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if token in self._added_ids:
            return piece.encode()
        if self._byte_level:
            return b"".join(
                bytes((_BYTE_OF_CHARACTER[letter],)) if letter in _BYTE_OF_CHARACTER else letter.encode() for letter in piece
            )
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes((int(match[1], 16),))
        return (piece.replace(_METASPACE, " ") if self._metaspace else self._backend.decode([token])).encode()

    def _ids_of(self, role: str) -> list[int]:
        token = self._backend.token_to_id(self.special_tokens.get(role, ""))
        return [] if token is None else [token]


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by their role; a config gives them as text or as an object with ``content``."""
    values = {role: config.get(role) for role in SPECIAL_ROLES}
    texts = {role: value.get("content") if isinstance(value, dict) else value for role, value in values.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _apply_config(backend: tokenizers.Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """What a tokenizer's config changes in its ``tokenizer.json``: special tokens, and which of them encoding adds."""
    backend.no_truncation()
    backend.no_padding()
    known = {text for text in named.values() if backend.token_to_id(text) is not None}
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in sorted(known)])
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    before = [named["bos_token"]] if config.get("add_bos_token") and named.get("bos_token") in known else []
    after = [named["eos_token"]] if config.get("add_eos_token") and named.get("eos_token") in known else []
    # An explicit choice replaces the post-processor, also where it is "neither".
    backend.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[(text, number) for text in {*before, *after} if (number := backend.token_to_id(text)) is not None],
    )


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where the file does not exist."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} is no JSON object")
    return content
