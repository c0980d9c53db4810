"""File storage against a plain preadv loop on page-cached blocks: what headers, checksums and futures cost."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome
from dualpath.storage.block_file import HEADER_BYTES
from dualpath.storage.directory import block_path
from dualpath.storage.files import FileStorage
from dualpath.types import BlockKey

BATCH_BLOCKS = 8


class Store:
    """A store of random blocks in ``root``, and memory to read them into."""

    def __init__(self, root: Path, block_bytes: int, blocks: int, threads: int) -> None:
        self.namespace = CacheNamespace("bench", "float32", 1, block_bytes)
        self.threads = threads
        self.block_bytes = block_bytes
        self.root = root
        self.keys = block_keys(self.namespace.digest, list(range(blocks)), 1)
        memory = memoryview(bytearray(block_bytes * blocks))
        self.memory = [memory[start : start + block_bytes] for start in range(0, len(memory), block_bytes)]
        self._write()

    def storage(self, verify: bool) -> FileStorage:
        return FileStorage(self.root, self.namespace, threads=self.threads, verify_checksums=verify)

    def _write(self) -> None:
        storage, parent = self.storage(True), None
        for depth, key in enumerate(self.keys):
            data = memoryview(os.urandom(self.block_bytes))
            storage.write([BlockWrite(key, parent, depth, data)]).result()
            parent = key
        storage.close()

    def plain(self) -> None:
        """Open, preadv, close; each thread its share."""
        directory = str(self.root / self.namespace.digest.hex())
        jobs = list(zip(self.keys, self.memory, strict=True))
        threads = [
            threading.Thread(target=_plain_reads, args=(directory, jobs[index :: self.threads]))
            for index in range(self.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def through(self, storage: FileStorage) -> None:
        """The same through the storage, in batches as an engine reads them, two at a time."""
        reads = [BlockRead(key, memory) for key, memory in zip(self.keys, self.memory, strict=True)]
        batches = [reads[start : start + BATCH_BLOCKS] for start in range(0, len(reads), BATCH_BLOCKS)]
        under_way = [storage.read(batch) for batch in batches[:2]]
        for batch in [*batches[2:], [], []]:
            outcomes = under_way.pop(0).result()
            assert all(outcome is ReadOutcome.OK for outcome in outcomes)
            under_way.append(storage.read(batch))


def _plain_reads(directory: str, jobs: Sequence[tuple[BlockKey, memoryview]]) -> None:
    page = memoryview(bytearray(HEADER_BYTES))
    for key, memory in jobs:
        descriptor = os.open(block_path(directory, key), os.O_RDONLY)
        os.preadv(descriptor, [page, memory], 0)
        os.close(descriptor)


def measure(root: Path, block_bytes: int, blocks: int, threads: int, rounds: int) -> dict[str, float]:
    """Median seconds a block of each way to read, from interleaved rounds."""
    store = Store(root, block_bytes, blocks, threads)
    verified, unverified = store.storage(True), store.storage(False)
    ways: dict[str, Callable[[], None]] = {
        "plain": store.plain,
        "verified": lambda: store.through(verified),
        "unverified": lambda: store.through(unverified),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, read in ways.items():
            started_s = time.perf_counter()
            read()
            seconds[name].append((time.perf_counter() - started_s) / blocks)
    verified.close()
    unverified.close()
    # The first round touches memory and page cache.
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def report(block_bytes: int, seconds: dict[str, float]) -> dict[str, float]:
    """Bandwidth, rate and ratio to the plain loop, printed and returned."""
    figures: dict[str, float] = {"block_bytes": block_bytes}
    for name, block_s in seconds.items():
        figures[f"{name}_bytes_per_s"] = block_bytes / block_s
        figures[f"{name}_blocks_per_s"] = 1 / block_s
        figures[f"{name}_ratio"] = seconds["plain"] / block_s
        print(
            f"{block_bytes >> 10:5} KiB  {name:11} {block_bytes / block_s / 1e9:6.2f} GB/s "
            f"{1 / block_s:9,.0f} blocks/s {seconds['plain'] / block_s:6.0%} of plain"
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where to put the blocks (default: the temporary directory)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    results = []
    for block_bytes, blocks in ((1 << 20, 128), (64 << 10, 1024), (32 << 10, 1024)):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as root:
            seconds = measure(Path(root), block_bytes, blocks, arguments.threads, arguments.rounds)
        results.append(report(block_bytes, seconds))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"threads": arguments.threads, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
