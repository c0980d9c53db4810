"""The API on a real port, used through OpenAI's own client: answers, disconnects, overload and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dualpath.clock import MonotonicClock
from dualpath.control.turns import ClusterStatus, EngineStatus, SamplingParams, TokenEvent, TurnEvent, TurnFinished
from dualpath.errors import Cancelled, RequestFailed, SettingsError
from dualpath.server.app import create_app
from dualpath.server.listen import serve
from dualpath.settings import ServerSettings
from dualpath.text.tokenizer import Tokenizer

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
READY = ClusterStatus(
    engines=(EngineStatus(name="p", role="prefill", node="p"), EngineStatus(name="d", role="decode", node="d"))
)


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token; token 256 ends a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(backend, {"eos_token": "<|end|>"}, {"default": "{{ messages[0].content }}"})


TOKENIZER = byte_tokenizer()


class GatedCluster:
    """Gives the first tokens at once and the others when ``gate`` opens."""

    max_context_tokens = 4096

    def __init__(self, text: str = "Hällo", at_once: int = 1000, error: Exception | None = None) -> None:
        self.text, self.at_once, self.error = text, at_once, error
        self.gate = asyncio.Event()
        self.begun = 0
        self.cancelled = 0
        self.ended = asyncio.Event()

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, *, timeout_s: float | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        self.begun += 1
        complete = False
        try:
            tokens = [*TOKENIZER.encode(self.text), 256]
            for position, token in enumerate(tokens):
                if position >= self.at_once:
                    await self.gate.wait()
                alternatives = () if sampling.logprobs is None else ((token, -0.25),) * min(sampling.logprobs, 1)
                yield TokenEvent(position, token, None if sampling.logprobs is None else -0.25, alternatives)
            if self.error is not None:
                raise self.error
            complete = True
            yield TurnFinished(finish_reason="stop", prompt_tokens=len(prompt), output_tokens=len(tokens), cached_tokens=64)
        finally:
            self.cancelled += not complete and self.error is None
            self.ended.set()

    async def status(self) -> ClusterStatus:
        return READY


@dataclass
class Running:
    """A server that accepts connections."""

    cluster: GatedCluster
    url: str
    stop: asyncio.Event
    serving: asyncio.Task[None]

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=25)

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="sesame", max_retries=0, timeout=25)


@contextlib.asynccontextmanager
async def running(cluster: GatedCluster, shutdown_timeout_s: float = 0.2, **settings: Any) -> AsyncIterator[Running]:
    server_settings = ServerSettings(port=0, api_key="sesame", **settings)
    app = create_app(cluster, TOKENIZER, server_settings, "tiny", MonotonicClock())
    stop = asyncio.Event()
    address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            app,
            server_settings,
            shutdown_timeout_s=shutdown_timeout_s,
            stop=stop,
            on_listening=lambda host, port: address.set_result((host, port)),
        )
    )
    host, port = await address
    try:
        yield Running(cluster, f"http://{host}:{port}", stop, serving)
    finally:
        stop.set()
        await serving


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def test_chat_with_the_openai_client() -> None:
    async def test() -> None:
        async with running(GatedCluster()) as server, server.openai() as client:
            whole = await client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1)
            choice = whole.choices[0]
            assert (choice.message.content, choice.finish_reason) == ("Hällo", "stop")
            assert whole.usage is not None
            assert whole.usage.prompt_tokens_details is not None
            assert (whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (2, 64)
            assert choice.logprobs is not None
            content = choice.logprobs.content or []
            assert bytes(byte for token in content for byte in token.bytes or []).decode() == "Hällo"
            assert content[0].top_logprobs[0].logprob == -0.25

    run(test)


def test_streams_with_the_openai_client() -> None:
    async def test() -> None:
        async with running(GatedCluster()) as server, server.openai() as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[0].choices[0].delta.role == "assistant"
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hällo"
            assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
            assert chunks[-1].usage is not None
            assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 7)

            texts = await client.completions.create(model="tiny", prompt="x", stream=True, logprobs=1)
            pieces = [chunk.choices[0] async for chunk in texts]
            assert "".join(piece.text for piece in pieces) == "Hällo"
            offsets = [offset for piece in pieces if piece.logprobs for offset in piece.logprobs.text_offset or []]
            assert offsets == [0, 1, 1, 2, 3, 4]

    run(test)


def test_the_synchronous_openai_client() -> None:
    def use(url: str) -> list[str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0, timeout=10) as client:
            models_served = [model.id for model in client.models.list()]
            text = client.completions.create(model="tiny", prompt=["a", "b"]).choices[1].text
            with client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) as stream:
                streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            with pytest.raises(openai.BadRequestError, match="only 1 is"):
                client.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
            with pytest.raises(openai.NotFoundError, match="is not served here"):
                client.chat.completions.create(model="gpt-9", messages=MESSAGES)
            return [*models_served, text, streamed]

    async def test() -> None:
        async with running(GatedCluster()) as server:
            assert await asyncio.to_thread(use, server.url) == ["tiny", "Hällo", "Hällo"]

    run(test)


def test_the_key_is_asked_for() -> None:
    async def test() -> None:
        async with running(GatedCluster()) as server, server.http() as client:
            assert (await client.get("/v1/models")).status_code == 401
            assert (await client.get("/health")).status_code == 200
            wrong = await client.get("/v1/models", headers={"authorization": "Bearer wrong"})
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
        async with running(GatedCluster()) as server, server.openai() as authorized:
            with pytest.raises(openai.AuthenticationError):
                await authorized.with_options(api_key="wrong").models.list()

    run(test)


def test_tokens_come_as_they_are_generated() -> None:
    async def test() -> None:
        async with running(GatedCluster("abc", at_once=1)) as server, server.openai() as client:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            chunks = aiter(stream)
            await anext(chunks)
            assert (await anext(chunks)).choices[0].delta.content == "a"
            server.cluster.gate.set()
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == "bc"

    run(test)


def test_a_client_that_leaves_its_stream_cancels_the_turn() -> None:
    async def test() -> None:
        async with running(GatedCluster("abc", at_once=1)) as server, server.openai() as client:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            await anext(aiter(stream))
            await stream.close()
            await asyncio.wait_for(server.cluster.ended.wait(), 5)
            assert server.cluster.cancelled == 1
            async with server.http() as other:
                assert 'request_failures_total{code="cancelled"' in (await other.get("/metrics")).text

    run(test)


def test_a_client_that_leaves_while_waiting_cancels_the_turn() -> None:
    async def test() -> None:
        async with running(GatedCluster("abc", at_once=0)) as server:
            async with server.openai() as client:
                with pytest.raises(openai.APITimeoutError):
                    await client.chat.completions.create(model="tiny", messages=MESSAGES, timeout=0.3)
            await asyncio.wait_for(server.cluster.ended.wait(), 5)
            assert server.cluster.cancelled == 1

    run(test)


def test_a_stop_string_ends_the_turn() -> None:
    async def test() -> None:
        async with running(GatedCluster("one two", at_once=5)) as server, server.openai() as client:
            answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, stop=["e t"])
            assert answer.choices[0].message.content == "on"
            assert server.cluster.cancelled == 1

    run(test)


def test_overload_is_said_with_a_time_to_come_back() -> None:
    async def test() -> None:
        cluster = GatedCluster("abc", at_once=1)
        async with running(cluster, max_pending=1) as server, server.openai() as client:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            with pytest.raises(openai.InternalServerError) as refused:
                await client.chat.completions.create(model="tiny", messages=MESSAGES)
            assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (503, "1")
            cluster.gate.set()
            assert len([chunk async for chunk in stream]) == 5
            assert (await client.chat.completions.create(model="tiny", messages=MESSAGES)).choices

    run(test)


def test_an_error_in_a_stream_reaches_the_client() -> None:
    async def test() -> None:
        async with running(GatedCluster("ab", error=RequestFailed("engines died"))) as server, server.openai() as client:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError, match="engines died"):
                async for _ in stream:
                    pass

    run(test)


def test_a_cancellation_inside_the_cluster_reaches_the_client() -> None:
    async def test() -> None:
        async with running(GatedCluster("", error=Cancelled("given up"))) as server, server.openai() as client:
            with pytest.raises(openai.APIStatusError, match="given up") as refused:
                await client.chat.completions.create(model="tiny", messages=MESSAGES)
            assert refused.value.status_code == 499

    run(test)


def test_a_shutdown_waits_for_running_turns_and_accepts_no_new_ones() -> None:
    async def test() -> None:
        cluster = GatedCluster("abc", at_once=1)
        async with running(cluster, shutdown_timeout_s=20) as server, server.openai() as client, server.http() as http:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            server.stop.set()
            while (await http.get("/health")).status_code == 200:
                await asyncio.sleep(0.01)
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                await client.chat.completions.create(model="tiny", messages=MESSAGES)
            assert not server.serving.done()
            cluster.gate.set()
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "abc"
            await asyncio.wait_for(server.serving, 5)
            with pytest.raises(httpx.ConnectError):
                await http.get("/health")

    run(test)


def test_a_shutdown_ends_what_runs_too_long() -> None:
    async def test() -> None:
        cluster = GatedCluster("abc", at_once=1)
        async with running(cluster) as server, server.openai() as client:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            waiting = asyncio.create_task(client.completions.create(model="tiny", prompt="x"))
            while cluster.begun < 2:
                await asyncio.sleep(0.01)
            server.stop.set()
            with pytest.raises(openai.APIError, match="shutting down"):
                async for _ in stream:
                    pass
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                await waiting
            await asyncio.wait_for(server.serving, 5)
            assert cluster.cancelled == 2

    run(test)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_and_a_second_one_hurries(number: signal.Signals) -> None:
    async def test() -> None:
        async with running(GatedCluster("abc", at_once=1), shutdown_timeout_s=25) as server, server.openai() as client:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            os.kill(os.getpid(), number)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(server.serving), 0.3)
            os.kill(os.getpid(), number)
            with pytest.raises(openai.APIError, match="shutting down"):
                async for _ in stream:
                    pass
            await asyncio.wait_for(server.serving, 5)

    run(test)


def test_a_port_in_use_is_named() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            app = create_app(GatedCluster(), TOKENIZER, ServerSettings(), "tiny", MonotonicClock())
            with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
                await serve(app, ServerSettings(port=port), shutdown_timeout_s=0)

    run(test)


def test_a_host_that_is_none_is_named() -> None:
    async def test() -> None:
        app = create_app(GatedCluster(), TOKENIZER, ServerSettings(), "tiny", MonotonicClock())
        with pytest.raises(SettingsError, match="cannot listen on 256"):
            await serve(app, ServerSettings(host="256.1.1.1", port=0), shutdown_timeout_s=0)

    run(test)


def test_a_long_prompt_does_not_hold_up_others() -> None:
    """Tokenizing is done beside the event loop: while it takes its time, others get their answers."""

    async def test() -> None:
        cluster, clock = GatedCluster("a"), MonotonicClock()
        cluster.max_context_tokens = 2_000_000
        async with running(cluster) as server, server.openai() as client, server.http() as http:
            long = asyncio.create_task(client.completions.create(model="tiny", prompt="word " * 300_000))
            answered_s = [clock.now()]
            while not long.done():
                assert (await http.get("/version")).status_code == 200
                answered_s.append(clock.now())
            assert (await long).choices[0].text == "a"
            longest_s = max(later - earlier for earlier, later in itertools.pairwise(answered_s))
            assert longest_s < (answered_s[-1] - answered_s[0]) / 2

    run(test)


def test_raw_events_end_with_done() -> None:
    async def test() -> None:
        async with running(GatedCluster("a")) as server, server.http() as client:
            body = {"model": "tiny", "prompt": "x", "stream": True}
            response = await client.post("/v1/completions", json=body, headers={"authorization": "Bearer sesame"})
            *chunks, done, rest = response.text.split("\n\n")
            assert (done, rest) == ("data: [DONE]", "")
            assert [json.loads(chunk[6:])["choices"][0]["text"] for chunk in chunks] == ["a", ""]

    run(test)
