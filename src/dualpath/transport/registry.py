"""Transports by name: one table of lazy factories."""

from __future__ import annotations

from collections.abc import Callable

from dualpath.errors import SettingsError
from dualpath.transport.base import Transport


def _shm(owner: str) -> Transport:
    from dualpath.transport.shm import ShmTransport

    return ShmTransport(f"dualpath-{owner}-")


TRANSPORTS: dict[str, Callable[[str], Transport]] = {"shm": _shm}
"""Between processes; ``MemoryTransport`` needs an object that all engines share, and is built by who has it."""


def create_transport(name: str, owner: str) -> Transport:
    """The transport called ``name`` for the engine ``owner``.

    Raises:
        SettingsError: there is none of that name.
    """
    factory = TRANSPORTS.get(name)
    if factory is None:
        raise SettingsError(f"transport: {name!r} is not one of {', '.join(TRANSPORTS)}")
    return factory(owner)
