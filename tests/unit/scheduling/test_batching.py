"""Packing under the compute quota, by hand-computed cases."""

from __future__ import annotations

import pytest

from dualpath.scheduling.batching import Batching, Chunk, ReadyRequest
from dualpath.types import RequestId


def ready(name: str, cached: int, new: int) -> ReadyRequest:
    return ReadyRequest(RequestId(name), cached, new)


def chunk(name: str, cached: int, new: int, last: bool = True) -> Chunk:
    return Chunk(RequestId(name), cached, new, last)


def batching(quota_s: float = 1e9, max_batch_tokens: int = 1 << 30, kv_rows: int = 1 << 30) -> Batching:
    """A second for each new token, whatever is cached."""
    return Batching(
        lambda _cached, new: float(new), quota_s=quota_s, max_batch_tokens=max_batch_tokens, kv_rows=kv_rows, block_tokens=64
    )


def test_whole_requests_while_the_quota_lasts() -> None:
    packed = batching(quota_s=100).pack([ready("a", 64, 60), ready("b", 0, 40), ready("c", 128, 1)])
    assert packed == [chunk("a", 64, 60), chunk("b", 0, 40)]


def test_the_request_that_would_exceed_the_quota_is_cut_at_a_block_edge() -> None:
    packed = batching(quota_s=300).pack([ready("a", 64, 100), ready("b", 64, 500), ready("c", 0, 1)])
    assert packed == [chunk("a", 64, 100), chunk("b", 64, 192, last=False)]  # 200 left: three blocks


def test_nothing_overtakes_a_request_that_does_not_fit() -> None:
    assert batching(quota_s=110).pack([ready("a", 0, 100), ready("b", 0, 64), ready("c", 0, 1)]) == [chunk("a", 0, 100)]


@pytest.mark.parametrize(("new", "expected"), [(500, (64, False)), (64, (64, True)), (10, (10, True))])
def test_the_first_request_always_advances_by_a_block(new: int, expected: tuple[int, bool]) -> None:
    assert batching(quota_s=0.5, max_batch_tokens=1).pack([ready("a", 128, new)]) == [chunk("a", 128, *expected)]


def test_max_batch_tokens_cuts_too() -> None:
    packed = batching(max_batch_tokens=200).pack([ready("a", 0, 50), ready("b", 64, 300)])
    assert packed == [chunk("a", 0, 50), chunk("b", 64, 128, last=False)]


def test_rows_count_cached_tokens() -> None:
    packed = batching(kv_rows=1000).pack([ready("a", 512, 88), ready("b", 256, 300)])
    assert packed == [chunk("a", 512, 88), chunk("b", 256, 128, last=False)]  # 400 rows left, 256 of them cached


def test_cached_tokens_alone_may_leave_no_room() -> None:
    assert batching(kv_rows=1000).pack([ready("a", 512, 88), ready("b", 448, 10)]) == [chunk("a", 512, 88)]


def test_a_chunk_ends_on_an_edge_wherever_it_starts() -> None:
    assert batching(quota_s=100).pack([ready("a", 10, 500)]) == [chunk("a", 10, 54, last=False)]


def test_bisection_uses_the_attention_time_of_hit_and_new_tokens() -> None:
    def quadratic(cached: int, new: int) -> float:
        return new * (cached + new / 2)

    packer = Batching(quadratic, quota_s=quadratic(6400, 640), max_batch_tokens=8192, kv_rows=1 << 20, block_tokens=64)
    assert packer.pack([ready("a", 6400, 8000)]) == [chunk("a", 6400, 640, last=False)]
    assert packer.pack([ready("a", 6464, 8000)]) == [chunk("a", 6464, 576, last=False)]


def test_nothing_ready_is_an_empty_batch() -> None:
    assert batching().pack([]) == []


def test_a_request_that_could_never_run_is_an_error() -> None:
    packer = batching(kv_rows=1000)
    assert packer.fits_alone(1000)
    assert not packer.fits_alone(1001)
    with pytest.raises(ValueError, match="1000 KV rows"):
        packer.pack([ready("a", 960, 41)])
    with pytest.raises(ValueError, match="cannot run"):
        packer.pack([ready("a", 64, 0)])
