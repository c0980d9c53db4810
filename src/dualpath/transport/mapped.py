"""What transports share whose regions are all mapped into this process: a table of regions and one ordered copy thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from dualpath.clock import Clock, MonotonicClock
from dualpath.errors import TransportError
from dualpath.transport.base import Completion, CopyBatch, Operation, RegionDescriptor
from dualpath.transport.copying import Memory, copy_runs, memory_of
from dualpath.transport.slice_list import SliceList


@dataclass(frozen=True, slots=True)
class _Region:
    memory: Memory
    descriptor: RegionDescriptor
    attached: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A batch with its regions looked up; holding their memory keeps it alive until the copy is done."""

    batch: CopyBatch
    local: Memory
    remote: Memory

    def checked(self) -> SliceList:
        copies = self.batch.copies
        slices = copies if isinstance(copies, SliceList) else SliceList(copies)
        slices.check(self.batch.shift, self.local.bytes, self.remote.bytes)
        return slices

    def copy(self, slices: SliceList) -> int:
        """Bytes moved."""
        local_shift, remote_shift = self.batch.shift
        if self.batch.operation is Operation.READ:
            copy_runs(self.local, self.remote, slices.runs, local_shift, remote_shift)
        else:
            copy_runs(self.remote, self.local, slices.turned, remote_shift, local_shift)
        return slices.bytes


@dataclass(frozen=True, slots=True, eq=False)
class _Post:
    parts: list[_Part]
    completion: Completion = field(default_factory=Completion)

    def execute(self, clock: Clock) -> None:
        """Copy everything, or nothing if one slice is bad, and complete."""
        started_s = clock.now()
        try:
            checked = [part.checked() for part in self.parts]
            self.completion.bytes = sum(part.copy(slices) for part, slices in zip(self.parts, checked, strict=True))
        except TransportError as error:
            self.completion.set_exception(error)
        except Exception as error:  # a device error: the poster has to hear of it, and the thread has to go on
            self.completion.set_exception(TransportError(f"copy failed: {error}"))
        else:
            self.completion.busy_s = clock.now() - started_s
            self.completion.set_result(None)


class MappedTransport(ABC):
    """A transport that copies between mapped memory; posts are executed one after another, in the order of posting."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or MonotonicClock()
        self._regions: dict[str, _Region] = {}
        self._posts: SimpleQueue[_Post | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"dualpath-transport-{name}", daemon=True)
        self._thread.start()

    @abstractmethod
    def _create(self, region: str, length: int) -> tuple[Memory, memoryview, str]:
        """New memory, its view of ``length`` bytes and its locator."""

    @abstractmethod
    def _open(self, descriptor: RegionDescriptor) -> Memory:
        """The memory of a peer's region, or TransportError."""

    @abstractmethod
    def _retire(self) -> None:
        """Make own regions unreachable for peers that are not attached yet."""

    @property
    def name(self) -> str:
        return self._name

    def allocate(self, region: str, length: int) -> memoryview:
        """See ``Transport``.

        Raises:
            TransportError: the name is taken, or the transport is closed.
        """
        self._check_new(region)
        memory, view, locator = self._create(region, length)
        self._add(_Region(memory, RegionDescriptor(self._name, region, length, locator)))
        return view

    def register(self, region: str, memory: Any) -> RegionDescriptor:
        """See ``Transport``. Peers cannot attach it.

        Raises:
            TransportError: the name is taken, or the memory is of no use (read-only, not contiguous).
        """
        self._check_new(region)
        found = memory_of(region, memory)
        descriptor = RegionDescriptor(self._name, region, found.bytes, locator="")
        self._add(_Region(found, descriptor))
        return descriptor

    def descriptor(self, region: str) -> RegionDescriptor:
        """See ``Transport``."""
        return self._find(region).descriptor

    def attach(self, descriptor: RegionDescriptor) -> None:
        """See ``Transport``."""
        known = self._regions.get(descriptor.region)
        if known is not None and known.descriptor == descriptor:
            return
        self._check_new(descriptor.region)
        if descriptor.transport != self._name or not descriptor.locator:
            raise TransportError(f"region {descriptor.region} of transport {descriptor.transport} cannot be attached here")
        self._add(_Region(self._open(descriptor), descriptor, attached=True))

    def detach(self, region: str) -> None:
        """See ``Transport``. An own region stays."""
        known = self._regions.get(region)
        if known is not None and known.attached:
            del self._regions[region]

    def post(self, batches: Sequence[CopyBatch]) -> Completion:
        """See ``Transport``."""
        try:
            post = _Post([_Part(one, self._find(one.local).memory, self._find(one.remote).memory) for one in batches])
            with self._lock:
                self._check_open()
                self._posts.put(post)
        except TransportError as error:
            completion = Completion()
            completion.set_exception(error)
            return completion
        return post.completion

    def close(self) -> None:
        """See ``Transport``. Views that were handed out stay valid as long as someone holds them."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._posts.put(None)
        self._thread.join()
        self._retire()
        self._regions.clear()

    def _run(self) -> None:
        while (post := self._posts.get()) is not None:
            post.execute(self._clock)
            # Waiting for the next post must not keep this one's memory alive.
            del post

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError(f"transport {self._name} is closed")

    def _check_new(self, region: str) -> None:
        self._check_open()
        if region in self._regions:
            raise TransportError(f"region {region} exists already, and is another one")

    def _add(self, region: _Region) -> None:
        self._regions[region.descriptor.region] = region

    def _find(self, region: str) -> _Region:
        found = self._regions.get(region)
        if found is None:
            raise TransportError(f"no region {region}: registered and attached are {', '.join(self._regions) or 'none'}")
        return found
