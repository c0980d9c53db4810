"""Looking after a store from outside: statistics, verification, emptying (paper A.5)."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from dualpath.errors import StorageError
from dualpath.storage import directory as on_disk
from dualpath.storage.block_file import HEADER_BYTES, BlockHeader, decode_header, read_block_file, read_header
from dualpath.storage.files import IndexLease, remove_file
from dualpath.types import BlockKey


@dataclass(slots=True)
class NamespaceStats:
    """One namespace: what it stands for, its blocks, and the bytes of their files, headers included."""

    namespace: str
    description: dict[str, Any]
    blocks: int = 0
    file_bytes: int = 0
    oldest_written_s: float | None = None
    newest_written_s: float | None = None


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that is of no use, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class StoreReport:
    """What a verification found; ``deleted`` counts the bad files that it removed."""

    blocks: int = 0
    payload_bytes: int = 0
    bad: list[BadFile] = field(default_factory=list)
    deleted: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing bad is left in the store."""
        return len(self.bad) == self.deleted


def store_stats(root: Path | str) -> list[NamespaceStats]:
    """Each namespace of the store in numbers, without reading blocks.

    Raises:
        StoreFormatError: ``root`` is no store of this format version.
    """
    on_disk.check_store(Path(root))
    return [_namespace_stats(directory) for directory in on_disk.namespace_directories(Path(root))]


def verify_store(root: Path | str, *, delete: bool = False, on_block: Callable[[], None] | None = None) -> StoreReport:
    """Read every block of the store and check it: header, payload checksum, place, and that its ancestors are there.

    Safe on a store in use, except that blocks on their way in may pass for orphans; ``delete`` removes what is bad and
    therefore takes the index lease. ``on_block`` is called after each block.

    Raises:
        StoreFormatError: ``root`` is no store of this format version.
        StoreInUse: ``delete``, and another process owns the index.
    """
    on_disk.check_store(Path(root))
    report = StoreReport()
    with IndexLease(root) if delete else nullcontext():
        for directory in on_disk.namespace_directories(Path(root)):
            _verify_namespace(directory, report, on_block or (lambda: None))
        if delete:
            report.deleted = sum(remove_file(bad.path) for bad in report.bad)
    return report


def clear_store(root: Path | str) -> int:
    """Delete all blocks of all namespaces, returning how many there were; the store itself stays.

    Raises:
        StoreFormatError: ``root`` is no store of this format version.
        StoreInUse: another process owns the index.
        StorageError: something cannot be deleted.
    """
    on_disk.check_store(Path(root))
    with IndexLease(root):
        blocks = sum(stats.blocks for stats in store_stats(root))
        try:
            for directory in on_disk.namespace_directories(Path(root)):
                shutil.rmtree(directory)
        except OSError as error:
            raise StorageError(f"cannot clear {root}: {error}") from error
        return blocks


def _namespace_stats(directory: Path) -> NamespaceStats:
    stats = NamespaceStats(directory.name, on_disk.describe_namespace(directory))
    for entry in on_disk.block_entries(directory):
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue
        stats.blocks += 1
        stats.file_bytes += status.st_size
        stats.oldest_written_s = min(stats.oldest_written_s or math.inf, status.st_mtime)
        stats.newest_written_s = max(stats.newest_written_s or 0.0, status.st_mtime)
    return stats


def _verify_namespace(directory: Path, report: StoreReport, on_block: Callable[[], None]) -> None:
    good: dict[BlockKey, BlockHeader] = {}
    for entry in on_disk.block_entries(directory):
        try:
            header = _checked_header(entry, directory)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            report.bad.append(BadFile(entry.path, str(error)))
        else:
            good[header.key] = header
        on_block()
    damaged = {bad.path for bad in report.bad}
    for orphan in _remove_orphans(good, lambda key: _arrived_late(directory, key, damaged)):
        path = on_disk.block_path(str(directory), orphan.key)
        report.bad.append(BadFile(path, f"its parent {(orphan.parent or b'').hex()} is missing"))
    report.bad += [BadFile(str(path), "left by a dead writer") for path in on_disk.stale_temporaries(directory)]
    report.blocks += len(good)
    report.payload_bytes += sum(header.payload_bytes for header in good.values())


def _checked_header(entry: os.DirEntry[str], directory: Path) -> BlockHeader:
    """The header of a block file that is good in itself.

    Raises:
        ValueError: it is not; the message says why.
        OSError: it cannot be read.
    """
    page, payload = memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(max(0, entry.stat().st_size - HEADER_BYTES)))
    read = read_block_file(entry.path, page, payload)
    header = decode_header(page)
    if header is None:
        raise ValueError("its header is damaged")
    if header.payload_bytes != payload.nbytes or read != HEADER_BYTES + payload.nbytes:
        raise ValueError(f"it has {read} bytes, not {HEADER_BYTES + header.payload_bytes}")
    if on_disk.block_path(str(directory), header.key) != entry.path or header.namespace.hex() != directory.name:
        raise ValueError(f"it is block {header.key.hex()} of namespace {header.namespace.hex()}")
    if xxh3_64_intdigest(payload) != header.payload_checksum:
        raise ValueError("its content does not match its checksum")
    return header


def _remove_orphans(
    good: dict[BlockKey, BlockHeader], arrived_late: Callable[[BlockKey], BlockHeader | None]
) -> list[BlockHeader]:
    """Remove blocks without an unbroken chain of ancestors from ``good``; returns them."""
    orphans = []
    for header in sorted(good.values(), key=lambda header: header.depth):
        if header.parent is None:
            continue
        parent = good.get(header.parent) or arrived_late(header.parent)
        if parent is None or parent.depth != header.depth - 1:
            orphans.append(good.pop(header.key))
    return orphans


def _arrived_late(directory: Path, key: BlockKey, damaged: set[str]) -> BlockHeader | None:
    """The header of a block that was written after the verification had passed its place."""
    path = on_disk.block_path(str(directory), key)
    try:
        return None if path in damaged else read_header(path)[0]
    except OSError:
        return None
