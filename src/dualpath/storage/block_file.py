"""The format of a block file: a header page that describes and seals the Full Block behind it (paper A.5)."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from dualpath.kvcache.chain import KEY_BYTES
from dualpath.types import BlockKey

HEADER_BYTES = 4096
BLOCK_FORMAT_VERSION = 1
_MAGIC = b"DUALPATH"
_NO_PARENT = bytes(KEY_BYTES)
# magic, version, depth, payload bytes, payload xxh3_64, namespace, key, parent (zeros at depth 0); the page's last eight
# bytes are the xxh3_64 of everything before them.
_FIELDS = struct.Struct("<8sIIQQ16s16s16s")
_SEAL = struct.Struct("<Q")
_SEAL_OFFSET = HEADER_BYTES - _SEAL.size


class BlockHeader(NamedTuple):
    """What the header page says. ``payload_checksum`` is xxh3_64."""

    namespace: bytes
    key: BlockKey
    parent: BlockKey | None
    depth: int
    payload_bytes: int
    payload_checksum: int


def encode_header(header: BlockHeader) -> bytearray:
    """The header page of a block that has a parent exactly if its depth is not 0."""
    assert (header.parent is None) == (header.depth == 0)
    page = bytearray(HEADER_BYTES)
    _FIELDS.pack_into(
        page,
        0,
        _MAGIC,
        BLOCK_FORMAT_VERSION,
        header.depth,
        header.payload_bytes,
        header.payload_checksum,
        header.namespace,
        header.key,
        header.parent or _NO_PARENT,
    )
    _SEAL.pack_into(page, _SEAL_OFFSET, xxh3_64_intdigest(memoryview(page)[:_SEAL_OFFSET]))
    return page


def decode_header(page: bytes | bytearray | memoryview) -> BlockHeader | None:
    """The header, or None if the page is no intact header of this format version."""
    if (
        len(page) != HEADER_BYTES
        or xxh3_64_intdigest(memoryview(page)[:_SEAL_OFFSET]) != _SEAL.unpack_from(page, _SEAL_OFFSET)[0]
    ):
        return None
    magic, version, depth, payload_bytes, checksum, namespace, key, parent = _FIELDS.unpack_from(page)
    if magic != _MAGIC or version != BLOCK_FORMAT_VERSION:
        return None
    return BlockHeader(namespace, BlockKey(key), BlockKey(parent) if depth else None, depth, payload_bytes, checksum)


def read_block_file(path: str, page: memoryview, payload: memoryview) -> int:
    """Read the header into ``page`` and the payload straight into its destination; returns the bytes read.

    Raises:
        OSError: as open and preadv do.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read = os.preadv(descriptor, [page, payload], 0)
        while HEADER_BYTES <= read < HEADER_BYTES + payload.nbytes:
            more = os.preadv(descriptor, [payload[read - HEADER_BYTES :]], read)
            if not more:
                break
            read += more
        return read
    finally:
        os.close(descriptor)


def write_block_file(path: str, page: bytearray, payload: memoryview) -> None:
    """Create ``path`` with header and payload.

    Raises:
        OSError: as open and pwritev do; the file may exist in part then.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        written = os.pwritev(descriptor, [page, payload], 0)
        while written < HEADER_BYTES + payload.nbytes:
            rest = [memoryview(page)[written:], payload] if written < HEADER_BYTES else [payload[written - HEADER_BYTES :]]
            written += os.pwritev(descriptor, rest, written)
    finally:
        os.close(descriptor)


def read_header(path: str) -> tuple[BlockHeader | None, os.stat_result]:
    """A block file's header (None if it is not intact or the payload has not its length) and its status.

    Raises:
        OSError: as open and pread do.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        header = decode_header(os.pread(descriptor, HEADER_BYTES, 0))
    finally:
        os.close(descriptor)
    complete = header is not None and status.st_size == HEADER_BYTES + header.payload_bytes
    return (header if complete else None), status
