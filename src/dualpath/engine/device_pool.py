"""The paged KV pool in a decode engine's device memory (paper section 2, labels 8 and 9)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import torch

from dualpath.kvcache.layout import BlockGeometry
from dualpath.kvcache.pool import BlockPool


@dataclass(slots=True, eq=False)
class _Waiter:
    count: int
    future: asyncio.Future[list[int]]


class DevicePool:
    """Pages of ``block_tokens`` tokens for all layers: ``[layers, pages, block_tokens, token_layer_bytes]`` uint8.

    New sequences wait first come, first served; running ones grow without waiting, or not at all. Not thread-safe: the
    control loop allocates and frees, the compute thread only reads and writes pages of running sequences.
    """

    def __init__(self, geometry: BlockGeometry, pages: int, device: torch.device) -> None:
        shape = (geometry.layers, pages, geometry.block_tokens, geometry.token_layer_bytes)
        self.memory = torch.zeros(shape, dtype=torch.uint8, device=device)
        self._pool = BlockPool(pages)
        self._waiters: deque[_Waiter] = deque()

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def free_pages(self) -> int:
        return self._pool.free_blocks

    def layer(self, layer: int) -> torch.Tensor:
        """The layer's pages, ``[pages, block_tokens, token_layer_bytes]``."""
        return self.memory[layer]

    async def allocate(self, count: int) -> list[int]:
        """Pages for a new sequence, in turn; cancelling the wait leaves nothing behind."""
        if not self._waiters and (pages := self._pool.allocate(count)) is not None:
            return pages
        waiter = _Waiter(count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._serve()
            elif waiter.future.done() and not waiter.future.cancelled():
                self.free(waiter.future.result())
            raise

    def grow(self, after: int) -> int | None:
        """One more page for a running sequence whose last page is ``after``; None if there is none."""
        pages = self._pool.allocate(1, after)
        return None if pages is None else pages[0]

    def free(self, pages: list[int]) -> None:
        """Give pages back that nobody reads or writes any more."""
        self._pool.free(pages)
        self._serve()

    def _serve(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            pages = self._pool.allocate(waiter.count)
            if pages is None:
                return
            self._waiters.popleft()
            if waiter.future.done():
                self._pool.free(pages)
            else:
                waiter.future.set_result(pages)
