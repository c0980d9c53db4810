"""Shared memory between real processes: peers that live, die, and are mistaken for others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from dualpath.errors import TransportError
from dualpath.transport.base import Copy, CopyBatch, Operation, RegionDescriptor
from dualpath.transport.shm import ShmTransport

WAIT_S = 10.0
REGION_BYTES = 5 * 4096 + 17

OWNER = f"""
import sys, msgspec
from dualpath.transport.shm import ShmTransport
transport = ShmTransport("test-owner-")
view = transport.allocate("far", {REGION_BYTES})
view[:5] = b"hello"
print(msgspec.json.encode(transport.descriptor("far")).decode(), flush=True)
for line in sys.stdin:
    start, end = map(int, line.split())
    print(bytes(view[start:end]).hex(), flush=True)
transport.close()
"""


class Owner:
    """A process that owns a region and tells what is in it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.descriptor = msgspec.json.decode(self._line(), type=RegionDescriptor)

    def peek(self, start: int, end: int) -> bytes:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{start} {end}\n")
        return bytes.fromhex(self._line())

    def end(self, *, kill: bool) -> None:
        if kill:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(WAIT_S)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.end(kill=True)


@pytest.fixture
def transport() -> Iterator[ShmTransport]:
    transport = ShmTransport("test-attacher-")
    yield transport
    transport.close()


def _post(transport: ShmTransport, operation: Operation, copy: Copy) -> None:
    transport.post([CopyBatch(operation, "near", "far", [copy])]).result(WAIT_S)


def test_bytes_go_both_ways_without_the_owner_taking_part(owner: Owner, transport: ShmTransport) -> None:
    near = transport.allocate("near", 4096)
    transport.attach(owner.descriptor)
    _post(transport, Operation.READ, Copy(100, 0, 5))
    assert bytes(near[100:105]) == b"hello"
    near[:4] = b"back"
    _post(transport, Operation.WRITE, Copy(0, REGION_BYTES - 4, 4))
    assert owner.peek(REGION_BYTES - 4, REGION_BYTES) == b"back"


@pytest.mark.parametrize("kill", [True, False])
def test_a_mapping_survives_its_owner_and_nobody_can_attach_any_more(owner: Owner, transport: ShmTransport, kill: bool) -> None:
    near = transport.allocate("near", 4096)
    transport.attach(owner.descriptor)
    owner.end(kill=kill)
    _post(transport, Operation.READ, Copy(0, 0, 5))
    assert bytes(near[:5]) == b"hello"
    _post(transport, Operation.WRITE, Copy(0, 4096, 4096))
    late = ShmTransport("test-late-")
    with pytest.raises(TransportError, match="far"):
        late.attach(owner.descriptor)
    late.close()


def test_copies_posted_while_the_owner_is_killed_all_end(owner: Owner, transport: ShmTransport) -> None:
    transport.allocate("near", 2**20)
    transport.attach(owner.descriptor)
    batch = CopyBatch(Operation.WRITE, "near", "far", [Copy(i * 16, i * 16, 16) for i in range(0, 1024, 2)])
    before = [transport.post([batch]) for _ in range(50)]
    owner.process.kill()
    after = [transport.post([batch]) for _ in range(50)]
    for completion in before + after:
        completion.result(WAIT_S)


def test_a_reused_descriptor_is_not_mistaken(transport: ShmTransport) -> None:
    first = ShmTransport("test-first-")
    first.allocate("far", 8192)
    stale = first.descriptor("far")
    first.close()
    second = ShmTransport("test-second-")
    second.allocate("far", 8192)
    # The same process and most likely the same descriptor number, as when a pid is reused.
    path = second.descriptor("far").locator.split("#")[0]
    mistaken = RegionDescriptor(stale.transport, stale.region, stale.bytes, f"{path}#{stale.locator.split('#')[1]}")
    with pytest.raises(TransportError, match="another file"):
        transport.attach(mistaken)
    transport.attach(second.descriptor("far"))
    second.close()


@pytest.mark.parametrize("locator", ["", "/etc/passwd", "/proc/1/fd/x#00", "/proc/self/fd/0#" + "0" * 32])
def test_what_is_no_locator_is_refused(transport: ShmTransport, locator: str) -> None:
    with pytest.raises(TransportError, match="far"):
        transport.attach(RegionDescriptor("shm", "far", 4096, locator))


def test_files_that_are_no_regions_are_refused(transport: ShmTransport) -> None:
    plain = os.memfd_create("test-plain")
    os.ftruncate(plain, 8192)
    null = os.open("/dev/null", os.O_RDWR)
    for file in (plain, null):
        with pytest.raises(TransportError, match="far"):
            transport.attach(RegionDescriptor("shm", "far", 4096, f"/proc/{os.getpid()}/fd/{file}#{'00' * 15}01"))
        os.close(file)


def test_failed_attachments_leave_no_descriptor(transport: ShmTransport) -> None:
    other = ShmTransport("test-other-")
    other.allocate("far", 4096)
    true = other.descriptor("far")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(TransportError):
            transport.attach(RegionDescriptor(true.transport, true.region, 5000, true.locator))
    assert len(os.listdir("/proc/self/fd")) == before
    other.close()


def test_a_detached_region_is_unmapped_while_the_transport_lives(owner: Owner, transport: ShmTransport) -> None:
    def mapped() -> bool:
        with open("/proc/self/maps") as maps:
            return any("test-owner-far" in line for line in maps)

    transport.allocate("near", 4096)
    transport.attach(owner.descriptor)
    assert mapped()
    _post(transport, Operation.WRITE, Copy(0, 0, 4096))
    transport.detach("far")
    ends = time.monotonic() + WAIT_S
    # The copy thread lets go of the last post a moment after that is done.
    while mapped() and time.monotonic() < ends:
        time.sleep(0.001)
    assert not mapped()
