"""Batches over threads."""

import threading
from collections.abc import Iterator

import pytest

from dualpath.errors import StorageError
from dualpath.storage.workers import BatchWorkers


@pytest.fixture
def workers() -> Iterator[BatchWorkers]:
    workers = BatchWorkers(3, "test")
    yield workers
    workers.close()


def test_outcomes_keep_their_order(workers: BatchWorkers) -> None:
    assert workers.run(lambda item: item * item, range(100)).result() == [item * item for item in range(100)]


def test_an_empty_batch_is_done_at_once(workers: BatchWorkers) -> None:
    nothing: list[int] = []
    assert workers.run(str, nothing).result(0) == []


def test_a_batch_is_spread_over_all_threads(workers: BatchWorkers) -> None:
    together = threading.Barrier(3)
    assert workers.run(lambda item: together.wait(10) >= 0, range(3)).result(10) == [True] * 3


def test_an_error_is_told_only_when_nothing_runs_any_more(workers: BatchWorkers) -> None:
    gate, seen = threading.Event(), []

    def work(item: int) -> int:
        if item == 0:
            raise OSError("broken")
        gate.wait(10)
        seen.append(item)
        return item

    future = workers.run(work, range(3))
    with pytest.raises(TimeoutError):
        future.result(0.05)
    gate.set()
    with pytest.raises(OSError, match="broken"):
        future.result(10)
    assert sorted(seen) == [1, 2]


def test_closed_workers_take_nothing() -> None:
    workers = BatchWorkers(1, "test")
    workers.close()
    workers.close()
    with pytest.raises(StorageError, match="closed"):
        workers.run(str, [1])
