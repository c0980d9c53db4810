"""The storage NIC's limit in real time, within a process and between processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, WriteOutcome
from dualpath.storage.limited import LimitedStorage
from dualpath.storage.limiter import SharedSnicLimiter, SnicLimiter
from dualpath.storage.memory import MemoryStorage

BLOCK_BYTES = 100_000
KEYS = block_keys(CacheNamespace("limit", "float32", 1, BLOCK_BYTES).digest, list(range(8)), 1)
BYTES_PER_S = 20e6


@pytest.fixture
def storage() -> Iterator[LimitedStorage]:
    storage = LimitedStorage(_filled(), SnicLimiter(BYTES_PER_S))
    yield storage
    storage.close()


def _filled() -> MemoryStorage:
    storage = MemoryStorage(BLOCK_BYTES)
    storage.write(_writes()).result()
    return storage


def _writes() -> list[BlockWrite]:
    parents = [None, *KEYS]
    return [
        BlockWrite(key, parent, depth, memoryview(bytes(BLOCK_BYTES)))
        for depth, (key, parent) in enumerate(zip(KEYS, parents, strict=False))
    ]


def _reads() -> list[BlockRead]:
    return [BlockRead(key, memoryview(bytearray(BLOCK_BYTES))) for key in KEYS]


def _read_for(storage: LimitedStorage, seconds: float) -> float:
    """Bytes a second that two batches in flight reach."""
    started_s = time.monotonic()
    under_way = [storage.read(_reads()), storage.read(_reads())]
    while time.monotonic() < started_s + seconds:
        under_way.pop(0).result(10)
        under_way.append(storage.read(_reads()))
    for future in under_way:
        future.result(10)
    return storage.read_bytes / (time.monotonic() - started_s)


def test_a_backlog_is_read_at_the_set_rate(storage: LimitedStorage) -> None:
    rate = _read_for(storage, 1.0)
    assert 0.9 * BYTES_PER_S < rate < 1.02 * BYTES_PER_S
    assert storage.read_busy_s == pytest.approx(storage.read_bytes / BYTES_PER_S, rel=0.1)


def test_reads_and_writes_run_beside_each_other(storage: LimitedStorage) -> None:
    started_s = time.monotonic()
    read, written = storage.read(_reads()), storage.write(_writes())
    assert written.result(10) == [WriteOutcome.OK] * 8
    assert read.result(10) == [ReadOutcome.OK] * 8
    took_s = time.monotonic() - started_s
    assert 0.9 * 0.04 < took_s < 0.075
    assert storage.read_bytes == storage.write_bytes == 8 * BLOCK_BYTES
    assert storage.write_busy_s > 0.03


def test_missing_blocks_cost_nothing() -> None:
    storage = LimitedStorage(MemoryStorage(BLOCK_BYTES), SnicLimiter(1.0))
    assert storage.read(_reads()).result(1) == [ReadOutcome.MISSING] * 8
    assert storage.read_bytes == 0
    storage.close()


def test_closing_delivers_what_waits_for_the_nic() -> None:
    storage = LimitedStorage(_filled(), SnicLimiter(BYTES_PER_S))
    future = storage.read(_reads())
    storage.close()
    assert future.done()


def _start(path: Path) -> subprocess.Popen[str]:
    """This file as a program: reads through the shared NIC for a second for every line it gets."""
    return subprocess.Popen(
        [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def _tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_of_a_node_share_its_nic_and_survive_a_kill(tmp_path: Path) -> None:
    processes = [_start(tmp_path / "snic") for _ in range(3)]
    assert [_hear(process) for process in processes] == ["ready"] * 3
    _tell(processes[2], "go")
    time.sleep(0.2)
    processes[2].kill()
    started_s = time.monotonic()
    for process in processes[:2]:
        _tell(process, "go")
    read = [int(_hear(process)) for process in processes[:2]]
    took_s = time.monotonic() - started_s
    for process in processes:
        process.communicate()
    # What the killed one had reserved passes first; its lock does not stay.
    assert 0.75 * BYTES_PER_S < sum(read) / took_s < 1.05 * BYTES_PER_S
    assert min(read) > 0.25 * sum(read)


def _serve(path: Path) -> None:
    storage = LimitedStorage(_filled(), SharedSnicLimiter(path, BYTES_PER_S))
    print("ready", flush=True)
    for _ in sys.stdin:
        _read_for(storage, 1.0)
        print(storage.read_bytes, flush=True)
    storage.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
