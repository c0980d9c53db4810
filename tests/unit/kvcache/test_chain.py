"""Chains of block keys."""

import struct
from dataclasses import fields, replace
from hashlib import blake2b

import pytest

from dualpath.kvcache.chain import CacheNamespace, block_keys, extend_keys

NAMESPACE = CacheNamespace("fingerprint", "float32", 4, 1024)
ROOT = NAMESPACE.digest


def test_keys_are_a_chain_of_blake2b_over_little_endian_tokens() -> None:
    first = blake2b(ROOT + struct.pack("<4I", 1, 2, 3, 4), digest_size=16).digest()
    second = blake2b(first + struct.pack("<4I", 5, 6, 7, 2**32 - 1), digest_size=16).digest()
    assert block_keys(ROOT, [1, 2, 3, 4, 5, 6, 7, 2**32 - 1], 4) == [first, second]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_whole_blocks_have_keys(tokens: int, blocks: int) -> None:
    assert len(block_keys(ROOT, list(range(tokens)), 4)) == blocks


def test_packed_tokens_give_the_same_keys() -> None:
    tokens = list(range(1000, 1011))
    packed = struct.pack("<11I", *tokens)
    for form in (packed, bytearray(packed), memoryview(packed)):
        assert block_keys(ROOT, form, 4) == block_keys(ROOT, tokens, 4)


def test_a_chain_can_be_continued() -> None:
    tokens = list(range(24))
    keys = block_keys(ROOT, tokens, 4)
    assert extend_keys(ROOT, keys[1], tokens[8:], 4) == keys[2:]
    assert extend_keys(ROOT, None, tokens, 4) == keys


def test_one_token_changes_its_block_and_all_later_ones() -> None:
    tokens = list(range(16))
    changed = [*tokens[:5], 99, *tokens[6:]]
    before, after = block_keys(ROOT, tokens, 4), block_keys(ROOT, changed, 4)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False, False]


@pytest.mark.parametrize("tokens", [[1, 2, 3, -1], [1, 2, 3, 2**32], b"123"])
def test_tokens_that_are_no_uint32_are_refused(tokens: list[int] | bytes) -> None:
    with pytest.raises(ValueError):
        block_keys(ROOT, tokens, 4)


def test_every_field_of_the_namespace_changes_all_keys() -> None:
    for field in fields(CacheNamespace):
        value = getattr(NAMESPACE, field.name)
        other = replace(NAMESPACE, **{field.name: value + (1 if isinstance(value, int) else "x")})
        assert other.digest != ROOT, field.name


def test_fields_of_the_namespace_do_not_run_into_each_other() -> None:
    assert CacheNamespace("ab", "c", 4, 1024).digest != CacheNamespace("a", "bc", 4, 1024).digest
