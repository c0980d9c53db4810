"""The copy engine: what is moved, between which memories."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from dualpath.errors import SettingsError, TransportError
from dualpath.transport.copying import DeviceMemory, HostMemory, Memory, copy_runs, memory_of
from dualpath.transport.registry import create_transport
from dualpath.transport.slice_list import SliceList

torch.set_num_threads(1)


def _bytes(memory: Memory) -> bytes:
    return bytes(memory.tensor().numpy())


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
    copy_runs(destination, source, SliceList(np.column_stack((to, from_, lengths))).runs)
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
