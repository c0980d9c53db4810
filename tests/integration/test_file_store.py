"""The file store on real directories: formats, full and read-only file systems, leases, temporaries, verification."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpath.errors import StorageError, StoreFormatError, StoreInUse
from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.storage import block_file
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, WriteOutcome
from dualpath.storage.directory import STALE_TEMPORARY_S, STORE_VERSION, block_path
from dualpath.storage.files import FileStorage, IndexLease
from dualpath.storage.hosts import host_tag
from dualpath.storage.maintenance import clear_store, store_stats, verify_store
from dualpath.types import BlockKey

BLOCK_BYTES = 64 << 10
NAMESPACE = CacheNamespace("fingerprint", "float32", 1, BLOCK_BYTES)
OTHER_NAMESPACE = CacheNamespace("another model", "float32", 1, BLOCK_BYTES)
KEYS = block_keys(NAMESPACE.digest, list(range(40)), 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def storage(root: Path) -> Iterator[FileStorage]:
    storage = FileStorage(root, NAMESPACE)
    yield storage
    storage.close()


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", directory], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("mounting a small file system needs root")
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


def writes(keys: list[BlockKey]) -> list[BlockWrite]:
    parents = [None, *keys]
    return [
        BlockWrite(key, parent, depth, memoryview(key * (BLOCK_BYTES // 16)))
        for depth, (key, parent) in enumerate(zip(keys, parents, strict=False))
    ]


def write(storage: FileStorage, keys: list[BlockKey]) -> list[WriteOutcome]:
    return storage.write(writes(keys)).result(20)


def read(storage: FileStorage, key: BlockKey) -> ReadOutcome:
    return storage.read([BlockRead(key, memoryview(bytearray(BLOCK_BYTES)))]).result(20)[0]


def temporaries(root: Path) -> list[Path]:
    return list(root.glob("*/tmp/*"))


def path_of(root: Path, key: BlockKey) -> Path:
    return Path(block_path(str(root / NAMESPACE.digest.hex()), key))


def start(what: str, root: Path) -> subprocess.Popen[str]:
    """This file as a program: opens the store, or owns it until it is killed."""
    return subprocess.Popen([sys.executable, __file__, what, str(root)], stdout=subprocess.PIPE, text=True)


# --- formats -----------------------------------------------------------------------------------------------------------


def test_a_store_outlives_its_storage(root: Path, storage: FileStorage) -> None:
    write(storage, KEYS[:2])
    again = FileStorage(root, NAMESPACE)
    assert read(again, KEYS[1]) is ReadOutcome.OK
    again.close()


def test_one_root_serves_several_models(root: Path, storage: FileStorage) -> None:
    other = FileStorage(root, OTHER_NAMESPACE)
    write(storage, KEYS[:3])
    assert read(other, KEYS[0]) is ReadOutcome.MISSING
    assert list(other.scan()) == []
    other.close()
    found = {stats.description["model_fingerprint"]: stats.blocks for stats in store_stats(root)}
    assert found == {"fingerprint": 3, "another model": 0}


def test_a_store_from_the_future_is_refused_with_both_versions(root: Path, storage: FileStorage) -> None:
    (root / "store.json").write_text(json.dumps({"format": "dualpath-store", "version": 7}))
    with pytest.raises(StoreFormatError, match=f"version 7.*reads and writes {STORE_VERSION}"):
        FileStorage(root, NAMESPACE)


def test_a_block_from_the_future_is_corrupt(root: Path, storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(block_file, "BLOCK_FORMAT_VERSION", 2)
        write(storage, KEYS[:1])
        assert read(storage, KEYS[0]) is ReadOutcome.OK
    assert read(storage, KEYS[0]) is ReadOutcome.CORRUPT


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(StoreFormatError, match="no DualPath store"):
        FileStorage(tmp_path, NAMESPACE)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_fresh_mount_is_no_foreign_directory(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    FileStorage(tmp_path, NAMESPACE).close()


def test_a_broken_description_is_refused(root: Path, storage: FileStorage) -> None:
    (root / NAMESPACE.digest.hex() / "namespace.json").write_text("{")
    with pytest.raises(StoreFormatError, match="fingerprint"):
        FileStorage(root, NAMESPACE)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot use .*file"):
        FileStorage(tmp_path / "file", NAMESPACE)


def test_many_processes_may_create_the_store_at_once(root: Path) -> None:
    processes = [start("open", root) for _ in range(4)]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0] * 4


# --- writes that fail --------------------------------------------------------------------------------------------------


def test_a_full_file_system(small_file_system: Path) -> None:
    storage = FileStorage(small_file_system, NAMESPACE)
    outcomes = write(storage, KEYS)
    assert set(outcomes) == {WriteOutcome.OK, WriteOutcome.FULL}
    assert temporaries(small_file_system) == []
    kept = [key for key, outcome in zip(KEYS, outcomes, strict=True) if outcome is WriteOutcome.OK]
    assert {block.key for block in storage.scan()} == set(kept)
    storage.delete(kept[:1])
    assert write(storage, kept[:1]) == [WriteOutcome.OK], "there is room again"
    storage.close()


def test_a_read_only_file_system(small_file_system: Path) -> None:
    storage = FileStorage(small_file_system, NAMESPACE)
    write(storage, KEYS[:1])
    subprocess.run(["mount", "-o", "remount,ro", small_file_system], check=True)
    assert write(storage, KEYS[1:2]) == [WriteOutcome.READ_ONLY]
    assert read(storage, KEYS[0]) is ReadOutcome.OK
    assert storage.delete(KEYS[:1]) == 0
    storage.close()
    readable = FileStorage(small_file_system, NAMESPACE)
    assert read(readable, KEYS[0]) is ReadOutcome.OK
    readable.close()
    with pytest.raises(StorageError, match="Read-only"):
        FileStorage(small_file_system, OTHER_NAMESPACE)
    with pytest.raises(StorageError, match="Read-only"):
        IndexLease(small_file_system)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.ENOSPC, WriteOutcome.FULL),
        (errno.EDQUOT, WriteOutcome.FULL),
        (errno.EROFS, WriteOutcome.READ_ONLY),
        (errno.EACCES, WriteOutcome.READ_ONLY),
        (errno.EIO, WriteOutcome.FAILED),
    ],
)
def test_errors_of_the_file_system(
    root: Path, storage: FileStorage, monkeypatch: pytest.MonkeyPatch, number: int, outcome: WriteOutcome
) -> None:
    def refuse(descriptor: int, buffers: object, offset: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwritev", refuse)
    assert write(storage, KEYS[:2]) == [outcome] * 2
    assert temporaries(root) == []
    assert list(storage.scan()) == []


def test_a_write_in_pieces(root: Path, storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def some(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return whole(descriptor, [memoryview(buffers[0])[:3000]], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", some)
        assert write(storage, KEYS[:1]) == [WriteOutcome.OK]
    assert read(storage, KEYS[0]) is ReadOutcome.OK


def test_a_file_size_limit(root: Path, storage: FileStorage) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES // 2, before[1]))
    try:
        assert write(storage, KEYS[:1]) == [WriteOutcome.FAILED]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert temporaries(root) == []
    assert write(storage, KEYS[:1]) == [WriteOutcome.OK]


def test_a_read_that_fails(root: Path, storage: FileStorage) -> None:
    path_of(root, KEYS[0]).mkdir(parents=True)
    assert read(storage, KEYS[0]) is ReadOutcome.FAILED


def test_a_cleared_directory_comes_back(root: Path, storage: FileStorage) -> None:
    write(storage, KEYS[:2])
    path_of(root, KEYS[0]).unlink()
    path_of(root, KEYS[0]).parent.rmdir()
    assert read(storage, KEYS[0]) is ReadOutcome.MISSING
    assert write(storage, KEYS[:1]) == [WriteOutcome.OK]


# --- temporaries -------------------------------------------------------------------------------------------------------


def test_only_what_dead_or_old_writers_left_is_cleaned(root: Path, storage: FileStorage) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    directory = root / NAMESPACE.digest.hex() / "tmp"
    dead = directory / f"{host_tag()}-{ended.pid}-00000000-0.tmp"
    alive = directory / f"{host_tag()}-{os.getpid()}-00000000-0.tmp"
    elsewhere = directory / f"00000000-{ended.pid}-00000000-0.tmp"
    old = directory / f"00000000-{ended.pid}-00000000-1.tmp"
    for path in (dead, alive, elsewhere, old):
        path.touch()
    long_ago_s = time.time() - STALE_TEMPORARY_S - 1
    os.utime(old, (long_ago_s, long_ago_s))
    assert {bad.path for bad in verify_store(root).bad} == {str(dead), str(old)}
    FileStorage(root, NAMESPACE).close()
    assert set(temporaries(root)) == {alive, elsewhere}


# --- lease -------------------------------------------------------------------------------------------------------------


def test_a_second_owner_is_refused_and_told_who_holds_the_store(root: Path) -> None:
    with IndexLease(root), pytest.raises(StoreInUse, match=f"in use by process {os.getpid()}$"):
        IndexLease(root)
    with IndexLease(root) as lease:
        lease.release()
        IndexLease(root).release()


def test_a_lease_ends_with_its_holder(root: Path) -> None:
    with start("own", root) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for refused in (IndexLease, clear_store):
            with pytest.raises(StoreInUse, match=f"process {holder.pid}$"):
                refused(root)
        with pytest.raises(StoreInUse):
            verify_store(root, delete=True)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    IndexLease(root).release()


# --- maintenance -------------------------------------------------------------------------------------------------------


def test_verification_finds_every_kind_of_damage_and_can_delete_it(root: Path, storage: FileStorage) -> None:
    write(storage, KEYS[:12])
    with path_of(root, KEYS[8]).open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    path_of(root, KEYS[10]).unlink()
    reasons = {bad.path: bad.reason for bad in verify_store(root).bad}
    assert "checksum" in reasons.pop(str(path_of(root, KEYS[8])))
    assert f"parent {KEYS[8].hex()} is missing" in reasons[str(path_of(root, KEYS[9]))]
    assert set(reasons) == {str(path_of(root, key)) for key in (KEYS[9], KEYS[11])}
    report = verify_store(root, delete=True)
    assert (report.blocks, report.deleted, report.is_clean) == (8, 3, True)
    again = verify_store(root)
    assert (again.blocks, again.payload_bytes, again.bad) == (8, 8 * BLOCK_BYTES, [])


def test_a_block_in_another_blocks_place_is_bad(root: Path, storage: FileStorage) -> None:
    write(storage, KEYS[:2])
    path_of(root, KEYS[0]).rename(path_of(root, KEYS[1]))
    assert read(storage, KEYS[1]) is ReadOutcome.CORRUPT
    assert [bad.reason for bad in verify_store(root).bad] == [
        f"it is block {KEYS[0].hex()} of namespace {NAMESPACE.digest.hex()}"
    ]


def test_clearing_leaves_an_empty_store(root: Path, storage: FileStorage) -> None:
    write(storage, KEYS[:5])
    assert clear_store(root) == 5
    assert store_stats(root) == []
    again = FileStorage(root, NAMESPACE)
    assert write(again, KEYS[:1]) == [WriteOutcome.OK]
    again.close()


def test_maintenance_needs_a_store(tmp_path: Path) -> None:
    for work in (store_stats, verify_store, clear_store):
        with pytest.raises(StoreFormatError, match="no DualPath store"):
            work(tmp_path)
    assert os.listdir(tmp_path) == []


if __name__ == "__main__":
    if sys.argv[1] == "open":
        FileStorage(sys.argv[2], NAMESPACE).close()
    else:
        with IndexLease(sys.argv[2]):
            print("held", flush=True)
            time.sleep(60)
