"""Whatever a client sends: an answer, or a refusal of one line; never an internal error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dualpath.clock import ManualClock
from dualpath.control.turns import ClusterStatus, SamplingParams, TokenEvent, TurnEvent, TurnFinished
from dualpath.server.app import create_app
from dualpath.settings import ServerSettings
from dualpath.text.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role + m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(backend, {"eos_token": "<|end|>"}, {"default": TEMPLATE})


class Echo:
    """Answers with the prompt's first tokens, after checking what it is asked."""

    max_context_tokens = 500

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, *, timeout_s: float | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        sampling.checked()
        assert 0 < len(prompt) <= self.max_context_tokens - sampling.max_tokens
        assert all(0 <= token <= 256 for token in prompt)
        output = prompt[: sampling.max_tokens]
        for position, token in enumerate(output):
            yield TokenEvent(position, token, None if sampling.logprobs is None else -1.0)
        yield TurnFinished(finish_reason="length", prompt_tokens=len(prompt), output_tokens=len(output), cached_tokens=0)

    async def status(self) -> ClusterStatus:
        return ClusterStatus()


TOKENIZER = byte_tokenizer()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    *("model", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "stop", "n"),
    *("stop_token_ids", "ignore_eos", "stream", "stream_options", "logprobs", "top_logprobs", "tools", "tool_choice"),
    *("response_format", "logit_bias", "presence_penalty", "echo", "suffix", "best_of", "chat_template_kwargs", "user"),
]
FIELDS = st.dictionaries(st.sampled_from(NAMES), JSON | st.integers(-2, 30) | st.floats(0, 1), max_size=4)
TOOL_CALLS = st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": JSON, "arguments": JSON})}), max_size=2)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]) | JSON, "content": st.text(max_size=20) | JSON},
    optional={"tool_calls": TOOL_CALLS | JSON, "name": JSON},
)
CHATS = st.builds(lambda fields, messages: {**fields, "messages": messages}, FIELDS, st.lists(MESSAGE, max_size=3) | JSON)
PROMPTS = st.text(max_size=20) | st.lists(st.integers(-1, 300), max_size=4) | st.lists(st.text(max_size=4), max_size=3) | JSON
COMPLETIONS = st.builds(lambda fields, prompt: {**fields, "prompt": prompt}, FIELDS, PROMPTS)


def post(path: str, content: bytes) -> httpx.Response:
    async def main() -> httpx.Response:
        app = create_app(Echo(), TOKENIZER, ServerSettings(), "tiny", ManualClock())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            return await client.post(path, content=content)

    return asyncio.run(main())


def check(response: httpx.Response) -> None:
    if response.status_code == 200:
        return
    error = response.json()["error"]
    assert response.status_code in (400, 404), error
    assert error["message"]
    assert "\n" not in error["message"]


@given(CHATS)
@settings(deadline=None, max_examples=100)
def test_chats(body: dict[str, Any]) -> None:
    check(post("/v1/chat/completions", json.dumps(body).encode()))


@given(COMPLETIONS)
@settings(deadline=None, max_examples=100)
def test_completions(body: dict[str, Any]) -> None:
    check(post("/v1/completions", json.dumps(body).encode()))


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(deadline=None, max_examples=60)
def test_bodies(body: bytes) -> None:
    assert post("/v1/chat/completions", body).status_code == 400


@given(st.text(min_size=1, max_size=60), st.integers(1, 70))
@settings(deadline=None, max_examples=50)
def test_streamed_and_whole_text_agree(prompt: str, max_tokens: int) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens}
    whole = post("/v1/completions", json.dumps(body).encode())
    streamed = post("/v1/completions", json.dumps({**body, "stream": True}).encode())
    blocks = [block[6:] for block in streamed.text.split("\n\n") if block and block != "data: [DONE]"]
    text = "".join(json.loads(block)["choices"][0]["text"] for block in blocks)
    assert text == whole.json()["choices"][0]["text"]
