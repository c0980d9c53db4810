"""The block allocator against a set of ids."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.kvcache.pool import BlockPool

STEPS = st.lists(st.tuples(st.sampled_from(["new", "grow", "free"]), st.integers(1, 12), st.integers(0, 99)), max_size=60)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.integers(0, 40), st.integers(0, 5))
def test_blocks_are_never_shared_nor_lost(steps: list[tuple[str, int, int]], capacity: int, growth: int) -> None:
    pool = BlockPool(capacity, growth)
    held: list[list[int]] = []
    for action, count, choice in steps:
        used = {block for ids in held for block in ids}
        if action == "free" and held:
            pool.free(held.pop(choice % len(held)))
        elif action != "free":
            owner = held[choice % len(held)] if action == "grow" and held else None
            ids = pool.allocate(count, None if owner is None else owner[-1])
            assert (ids is None) == (count > capacity - len(used))
            if ids is None:
                continue
            assert len(ids) == len(set(ids)) == count
            assert set(ids) <= set(range(capacity)) - used
            if owner is not None and owner[-1] + 1 in set(range(capacity)) - used:
                assert ids[0] == owner[-1] + 1, "a run grows where it ends while there is room"
            if owner is None:
                held.append(ids)
            else:
                owner += ids
        assert pool.used_blocks == sum(map(len, held))
    for ids in held:
        pool.free(ids)
    assert pool.allocate(capacity) == list(range(capacity)), "everything merges again"
