"""``dualpath serve``: a cluster on this machine behind an OpenAI-compatible API."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click

from dualpath.cli.options import Given, settings_options
from dualpath.cli.signals import ENDING_SIGNALS, signals_held_back
from dualpath.clock import MonotonicClock
from dualpath.errors import ModelError
from dualpath.server.app import create_app
from dualpath.server.listen import check_address
from dualpath.server.listen import serve as serve_http
from dualpath.settings import Settings


@click.command()
@click.argument("model", type=click.Path())
@settings_options()
def serve(model: str, given: Given) -> None:
    """Serve MODEL, a Hugging Face directory, until SIGTERM or Ctrl-C."""
    settings = given.settings()
    check_address(settings.server)
    click.echo(f"starting {settings.cluster.prefill} prefill and {settings.cluster.decode} decode engines …", err=True)
    with signals_held_back():  # it takes PyTorch with it: what is wrong with the settings should be said before
        from dualpath.cluster.local import LocalCluster
    with LocalCluster(model, system=None, settings=settings) as cluster:
        if cluster.tokenizer is None:
            raise ModelError(f"{model} has no tokenizer.json, so that its API could take no text")
        name = settings.model.served_model_name or Path(model).resolve().name
        app = create_app(cluster.client, cluster.tokenizer, settings.server, name, MonotonicClock())
        stop = asyncio.Event()

        def finish() -> None:
            wait_s = settings.deadlines.shutdown_timeout_s
            click.echo(f"ending: running requests have {wait_s:g} s to finish; Ctrl-C again stops them", err=True)
            cluster.call_soon(stop.set)

        _on_signals(finish, lambda: cluster.call_soon(app.state.admission.end_all))
        cluster.run(
            serve_http(
                app,
                settings.server,
                shutdown_timeout_s=settings.deadlines.shutdown_timeout_s,
                stop=stop,
                on_listening=lambda host, port: _announce(host, port, name, settings),
            )
        )


def _on_signals(*steps: Callable[[], None]) -> None:
    """From now on, each signal takes the next step to the end of the serving; when there is none left, it interrupts."""
    left = iter(steps)

    def act(number: int, frame: FrameType | None) -> None:
        next(left, lambda: signal.default_int_handler(number, frame))()

    for number in ENDING_SIGNALS:
        signal.signal(number, act)


def _announce(host: str, port: int, name: str, settings: Settings) -> None:
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    key = ' -H "Authorization: Bearer $KEY"' if settings.server.api_key else ""
    click.echo(f"serving {name} as {settings.cluster.system} on {url}")
    click.echo(
        f"try: curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f'-d \'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 16}}\''
    )
