"""Block keys: a chain of hashes over whole blocks of tokens, so that equal keys mean equal prefixes (paper A.5)."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b

from dualpath.types import BlockKey

KEY_BYTES = 16
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class CacheNamespace:
    """Everything besides the tokens that decides what a block's bytes are; blocks of two namespaces never meet.

    Attributes:
        model_fingerprint: architecture, revision and weights.
        dtype: precision of the KV.
        block_tokens: tokens in a block.
        block_bytes: length of a Full Block.
        layout_version: version of a block's interior.
        parallel_layout: how KV is divided over devices, e.g. ``tp1``.
    """

    model_fingerprint: str
    dtype: str
    block_tokens: int
    block_bytes: int
    layout_version: int = 1
    parallel_layout: str = "tp1"

    @property
    def digest(self) -> bytes:
        """16 bytes that differ for different namespaces; the root of every chain of keys."""
        hasher = blake2b(digest_size=KEY_BYTES, person=b"dualpath-names")
        for value in astuple(self):
            encoded = str(value).encode()
            hasher.update(len(encoded).to_bytes(8, "little") + encoded)
        return hasher.digest()


def block_keys(namespace_digest: bytes, tokens: Sequence[int] | bytes, block_tokens: int) -> list[BlockKey]:
    """Keys of the whole blocks of a sequence; a partial last block has none.

    ``tokens`` are integers, or their packed form: a bytes-like of little-endian uint32.

    Raises:
        ValueError: a token is no uint32, or packed tokens are no multiple of 4 bytes.
    """
    return extend_keys(namespace_digest, None, tokens, block_tokens)


def extend_keys(
    namespace_digest: bytes, parent: BlockKey | None, tokens: Sequence[int] | bytes, block_tokens: int
) -> list[BlockKey]:
    """Keys of the whole blocks of ``tokens``, which follow the block ``parent`` (None: they start the sequence).

    ``key = BLAKE2b-128(parent's key or the namespace's digest, the block's tokens as little-endian uint32)``.

    Raises:
        ValueError: as ``block_keys``.
    """
    packed = tokens if isinstance(tokens, bytes | bytearray | memoryview) else pack_tokens(tokens)
    block_bytes = block_tokens * TOKEN_BYTES
    if len(packed) % TOKEN_BYTES:
        raise ValueError(f"{len(packed)} bytes are no whole number of uint32 tokens")
    whole = memoryview(packed)[: len(packed) - len(packed) % block_bytes]
    key = namespace_digest if parent is None else parent
    keys: list[BlockKey] = []
    for (block,) in struct.iter_unpack(f"{block_bytes}s", whole):
        key = BlockKey(blake2b(key + block, digest_size=KEY_BYTES).digest())
        keys.append(key)
    return keys


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian uint32.

    Raises:
        ValueError: a token is no uint32.
    """
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"tokens must be uint32: {error}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
