"""Slices looked through once, so that posting the same ones again, layer after layer, costs little (paper section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dualpath.errors import TransportError

Slices = npt.NDArray[np.int64]
"""``[n, 3]``: local offset, remote offset, length, in bytes."""

_LARGEST = 1 << 62
"""Below this, no sum of an offset and a length overflows."""


class Run(NamedTuple):
    """``times`` slices of ``length`` bytes, each so many bytes behind the one before it on either side."""

    local: int
    remote: int
    length: int
    times: int
    local_step: int
    remote_step: int


class SliceList:
    """Slice pairs between two regions, as few evenly spaced runs of joined slices. Immutable.

    Attributes:
        runs: what is to be copied.
        turned: the same with local and remote exchanged.
        bytes: how much that is.
    """

    __slots__ = ("_ends", "_slices", "_starts", "bytes", "runs", "turned")

    def __init__(self, copies: Sequence[tuple[int, int, int]] | Slices) -> None:
        """Raises TransportError: these are no slices, or an offset or a length is negative."""
        try:
            slices = np.asarray(copies, dtype=np.int64).reshape(-1, 3)
        except (OverflowError, ValueError) as error:
            raise TransportError(f"not slices of (local offset, remote offset, length): {error}") from error
        bad = ((slices < 0) | (slices > _LARGEST)).any(axis=1)
        if bad.any():
            self._refuse(slices, bad)
        self._slices = slices
        self._starts, self._ends = (0, 0), (0, 0)
        if len(slices):
            ends = (slices[:, :2] + slices[:, 2:]).max(axis=0)
            self._starts = int(slices[:, 0].min()), int(slices[:, 1].min())
            self._ends = int(ends[0]), int(ends[1])
        self.bytes = int(slices[:, 2].sum())
        self.runs = runs_of(joined_slices(slices))
        self.turned = tuple(Run(r.remote, r.local, r.length, r.times, r.remote_step, r.local_step) for r in self.runs)

    def check(self, shift: tuple[int, int], local_bytes: int, remote_bytes: int) -> None:
        """Raises TransportError: moved by ``shift``, a slice reaches outside its region."""
        (local, remote), (local_start, remote_start), (local_end, remote_end) = shift, self._starts, self._ends
        inside = local_end + local <= local_bytes and remote_end + remote <= remote_bytes
        if inside and local_start + local >= 0 and remote_start + remote >= 0:
            return
        if not len(self._slices):
            return
        moved = self.at(shift)
        ends = moved[:, :2] + moved[:, 2:]
        self._refuse(
            moved, (moved < 0).any(axis=1) | (ends > (local_bytes, remote_bytes)).any(axis=1), local_bytes, remote_bytes
        )

    def at(self, shift: tuple[int, int]) -> Slices:
        """The slices as they were given, moved by ``shift``."""
        return self._slices + np.array((*shift, 0), dtype=np.int64)

    @staticmethod
    def _refuse(slices: Slices, bad: npt.NDArray[np.bool_] | np.bool_, *region_bytes: int) -> None:
        index = int(np.flatnonzero(bad)[0])
        local, remote, length = slices[index].tolist()
        of = [f" of {size}" for size in region_bytes] or ["", ""]
        raise TransportError(
            f"slice {index} ({length} bytes at {local}{of[0]} locally, at {remote}{of[1]} remotely) is outside its region"
        )


def joined_slices(slices: Slices) -> Slices:
    """Fewer, longer slices: each one that starts on both sides where the one before it ends is joined to that one."""
    if len(slices) < 2:
        return slices
    ends = slices[:-1, :2] + slices[:-1, 2:]
    starts = np.concatenate(([0], np.flatnonzero((ends != slices[1:, :2]).any(axis=1)) + 1))
    if len(starts) == len(slices):
        return slices
    return np.column_stack((slices[starts, :2], np.add.reduceat(slices[:, 2], starts)))


def runs_of(slices: Slices) -> tuple[Run, ...]:
    """Slices as runs of equal length with one step on each side; steps go forward. Empty slices are left out."""
    to, from_, lengths = slices[:, 0], slices[:, 1], slices[:, 2]
    rows = slices.tolist()
    runs: list[Run] = []
    for first, times in evenly_spaced(to, from_, lengths):
        local, remote, length = rows[first]
        if times == 1:
            runs.append(Run(local, remote, length, 1, 0, 0))
        else:
            second = rows[first + 1]
            runs.append(Run(local, remote, length, times, second[0] - local, second[1] - remote))
    return tuple(run for run in runs if run.length)


def evenly_spaced(to: Slices, from_: Slices, lengths: Slices) -> list[tuple[int, int]]:
    """Divides slices into runs ``(first, count)`` of equal length with one step on each side; steps go forward."""
    count = len(lengths)
    if count < 3:
        return [(index, 1) for index in range(count)]
    steps = np.column_stack((np.diff(to), np.diff(from_)))
    even = (lengths[1:] == lengths[:-1]) & (steps >= lengths[:-1, np.newaxis]).all(axis=1) & (lengths[:-1] > 0)
    goes_on = even[1:] & even[:-1] & (steps[1:] == steps[:-1]).all(axis=1)
    # For each gap between slices, the first gap behind it that is not like it.
    breaks = np.append(np.flatnonzero(~goes_on) + 1, count - 1)
    ends = breaks[np.searchsorted(breaks, np.arange(count - 1), side="right")].tolist()
    regular = even.tolist()
    runs: list[tuple[int, int]] = []
    first = 0
    while first < count:
        length = ends[first] - first + 1 if first < count - 1 and regular[first] else 1
        runs.append((first, length))
        first += length
    return runs
