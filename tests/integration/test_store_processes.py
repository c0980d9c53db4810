"""Processes that write, read and delete in one store while they are killed at random."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.kvcache.trie import PrefixIndex
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, WriteOutcome
from dualpath.storage.files import FileStorage
from dualpath.storage.maintenance import verify_store
from dualpath.types import BlockKey

SOAK_S = float(os.environ.get("DUALPATH_SOAK_SECONDS", "5"))
BLOCK_BYTES = 256 << 10
NAMESPACE = CacheNamespace("soak", "float32", 1, BLOCK_BYTES)
CHAINS = [block_keys(NAMESPACE.digest, [chain * 100 + token for token in range(12)], 1) for chain in range(6)]
WRONG_CONTENT = 3


def _content(key: BlockKey) -> bytes:
    return key * (BLOCK_BYTES // len(key))


def _churn(root: Path, seed: int) -> None:
    """Write, read and delete random chains; ends with WRONG_CONTENT if a read is neither good nor missing."""
    choose, storage = random.Random(seed), FileStorage(root, NAMESPACE)
    memory = [memoryview(bytearray(BLOCK_BYTES)) for _ in range(12)]
    while True:
        keys = choose.choice(CHAINS)
        writes = [
            BlockWrite(key, keys[depth - 1] if depth else None, depth, memoryview(_content(key)))
            for depth, key in enumerate(keys)
        ]
        written = storage.write(writes).result()
        reads = [BlockRead(key, block) for key, block in zip(keys, memory, strict=True)]
        outcomes = storage.read(reads).result()
        good = all(
            outcome is ReadOutcome.MISSING or (outcome is ReadOutcome.OK and block == _content(key))
            for key, outcome, block in zip(keys, outcomes, memory, strict=True)
        )
        if not good or set(written) != {WriteOutcome.OK}:
            os._exit(WRONG_CONTENT)
        if choose.random() < 0.5:
            storage.delete(list(reversed(keys))[: choose.randrange(12)])


def _start(root: Path, seed: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(root), str(seed)])


def test_no_kill_leaves_a_bad_block_behind(tmp_path: Path) -> None:
    root, choose, kills = tmp_path / "store", random.Random(7), 0
    workers = [_start(root, seed) for seed in range(4)]
    ends_s: float | None = None
    try:
        while ends_s is None or time.monotonic() < ends_s:
            time.sleep(choose.uniform(0.1, 0.6))
            for worker in workers:
                assert worker.poll() is None, "a worker ended by itself: a read or a write was wrong"
            if ends_s is None:
                ends_s = time.monotonic() + SOAK_S if any(root.glob("*/*/*.kv")) else None
                continue
            victim = choose.randrange(4)
            workers[victim].kill()
            workers[victim].wait()
            workers[victim] = _start(root, 100 + kills)
            kills += 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert kills
    _check(root)


def _check(root: Path) -> None:
    damaged = [bad for bad in verify_store(root).bad if bad.reason != "left by a dead writer" and "parent" not in bad.reason]
    assert damaged == []
    storage = FileStorage(root, NAMESPACE)
    index = PrefixIndex()
    storage.delete(index.rebuild(storage.scan()))
    report = verify_store(root)
    assert report.bad == []
    assert report.blocks == index.blocks > 0
    storage.close()


if __name__ == "__main__":
    _churn(Path(sys.argv[1]), int(sys.argv[2]))
