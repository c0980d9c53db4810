"""The prefix index, case by case."""

import gc
import math
import os
import tracemalloc
from collections.abc import Sequence

import pytest

from dualpath.kvcache.trie import Match, PrefixIndex
from dualpath.storage.base import StoredBlock
from dualpath.types import BlockKey


def chain(name: str, length: int) -> list[BlockKey]:
    return [BlockKey(f"{name}{index}".encode()) for index in range(length)]


def begin(index: PrefixIndex, keys: list[BlockKey]) -> list[bool]:
    return index.begin_write(keys, None, 0)


def stored(index: PrefixIndex, keys: list[BlockKey]) -> list[BlockKey]:
    begin(index, keys)
    assert index.publish(keys) == []
    return keys


def test_match_counts_published_then_pending_blocks() -> None:
    index, keys = PrefixIndex(), chain("a", 5)
    begin(index, keys)
    assert index.match(keys) == Match(0, 5)
    index.publish(keys[:3])
    assert index.match(keys) == Match(3, 2)
    assert index.match(chain("b", 5)) == Match(0, 0)
    assert index.match([]) == Match(0, 0)
    assert index.match([*keys[:2], *chain("b", 3)]) == Match(2, 0)


def test_a_block_is_written_by_one_writer_only() -> None:
    index, keys = PrefixIndex(), chain("a", 2)
    assert begin(index, keys) == [True, True]
    assert begin(index, keys) == [False, False]


def test_a_block_without_its_parent_is_not_to_be_written() -> None:
    index, keys = PrefixIndex(), chain("a", 2)
    assert index.begin_write(keys[1:], keys[0], 1) == [False]
    assert index.blocks == 0


def test_no_more_is_to_be_written_than_there_is_room_for() -> None:
    index, keys = PrefixIndex(), chain("a", 5)
    stored(index, keys[:2])
    assert index.begin_write(keys, None, 0, room=2) == [False, False, True, True, False]
    assert index.begin_write(keys[2:], keys[1], 2, room=0) == [False, False, False]
    assert index.begin_write(keys[4:], keys[3], 4) == [True]


def test_a_wrong_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="depth 3"):
        PrefixIndex().begin_write([BlockKey(b"a")], None, 3)


def test_a_block_whose_parent_is_pending_appears_with_it() -> None:
    index, keys = PrefixIndex(), chain("a", 3)
    begin(index, keys)
    index.publish([keys[1]])
    assert index.match(keys) == Match(0, 3)
    index.publish([keys[0]])
    assert index.match(keys) == Match(2, 1)
    assert index.pending == 1


def test_publishing_twice_changes_nothing() -> None:
    index = PrefixIndex()
    keys = stored(index, chain("a", 2))
    assert index.publish(keys) == []
    assert (index.blocks, index.pending) == (2, 0)


def test_an_abandoned_block_takes_what_follows_with_it() -> None:
    index, keys = PrefixIndex(), chain("a", 4)
    begin(index, keys)
    index.publish(keys[:1])
    assert index.abandon(keys[1]) == [keys[3], keys[2], keys[1]]
    assert index.match(keys) == Match(1, 0)
    assert index.publish(keys[1:3]) == keys[1:3], "bytes written meanwhile are strays"


def test_a_published_block_cannot_be_abandoned() -> None:
    index = PrefixIndex()
    keys = stored(index, chain("a", 2))
    assert index.abandon(keys[0]) == []
    assert index.blocks == 2


def test_a_lost_block_takes_its_subtree_with_it() -> None:
    index = PrefixIndex()
    keys = stored(index, chain("a", 3))
    branch = [*keys[:2], *chain("b", 1)]
    stored(index, branch)
    removed = index.remove_lost(keys[1])
    assert set(removed) == {keys[1], keys[2], branch[2]}
    assert removed[-1] == keys[1]
    assert index.match(keys) == Match(1, 0)
    assert index.remove_lost(keys[1]) == []


def test_eviction_takes_the_least_recently_used_leaf() -> None:
    index = PrefixIndex()
    old, young = stored(index, chain("a", 2)), stored(index, chain("b", 2))
    index.touch(old[1])
    assert index.evict(3) == [young[1], young[0], old[1]]
    assert index.evictions == 3


def test_a_use_of_a_leaf_is_a_use_of_its_ancestors() -> None:
    index = PrefixIndex()
    shared = stored(index, chain("a", 1))
    other = stored(index, chain("b", 1))
    leaf = stored(index, [*shared, *chain("c", 1)])
    assert index.evict(3) == [other[0], leaf[1], shared[0]]


def test_pinned_and_pending_chains_are_never_evicted() -> None:
    index = PrefixIndex()
    pinned = stored(index, chain("a", 2))
    index.pin(pinned[1])
    pending = stored(index, chain("b", 2))
    begin(index, [*pending, *chain("c", 1)])
    assert index.evict(9) == []
    index.unpin(pinned[1])
    assert index.evict(9) == [pinned[1], pinned[0]]


def test_pins_are_counted() -> None:
    index = PrefixIndex()
    keys = stored(index, chain("a", 1))
    index.pin(keys[0])
    index.pin(keys[0])
    index.unpin(keys[0])
    assert (index.evict(1), index.pinned) == ([], 1)
    index.unpin(keys[0])
    with pytest.raises(KeyError):
        index.unpin(keys[0])
    with pytest.raises(KeyError):
        index.pin(BlockKey(b"unknown"))


def test_a_pin_of_a_lost_block_does_not_take_another_ones() -> None:
    index = PrefixIndex()
    keys = stored(index, chain("a", 1))
    index.pin(keys[0])
    index.remove_lost(keys[0])
    stored(index, keys)
    index.pin(keys[0])
    index.unpin(keys[0])
    assert index.evict(1) == []
    index.unpin(keys[0])
    assert index.evict(1) == keys


def test_rebuild_orders_by_writing_time_and_reports_orphans() -> None:
    old, young, lost = chain("a", 2), chain("b", 2), chain("c", 3)
    blocks = [
        StoredBlock(young[1], young[0], 1, 64, 4.0),
        StoredBlock(lost[2], lost[1], 2, 64, 0.5),
        StoredBlock(old[1], old[0], 1, 64, 2.0),
        StoredBlock(young[0], None, 0, 64, 3.0),
        StoredBlock(lost[0], None, 5, 64, 9.0),
        StoredBlock(old[0], None, 0, 64, 1.0),
    ]
    index = PrefixIndex()
    assert set(index.rebuild(blocks)) == {lost[2], lost[0]}
    assert index.match(old) == index.match(young) == Match(2, 0)
    assert index.evict(2) == [old[1], old[0]]
    with pytest.raises(ValueError, match="already has 2 blocks"):
        index.rebuild(blocks)


def test_the_eviction_queue_stays_small_while_chains_grow_block_by_block() -> None:
    index = PrefixIndex()
    parent: BlockKey | None = None
    for depth, key in enumerate(chain("a", 10_000)):
        index.begin_write([key], parent, depth)
        index.publish([key])
        parent = key
    assert len(index._queue) <= 2 + 1024
    assert len(index.evict(10_000)) == 10_000


class CountingKeys(Sequence[BlockKey]):
    """A chain that counts how often it is looked at."""

    def __init__(self, keys: list[BlockKey]) -> None:
        self.keys = keys
        self.looks = 0

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> BlockKey:  # type: ignore[override]
        self.looks += 1
        return self.keys[index]


@pytest.mark.parametrize("published", [0, 1, 100, 511, 512])
def test_matching_bisects(published: int) -> None:
    index, keys = PrefixIndex(), chain("a", 512)
    begin(index, keys[: published + 7])
    index.publish(keys[:published])
    counting = CountingKeys(keys)
    assert index.match(counting).published == published
    assert counting.looks <= 2 * math.log2(512) + 4


def test_a_block_costs_at_most_350_bytes() -> None:
    chains, length = 40, 500
    gc.collect()
    tracemalloc.start()
    try:
        index = PrefixIndex()
        for _ in range(chains):
            stored(index, [BlockKey(os.urandom(16)) for _ in range(length)])
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used_bytes / index.blocks <= 350
