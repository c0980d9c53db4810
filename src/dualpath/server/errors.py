"""What each exception looks like to an API client: status, type and code, one line of text, never a traceback."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from dualpath.errors import (
    Cancelled,
    DeadlineExceeded,
    DualPathError,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    RequestFailed,
    UnknownModel,
)

RETRY_AFTER_S = 1
CLIENT_CLOSED_REQUEST = 499


class InvalidParameter(InvalidRequest):
    """A parameter of a request is wrong; ``param`` names it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class HttpRefusal(DualPathError):
    """A request refused for what HTTP says about it (route, method, size, key), before anybody looks at its parameters."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How one kind of error is presented."""

    status: int
    type: str
    code: str


_INTERNAL = ErrorKind(500, "server_error", "internal_error")
_KINDS: tuple[tuple[type[Exception], ErrorKind], ...] = (
    (UnknownModel, ErrorKind(404, "invalid_request_error", "model_not_found")),
    (PromptTooLong, ErrorKind(400, "invalid_request_error", "context_length_exceeded")),
    (InvalidRequest, ErrorKind(400, "invalid_request_error", "invalid_request")),
    (Cancelled, ErrorKind(CLIENT_CLOSED_REQUEST, "server_error", "cancelled")),
    (DeadlineExceeded, ErrorKind(504, "server_error", "deadline_exceeded")),
    (RequestFailed, ErrorKind(500, "server_error", "request_failed")),
    (Overloaded, ErrorKind(503, "server_error", "overloaded")),
)
"""First match wins, so subclasses come before their bases."""


def error_kind(error: Exception) -> ErrorKind:
    """Status, type and code of an exception."""
    if isinstance(error, HttpRefusal):
        return ErrorKind(error.status, "invalid_request_error", error.code)
    return next((kind for exception, kind in _KINDS if isinstance(error, exception)), _INTERNAL)


def error_body(error: Exception) -> dict[str, Any]:
    """OpenAI's error object. Only our own exceptions show their message, and only its first line."""
    kind = error_kind(error)
    message = (str(error).splitlines() or [""])[0] if isinstance(error, DualPathError) else ""
    return {
        "error": {
            "message": message or "internal error",
            "type": kind.type,
            "param": getattr(error, "param", None),
            "code": kind.code,
        }
    }


def error_response(error: Exception, headers: dict[str, str] | None = None) -> Response:
    """The whole response to a request that ends with ``error``."""
    kind = error_kind(error)
    all_headers = dict(headers or {})
    if kind.status == HTTPStatus.SERVICE_UNAVAILABLE:
        all_headers["retry-after"] = str(RETRY_AFTER_S)
    return Response(
        msgspec.json.encode(error_body(error)), status_code=kind.status, headers=all_headers, media_type="application/json"
    )
