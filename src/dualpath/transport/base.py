"""The transport protocol: registered regions, batches of slices, one completion a batch (paper section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dualpath.transport.slice_list import SliceList


class Operation(StrEnum):
    """One-sided semantics: the poster drives both directions, the peer's processor takes no part."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class RegionDescriptor:
    """How a peer finds a registered region.

    Attributes:
        transport: name of the transport that registered it.
        region: unique name in the cluster.
        bytes: its length.
        locator: what the transport needs to reach it (a path, an address, a remote key).
    """

    transport: str
    region: str
    bytes: int
    locator: str


class Copy(NamedTuple):
    """One slice pair: ``length`` bytes between two offsets."""

    local_offset: int
    remote_offset: int
    length: int


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Many slices between one local and one remote region (names of registered and attached regions).

    The poster's own regions may stand on the remote side too: a local copy is a transfer to oneself (paper section 5).
    ``copies`` may be an int64 array ``[n, 3]`` with the columns of ``Copy``, or a ``SliceList``: what posts the same slices
    at several places is faster so. ``shift`` is added to local and remote offsets. Nothing may change, and slices must not
    overlap, until the post is done.
    """

    operation: Operation
    local: str
    remote: str
    copies: Sequence[Copy] | npt.NDArray[np.int64] | SliceList
    shift: tuple[int, int] = (0, 0)


class Completion(Future[None]):
    """The end of one post; ``busy_s`` says how long its bytes were on the move, ``bytes`` how many they were.

    A post cannot be recalled: whoever waits for one may give up, but its memory is in use until it is done.
    """

    bytes: int = 0
    busy_s: float = 0.0

    def cancel(self) -> bool:
        return False


class Transport(Protocol):
    """One-sided copies between registered regions. Thread-safe."""

    @property
    def name(self) -> str: ...

    def allocate(self, region: str, length: int) -> memoryview:
        """Page-aligned, touched host memory that peers can reach once they attach ``descriptor(region)``."""
        ...

    def register(self, region: str, memory: Any) -> RegionDescriptor:
        """Make existing memory usable as a local region: a writable buffer, or a contiguous uint8 device tensor."""
        ...

    def descriptor(self, region: str) -> RegionDescriptor:
        """The descriptor to send to peers.

        Raises:
            TransportError: no such region.
        """
        ...

    def attach(self, descriptor: RegionDescriptor) -> None:
        """Make a peer's region reachable. Idempotent.

        Raises:
            TransportError: the region is gone, or is not what the descriptor says.
        """
        ...

    def detach(self, region: str) -> None:
        """Forget a peer's region; no post on it may be in flight. Idempotent."""
        ...

    def post(self, batches: Sequence[CopyBatch]) -> Completion:
        """Submit all copies at once; they are done when the future is. What the same thread posted earlier completes first.

        Raises (in the future):
            TransportError: an unknown region, or a slice outside its region; nothing of the post is copied then.
        """
        ...

    def close(self) -> None:
        """Wait for what is in flight, then release every region. Idempotent."""
        ...
