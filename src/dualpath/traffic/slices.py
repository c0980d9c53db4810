"""Where the tokens of a move lie in buffers, layer frames and device pages, as slices for a transport (paper A.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualpath.kvcache.layout import BlockGeometry

Slices = npt.NDArray[np.int64]
"""``[n, 3]``: local offset, remote offset, length, in bytes."""

NO_SLICES: Slices = np.empty((0, 3), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PagePool:
    """The device's paged KV pool as a transport region: ``[layers, pages, block_tokens, token_layer_bytes]`` uint8."""

    region: str
    pages: int


def frame_slices(geometry: BlockGeometry, first_token: int, tokens: int, kv_row: int, slots: Sequence[int]) -> Slices:
    """Layer 0 of tokens ``[first_token, first_token + tokens)``: rows of frame 0 locally, buffer slots remotely.

    ``kv_row`` is the row of the request's token 0, ``slots[b]`` the slot of its block b. Cut at block edges.
    """
    size = geometry.block_tokens
    end = first_token + tokens
    blocks = np.arange(first_token // size, geometry.blocks(end), dtype=np.int64)
    starts = np.maximum(blocks * size, first_token)
    ends = np.minimum((blocks + 1) * size, end)
    in_slot = (
        np.asarray(slots, dtype=np.int64)[blocks] * geometry.slot_bytes + (starts - blocks * size) * geometry.token_layer_bytes
    )
    return np.column_stack(
        ((kv_row + starts) * geometry.token_layer_bytes, in_slot, (ends - starts) * geometry.token_layer_bytes)
    )


def page_slices(geometry: BlockGeometry, pool_pages: int, pages: Sequence[int], slots: Sequence[int], tokens: int) -> Slices:
    """All layers of a request's first ``tokens`` tokens: pages locally, buffer slots remotely, block b in ``pages[b]``.

    Of a partial last block only the tokens that are there. Layer by layer, so that runs of pages come one after another.
    """
    blocks = geometry.blocks(tokens)
    layers = np.arange(geometry.layers, dtype=np.int64)[:, np.newaxis]
    page = np.asarray(pages, dtype=np.int64)[np.newaxis, :blocks]
    slot = np.asarray(slots, dtype=np.int64)[np.newaxis, :blocks]
    in_block = np.minimum(tokens - np.arange(blocks, dtype=np.int64) * geometry.block_tokens, geometry.block_tokens)
    lengths = np.broadcast_to(in_block * geometry.token_layer_bytes, (geometry.layers, blocks))
    local = (layers * pool_pages + page) * geometry.layer_block_bytes
    remote = slot * geometry.slot_bytes + layers * geometry.layer_block_bytes
    return np.stack((local, remote, lengths), axis=-1).reshape(-1, 3)
