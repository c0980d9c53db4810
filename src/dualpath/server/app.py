"""The HTTP application: routes, and the life of one request from its body to its last byte."""

from __future__ import annotations

import asyncio
import hmac
import importlib.metadata
import logging
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dualpath.clock import Clock
from dualpath.control.turns import ClusterStatus, SamplingParams, TurnClient
from dualpath.errors import DualPathError, Overloaded, UnknownModel
from dualpath.server.admission import SHUTTING_DOWN, Admission
from dualpath.server.errors import HttpRefusal, error_body, error_response
from dualpath.server.metrics import ServerMetrics, TurnTimer
from dualpath.server.replies import ChatFormat, Completed, CompletionFormat, Reply, ReplyFormat
from dualpath.server.schema import ChatRequest, CompletionRequest, TurnRequest, decode_request, sampling_params
from dualpath.server.stream import Delta, EventStream, Outcome, TurnText, turn_deltas
from dualpath.settings import ServerSettings
from dualpath.text.tokenizer import Tokenizer
from dualpath.types import Role

logger = logging.getLogger(__name__)

SMALLEST_BODY_LIMIT = 2**20
BODY_BYTES_PER_TOKEN = 64
"""A prompt's JSON has far fewer bytes a token, escaped characters and token ids included."""


def create_app(
    client: TurnClient,
    tokenizer: Tokenizer,
    settings: ServerSettings,
    model_name: str,
    clock: Clock,
    new_seed: Callable[[], int] = lambda: secrets.randbits(63),
) -> Starlette:
    """The API in front of ``client``. Its ``state.admission`` lets whoever serves it end it gracefully.

    ``new_seed`` gives the seed of requests that bring none.
    """
    service = Service(
        client, tokenizer, model_name, clock, Admission(settings.max_pending), ServerMetrics(model_name), new_seed
    )
    chat, completions = ChatFormat(tokenizer), CompletionFormat(tokenizer)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", TurnEndpoint(service, ChatRequest, chat), methods=["POST"]),
            Route("/v1/completions", TurnEndpoint(service, CompletionRequest, completions), methods=["POST"]),
            Route("/v1/models", service.models),
            Route("/v1/models/{name:path}", service.model),
            Route("/health", service.health),
            Route("/metrics", service.metrics_page),
            Route("/version", service.version),
        ],
        middleware=[Middleware(_KeyCheck, api_key=settings.api_key)] if settings.api_key is not None else [],
        exception_handlers={HTTPException: _refused_by_routing, DualPathError: _failed, Exception: _failed},
    )
    app.state.admission = service.admission
    return app


@dataclass(frozen=True)
class Service:
    """What the endpoints share, and the small ones of them."""

    client: TurnClient
    tokenizer: Tokenizer
    model_name: str
    clock: Clock
    admission: Admission
    metrics: ServerMetrics
    new_seed: Callable[[], int]

    async def models(self, request: Request) -> Response:
        """``GET /v1/models``."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/NAME``."""
        self.check_model(request.path_params["name"])
        return _json(self._model())

    async def health(self, request: Request) -> Response:
        """``GET /health``: 200 where turns can be served."""
        if self.admission.draining:
            raise Overloaded(SHUTTING_DOWN)
        try:
            status = await self.client.status()
        except DualPathError as error:
            raise Overloaded(f"the cluster is not ready: {error}") from error
        if missing := set(Role) - {engine.role for engine in status.engines}:
            raise Overloaded(f"the cluster is not ready: no engine for {' and '.join(sorted(missing))}")
        return _json({"status": "ok"})

    async def metrics_page(self, request: Request) -> Response:
        """``GET /metrics``."""
        status: ClusterStatus | None = None
        try:
            status = await self.client.status()
        except DualPathError as error:
            logger.warning("metrics without the cluster's part: %s", error)
        return Response(self.metrics.exposition(status), media_type="text/plain; version=0.0.4")

    async def version(self, request: Request) -> Response:
        """``GET /version``."""
        return _json({"version": importlib.metadata.version("dualpath")})

    def check_model(self, name: str | None) -> None:
        """Raise UnknownModel unless requests may call the model ``name``; None leaves it to the server."""
        if name not in (None, self.model_name):
            raise UnknownModel(f"the model {name!r} is not served here; {self.model_name!r} is")

    def _model(self) -> dict[str, Any]:
        return {
            "id": self.model_name,
            "object": "model",
            "created": 0,
            "owned_by": "dualpath",
            "max_model_len": self.client.max_context_tokens,
        }


@dataclass(frozen=True)
class _Turn:
    """One prompt of a request on its way through the cluster."""

    prompt: list[int]
    sampling: SamplingParams
    text: TurnText
    timer: TurnTimer

    def deltas(self, client: TurnClient) -> AsyncGenerator[Delta | Outcome, None]:
        """The turn's pieces, its outcome last."""
        return turn_deltas(client, self.prompt, self.sampling, self.text, self.timer)


class TurnEndpoint:
    """``POST`` of a request of ``kind``, answered in ``format``; an ASGI application of its own."""

    def __init__(self, service: Service, kind: type[ChatRequest] | type[CompletionRequest], format: ReplyFormat) -> None:
        self._service = service
        self._kind = kind
        self._format = format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send)
        try:
            await self._answer(Request(scope, receive), stream, send)
        except Exception as error:  # the last place where a request can still get an answer
            self._service.metrics.failed(error)
            if not isinstance(error, DualPathError):
                logger.exception("a request failed unexpectedly")
            if stream.started:
                await stream.event(error_body(error))
                await stream.close()
            else:
                await error_response(error)(scope, receive, send)

    async def _answer(self, http: Request, stream: EventStream, send: Send) -> None:
        arrived_s = self._service.clock.now()
        body = await _body(http, max(SMALLEST_BODY_LIMIT, BODY_BYTES_PER_TOKEN * self._service.client.max_context_tokens))
        request = decode_request(body, self._kind)
        self._service.check_model(request.model)
        async with self._service.admission.admitted(request.turns, http.receive):
            turns = await self._turns(request, arrived_s)
            reply = self._reply(request)
            if request.stream:
                await self._stream(turns[0], reply, stream)
            else:
                response = _json(reply.whole(await self._all(turns)))
        # Ended out here, where a client that leaves with its answer in hand no longer counts as a cancellation.
        if request.stream:
            await stream.close()
        else:
            await response(http.scope, http.receive, send)

    async def _turns(self, request: TurnRequest, arrived_s: float) -> list[_Turn]:
        """The request's prompts, tokenized in a thread so that other requests' tokens keep flowing."""
        service = self._service
        prompts = await asyncio.to_thread(request.prompts, service.tokenizer)
        return [self._turn(request, prompt, TurnTimer(service.metrics, service.clock, arrived_s)) for prompt in prompts]

    def _turn(self, request: TurnRequest, prompt: list[int], timer: TurnTimer) -> _Turn:
        service = self._service
        sampling = sampling_params(request, prompt, service.client.max_context_tokens, service.tokenizer, service.new_seed)
        ends = frozenset() if sampling.ignore_eos else service.tokenizer.eos_token_ids
        return _Turn(prompt, sampling, TurnText(service.tokenizer, request.stops, ends | set(sampling.stop_token_ids)), timer)

    def _reply(self, request: TurnRequest) -> Reply:
        return Reply(
            format=self._format,
            request_id=uuid.uuid4().hex,
            created=int(time.time()),
            model=self._service.model_name,
            logprobs=request.top_logprobs_count is not None,
            include_usage=request.include_usage,
        )

    async def _stream(self, turn: _Turn, reply: Reply, stream: EventStream) -> None:
        """Send a turn as it comes; nothing before its first token, so that an early failure has a status of its own."""
        async with aclosing(turn.deltas(self._service.client)) as deltas:
            async for delta in deltas:
                chunks = [] if stream.started else reply.opening()
                chunks += reply.ending(delta) if isinstance(delta, Outcome) else reply.piece(delta)
                for chunk in chunks:
                    await stream.event(chunk)
        await stream.done()

    async def _all(self, turns: list[_Turn]) -> list[Completed]:
        """Run turns side by side to their ends; the first failure ends all."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._completed(turn)) for turn in turns]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _completed(self, turn: _Turn) -> Completed:
        pieces: list[Delta] = []
        async with aclosing(turn.deltas(self._service.client)) as deltas:
            async for delta in deltas:
                if isinstance(delta, Outcome):
                    return Completed(tuple(pieces), delta)
                pieces.append(delta)
        raise AssertionError("a turn's last piece is its outcome")


async def _body(http: Request, limit_bytes: int) -> bytes:
    """The request's body.

    Raises:
        HttpRefusal: it is larger than ``limit_bytes``.
    """
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > limit_bytes:
            raise HttpRefusal(413, f"the body is larger than {limit_bytes} bytes", "body_too_large")
    return bytes(body)


def _json(content: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


async def _refused_by_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: f"there is no {request.url.path} here", 405: f"{request.url.path} does not take {request.method}"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
    message = what.get(error.status_code, str(error.detail))
    return error_response(HttpRefusal(error.status_code, message, code), dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(error)


class _KeyCheck:
    """Lets only requests with the API key through to the paths below ``/v1``; health and metrics stay open."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1") or self._has_key(scope):
            await self._app(scope, receive, send)
        else:
            refusal = HttpRefusal(401, "the API key is missing or wrong; send it as a bearer token", "invalid_api_key")
            await error_response(refusal, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        return hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), self._expected)
