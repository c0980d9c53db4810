"""The copy engine: what is checked, what is joined, what is moved."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.errors import SettingsError, TransportError
from dualpath.transport.base import Copy
from dualpath.transport.copying import (
    DeviceMemory,
    HostMemory,
    Memory,
    checked_slices,
    copy_slices,
    evenly_spaced,
    joined_slices,
    memory_of,
)
from dualpath.transport.registry import create_transport

torch.set_num_threads(1)


def _bytes(memory: Memory) -> bytes:
    return bytes(memory.tensor().numpy())


def test_slices_are_checked_against_both_regions() -> None:
    assert checked_slices([Copy(0, 5, 5), Copy(5, 0, 0)], 5, 10).tolist() == [[0, 5, 5], [5, 0, 0]]
    assert checked_slices([], 5, 10).shape == (0, 3)
    with pytest.raises(TransportError, match="slice 1 "):
        checked_slices([Copy(0, 5, 5), Copy(1, 0, 5)], 5, 10)
    with pytest.raises(TransportError, match="not slices"):
        checked_slices(np.zeros(4, dtype=np.int64), 5, 10)


def test_only_slices_adjacent_on_both_sides_are_joined() -> None:
    slices = np.array([(0, 100, 4), (4, 104, 4), (8, 108, 2), (10, 200, 4), (50, 204, 4), (54, 208, 1)], dtype=np.int64)
    assert joined_slices(slices).tolist() == [[0, 100, 10], [10, 200, 4], [50, 204, 5]]
    assert joined_slices(slices[:1]).tolist() == [[0, 100, 4]]
    apart = slices[::3]
    assert joined_slices(apart) is apart


def _random_copy(destination: Memory, source: Memory, count: int = 3000) -> bytes:
    """Copies ``count`` slices of 0 to 8 bytes and returns what the destination should hold."""
    rng = np.random.default_rng(3)
    expected = bytearray(_bytes(destination))
    to = np.arange(count, dtype=np.int64) * 8
    from_ = rng.permutation(to)
    lengths = rng.integers(0, 9, size=count)
    content = _bytes(source)
    for target, start, length in zip(to, from_, lengths, strict=True):
        expected[target : target + length] = content[start : start + length]
    copy_slices(destination, source, to, from_, lengths)
    return bytes(expected)


def _host(seed: int) -> HostMemory:
    return HostMemory(np.random.default_rng(seed).integers(0, 256, size=24_000, dtype=np.uint8))


def _device(seed: int) -> DeviceMemory:
    return DeviceMemory(torch.from_numpy(_host(seed).array))


@pytest.mark.parametrize(
    ("destination", "source"),
    [(_host(1), _host(2)), (_device(1), _host(2)), (_host(1), _device(2)), (_device(1), _device(2))],
)
def test_every_pair_of_memories_copies_exactly_the_slices(destination: Memory, source: Memory) -> None:
    expected = _random_copy(destination, source)
    assert _bytes(destination) == expected


def test_tensors_and_buffers_become_regions_over_the_same_bytes() -> None:
    tensor = torch.zeros(4, 8, dtype=torch.uint8)
    memory = memory_of("kv", tensor)
    assert isinstance(memory, HostMemory)
    memory.array[9] = 7
    assert tensor[1, 1] == 7
    words = (ctypes.c_uint32 * 4)()
    assert memory_of("words", words).bytes == 16
    for wrong in (tensor[:, :3], torch.zeros(3)):
        with pytest.raises(TransportError, match="kv"):
            memory_of("kv", wrong)


def test_transports_are_found_by_name() -> None:
    transport = create_transport("shm", "prefill-0")
    assert transport.name == "shm"
    transport.close()
    with pytest.raises(SettingsError, match="pigeon"):
        create_transport("pigeon", "prefill-0")


def test_evenly_spaced_slices_are_found() -> None:
    to = np.array([0, 4, 8, 12, 100, 104, 300, 290, 280, 0], dtype=np.int64)
    from_ = np.array([0, 40, 80, 120, 7, 11, 50, 60, 70, 500], dtype=np.int64)
    lengths = np.array([4, 4, 4, 4, 4, 4, 4, 4, 4, 3], dtype=np.int64)
    assert evenly_spaced(to, from_, lengths) == [(0, 4), (4, 2), (6, 1), (7, 1), (8, 1), (9, 1)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3)), max_size=30),
)
@settings(deadline=None)
def test_every_slice_is_copied_whatever_the_spacing(gaps: list[tuple[int, int, int]]) -> None:
    to, from_, lengths = [], [], []
    to_end = from_end = 0
    for to_gap, from_gap, length in gaps:
        to.append(to_end + to_gap)
        from_.append(from_end + from_gap)
        lengths.append(length)
        to_end, from_end = to[-1] + length, from_[-1] + length
    source = HostMemory(np.arange(from_end + 1, dtype=np.uint8))
    destination, expected = HostMemory(np.zeros(to_end + 1, np.uint8)), np.zeros(to_end + 1, np.uint8)
    for target, start, length in zip(to, from_, lengths, strict=True):
        expected[target : target + length] = source.array[start : start + length]
    arrays = [np.array(values, dtype=np.int64) for values in (to, from_, lengths)]
    copy_slices(destination, source, arrays[0], arrays[1], arrays[2])
    assert (destination.array == expected).all()
    runs = evenly_spaced(arrays[0], arrays[1], arrays[2])
    assert [index for first, count in runs for index in range(first, first + count)] == list(range(len(gaps)))
