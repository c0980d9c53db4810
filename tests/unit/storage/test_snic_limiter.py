"""The storage NIC's arithmetic."""

import math
from pathlib import Path

import pytest

from dualpath.clock import ManualClock
from dualpath.errors import StorageError
from dualpath.storage.limiter import BURST_S, Direction, Limiter, SharedSnicLimiter, SnicLimiter

RATE = 1000.0


@pytest.fixture(params=["own", "shared"])
def limiter(request: pytest.FixtureRequest, tmp_path: Path) -> Limiter:
    return SnicLimiter(RATE) if request.param == "own" else SharedSnicLimiter(tmp_path / "snic", RATE)


def test_transfers_follow_each_other_at_full_rate(limiter: Limiter) -> None:
    now_s = ManualClock(100.0).now()
    finished = [limiter.reserve(Direction.READ, 500, now_s) for _ in range(3)]
    assert finished == pytest.approx([100.5 - BURST_S, 101.0 - BURST_S, 101.5 - BURST_S])


def test_reads_and_writes_do_not_wait_for_each_other(limiter: Limiter) -> None:
    limiter.reserve(Direction.READ, 5000, 100.0)
    assert limiter.reserve(Direction.WRITE, 500, 100.0) == pytest.approx(100.5 - BURST_S)


def test_an_idle_nic_saves_up_no_more_than_the_burst(limiter: Limiter) -> None:
    limiter.reserve(Direction.READ, 500, 100.0)
    assert limiter.reserve(Direction.READ, 500, 200.0) == pytest.approx(200.5 - BURST_S)


def test_a_late_caller_with_a_backlog_loses_no_throughput(limiter: Limiter) -> None:
    clock, finish_s = ManualClock(100.0), 0.0
    for _ in range(1000):
        finish_s = limiter.reserve(Direction.READ, 10, clock.now())
        # A timer that wakes 1 ms too late each time.
        clock.advance(max(0.0, finish_s - clock.now()) + 0.001)
    assert finish_s - 100.0 == pytest.approx(10.0, rel=0.01)


def test_an_unlimited_nic_takes_no_time() -> None:
    assert SnicLimiter().reserve(Direction.READ, 10**12, 5.0) <= 5.0


def test_limiters_of_one_file_are_one_nic(tmp_path: Path) -> None:
    first, second = SharedSnicLimiter(tmp_path / "snic", RATE), SharedSnicLimiter(tmp_path / "snic", RATE)
    first.reserve(Direction.READ, 1000, 100.0)
    assert second.reserve(Direction.READ, 1000, 100.0) == pytest.approx(102.0 - BURST_S)
    first.close()
    first.close()
    second.close()


def test_what_an_earlier_boot_left_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "snic"
    old = SharedSnicLimiter(path, RATE)
    old.reserve(Direction.READ, 10**9, 100.0)
    old.close()
    content = bytearray(path.read_bytes())
    content[0] ^= 0xFF
    path.write_bytes(content)
    new = SharedSnicLimiter(path, RATE)
    assert new.reserve(Direction.READ, 500, 100.0) == pytest.approx(100.5 - BURST_S)
    new.close()


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        SharedSnicLimiter(tmp_path / "missing" / "snic", RATE)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_bandwidth_is_positive(rate: float) -> None:
    with pytest.raises(ValueError):
        SnicLimiter(rate)
