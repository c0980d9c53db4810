"""The storage NIC as a limit: reads and writes apart, first come first served at full rate (paper sections 1 and 3)."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from dualpath.errors import StorageError
from dualpath.storage.hosts import boot_id

BURST_S = 0.002
"""How far back an idle NIC's time may still be used, so that late timers cost no throughput."""


class Direction(IntEnum):
    """A NIC is full duplex."""

    READ = 0
    WRITE = 1


class Limiter(Protocol):
    """When a transfer over the NIC ends."""

    def reserve(self, direction: Direction, length: int, arrived_s: float) -> float:
        """Queue ``length`` bytes that arrived at ``arrived_s`` (monotonic); returns when the last of them has passed."""
        ...

    def close(self) -> None:
        """Release what is shared with other processes. Idempotent."""
        ...


def finish_time(free_s: float, arrived_s: float, length: int, bytes_per_s: float) -> float:
    """When ``length`` bytes have passed a NIC that is busy until ``free_s``."""
    return max(arrived_s - BURST_S, free_s) + length / bytes_per_s


class SnicLimiter:
    """The storage NIC of one process. ``bytes_per_s`` may be infinite. Thread-safe."""

    def __init__(self, bytes_per_s: float = math.inf) -> None:
        self._bytes_per_s = _checked(bytes_per_s)
        self._free_s = [-math.inf, -math.inf]
        self._lock = threading.Lock()

    def reserve(self, direction: Direction, length: int, arrived_s: float) -> float:
        """Queue ``length`` bytes; returns when the last of them has passed."""
        with self._lock:
            finish_s = finish_time(self._free_s[direction], arrived_s, length, self._bytes_per_s)
            self._free_s[direction] = finish_s
            return finish_s

    def close(self) -> None:
        """Nothing is shared."""


class SharedSnicLimiter:
    """The storage NIC that all processes of a node share, by way of the file ``path``. Thread-safe.

    The kernel frees the file's lock when its holder dies. All processes of one machine share a monotonic clock; what
    an earlier boot left in the file is ignored.

    Raises:
        StorageError: the file cannot be used.
    """

    _STATE = struct.Struct("<16s2d")

    def __init__(self, path: Path | str, bytes_per_s: float) -> None:
        self._bytes_per_s = _checked(bytes_per_s)
        self._lock = threading.Lock()
        boot = boot_id()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            with self._locked():
                os.ftruncate(self._descriptor, mmap.PAGESIZE)
                self._state = mmap.mmap(self._descriptor, mmap.PAGESIZE)
                if self._STATE.unpack_from(self._state)[0] != boot:
                    self._STATE.pack_into(self._state, 0, boot, 0.0, 0.0)
        except OSError as error:
            raise StorageError(f"cannot share a storage NIC through {path}: {error.strerror}") from error

    def reserve(self, direction: Direction, length: int, arrived_s: float) -> float:
        """Queue ``length`` bytes; returns when the last of them has passed."""
        offset = 16 + 8 * direction
        with self._locked():
            free_s = struct.unpack_from("<d", self._state, offset)[0]
            finish_s = finish_time(free_s, arrived_s, length, self._bytes_per_s)
            struct.pack_into("<d", self._state, offset, finish_s)
            return finish_s

    def close(self) -> None:
        """Release the file, which stays for the other processes. Idempotent."""
        if self._descriptor >= 0:
            self._state.close()
            os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The file lock belongs to the descriptor, so it does not keep this process' threads apart.
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def _checked(bytes_per_s: float) -> float:
    if not bytes_per_s > 0:
        raise ValueError(f"a NIC needs a positive bandwidth, not {bytes_per_s}")
    return bytes_per_s
