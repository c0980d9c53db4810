"""Engines in processes of one machine: regions are memory files that peers map through the owner's file descriptor."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import struct

import numpy as np

from dualpath.clock import Clock
from dualpath.errors import TransportError
from dualpath.kvcache.layout import PAGE_BYTES
from dualpath.transport.base import RegionDescriptor
from dualpath.transport.copying import HostMemory, Memory
from dualpath.transport.mapped import MappedTransport

_COOKIE_BYTES = 16
_TRAILER = struct.Struct(f"<{_COOKIE_BYTES}sQ")
"""Cookie and exact length, in a page behind the region."""

_LOCATOR = re.compile(r"(/proc/\d+/fd/\d+)#([0-9a-f]{32})")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A file that cannot shrink cannot kill whoever has it mapped (SIGBUS)."""


class ShmTransport(MappedTransport):
    """See ``Transport``; peers are processes of the same user on this machine.

    The locator is ``/proc/<pid>/fd/<fd>#<cookie>``; the cookie stands in a page behind the region, so that another file
    under a reused pid and descriptor is not mistaken for it. An attached mapping survives its owner: copying into a dead
    peer's memory does no harm.
    """

    def __init__(self, name_prefix: str, clock: Clock | None = None) -> None:
        """``name_prefix`` starts the memory files' names as ``/proc`` shows them."""
        self._name_prefix = name_prefix
        self._descriptors: list[int] = []
        super().__init__("shm", clock)

    def _create(self, region: str, length: int) -> tuple[Memory, memoryview, str]:
        cookie = secrets.token_bytes(_COOKIE_BYTES)
        file = os.memfd_create(f"{self._name_prefix}{region}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, _file_bytes(length))
            os.pwrite(file, _TRAILER.pack(cookie, length), _file_bytes(length) - PAGE_BYTES)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            view = _mapped(file, length)
        except OSError as error:
            os.close(file)
            raise TransportError(f"region {region} of {length} bytes: {error}") from error
        self._descriptors.append(file)
        return HostMemory(np.frombuffer(view, dtype=np.uint8)), view, f"/proc/{os.getpid()}/fd/{file}#{cookie.hex()}"

    def _open(self, descriptor: RegionDescriptor) -> Memory:
        locator = _LOCATOR.fullmatch(descriptor.locator)
        if locator is None:
            raise TransportError(f"region {descriptor.region}: {descriptor.locator!r} is no locator")
        try:
            file = os.open(locator[1], os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TransportError(f"region {descriptor.region} is gone: {error}") from error
        try:
            _check_file(file, descriptor, bytes.fromhex(locator[2]))
            return HostMemory(np.frombuffer(_mapped(file, descriptor.bytes), dtype=np.uint8))
        except OSError as error:
            raise TransportError(f"region {descriptor.region} cannot be mapped: {error}") from error
        finally:
            os.close(file)

    def _retire(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _file_bytes(length: int) -> int:
    """The region in whole pages, and the cookie's page."""
    return -(-length // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES


def _mapped(file: int, length: int) -> memoryview:
    """The first ``length`` bytes, their pages touched: a first touch costs ten times a copy."""
    whole = mmap.mmap(file, _file_bytes(length), flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return memoryview(whole)[:length]


def _check_file(file: int, descriptor: RegionDescriptor, cookie: bytes) -> None:
    """Raises TransportError, or OSError if it is no memory file, unless this is what the descriptor says."""
    trailer = os.pread(file, _TRAILER.size, max(0, os.fstat(file).st_size - PAGE_BYTES))
    found_cookie, found_bytes = _TRAILER.unpack(trailer.ljust(_TRAILER.size, b"\0"))
    if found_cookie != cookie:
        raise TransportError(f"region {descriptor.region} is gone: its place is taken by another file")
    if found_bytes != descriptor.bytes:
        raise TransportError(f"region {descriptor.region} has {found_bytes} bytes, not {descriptor.bytes}")
    if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise TransportError(f"region {descriptor.region} could shrink while it is mapped")
