"""What every storage demands of the batches it is given."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.storage.base import BlockRead, BlockWrite
from dualpath.types import BlockKey


def check_reads(blocks: Sequence[BlockRead], block_bytes: int) -> None:
    """Check a batch of reads.

    Raises:
        ValueError: a destination has not the length of a block.
    """
    for block in blocks:
        _check_length(block.key, block.destination, block_bytes)


def check_writes(blocks: Sequence[BlockWrite], block_bytes: int) -> None:
    """Check a batch of writes.

    Raises:
        ValueError: data has not the length of a block, or a block has a parent at depth 0 or none below it.
    """
    for block in blocks:
        _check_length(block.key, block.data, block_bytes)
        if (block.parent is None) != (block.depth == 0):
            raise ValueError(f"block {block.key.hex()} at depth {block.depth} has parent {block.parent!r}")


def _check_length(key: BlockKey, memory: memoryview, block_bytes: int) -> None:
    if memory.nbytes != block_bytes:
        raise ValueError(f"block {key.hex()} has {block_bytes} bytes, not {memory.nbytes}")
