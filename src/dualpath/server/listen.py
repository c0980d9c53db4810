"""Serving an application on a TCP port until it is told to stop, and then ending every request properly."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from dualpath.errors import SettingsError
from dualpath.server.admission import Admission
from dualpath.settings import ServerSettings

LAST_BYTES_S = 5
"""How long clients may take to read the end of their responses, after the last turn has ended."""


async def serve(
    app: Starlette,
    settings: ServerSettings,
    *,
    shutdown_timeout_s: float,
    stop: asyncio.Event | None = None,
    on_listening: Callable[[str, int], None] = lambda host, port: None,
) -> None:
    """Serve an application of ``create_app`` until ``stop`` is set or SIGTERM or SIGINT arrives; then shut down.

    ``on_listening`` gets the address with the actual port, once connections are accepted. While shutting down, new
    requests get 503 and running turns have ``shutdown_timeout_s`` to end; the rest ends with an error. A second signal
    cuts that time short.

    Raises:
        SettingsError: the address cannot be listened on; names it.
    """
    listener = _listener(settings.host, settings.port)
    admission: Admission = app.state.admission
    config = uvicorn.Config(
        app,
        http="h11",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_BYTES_S,
    )
    server = _Server(config)
    stop = asyncio.Event() if stop is None else stop
    with contextlib.closing(listener), _stopped_by_signals(stop, admission):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(stop.wait())
        try:
            on_listening(settings.host, listener.getsockname()[1])
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            await admission.drain(shutdown_timeout_s)
        finally:
            stopping.cancel()
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """Leaves signals to ``serve``: uvicorn would raise them again after a clean shutdown."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def check_address(settings: ServerSettings) -> None:
    """Fail now rather than after everything else has started.

    Raises:
        SettingsError: the address cannot be listened on; names it.
    """
    _listener(settings.host, settings.port).close()


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingsError(f"cannot listen on {host}:{port}: {reason}") from error


@contextlib.contextmanager
def _stopped_by_signals(stop: asyncio.Event, admission: Admission) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop``, a second one ends what still runs; outside the main thread they are not ours."""

    def on_signal() -> None:
        if stop.is_set():
            admission.end_all()
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
