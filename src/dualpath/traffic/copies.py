"""Copies on the decode side: buffer to device pages (handoff), device pages to staging (write-back) (paper section 2)."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.kvcache.layout import BlockGeometry
from dualpath.traffic.pending import completed
from dualpath.traffic.slices import PagePool, page_slices
from dualpath.transport.base import CopyBatch, Operation, Transport


def handoff_batch(
    geometry: BlockGeometry, pool: PagePool, pages: Sequence[int], buffer_region: str, slots: Sequence[int], tokens: int
) -> CopyBatch:
    """A prompt's first ``tokens`` tokens from DE buffer ``slots`` into device ``pages``, block by block."""
    return CopyBatch(Operation.READ, pool.region, buffer_region, page_slices(geometry, pool.pages, pages, slots, tokens))


def staging_batch(
    geometry: BlockGeometry, pool: PagePool, pages: Sequence[int], staging_region: str, slots: Sequence[int]
) -> CopyBatch:
    """Whole blocks from device ``pages`` into staging ``slots``, from where storage writes them."""
    tokens = len(pages) * geometry.block_tokens
    return CopyBatch(Operation.WRITE, pool.region, staging_region, page_slices(geometry, pool.pages, pages, slots, tokens))


async def copy(transport: Transport, batch: CopyBatch) -> int:
    """Bytes copied. A cancellation arrives only when the copy is over: both sides may be used again then.

    Raises:
        TransportError: a region is gone, or too small.
    """
    completion = transport.post([batch])
    await completed(completion)
    return completion.bytes
