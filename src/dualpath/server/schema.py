"""Requests of the OpenAI API: decoding, validation that names the field, and what they ask of the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from dualpath.control.turns import MAX_LOGPROBS, SamplingParams
from dualpath.errors import PromptTooLong
from dualpath.server.errors import InvalidParameter
from dualpath.text.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16
_MAX_INT = 2**31 - 1

Count = Annotated[int, Meta(ge=0, le=_MAX_INT)]
Positive = Annotated[int, Meta(ge=1, le=_MAX_INT)]
TokenId = Annotated[int, Meta(ge=0, le=_MAX_INT)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
StopText = Annotated[str, Meta(min_length=1)]

SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "use_beam_search": (False,),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "prompt_logprobs": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Parameters that change the output and are not implemented, with the values that ask for nothing (null always does)."""


class StreamOptions(msgspec.Struct):
    """Options of a streamed response."""

    include_usage: bool | None = None


class _CommonFields(msgspec.Struct, kw_only=True):
    """What both endpoints take; null means the default everywhere."""

    model: str | None = None
    max_tokens: Positive | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_MAX_INT)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that carries the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def check(self) -> None:
        """Rules over several fields.

        Raises:
            InvalidParameter: one is broken.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter("stream_options needs stream to be true", "stream_options")


class ChatRequest(_CommonFields, kw_only=True):
    """Body of ``POST /v1/chat/completions``."""

    noun: ClassVar[str] = "messages"

    messages: list[dict[str, Any]]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def turns(self) -> int:
        """How many prompts the request has."""
        return 1

    @property
    def top_logprobs_count(self) -> int | None:
        """Alternatives wanted with each token, None where no log probabilities are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def output_tokens(self, room: int) -> int:
        """The limit of the output, where the context has ``room`` tokens left."""
        return self.max_completion_tokens or self.max_tokens or room

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The prompts' tokens; takes CPU time in proportion to their length."""
        tools = None if self.tool_choice == "none" else self.tools
        return [tokenizer.encode_chat(self.messages, tools=tools, template_arguments=self.chat_template_kwargs)]

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidParameter("top_logprobs needs logprobs to be true", "top_logprobs")
        if not self.messages:
            raise InvalidParameter("messages must not be empty", "messages")


class CompletionRequest(_CommonFields, kw_only=True):
    """Body of ``POST /v1/completions``: one prompt as text or token ids, or a list of such prompts."""

    noun: ClassVar[str] = "prompt"

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Logprobs | None = None

    @property
    def turns(self) -> int:
        """How many prompts the request has."""
        return len(self._prompt_list())

    @property
    def top_logprobs_count(self) -> int | None:
        """Alternatives wanted with each token, None where no log probabilities are wanted."""
        return self.logprobs

    def output_tokens(self, room: int) -> int:
        """The limit of the output, where the context has ``room`` tokens left."""
        return self.max_tokens or min(DEFAULT_COMPLETION_TOKENS, room)

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The prompts' tokens; takes CPU time in proportion to their length."""
        return [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in self._prompt_list()]

    def check(self) -> None:
        super().check()
        prompts = self._prompt_list()
        if not all(prompts) or not prompts:
            raise InvalidParameter("prompt must not be empty", "prompt")
        if self.stream and len(prompts) > 1:
            raise InvalidParameter("prompt: only one prompt can be streamed", "prompt")

    def _prompt_list(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [item for item in self.prompt if isinstance(item, int)]
        if len(ids) == len(self.prompt):
            return [ids]
        prompts = [item for item in self.prompt if not isinstance(item, int)]
        if ids:
            raise InvalidParameter("prompt mixes token ids with whole prompts", "prompt")
        return prompts


TurnRequest = ChatRequest | CompletionRequest


def decode_request(body: bytes, kind: type[ChatRequest] | type[CompletionRequest]) -> TurnRequest:
    """A request from its JSON body. Unknown fields are ignored, as OpenAI's clients keep adding some.

    Raises:
        InvalidParameter: the body is no JSON, a field has a wrong type or value, or asks for what is not implemented.
    """
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidParameter(f"the body is no valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidParameter("the body is nested too deeply") from error
    if not isinstance(fields, dict):
        raise InvalidParameter("the body must be a JSON object")
    _refuse_unsupported(fields)
    try:
        request = msgspec.convert(fields, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from error
    request.check()
    return request


def sampling_params(
    request: TurnRequest, prompt: list[int], max_context_tokens: int, tokenizer: Tokenizer, new_seed: Callable[[], int]
) -> SamplingParams:
    """How the cluster shall answer ``prompt``.

    Raises:
        PromptTooLong: prompt and output exceed the context; the message has OpenAI's wording and the numbers.
        InvalidRequest: the prompt is empty or not of this vocabulary, or a value is out of range.
    """
    if not prompt or max(prompt) >= tokenizer.vocab_size:
        rule = f"must hold token ids below {tokenizer.vocab_size}" if prompt else "must not be empty"
        raise InvalidParameter(f"{request.noun} {rule}", request.noun)
    room = max_context_tokens - len(prompt)
    max_tokens = request.output_tokens(max(room, 1))
    if max_tokens > room:
        raise PromptTooLong(
            f"This model's maximum context length is {max_context_tokens} tokens. However, you requested "
            f"{len(prompt) + max_tokens} tokens ({len(prompt)} in the {request.noun}, {max_tokens} in the completion). "
            f"Please reduce the length of the {request.noun} or completion."
        )
    # A special token has no text that could match: as a stop string it means the token itself.
    stop_ids = {number for text in request.stops if (number := tokenizer.special_token_id(text)) is not None}
    seed = new_seed() if request.seed is None else request.seed
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        seed=seed & (2**63 - 1),
        stop_token_ids=tuple(sorted({*(request.stop_token_ids or ()), *stop_ids})),
        ignore_eos=bool(request.ignore_eos),
        logprobs=request.top_logprobs_count,
    ).checked()


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name in SUPPORTED_VALUES.keys() & fields.keys():
        value, supported = fields[name], SUPPORTED_VALUES[name]
        if value is not None and not any(_same(value, other) for other in supported):
            choice = f"; only {' or '.join(msgspec.json.encode(other).decode() for other in supported)} is" if supported else ""
            raise InvalidParameter(f"{name}: this value is not supported{choice}", name)


def _same(value: Any, other: Any) -> bool:
    """Equal as JSON values: ``true`` is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _named(message: str) -> InvalidParameter:
    """msgspec's message with the field in front."""
    plain = message.replace("`", "")
    if missing := re.fullmatch(r"Object missing required field (\w+)(?: - at .*)?", plain):
        return InvalidParameter(f"{missing[1]} is required", missing[1])
    reason, _, path = plain.partition(" - at $.")
    field = re.match(r"\w+", path)
    name = field[0] if field else None
    return InvalidParameter(f"{path}: {reason[:1].lower()}{reason[1:]}" if path else reason, name)
