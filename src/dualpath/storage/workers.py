"""A batch spread over I/O threads, with one future for all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from dualpath.errors import StorageError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class BatchWorkers:
    """A fixed number of threads; each takes the next item of a batch as soon as it is free."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, work: Callable[[Item], Outcome], items: Sequence[Item]) -> Future[list[Outcome]]:
        """Apply ``work`` to every item; the future has the outcomes in order, or the first error.

        Raises:
            StorageError: the workers are closed.
        """
        batch = _Batch(work, items, min(self._threads, len(items)))
        try:
            for _ in range(batch.shares):
                self._pool.submit(batch.work_on_share)
        except RuntimeError:
            raise StorageError("the storage is closed") from None
        return batch.future

    def close(self) -> None:
        """Wait for what was submitted, then end the threads. Idempotent."""
        self._pool.shutdown(wait=True)


class _Batch(Generic[Item, Outcome]):
    """Its future is done when no thread works on the batch any more, also after an error."""

    def __init__(self, work: Callable[[Item], Outcome], items: Sequence[Item], shares: int) -> None:
        self.shares = shares
        self.future: Future[list[Outcome]] = Future()
        self._work = work
        # Threads share one iterator: taking the next item from it is atomic.
        self._items: Iterator[tuple[int, Item]] = iter(list(enumerate(items)))
        self._outcomes: dict[int, Outcome] = {}
        self._error: BaseException | None = None
        self._unfinished = shares
        self._lock = threading.Lock()
        self.future.set_running_or_notify_cancel()
        if not shares:
            self.future.set_result([])

    def work_on_share(self) -> None:
        try:
            for index, item in self._items:
                self._outcomes[index] = self._work(item)
        except BaseException as error:
            self._error = error
        with self._lock:
            self._unfinished -= 1
            last = not self._unfinished
        if last:
            self._finish()

    def _finish(self) -> None:
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result([self._outcomes[index] for index in range(len(self._outcomes))])
