"""What every storage has to do."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualpath.errors import StorageError
from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, Storage, WriteOutcome
from dualpath.storage.files import FileStorage
from dualpath.storage.limited import LimitedStorage
from dualpath.storage.limiter import SharedSnicLimiter, SnicLimiter
from dualpath.storage.memory import MemoryStorage
from dualpath.types import BlockKey

BLOCK_BYTES = 5000
NAMESPACE = CacheNamespace("fingerprint", "float32", 1, BLOCK_BYTES)
TIMEOUT_S = 20

BACKENDS: dict[str, Callable[[Path], Storage]] = {
    "files": lambda root: FileStorage(root, NAMESPACE, threads=3),
    "unverified-files": lambda root: FileStorage(root, NAMESPACE, verify_checksums=False),
    "memory": lambda root: MemoryStorage(BLOCK_BYTES),
    "limited-files": lambda root: LimitedStorage(FileStorage(root, NAMESPACE), SnicLimiter(200e6)),
    "shared-limited-files": lambda root: LimitedStorage(
        FileStorage(root / "store", NAMESPACE), SharedSnicLimiter(root / "snic", 200e6)
    ),
    "unlimited-memory": lambda root: LimitedStorage(MemoryStorage(BLOCK_BYTES), SnicLimiter()),
}


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    storage = BACKENDS[request.param](tmp_path)
    yield storage
    storage.close()


def chain(count: int, first_token: int = 0) -> list[BlockKey]:
    return block_keys(NAMESPACE.digest, list(range(first_token, first_token + count)), 1)


def content(key: BlockKey) -> bytes:
    """A block's bytes follow from its key."""
    return (key * (BLOCK_BYTES // len(key) + 1))[:BLOCK_BYTES]


def writes(keys: list[BlockKey]) -> list[BlockWrite]:
    parents = [None, *keys]
    return [
        BlockWrite(key, parent, depth, memoryview(content(key)))
        for depth, (key, parent) in enumerate(zip(keys, parents, strict=False))
    ]


def stored(storage: Storage, keys: list[BlockKey]) -> list[BlockKey]:
    assert storage.write(writes(keys)).result(TIMEOUT_S) == [WriteOutcome.OK] * len(keys)
    return keys


def read(storage: Storage, keys: list[BlockKey]) -> tuple[list[ReadOutcome], list[bytes]]:
    memory = [bytearray(BLOCK_BYTES) for _ in keys]
    blocks = [BlockRead(key, memoryview(block)) for key, block in zip(keys, memory, strict=True)]
    return storage.read(blocks).result(TIMEOUT_S), [bytes(block) for block in memory]


def test_what_was_written_is_read(storage: Storage) -> None:
    keys = stored(storage, chain(20))
    outcomes, blocks = read(storage, keys)
    assert outcomes == [ReadOutcome.OK] * 20
    assert blocks == [content(key) for key in keys]


def test_outcomes_keep_the_order_of_the_batch(storage: Storage) -> None:
    keys = stored(storage, chain(3))
    unknown = chain(2, first_token=100)
    outcomes, blocks = read(storage, [keys[2], unknown[0], keys[0], unknown[1]])
    assert outcomes == [ReadOutcome.OK, ReadOutcome.MISSING, ReadOutcome.OK, ReadOutcome.MISSING]
    assert (blocks[0], blocks[2]) == (content(keys[2]), content(keys[0]))


def test_empty_batches(storage: Storage) -> None:
    assert storage.read([]).result(TIMEOUT_S) == []
    assert storage.write([]).result(TIMEOUT_S) == []
    assert storage.delete([]) == 0


def test_writing_again_is_fine(storage: Storage) -> None:
    keys = stored(storage, chain(4))
    stored(storage, keys)
    assert len(list(storage.scan())) == 4
    assert read(storage, keys)[0] == [ReadOutcome.OK] * 4


def test_deleting_is_idempotent_and_counts(storage: Storage) -> None:
    keys = stored(storage, chain(3))
    assert storage.delete(keys[1:]) == 2
    assert storage.delete(keys) == 1
    assert read(storage, keys)[0] == [ReadOutcome.MISSING] * 3
    assert list(storage.scan()) == []


def test_a_scan_tells_what_an_index_needs(storage: Storage) -> None:
    keys = stored(storage, chain(3))
    stored(storage, [keys[0]])
    found = {block.key: block for block in storage.scan()}
    assert set(found) == set(keys)
    for depth, key in enumerate(keys):
        assert found[key].parent == (keys[depth - 1] if depth else None)
        assert (found[key].depth, found[key].bytes) == (depth, BLOCK_BYTES)
    assert found[keys[0]].written_s >= found[keys[1]].written_s


def test_data_may_change_once_a_write_is_done(storage: Storage) -> None:
    key, data = chain(1)[0], bytearray(os.urandom(BLOCK_BYTES))
    before = bytes(data)
    assert storage.write([BlockWrite(key, None, 0, memoryview(data))]).result(TIMEOUT_S) == [WriteOutcome.OK]
    data[:] = bytes(BLOCK_BYTES)
    assert read(storage, [key]) == ([ReadOutcome.OK], [before])


def test_a_destination_in_the_middle_of_a_buffer_keeps_its_neighbours(storage: Storage) -> None:
    key = stored(storage, chain(1))[0]
    buffer = bytearray(b"x" * (BLOCK_BYTES + 20))
    assert storage.read([BlockRead(key, memoryview(buffer)[10:-10])]).result(TIMEOUT_S) == [ReadOutcome.OK]
    assert buffer == b"x" * 10 + content(key) + b"x" * 10


@pytest.mark.parametrize("length", [0, BLOCK_BYTES - 1, BLOCK_BYTES + 1])
def test_a_wrong_length_is_the_callers_error(storage: Storage, length: int) -> None:
    key, memory = chain(1)[0], memoryview(bytearray(length))
    with pytest.raises(ValueError, match=f"{BLOCK_BYTES} bytes, not {length}"):
        storage.read([BlockRead(key, memory)])
    with pytest.raises(ValueError, match=f"{BLOCK_BYTES} bytes, not {length}"):
        storage.write([BlockWrite(key, None, 0, memory)])


def test_a_parent_and_a_depth_that_contradict_are_the_callers_error(storage: Storage) -> None:
    first, second = chain(2)
    memory = memoryview(bytes(BLOCK_BYTES))
    for write in (BlockWrite(second, first, 0, memory), BlockWrite(second, None, 1, memory)):
        with pytest.raises(ValueError, match="parent"):
            storage.write([write])


def test_many_threads_at_once(storage: Storage) -> None:
    chains = [chain(10, first_token=1000 * number) for number in range(6)]
    failures: list[object] = []

    def turn(keys: list[BlockKey]) -> None:
        for _ in range(5):
            stored(storage, keys)
            outcomes, blocks = read(storage, keys)
            if outcomes != [ReadOutcome.OK] * 10 or blocks != [content(key) for key in keys]:
                failures.append(outcomes)

    threads = [threading.Thread(target=turn, args=(keys,)) for keys in chains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(storage.scan())) == 60


def test_reads_beside_deletes_are_good_or_missing(storage: Storage) -> None:
    keys = chain(8)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            stored(storage, keys)
            storage.delete(keys)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(40):
            outcomes, blocks = read(storage, keys)
            for key, outcome, block in zip(keys, outcomes, blocks, strict=True):
                assert outcome is ReadOutcome.MISSING or (outcome is ReadOutcome.OK and block == content(key))
    finally:
        stop.set()
        thread.join()


def test_closing_waits_for_what_runs_and_is_idempotent(storage: Storage) -> None:
    written = storage.write(writes(chain(30)))
    storage.close()
    assert written.done()
    assert written.result() == [WriteOutcome.OK] * 30
    storage.close()
    with pytest.raises(StorageError, match="closed"):
        storage.read([BlockRead(chain(1)[0], memoryview(bytearray(BLOCK_BYTES)))])


def test_memory_storage_can_be_full() -> None:
    storage = MemoryStorage(BLOCK_BYTES, capacity_bytes=2 * BLOCK_BYTES + 1)
    keys = chain(3)
    assert storage.write(writes(keys)).result() == [WriteOutcome.OK, WriteOutcome.OK, WriteOutcome.FULL]
    assert storage.write(writes(keys[:1])).result() == [WriteOutcome.OK], "a stored block needs no more room"
    storage.delete(keys[:1])
    assert storage.write(writes(keys)[2:]).result() == [WriteOutcome.OK]
