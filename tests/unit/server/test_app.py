"""The API without sockets: shapes of responses, errors, limits and metrics, in front of a scripted cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dualpath.clock import ManualClock
from dualpath.control.turns import ClusterStatus, EngineStatus, SamplingParams, TokenEvent, TurnEvent, TurnFinished
from dualpath.errors import Cancelled, DeadlineExceeded, InvalidRequest, Overloaded, RequestFailed
from dualpath.server.app import create_app
from dualpath.settings import ServerSettings
from dualpath.text.tokenizer import Tokenizer

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "tiny", "prompt": "hi"}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}[{{ tools | length }}]{% endif %}<a>"


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token; token 256 ends a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(backend, {"eos_token": "<|end|>"}, {"default": TEMPLATE})


TOKENIZER = byte_tokenizer()
END = 256
READY = ClusterStatus(
    engines=(
        EngineStatus(
            name="prefill-0",
            role="prefill",
            node="p0",
            storage_read_bytes=100,
            read_queue_tokens=7,
            transfer_bytes={"handoff": 5, "layer-load": 2},
        ),
        EngineStatus(
            name="decode-0",
            role="decode",
            node="d0",
            storage_read_bytes=30,
            kv_blocks=10,
            kv_blocks_free=4,
            transfer_bytes={"handoff": 1},
            bad_blocks=2,
        ),
    ),
    running=3,
    waiting=2,
    lookup_tokens=1000,
    hit_tokens=640,
)


class ScriptedCluster:
    """Answers every turn with the same text and end, or an error after some tokens."""

    max_context_tokens = 200

    def __init__(
        self,
        text: str = "Hello",
        *,
        finish_reason: str = "stop",
        error: Exception | None = None,
        clock: ManualClock | None = None,
        status: ClusterStatus | Exception = READY,
        cached_first: int | None = None,
    ) -> None:
        self.tokens = TOKENIZER.encode(text) + ([END] if finish_reason == "stop" else [])
        self.finish_reason = finish_reason
        self.error = error
        self.clock = clock or ManualClock()
        self.reported = status
        self.cached_first = cached_first
        self.calls: list[tuple[list[int], SamplingParams]] = []
        self.closed = 0

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, *, timeout_s: float | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        self.calls.append((list(prompt), sampling))
        try:
            for position, token in enumerate(self.tokens):
                self.clock.advance(0.25 if position == 0 else 0.03)
                alternatives = ((token, -0.5), (TOKENIZER.encode("z")[0], -2.0)) if sampling.logprobs else ()
                logprob = None if sampling.logprobs is None else -0.5
                yield TokenEvent(position, token, logprob, alternatives, self.cached_first if position == 0 else None)
            if self.error is not None:
                raise self.error
            yield TurnFinished(
                finish_reason=self.finish_reason, prompt_tokens=len(prompt), output_tokens=len(self.tokens), cached_tokens=64
            )
        finally:
            self.closed += 1

    async def status(self) -> ClusterStatus:
        if isinstance(self.reported, Exception):
            raise self.reported
        return self.reported


def with_client(
    cluster: ScriptedCluster, use: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    """Run ``use`` with a client of an application in front of ``cluster``."""

    async def main() -> None:
        app = create_app(cluster, TOKENIZER, ServerSettings(**settings), "tiny", cluster.clock, new_seed=lambda: 42)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await use(client)

    asyncio.run(main())


def post(path: str, body: Any, cluster: ScriptedCluster | None = None, **options: Any) -> httpx.Response:
    """One request's response; ``body`` is JSON unless it is bytes."""
    responses = []
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = options.pop("headers", {})

    async def use(client: httpx.AsyncClient) -> None:
        responses.append(await client.post(path, content=content, headers=headers))

    with_client(cluster or ScriptedCluster(), use, **options)
    return responses[0]


def get(path: str, cluster: ScriptedCluster | None = None, **options: Any) -> httpx.Response:
    responses = []

    async def use(client: httpx.AsyncClient) -> None:
        responses.append(await client.get(path))

    with_client(cluster or ScriptedCluster(), use, **options)
    return responses[0]


def chat(cluster: ScriptedCluster | None = None, **changes: Any) -> httpx.Response:
    return post("/v1/chat/completions", {**CHAT, **changes}, cluster)


def completion(cluster: ScriptedCluster | None = None, **changes: Any) -> httpx.Response:
    return post("/v1/completions", {**COMPLETION, **changes}, cluster)


def events(response: httpx.Response) -> list[Any]:
    """The JSON of a stream's events, with its end mark as text."""
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [block[6:] if block[6:] == "[DONE]" else json.loads(block[6:]) for block in blocks]


def error(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in body["error"]["message"]
    return dict(body["error"])


# whole responses


def test_a_chat() -> None:
    cluster = ScriptedCluster("Hällo")
    response = chat(cluster, max_tokens=10, temperature=0)
    body = response.json()
    assert (response.status_code, body.pop("created") > 1.7e9, body.pop("id")[:9]) == (200, True, "chatcmpl-")
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hällo", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 64},
        },
    }
    assert TOKENIZER.decode(cluster.calls[0][0]) == "<user>hi<a>"


def test_a_completion() -> None:
    body = completion(ScriptedCluster("Hello", finish_reason="length")).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (TOKENIZER.encode("ab"), ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([TOKENIZER.encode("ab"), "c"], ["ab", "c"]),
    ],
)
def test_prompts_of_all_kinds(prompt: Any, expected: list[str]) -> None:
    cluster = ScriptedCluster()
    body = completion(cluster, prompt=prompt).json()
    assert sorted(TOKENIZER.decode(tokens) for tokens, _ in cluster.calls) == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_defaults() -> None:
    cluster = ScriptedCluster()
    chat(cluster)
    completion(cluster)
    assert cluster.calls[0][1] == SamplingParams(max_tokens=200 - 11, temperature=1.0, seed=42)
    assert cluster.calls[1][1] == SamplingParams(max_tokens=16, temperature=1.0, seed=42)


def test_every_parameter_reaches_the_cluster() -> None:
    cluster = ScriptedCluster()
    given = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7, "min_tokens": 3}
    chat(cluster, **given, ignore_eos=True, stop_token_ids=[5, 3], logprobs=True, top_logprobs=2, user="me", metadata={})
    assert cluster.calls[0][1] == SamplingParams(
        max_tokens=9,
        min_tokens=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=7,
        stop_token_ids=(3, 5),
        ignore_eos=True,
        logprobs=2,
    )


def test_nulls_are_defaults() -> None:
    cluster = ScriptedCluster()
    names = ("max_tokens", "temperature", "top_p", "top_k", "stop", "stream", "n", "logprobs", "tools", "response_format")
    assert chat(cluster, **dict.fromkeys(names)).status_code == 200
    assert cluster.calls[0][1].temperature == 1.0


def test_the_newer_limit_wins() -> None:
    cluster = ScriptedCluster()
    chat(cluster, max_tokens=9, max_completion_tokens=4, top_k=-1, seed=-1)
    sampling = cluster.calls[0][1]
    assert (sampling.max_tokens, sampling.top_k, sampling.seed) == (4, 0, 2**63 - 1)


def test_tools_reach_the_template_unless_switched_off() -> None:
    cluster, tools = ScriptedCluster(), [{"type": "function", "function": {"name": "f"}}]
    chat(cluster, tools=tools)
    chat(cluster, tools=tools, tool_choice="none")
    assert [TOKENIZER.decode(prompt) for prompt, _ in cluster.calls] == ["<user>hi[1]<a>", "<user>hi<a>"]


# stop strings and tokens


@pytest.mark.parametrize("stop", ["o w", ["xyz", "o w"]])
def test_a_stop_string_ends_the_turn_in_the_cluster(stop: Any) -> None:
    cluster = ScriptedCluster("Hello world", cached_first=128)
    body = chat(cluster, stop=stop).json()
    assert body["choices"][0]["message"]["content"] == "Hell"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 7
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 128}
    assert cluster.closed == 1


def test_an_unknown_hit_is_not_reported_as_none() -> None:
    assert chat(ScriptedCluster("Hello"), stop="l").json()["usage"]["prompt_tokens_details"] is None


def test_a_special_token_as_stop_string_means_the_token() -> None:
    cluster = ScriptedCluster()
    chat(cluster, stop=["<|end|>"])
    assert cluster.calls[0][1].stop_token_ids == (END,)


def test_a_stop_token_leaves_no_text() -> None:
    cluster = ScriptedCluster("ab")
    cluster.tokens = TOKENIZER.encode("abx")
    x = TOKENIZER.encode("x")[0]
    body = completion(cluster, stop_token_ids=[x], logprobs=0).json()
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["logprobs"]["tokens"] == ["a", "b"]


def test_a_stop_token_that_does_not_stop_is_text() -> None:
    cluster = ScriptedCluster("axb")
    x = TOKENIZER.encode("x")[0]
    assert completion(cluster, stop_token_ids=[x], min_tokens=3).json()["choices"][0]["text"] == "axb"


def test_half_a_stop_string_is_text() -> None:
    assert chat(ScriptedCluster("Hello"), stop="lot").json()["choices"][0]["message"]["content"] == "Hello"


# log probabilities


def test_logprobs_of_a_chat() -> None:
    content = chat(ScriptedCluster("aé"), logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    z = {"token": "z", "logprob": -2.0, "bytes": [122]}
    a, first, second = (
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "\\xc3", "logprob": -0.5, "bytes": [0xC3]},
        {"token": "\\xa9", "logprob": -0.5, "bytes": [0xA9]},
    )
    assert content == [{**token, "top_logprobs": [token, z]} for token in (a, first, second)]


def test_logprobs_without_alternatives() -> None:
    content = chat(ScriptedCluster("a"), logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert content == [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]


def test_logprobs_of_a_completion() -> None:
    assert completion(ScriptedCluster("aéz"), logprobs=2).json()["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "z"],
        "token_logprobs": [-0.5] * 4,
        "top_logprobs": [
            {"a": -0.5, "z": -2.0},
            {"bytes:\\xc3": -0.5, "z": -2.0},
            {"bytes:\\xa9": -0.5, "z": -2.0},
            {"z": -0.5},
        ],
        "text_offset": [0, 1, 1, 2],
    }


def test_logprobs_end_with_the_text() -> None:
    body = completion(ScriptedCluster("abXYc"), logprobs=0, stop="XY").json()
    assert body["choices"][0]["logprobs"]["tokens"] == ["a", "b"]


# streams


def test_a_chat_stream() -> None:
    response = chat(ScriptedCluster("Hé"), stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", "tiny")
    }
    assert "usage" not in chunks[0]
    assert [(chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "H"}, None),
        ({"content": "é"}, None),
        ({}, "stop"),
    ]


def test_a_completion_stream() -> None:
    *chunks, done = events(completion(ScriptedCluster("ab", finish_reason="length"), stream=True))
    assert done == "[DONE]"
    assert [chunk["choices"][0] for chunk in chunks] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "b", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"},
    ]


def test_usage_in_a_stream() -> None:
    *chunks, last, _ = events(chat(ScriptedCluster("a"), stream=True, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 2,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 64},
    }


def test_a_stream_and_its_whole_agree() -> None:
    options = {"stop": "lo w", "logprobs": True}
    whole = chat(ScriptedCluster("Héllo world"), **options).json()["choices"][0]
    *chunks, _ = events(chat(ScriptedCluster("Héllo world"), stream=True, **options))
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == whole["message"]["content"]
    assert [token for delta in deltas if delta["logprobs"] for token in delta["logprobs"]["content"]] == whole["logprobs"][
        "content"
    ]


def test_an_error_in_a_stream_ends_it() -> None:
    failure = RequestFailed("decode-0 died too often\nTraceback")
    *chunks, last = events(chat(ScriptedCluster("ab", finish_reason="length", error=failure), stream=True))
    assert chunks[-1]["choices"][0]["delta"] == {"content": "b"}
    assert last == {
        "error": {"message": "decode-0 died too often", "type": "server_error", "param": None, "code": "request_failed"}
    }


def failing_cluster(failure: Exception) -> ScriptedCluster:
    cluster = ScriptedCluster("", finish_reason="length", error=failure)
    assert not cluster.tokens
    return cluster


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (InvalidRequest("no"), 400, "invalid_request"),
        (Overloaded("full"), 503, "overloaded"),
        (DeadlineExceeded("late"), 504, "deadline_exceeded"),
        (RequestFailed("lost"), 500, "request_failed"),
        (Cancelled("gone"), 499, "cancelled"),
    ],
)
def test_an_error_before_the_first_token_has_its_status(failure: Exception, status: int, code: str, stream: bool) -> None:
    response = chat(failing_cluster(failure), stream=stream)
    assert (response.status_code, error(response)["code"], error(response)["message"]) == (status, code, str(failure))
    assert ("retry-after" in response.headers) == (status == 503)


def test_an_unexpected_error_shows_nothing() -> None:
    response = chat(failing_cluster(KeyError("secret")))
    assert (response.status_code, error(response)["message"]) == (500, "internal error")
    assert "secret" not in response.text


def test_a_turn_without_an_end_is_an_error() -> None:
    class Silent(ScriptedCluster):
        async def generate(
            self, prompt: Sequence[int], sampling: SamplingParams, *, timeout_s: float | None = None
        ) -> AsyncGenerator[TurnEvent, None]:
            for token in self.tokens:
                yield TokenEvent(0, token)

    response = chat(Silent("a"))
    assert (response.status_code, error(response)["code"]) == (500, "request_failed")


# refusals


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"n": 2}, "n", "only 1 is"),
        ({"n": True}, "n", "only 1 is"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "only 0 is"),
        ({"frequency_penalty": -1}, "frequency_penalty", "only 0 is"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", '"none" or "auto"'),
        ({"guided_json": {}}, "guided_json", "not supported"),
        ({"messages": []}, "messages", "messages must not be empty"),
        ({"messages": "hi"}, "messages", "messages: expected array, got str"),
        ({"messages": ["hi"]}, "messages", r"messages[0]: expected object, got str"),
        ({"messages": [{"role": "user"}]}, None, "messages[0].content is missing"),
        ({"max_tokens": "10"}, "max_tokens", "max_tokens: expected int | null, got str"),
        ({"max_tokens": True}, "max_tokens", "max_tokens: expected int | null, got bool"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: expected int >= 1"),
        ({"max_tokens": -5}, "max_tokens", "max_tokens: expected int >= 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "expected int >= 1"),
        ({"max_tokens": 5, "min_tokens": 6}, None, "min_tokens must be from 0 to max_tokens"),
        ({"temperature": -0.1}, "temperature", "temperature: expected float >= 0"),
        ({"top_p": 0}, "top_p", "top_p: expected float > 0"),
        ({"top_p": 1.1}, "top_p", "top_p: expected float <= 1"),
        ({"top_k": -2}, "top_k", "top_k: expected int >= -1"),
        ({"seed": 2**63}, "seed", "seed"),
        ({"stop": ""}, "stop", "stop: expected str of length >= 1"),
        ({"stop": [""]}, "stop", "stop[0]: expected str of length >= 1"),
        ({"stop": ["x"] * 17}, "stop", "stop: expected array of length <= 16"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "stop_token_ids[0]: expected int >= 0"),
        ({"logprobs": 1}, "logprobs", "logprobs: expected bool | null, got int"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "expected int <= 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options needs stream"),
    ],
)
def test_wrong_parameters_are_named(changes: dict[str, Any], param: str | None, message: str) -> None:
    response = chat(**changes)
    assert response.status_code == 400
    assert message in error(response)["message"]
    assert (error(response)["param"], error(response)["type"]) == (param, "invalid_request_error")


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "prompt must not be empty"),
        ({"prompt": []}, "prompt", "prompt must not be empty"),
        ({"prompt": [[]]}, "prompt", "prompt must not be empty"),
        ({"prompt": ["a", ""]}, "prompt", "prompt must not be empty"),
        ({"prompt": ["a", 1]}, "prompt", "mixes"),
        ({"prompt": [257]}, "prompt", "token ids below 257"),
        ({"prompt": [-1]}, "prompt", "prompt[0]: expected int >= 0"),
        ({"prompt": {"a": 1}}, "prompt", "prompt: expected str | array"),
        ({"prompt": None}, "prompt", "prompt: expected str | array"),
        ({"prompt": ["a", "b"], "stream": True}, "prompt", "only one prompt can be streamed"),
        ({"logprobs": 21}, "logprobs", "expected int <= 20"),
        ({"echo": True}, "echo", "only false is"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"best_of": 3}, "best_of", "only 1 is"),
    ],
)
def test_wrong_completion_parameters_are_named(changes: dict[str, Any], param: str, message: str) -> None:
    response = completion(**changes)
    assert (response.status_code, error(response)["param"]) == (400, param)
    assert message in error(response)["message"]


def test_missing_fields_are_named() -> None:
    response = post("/v1/chat/completions", {"model": "tiny"})
    assert (error(response)["message"], error(response)["param"]) == ("messages is required", "messages")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b'{"prompt": "\xff"}', "no valid JSON"),
        (b'{"prompt": "\\ud800"}', "no valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"seed": ' + b"9" * 10_000 + b', "prompt": "x"}', ""),
        (b'{"temperature": 1e999, "prompt": "x"}', ""),
    ],
)
def test_bodies_that_are_no_request(body: bytes, message: str) -> None:
    response = post("/v1/completions", body)
    assert response.status_code == 400
    assert message in error(response)["message"]


def test_a_prompt_over_the_limit_tells_the_numbers() -> None:
    expected = (
        "This model's maximum context length is 200 tokens. However, you requested 215 tokens "
        "(205 in the prompt, 10 in the completion). Please reduce the length of the prompt or completion."
    )
    response = completion(prompt="x" * 205, max_tokens=10)
    assert (response.status_code, error(response)["message"]) == (400, expected)
    assert error(response)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("length", "max_tokens", "status"), [(190, 10, 200), (190, 11, 400), (199, None, 200), (200, None, 400)]
)
def test_prompt_and_output_share_the_context(length: int, max_tokens: int | None, status: int) -> None:
    assert completion(prompt="x" * length, max_tokens=max_tokens).status_code == status


def test_an_unknown_model() -> None:
    response = chat(model="gpt-9")
    assert (response.status_code, error(response)["code"]) == (404, "model_not_found")
    assert "'gpt-9'" in error(response)["message"]


def test_a_request_may_leave_the_model_out() -> None:
    assert post("/v1/completions", {"prompt": "x"}).json()["model"] == "tiny"


def test_unknown_routes_and_methods() -> None:
    assert (get("/v1/embeddings").status_code, error(get("/v1/embeddings"))["code"]) == (404, "not_found")
    response = get("/v1/completions")
    assert (response.status_code, error(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


def test_a_body_too_large() -> None:
    response = completion(prompt="x" * 2**20)
    assert (response.status_code, error(response)["code"]) == (413, "body_too_large")


def test_more_prompts_than_the_server_takes() -> None:
    response = post("/v1/completions", {"prompt": ["a", "b", "c"]}, max_pending=2)
    assert response.status_code == 400
    assert "3 prompts" in error(response)["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": b"Bearer \xff\xfe"}, 401),
        ({"authorization": "Bearer sesame"}, 200),
    ],
)
def test_the_api_key(headers: dict[str, Any], status: int) -> None:
    response = post("/v1/completions", COMPLETION, headers=headers, api_key="sesame")
    assert response.status_code == status
    if status == 401:
        assert error(response)["code"] == "invalid_api_key"


def test_health_needs_no_key() -> None:
    assert get("/health", api_key="sesame").status_code == 200
    assert get("/v1/models", api_key="sesame").status_code == 401


# the other endpoints


def test_models() -> None:
    model = {"id": "tiny", "object": "model", "created": 0, "owned_by": "dualpath", "max_model_len": 200}
    assert get("/v1/models").json() == {"object": "list", "data": [model]}
    assert get("/v1/models/tiny").json() == model
    assert get("/v1/models/other").status_code == 404


def test_version() -> None:
    assert get("/version").json()["version"].count(".") == 2


@pytest.mark.parametrize(
    ("status", "expected", "message"),
    [
        (READY, 200, ""),
        (ClusterStatus(), 503, "no engine for decode and prefill"),
        (ClusterStatus(engines=READY.engines[:1]), 503, "no engine for decode"),
        (DeadlineExceeded("the scheduler does not answer"), 503, "the scheduler does not answer"),
    ],
)
def test_health(status: ClusterStatus | Exception, expected: int, message: str) -> None:
    response = get("/health", ScriptedCluster(status=status))
    assert response.status_code == expected
    assert message in response.text


def scrape(cluster: ScriptedCluster, *bodies: dict[str, Any]) -> dict[str, float]:
    """Metrics after some chats, by name and labels."""
    page: list[str] = []

    async def use(client: httpx.AsyncClient) -> None:
        for body in bodies:
            await client.post("/v1/chat/completions", json={**CHAT, **body})
        page.append((await client.get("/metrics")).text)

    with_client(cluster, use)
    samples = [line.rsplit(" ", 1) for line in page[0].splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


MODEL = '{model_name="tiny"}'


def test_latencies() -> None:
    metrics = scrape(ScriptedCluster("abc"), {})
    sums = {name: metrics[f"dualpath:{name}_seconds_sum{MODEL}"] for name in LATENCIES}
    counts = {name: metrics[f"dualpath:{name}_seconds_count{MODEL}"] for name in LATENCIES}
    assert sums == pytest.approx(
        {
            "time_to_first_token": 0.25,
            "time_to_second_token": 0.03,
            "inter_token_latency": 0.09,
            "request_time_per_output_token": 0.03,
            "e2e_request_latency": 0.34,
        }
    )
    assert counts == {**dict.fromkeys(LATENCIES, 1), "inter_token_latency": 3}


LATENCIES = (
    "time_to_first_token",
    "time_to_second_token",
    "inter_token_latency",
    "request_time_per_output_token",
    "e2e_request_latency",
)


def test_counts() -> None:
    metrics = scrape(ScriptedCluster("abc"), {}, {"stop": "b", "stream": True}, {"n": 2}, {"model": "other"})
    assert metrics['dualpath:request_success_total{finished_reason="stop",model_name="tiny"}'] == 2
    assert metrics['dualpath:request_failures_total{code="invalid_request",model_name="tiny"}'] == 1
    assert metrics['dualpath:request_failures_total{code="model_not_found",model_name="tiny"}'] == 1
    assert metrics[f"dualpath:prompt_tokens_total{MODEL}"] == 22
    assert metrics[f"dualpath:generation_tokens_total{MODEL}"] == 6


def test_the_cluster_in_the_metrics() -> None:
    metrics = scrape(ScriptedCluster())
    expected = {
        f"dualpath:num_requests_running{MODEL}": 3,
        f"dualpath:num_requests_waiting{MODEL}": 2,
        f"dualpath:prefix_cache_queries_total{MODEL}": 1000,
        f"dualpath:prefix_cache_hits_total{MODEL}": 640,
        f"dualpath:bad_blocks_total{MODEL}": 2,
        'dualpath:kv_cache_usage_perc{engine="decode-0",role="decode"}': 0.6,
        'dualpath:storage_read_bytes_total{node="p0",side="prefill"}': 100,
        'dualpath:storage_read_bytes_total{node="d0",side="decode"}': 30,
        'dualpath:storage_read_queue_tokens{node="p0",side="prefill"}': 7,
        'dualpath:transfer_bytes_total{class="handoff"}': 6,
        'dualpath:transfer_bytes_total{class="layer-load"}': 2,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_metrics_without_the_cluster() -> None:
    metrics = scrape(ScriptedCluster(status=DeadlineExceeded("no answer")))
    assert f"dualpath:prompt_tokens_total{MODEL}" in metrics
    assert f"dualpath:num_requests_running{MODEL}" not in metrics
