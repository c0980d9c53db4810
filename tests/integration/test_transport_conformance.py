"""What every transport has to do; the same tests for all of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import wait

import numpy as np
import pytest

from dualpath.errors import TransportError
from dualpath.transport.base import Copy, CopyBatch, Operation, RegionDescriptor, Transport
from dualpath.transport.memory import MemoryBoard, MemoryTransport
from dualpath.transport.shm import ShmTransport

WAIT_S = 20.0
PAGE = 4096

Pair = tuple[Transport, Transport]


def _memory(count: int) -> list[Transport]:
    board = MemoryBoard()
    return [MemoryTransport(board) for _ in range(count)]


def _shm(count: int) -> list[Transport]:
    return [ShmTransport(f"test-{index}-") for index in range(count)]


Make = Callable[[int], list[Transport]]


@pytest.fixture(params=[_memory, _shm], ids=["memory", "shm"])
def transports(request: pytest.FixtureRequest) -> Iterator[list[Transport]]:
    make: Make = request.param
    made = make(3)
    yield made
    for transport in made:
        transport.close()


@pytest.fixture
def pair(transports: list[Transport]) -> Pair:
    return transports[0], transports[1]


def _connected(pair: Pair, near_bytes: int = 3 * PAGE, far_bytes: int = 5 * PAGE) -> tuple[memoryview, memoryview]:
    near, far = pair
    views = near.allocate("near", near_bytes), far.allocate("far", far_bytes)
    near.attach(far.descriptor("far"))
    return views


def _post(transport: Transport, operation: Operation, *copies: Copy, local: str = "near", remote: str = "far") -> None:
    transport.post([CopyBatch(operation, local, remote, copies)]).result(WAIT_S)


def test_allocated_memory_is_page_aligned_zeroed_and_exactly_as_long(pair: Pair) -> None:
    view = pair[0].allocate("odd", 10_001)
    array = np.frombuffer(view, dtype=np.uint8)
    assert array.ctypes.data % PAGE == 0
    assert len(view) == 10_001
    assert not view.readonly
    assert not array.any()


def test_write_reaches_the_peer_and_read_brings_it_back(pair: Pair) -> None:
    near, far = _connected(pair)
    near[100:200] = bytes(range(100))
    _post(pair[0], Operation.WRITE, Copy(100, 4000, 100))
    assert bytes(far[4000:4100]) == bytes(range(100))
    assert not any(far[:4000])
    assert not any(far[4100:])
    far[4000:4003] = b"xyz"
    _post(pair[0], Operation.READ, Copy(0, 4000, 3))
    assert bytes(near[:4]) == b"xyz\0"


def test_a_local_copy_is_a_transfer_to_oneself(pair: Pair) -> None:
    near, _ = _connected(pair)
    near[:8] = b"original"
    _post(pair[0], Operation.WRITE, Copy(0, PAGE, 8), remote="near")
    _post(pair[0], Operation.READ, Copy(2 * PAGE, PAGE, 8), remote="near")
    assert bytes(near[2 * PAGE : 2 * PAGE + 8]) == b"original"


@pytest.mark.parametrize("as_array", [False, True])
def test_many_tiny_slices_arrive_each_at_its_place(pair: Pair, as_array: bool) -> None:
    count = 5000
    near, far = _connected(pair, count * 4, count * 4)
    rng = np.random.default_rng(7)
    near[:] = rng.bytes(count * 4)
    order = rng.permutation(count)
    copies = [Copy(4 * i, 4 * int(order[i]), 4) for i in range(count)]
    batch = CopyBatch(Operation.WRITE, "near", "far", np.array(copies, dtype=np.int64) if as_array else copies)
    completion = pair[0].post([batch])
    completion.result(WAIT_S)
    expected = np.empty((count, 4), dtype=np.uint8)
    expected[order] = np.frombuffer(near, dtype=np.uint8).reshape(count, 4)
    assert bytes(far) == expected.tobytes()
    assert completion.bytes == count * 4
    assert completion.busy_s > 0


def test_registered_memory_takes_part_locally_only(pair: Pair) -> None:
    _connected(pair)
    own = bytearray(b"registered bytes")
    descriptor = pair[0].register("own", own)
    assert descriptor == pair[0].descriptor("own")
    assert descriptor.bytes == 16
    _post(pair[0], Operation.WRITE, Copy(0, 0, 16), local="own")
    _post(pair[0], Operation.READ, Copy(11, 0, 5), local="own")
    assert bytes(own) == b"registered regis"
    with pytest.raises(TransportError, match="own"):
        pair[1].attach(descriptor)


@pytest.mark.parametrize("memory", [b"read-only", memoryview(bytearray(16))[::2]])
def test_memory_that_cannot_be_used_is_refused(pair: Pair, memory: object) -> None:
    with pytest.raises(TransportError, match="own"):
        pair[0].register("own", memory)


@pytest.mark.parametrize(
    "bad",
    [
        Copy(-1, 0, 1),
        Copy(0, -1, 1),
        Copy(0, 0, -1),
        Copy(3 * PAGE - 1, 0, 2),
        Copy(0, 5 * PAGE - 1, 2),
        Copy(2**63 - 1, 0, 1),
        Copy(0, 0, 2**63 - 1),
        Copy(2**64, 0, 1),
    ],
)
@pytest.mark.parametrize("operation", list(Operation))
def test_one_bad_slice_and_nothing_is_copied(pair: Pair, bad: Copy, operation: Operation) -> None:
    near, far = _connected(pair)
    near[:] = b"n" * len(near)
    far[:] = b"f" * len(far)
    good = CopyBatch(operation, "near", "far", [Copy(0, 0, 64)])
    completion = pair[0].post([good, CopyBatch(operation, "near", "far", [Copy(64, 64, 64), bad])])
    with pytest.raises(TransportError):
        completion.result(WAIT_S)
    assert set(near) == {ord("n")}
    assert set(far) == {ord("f")}


def test_slices_up_to_the_last_byte_and_of_no_bytes_are_fine(pair: Pair) -> None:
    near, far = _connected(pair)
    near[-1] = 9
    _post(pair[0], Operation.WRITE, Copy(3 * PAGE - 1, 5 * PAGE - 1, 1), Copy(3 * PAGE, 5 * PAGE, 0))
    assert far[-1] == 9
    pair[0].post([]).result(WAIT_S)
    pair[0].post([CopyBatch(Operation.WRITE, "near", "far", [])]).result(WAIT_S)


def test_posts_of_one_thread_are_executed_in_order(pair: Pair) -> None:
    near, far = _connected(pair)
    completions = []
    for step in range(200):
        # Each post moves on what the one before it has left.
        source, target = (step % 2) * PAGE, ((step + 1) % 2) * PAGE
        if step == 0:
            near[:4] = b"ball"
        completions.append(pair[0].post([CopyBatch(Operation.WRITE, "near", "far", [Copy(source, target, 4)])]))
        completions.append(pair[0].post([CopyBatch(Operation.READ, "near", "far", [Copy(target, target, 4)])]))
    for completion in completions:
        completion.result(WAIT_S)
    assert bytes(near[:4]) == b"ball"
    assert bytes(far[:4]) == b"ball"


def test_a_post_cannot_be_recalled(pair: Pair) -> None:
    near, far = _connected(pair, 64 * 2**20, 64 * 2**20)
    near[-4:] = b"last"
    completions = [
        pair[0].post([CopyBatch(Operation.WRITE, "near", "far", [Copy(0, 0, len(near))])]),
        pair[0].post([CopyBatch(Operation.WRITE, "near", "far", [Copy(len(near) - 4, 0, 4)])]),
    ]
    assert not any(completion.cancel() for completion in completions)
    assert not wait(completions, WAIT_S).not_done
    assert bytes(far[:4]) == b"last"


def test_unknown_regions_are_named(pair: Pair) -> None:
    _connected(pair)
    for local, remote in (("nowhere", "far"), ("near", "nowhere")):
        with pytest.raises(TransportError, match="nowhere"):
            _post(pair[0], Operation.READ, Copy(0, 0, 1), local=local, remote=remote)
    with pytest.raises(TransportError, match="nowhere"):
        pair[0].descriptor("nowhere")


def test_attach_twice_detach_twice_and_attach_again(pair: Pair) -> None:
    _, far = _connected(pair)
    descriptor = pair[1].descriptor("far")
    pair[0].attach(descriptor)
    pair[0].detach("far")
    pair[0].detach("far")
    with pytest.raises(TransportError):
        _post(pair[0], Operation.WRITE, Copy(0, 0, 1))
    pair[0].attach(descriptor)
    _post(pair[0], Operation.WRITE, Copy(0, 0, 1))
    pair[1].attach(descriptor)
    pair[1].detach("far")
    assert pair[1].descriptor("far") == descriptor
    assert len(far) == descriptor.bytes


def test_names_are_taken_once(pair: Pair) -> None:
    _connected(pair)
    with pytest.raises(TransportError, match="near"):
        pair[0].allocate("near", 10)
    with pytest.raises(TransportError, match="far"):
        pair[0].register("far", bytearray(10))
    other = RegionDescriptor(pair[0].name, "far", 1, pair[1].descriptor("far").locator)
    with pytest.raises(TransportError, match="far"):
        pair[0].attach(other)


@pytest.mark.parametrize("bytes_off", [-PAGE, -1, 1, PAGE])
def test_a_region_of_another_size_is_refused(pair: Pair, bytes_off: int) -> None:
    near, far = pair
    far.allocate("far", 2 * PAGE)
    true = far.descriptor("far")
    wrong = RegionDescriptor(true.transport, true.region, true.bytes + bytes_off, true.locator)
    with pytest.raises(TransportError, match="far"):
        near.attach(wrong)
    near.attach(true)


def test_regions_of_another_transport_are_refused(pair: Pair) -> None:
    pair[1].allocate("far", PAGE)
    true = pair[1].descriptor("far")
    with pytest.raises(TransportError, match="carrier-pigeon"):
        pair[0].attach(RegionDescriptor("carrier-pigeon", true.region, true.bytes, true.locator))


def test_closing_waits_for_what_is_posted_and_ends_everything_else(pair: Pair, transports: list[Transport]) -> None:
    near, far = _connected(pair, 32 * 2**20, 32 * 2**20)
    near[:] = b"z" * len(near)
    descriptor = pair[1].descriptor("far")
    completion = pair[0].post([CopyBatch(Operation.WRITE, "near", "far", [Copy(0, 0, len(near))])])
    pair[0].close()
    pair[0].close()
    assert completion.done()
    assert far[-1] == ord("z")
    with pytest.raises(TransportError, match="closed"):
        pair[0].allocate("late", 1)
    with pytest.raises(TransportError):
        pair[0].post([]).result(WAIT_S)
    pair[1].close()
    assert far[-1] == ord("z"), "views that were handed out stay valid"
    with pytest.raises(TransportError, match="far"):
        transports[2].attach(descriptor)


def test_a_peer_that_has_closed_leaves_a_mapping_that_can_be_written(pair: Pair) -> None:
    _connected(pair)
    pair[1].close()
    _post(pair[0], Operation.WRITE, Copy(0, 0, 128))


@pytest.mark.parametrize("make", [_memory, _shm], ids=["memory", "shm"])
def test_nothing_is_left_behind(make: Make) -> None:
    def round_trip() -> None:
        pair = make(2)
        _connected((pair[0], pair[1]))
        _post(pair[0], Operation.WRITE, Copy(0, 0, 128))
        for transport in pair:
            transport.close()

    round_trip()
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(3):
        round_trip()
    gc.collect()
    assert (sorted(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before
