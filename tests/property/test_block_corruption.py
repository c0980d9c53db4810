"""No damaged block file is ever taken for a good one."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome
from dualpath.storage.block_file import HEADER_BYTES, BlockHeader, decode_header, encode_header
from dualpath.storage.directory import block_path
from dualpath.storage.files import FileStorage
from dualpath.storage.maintenance import verify_store
from dualpath.types import BlockKey

BLOCK_BYTES = 3000
NAMESPACE = CacheNamespace("fingerprint", "float32", 1, BLOCK_BYTES)
KEY, OTHER_KEY = block_keys(NAMESPACE.digest, [1, 2], 1)
KEYS = st.binary(min_size=16, max_size=16).map(BlockKey)
Damage = Callable[[bytearray], bytes | bytearray]


def flip(position: int, mask: int) -> Damage:
    def damage(content: bytearray) -> bytearray:
        content[position] ^= mask
        return content

    return damage


def outcomes_after(damage: Damage) -> tuple[ReadOutcome, ReadOutcome, bool, int]:
    """What a verifying and a trusting read, a verification and a scan say about a damaged block."""
    with tempfile.TemporaryDirectory() as root:
        storage = FileStorage(root, NAMESPACE, threads=1)
        trusting = FileStorage(root, NAMESPACE, threads=1, verify_checksums=False)
        storage.write([BlockWrite(KEY, None, 0, memoryview(bytes(range(250)) * 12))]).result()
        path = Path(block_path(str(Path(root) / NAMESPACE.digest.hex()), KEY))
        path.write_bytes(damage(bytearray(path.read_bytes())))
        reads = [BlockRead(KEY, memoryview(bytearray(BLOCK_BYTES)))]
        verified, trusted = storage.read(reads).result()[0], trusting.read(reads).result()[0]
        clean = verify_store(root).is_clean
        scanned = len(list(storage.scan()))
        storage.close()
        trusting.close()
        assert path.exists() == (scanned == 1), "what is no block is deleted: nobody would count it"
        return verified, trusted, clean, scanned


@settings(deadline=None, max_examples=60)
@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_any_flipped_header_byte_is_found(position: int, mask: int) -> None:
    assert outcomes_after(flip(position, mask)) == (ReadOutcome.CORRUPT, ReadOutcome.CORRUPT, False, 0)


@settings(deadline=None, max_examples=60)
@given(st.integers(HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES - 1), st.integers(1, 255))
def test_any_flipped_payload_byte_is_found_when_checksums_are_verified(position: int, mask: int) -> None:
    assert outcomes_after(flip(position, mask)) == (ReadOutcome.CORRUPT, ReadOutcome.OK, False, 1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, HEADER_BYTES + BLOCK_BYTES - 1))
def test_a_truncated_file_is_found(length: int) -> None:
    outcomes = outcomes_after(lambda content: content[:length])
    assert outcomes == (ReadOutcome.CORRUPT, ReadOutcome.CORRUPT, False, 0)


def test_another_blocks_intact_file_is_found() -> None:
    def swap(content: bytearray) -> bytearray:
        header = decode_header(bytes(content[:HEADER_BYTES]))
        assert header is not None
        return encode_header(header._replace(key=OTHER_KEY)) + content[HEADER_BYTES:]

    assert outcomes_after(swap) == (ReadOutcome.CORRUPT, ReadOutcome.CORRUPT, False, 0)


def test_another_namespaces_intact_file_is_found() -> None:
    def swap(content: bytearray) -> bytearray:
        header = decode_header(bytes(content[:HEADER_BYTES]))
        assert header is not None
        return encode_header(header._replace(namespace=bytes(16))) + content[HEADER_BYTES:]

    assert outcomes_after(swap) == (ReadOutcome.CORRUPT, ReadOutcome.CORRUPT, False, 0)


@settings(deadline=None, max_examples=100)
@given(KEYS, KEYS, st.none() | KEYS, st.integers(1, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_headers_survive_their_encoding(
    namespace: bytes, key: BlockKey, parent: BlockKey | None, depth: int, length: int, checksum: int
) -> None:
    header = BlockHeader(namespace, key, parent, depth if parent else 0, length, checksum)
    page = encode_header(header)
    assert len(page) == HEADER_BYTES
    assert decode_header(page) == header
    assert decode_header(page[:-1]) is None
