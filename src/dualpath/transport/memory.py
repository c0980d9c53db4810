"""Engines in one process: regions are anonymous memory that all transports on one board can attach."""

from __future__ import annotations

import mmap

import numpy as np

from dualpath.clock import Clock
from dualpath.errors import TransportError
from dualpath.transport.base import RegionDescriptor
from dualpath.transport.copying import HostMemory, Memory
from dualpath.transport.mapped import MappedTransport


class MemoryBoard:
    """Where the transports of one process find each other's regions. Thread-safe."""

    def __init__(self) -> None:
        self.regions: dict[str, HostMemory] = {}


class MemoryTransport(MappedTransport):
    """See ``Transport``; peers are the transports that were given the same board."""

    def __init__(self, board: MemoryBoard, clock: Clock | None = None) -> None:
        self._board = board
        self._own: list[str] = []
        super().__init__("memory", clock)

    def _create(self, region: str, length: int) -> tuple[Memory, memoryview, str]:
        if region in self._board.regions:
            raise TransportError(f"region {region} exists already")
        view = memoryview(mmap.mmap(-1, max(1, length), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))[
            :length
        ]
        memory = HostMemory(np.frombuffer(view, dtype=np.uint8))
        self._board.regions[region] = memory
        self._own.append(region)
        return memory, view, region

    def _open(self, descriptor: RegionDescriptor) -> Memory:
        memory = self._board.regions.get(descriptor.locator)
        if memory is None or memory.bytes != descriptor.bytes:
            raise TransportError(f"region {descriptor.region} of {descriptor.bytes} bytes is gone")
        return memory

    def _retire(self) -> None:
        while self._own:
            self._board.regions.pop(self._own.pop(), None)
