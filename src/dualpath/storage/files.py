"""The embedded storage: one checksummed file a Full Block on any POSIX file system (paper A.5)."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from types import TracebackType

from xxhash import xxh3_64_intdigest

from dualpath.errors import StorageError, StoreInUse
from dualpath.kvcache.chain import CacheNamespace
from dualpath.storage import directory as on_disk
from dualpath.storage.arguments import check_reads, check_writes
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, StoredBlock, WriteOutcome
from dualpath.storage.block_file import (
    HEADER_BYTES,
    BlockHeader,
    decode_header,
    encode_header,
    read_block_file,
    read_header,
    write_block_file,
)
from dualpath.storage.workers import BatchWorkers
from dualpath.types import BlockKey

_log = logging.getLogger(__name__)
_WRITE_OUTCOMES = {
    errno.ENOSPC: WriteOutcome.FULL,
    errno.EDQUOT: WriteOutcome.FULL,
    errno.EROFS: WriteOutcome.READ_ONLY,
    errno.EACCES: WriteOutcome.READ_ONLY,
    errno.EPERM: WriteOutcome.READ_ONLY,
}


class FileStorage:
    """Full Blocks of one namespace under a root directory that several models and processes may share.

    A block is written under a temporary name and renamed, without fsync: a crash of the machine can tear it, which its
    checksum tells. ``verify_checksums`` off trusts payloads and checks headers only.

    Raises:
        StoreFormatError: the root is no store, one of another version, or the namespace's directory is foreign.
        StorageError: the root cannot be created or used.
    """

    def __init__(self, root: Path | str, namespace: CacheNamespace, *, threads: int = 2, verify_checksums: bool = True) -> None:
        on_disk.create_store(Path(root))
        directory = on_disk.open_namespace(Path(root), namespace)
        for stale in on_disk.stale_temporaries(directory):
            remove_file(str(stale))
        self._directory = str(directory)
        self._namespace = namespace.digest
        self._block_bytes = namespace.block_bytes
        self._verify_checksums = verify_checksums
        # The random part tells apart several storages of one process.
        self._temporary = f"{on_disk.TEMPORARIES}/{on_disk.temporary_prefix(os.getpid())}{os.urandom(4).hex()}"
        self._numbers = count()
        self._thread = threading.local()
        self._workers = BatchWorkers(threads, "storage")

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        """Read a batch; outcomes in the order of ``blocks``.

        Raises:
            ValueError: a destination has not the length of a block.
            StorageError: the storage is closed.
        """
        check_reads(blocks, self._block_bytes)
        return self._workers.run(self._read, blocks)

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        """Write a batch, replacing blocks that are stored already; outcomes in the order of ``blocks``.

        Raises:
            ValueError: data has not the length of a block, or a block has a parent at depth 0 or none below it.
            StorageError: the storage is closed.
        """
        check_writes(blocks, self._block_bytes)
        return self._workers.run(self._write, blocks)

    def delete(self, keys: Sequence[BlockKey]) -> int:
        """Delete blocks, returning how many were there. Reads that have begun are not disturbed."""
        return sum(remove_file(on_disk.block_path(self._directory, key)) for key in keys)

    def scan(self) -> Iterator[StoredBlock]:
        """All complete blocks; reads header pages only. Deletes what can be no block of this namespace."""
        for entry in on_disk.block_entries(Path(self._directory)):
            try:
                header, status = read_header(entry.path)
            except OSError:
                continue
            if header is not None and self._is_home(header, entry.name):
                yield StoredBlock(header.key, header.parent, header.depth, header.payload_bytes, status.st_mtime)
            else:
                _log.warning("deleting %s, which is no intact block", entry.path)
                remove_file(entry.path)

    def close(self) -> None:
        """Wait for what runs, then release the threads. Idempotent."""
        self._workers.close()

    def _is_home(self, header: BlockHeader, name: str) -> bool:
        expected = header.key.hex() + on_disk.BLOCK_SUFFIX
        return header.namespace == self._namespace and header.payload_bytes == self._block_bytes and name == expected

    def _read(self, block: BlockRead) -> ReadOutcome:
        page = self._header_page()
        try:
            read = read_block_file(on_disk.block_path(self._directory, block.key), page, block.destination)
        except FileNotFoundError:
            return ReadOutcome.MISSING
        except OSError as error:
            _log.warning("cannot read block %s: %s", block.key.hex(), error)
            return ReadOutcome.FAILED
        header = decode_header(page) if read == HEADER_BYTES + self._block_bytes else None
        if header is None or header.key != block.key or header.namespace != self._namespace:
            return ReadOutcome.CORRUPT
        if header.payload_bytes != self._block_bytes:
            return ReadOutcome.CORRUPT
        if self._verify_checksums and xxh3_64_intdigest(block.destination) != header.payload_checksum:
            return ReadOutcome.CORRUPT
        return ReadOutcome.OK

    def _write(self, block: BlockWrite) -> WriteOutcome:
        checksum = xxh3_64_intdigest(block.data)
        header = BlockHeader(self._namespace, block.key, block.parent, block.depth, block.data.nbytes, checksum)
        temporary = f"{self._directory}/{self._temporary}-{next(self._numbers)}.tmp"
        try:
            write_block_file(temporary, encode_header(header), block.data)
            _move(temporary, on_disk.block_path(self._directory, block.key))
        except OSError as error:
            remove_file(temporary)
            outcome = _WRITE_OUTCOMES.get(error.errno or 0, WriteOutcome.FAILED)
            if outcome is WriteOutcome.FAILED:
                _log.warning("cannot write block %s: %s", block.key.hex(), error)
            return outcome
        return WriteOutcome.OK

    def _header_page(self) -> memoryview:
        """This thread's page for headers."""
        try:
            page: memoryview = self._thread.page
        except AttributeError:
            page = self._thread.page = memoryview(bytearray(HEADER_BYTES))
        return page


class IndexLease:
    """The right to own the index of the store at ``root``, which is created if need be; a context manager.

    Held as a lock on ``owner.lock``, which the kernel frees when the holder ends, however it ends.

    Raises:
        StoreInUse: another process (or lease of this one) holds it; names the process.
        StorageError: the root cannot be used; StoreFormatError: it is no store.
    """

    def __init__(self, root: Path | str) -> None:
        on_disk.create_store(Path(root))
        path = Path(root) / on_disk.LOCK_FILE
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").strip() or "that is just starting"
            os.close(self._descriptor)
            raise StoreInUse(f"the store {root} is in use by process {holder}") from None
        except OSError as error:
            os.close(self._descriptor)
            raise StorageError(f"cannot lock {path}: {error.strerror}") from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lease up. Idempotent."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> IndexLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.release()


def _move(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.replace(temporary, path)


def remove_file(path: str) -> bool:
    """Delete a file; whether it was there and is gone now."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        _log.warning("cannot delete %s: %s", path, error)
        return False
    return True
