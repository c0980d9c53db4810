"""Which blocks of a fixed pool are in use, handed out in ascending runs where possible (paper section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, zip_longest


class BlockPool:
    """Allocates block ids ``[0, capacity)``, preferring runs that can be viewed without gathering.

    Free ids are kept as extents (maximal runs), grouped by the power of two of their length, so that an allocation
    costs O(count + log capacity) and a free O(count). A new run leaves ``growth_blocks`` free behind the run before it,
    if there is room, so that both can grow. Not thread-safe.
    """

    def __init__(self, capacity: int, growth_blocks: int = 4) -> None:
        if capacity < 0:
            raise ValueError(f"a pool cannot hold {capacity} blocks")
        self.capacity = capacity
        self._growth_blocks = growth_blocks
        self._free_count = 0
        self._is_free = bytearray(capacity)
        self._length_from: dict[int, int] = {}
        self._start_before: dict[int, int] = {}
        self._starts: list[dict[int, None]] = [{} for _ in range(capacity.bit_length() + 1)]
        if capacity:
            self._give(0, capacity)

    @property
    def free_blocks(self) -> int:
        return self._free_count

    @property
    def used_blocks(self) -> int:
        return self.capacity - self._free_count

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """``count`` ids, or None if fewer are free.

        They continue the run that ends in ``after`` as far as possible; what is left is one ascending run where one is
        found at O(count), else several.
        """
        if count > self._free_count:
            return None
        ids = self._extend(after, count) if after is not None else []
        if len(ids) < count:
            ids += self._one_run(count - len(ids)) or self._pieces(count - len(ids))
        return ids

    def free(self, ids: Sequence[int]) -> None:
        """Give ids back; all or none. No ids are no error.

        Raises:
            ValueError: an id is not in the pool, is free already or comes twice.
        """
        ordered = sorted(ids)
        for block, following in zip_longest(ordered, ordered[1:]):
            if not 0 <= block < self.capacity:
                raise ValueError(f"block {block} is outside the pool of {self.capacity}")
            if self._is_free[block] or block == following:
                raise ValueError(f"block {block} is freed twice")
        for start, length in _runs(ordered):
            self._give(start, length)

    def _extend(self, after: int, count: int) -> list[int]:
        length = self._length_from.get(after + 1, 0)
        return self._take(after + 1, min(count, length)) if length else []

    def _one_run(self, count: int) -> list[int]:
        """A run of ``count`` ids with room to grow, or a tight one, or nothing."""
        start = self._extent_of(count + 2 * self._growth_blocks)
        if start is None:
            start = self._extent_of(count)
        if start is None:
            return []
        slack = self._length_from[start] - count
        return self._take(start, count, skip=min(slack // 2, self._growth_blocks) if start else 0)

    def _pieces(self, count: int) -> list[int]:
        """``count`` ids from the longest extents, ascending."""
        ids: list[int] = []
        for starts in reversed(self._starts):
            while starts and len(ids) < count:
                start = next(iter(starts))
                ids += self._take(start, min(count - len(ids), self._length_from[start]))
        return sorted(ids)

    def _extent_of(self, length: int) -> int | None:
        """Start of a free extent of at least ``length``, from the shortest group that has one."""
        if length > self.capacity:
            return None
        # Extents of the request's own power of two may be a little too short: look at no more of them than it has blocks.
        for start in islice(self._starts[length.bit_length()], length):
            if self._length_from[start] >= length:
                return start
        for starts in self._starts[length.bit_length() + 1 :]:
            if starts:
                return next(iter(starts))
        return None

    def _take(self, extent: int, count: int, skip: int = 0) -> list[int]:
        """Mark ``count`` ids used, after the first ``skip`` of the free extent that starts at ``extent``."""
        first = extent + skip
        rest = self._remove(extent) - skip - count
        if skip:
            self._insert(extent, skip)
        if rest:
            self._insert(first + count, rest)
        self._is_free[first : first + count] = bytes(count)
        self._free_count -= count
        return list(range(first, first + count))

    def _give(self, start: int, length: int) -> None:
        """Mark ``[start, start + length)`` free, merging it with its free neighbours."""
        self._is_free[start : start + length] = b"\x01" * length
        self._free_count += length
        if start + length in self._length_from:
            length += self._remove(start + length)
        if start in self._start_before:
            previous = self._start_before[start]
            length += self._remove(previous)
            start = previous
        self._insert(start, length)

    def _insert(self, start: int, length: int) -> None:
        self._length_from[start] = length
        self._start_before[start + length] = start
        self._starts[length.bit_length()][start] = None

    def _remove(self, start: int) -> int:
        length = self._length_from.pop(start)
        del self._start_before[start + length]
        del self._starts[length.bit_length()][start]
        return length


def _runs(ordered: Sequence[int]) -> list[tuple[int, int]]:
    """Maximal runs of ascending ids as (start, length)."""
    runs: list[tuple[int, int]] = []
    for block in ordered:
        if runs and runs[-1][0] + runs[-1][1] == block:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs
