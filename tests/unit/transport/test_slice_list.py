"""Slices: what is checked, what is joined, what is copied in one go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.errors import TransportError
from dualpath.transport.base import Copy
from dualpath.transport.copying import HostMemory, copy_runs
from dualpath.transport.slice_list import Run, SliceList, evenly_spaced, joined_slices


def test_slices_are_checked_against_both_regions_wherever_they_are_moved() -> None:
    slices = SliceList([Copy(0, 5, 5), Copy(5, 0, 0)])
    slices.check((0, 0), 5, 10)
    slices.check((1, -0), 6, 10)
    for shift in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        with pytest.raises(TransportError, match=r"slice . .*outside its region"):
            slices.check(shift, 5, 10)
    with pytest.raises(TransportError, match=r"slice 1 \(5 bytes at 1 of 5 locally, at 0 of 10 remotely\)"):
        SliceList([Copy(0, 5, 5), Copy(1, 0, 5)]).check((0, 0), 5, 10)
    SliceList([]).check((7, 7), 0, 0)


@pytest.mark.parametrize("bad", [Copy(-1, 0, 1), Copy(0, -1, 1), Copy(0, 0, -1), Copy(0, 0, 2**63 - 1), Copy(2**63 - 1, 0, 9)])
def test_slices_that_no_region_can_hold_are_refused(bad: Copy) -> None:
    with pytest.raises(TransportError, match="slice 1 "):
        SliceList([Copy(0, 0, 1), bad])


@pytest.mark.parametrize("wrong", [[Copy(2**63, 0, 1)], np.zeros(4, dtype=np.int64), [(1, 2)]])
def test_what_is_no_slice_is_refused(wrong: list[Copy]) -> None:
    with pytest.raises(TransportError, match="not slices"):
        SliceList(wrong)


def test_only_slices_adjacent_on_both_sides_are_joined() -> None:
    slices = np.array([(0, 100, 4), (4, 104, 4), (8, 108, 2), (10, 200, 4), (50, 204, 4), (54, 208, 1)], dtype=np.int64)
    assert joined_slices(slices).tolist() == [[0, 100, 10], [10, 200, 4], [50, 204, 5]]
    assert joined_slices(slices[:1]).tolist() == [[0, 100, 4]]
    apart = slices[::3]
    assert joined_slices(apart) is apart


def test_evenly_spaced_slices_are_found() -> None:
    to = np.array([0, 4, 8, 12, 100, 104, 300, 290, 280, 0], dtype=np.int64)
    from_ = np.array([0, 40, 80, 120, 7, 11, 50, 60, 70, 500], dtype=np.int64)
    lengths = np.array([4, 4, 4, 4, 4, 4, 4, 4, 4, 3], dtype=np.int64)
    assert evenly_spaced(to, from_, lengths) == [(0, 4), (4, 2), (6, 1), (7, 1), (8, 1), (9, 1)]


def test_slices_of_neighbouring_slots_are_one_run_in_both_directions() -> None:
    slices = SliceList([Copy(4 * index, 100 + 32 * index, 4) for index in range(5)])
    assert slices.runs == (Run(0, 100, 4, 5, 4, 32),)
    assert slices.turned == (Run(100, 0, 4, 5, 32, 4),)
    assert slices.bytes == 20


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3)), max_size=30),
    st.integers(0, 4),
    st.integers(0, 4),
    st.booleans(),
)
@settings(deadline=None)
def test_every_slice_is_copied_whatever_the_spacing(
    gaps: list[tuple[int, int, int]], to_shift: int, from_shift: int, turned: bool
) -> None:
    slices = []
    to_end = from_end = 0
    for to_gap, from_gap, length in gaps:
        slices.append(Copy(to_end + to_gap, from_end + from_gap, length))
        to_end, from_end = to_end + to_gap + length, from_end + from_gap + length
    source = HostMemory(np.arange(from_end + from_shift + 1, dtype=np.uint8))
    destination = HostMemory(np.zeros(to_end + to_shift + 1, np.uint8))
    expected = np.zeros(to_end + to_shift + 1, np.uint8)
    for to, from_, length in slices:
        expected[to + to_shift : to + to_shift + length] = source.array[from_ + from_shift : from_ + from_shift + length]
    if turned:
        runs = SliceList([Copy(from_, to, length) for to, from_, length in slices]).turned
    else:
        runs = SliceList(slices).runs
    copy_runs(destination, source, runs, to_shift, from_shift)
    assert (destination.array == expected).all()
