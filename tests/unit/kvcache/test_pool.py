"""The block allocator, case by case."""

import pytest

from dualpath.kvcache.pool import BlockPool


def allocated(pool: BlockPool, count: int, after: int | None = None) -> list[int]:
    ids = pool.allocate(count, after)
    assert ids is not None
    return ids


def is_run(ids: list[int]) -> bool:
    return ids == list(range(ids[0], ids[0] + len(ids)))


def test_an_allocation_is_an_ascending_run() -> None:
    pool = BlockPool(100)
    assert is_run(allocated(pool, 40))
    assert (pool.free_blocks, pool.used_blocks) == (60, 40)


def test_a_run_grows_where_it_ends() -> None:
    pool = BlockPool(100)
    first = allocated(pool, 10)
    other = allocated(pool, 10)
    grown = first + allocated(pool, 1, first[-1]) + allocated(pool, 2, first[-1] + 1)
    assert is_run(grown)
    assert not set(grown) & set(other)


def test_without_room_to_grow_the_rest_is_elsewhere() -> None:
    pool = BlockPool(10, growth_blocks=0)
    first, second = allocated(pool, 4), allocated(pool, 4)
    ids = allocated(pool, 2, first[-1])
    assert set(ids) == set(range(10)) - set(first) - set(second)


def test_a_pool_can_be_used_up_exactly() -> None:
    pool = BlockPool(7)
    ids = allocated(pool, 3) + allocated(pool, 4)
    assert sorted(ids) == list(range(7))
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_too_much_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.free_blocks == 4


def test_pieces_are_used_when_no_run_is_long_enough() -> None:
    pool = BlockPool(9, growth_blocks=0)
    ids = allocated(pool, 9)
    pool.free([0, 1, 4, 5, 8])
    assert allocated(pool, 5) == [0, 1, 4, 5, 8]
    pool.free(ids)
    assert pool.free_blocks == 9


def test_freed_neighbours_become_one_run_again() -> None:
    pool = BlockPool(9, growth_blocks=0)
    allocated(pool, 9)
    for ids in ([3, 4, 5], [0, 1, 2], [8], [6, 7]):
        pool.free(ids)
    assert allocated(pool, 9) == list(range(9))


@pytest.mark.parametrize("ids", [[3, 3], [7], [-1], [9], [2, 9]])
def test_a_wrong_free_is_refused_as_a_whole(ids: list[int]) -> None:
    pool = BlockPool(9, growth_blocks=0)
    allocated(pool, 5)
    with pytest.raises(ValueError):
        pool.free(ids)
    assert pool.used_blocks == 5


def test_freeing_nothing_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.free([])
    assert pool.free_blocks == 4
    allocated(pool, 3)
    pool.free([])
    pool.free(())
    assert pool.used_blocks == 3


def test_a_double_free_is_an_error() -> None:
    pool = BlockPool(4)
    ids = allocated(pool, 2)
    pool.free(ids)
    with pytest.raises(ValueError, match="freed twice"):
        pool.free(ids)


def test_an_empty_pool_and_a_negative_one() -> None:
    assert BlockPool(0).allocate(1) is None
    with pytest.raises(ValueError):
        BlockPool(-1)
