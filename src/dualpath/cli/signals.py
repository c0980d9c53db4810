"""Ctrl-C and SIGTERM while large libraries are being imported."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until imports are done: some libraries swallow what is raised while they are imported."""
    arrived: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])
