"""Who reads a hit, by hand-computed cases."""

from __future__ import annotations

from collections import Counter

import pytest

from dualpath.scheduling.readside import ReadQueue, ReadSide, recompute_is_faster, split
from dualpath.settings import ReadSidePolicy
from dualpath.types import ReadShare

HIT, PLENTY = 640, 1 << 30


def shares(policy: ReadSidePolicy, prefill: ReadQueue, decode: ReadQueue, count: int = 1) -> list[ReadShare]:
    side = ReadSide(policy, 64)
    return [side.share(HIT, prefill, decode, PLENTY) for _ in range(count)]


def test_prefill_only() -> None:
    assert shares(ReadSidePolicy.PREFILL, ReadQueue(1.0, 9999), ReadQueue(1.0)) == [ReadShare(HIT, 0)]


def test_round_robin_alternates_from_the_prefill_side() -> None:
    expected = [ReadShare(HIT, 0), ReadShare(0, HIT)] * 2
    assert shares(ReadSidePolicy.ROUND_ROBIN, ReadQueue(1.0), ReadQueue(1.0), 4) == expected


@pytest.mark.parametrize("prefills", [1, 2, 3, 4])
@pytest.mark.parametrize("decodes", [1, 2, 3, 4])
def test_round_robin_over_engines_in_turn_uses_every_node(prefills: int, decodes: int) -> None:
    """Sides and engines in turn must not run in step: every node of a role reads as much as the others."""
    side = ReadSide(ReadSidePolicy.ROUND_ROBIN, 64)
    nodes = [ReadQueue(1.0) for _ in range(prefills)], [ReadQueue(1.0) for _ in range(decodes)]
    read: Counter[ReadQueue] = Counter()
    for turn in range(2 * prefills * decodes):
        prefill, decode = nodes[0][turn % prefills], nodes[1][turn % decodes]
        share = side.share(HIT, prefill, decode, PLENTY)
        read[prefill] += share.prefill_tokens
        read[decode] += share.decode_tokens
    assert {read[node] for node in nodes[0]} == {decodes * HIT}
    assert {read[node] for node in nodes[1]} == {prefills * HIT}


@pytest.mark.parametrize(("prefill", "decode", "reads"), [(100, 101, "prefill"), (101, 100, "decode"), (7, 7, "prefill")])
def test_shorter_queue(prefill: int, decode: int, reads: str) -> None:
    (share,) = shares(ReadSidePolicy.SHORTER_QUEUE, ReadQueue(10.0, prefill), ReadQueue(10.0, decode))
    assert share == (ReadShare(HIT, 0) if reads == "prefill" else ReadShare(0, HIT))


def test_shorter_queue_compares_when_the_read_would_end() -> None:
    # (0 + 640) / 10 = 64 s against (500 + 640) / 20 = 57 s
    assert shares(ReadSidePolicy.SHORTER_QUEUE, ReadQueue(10.0), ReadQueue(20.0, 500)) == [ReadShare(0, HIT)]


@pytest.mark.parametrize("policy", list(ReadSidePolicy))
def test_no_hit_needs_no_side_and_no_turn(policy: ReadSidePolicy) -> None:
    side = ReadSide(policy, 64)
    queues = ReadQueue(1.0), ReadQueue(1.0)
    assert side.share(0, *queues, PLENTY) == ReadShare(0, 0)
    assert side.share(HIT, *queues, PLENTY).prefill_tokens > 0


@pytest.mark.parametrize(
    ("prefill", "decode", "head"),
    [
        (ReadQueue(1.0), ReadQueue(1.0), 320),
        (ReadQueue(1.0, 128), ReadQueue(1.0), 256),
        (ReadQueue(1.0, 640), ReadQueue(1.0), 0),
        (ReadQueue(1.0, 5000), ReadQueue(1.0), 0),
        (ReadQueue(1.0), ReadQueue(1.0, 5000), 640),
        (ReadQueue(3.0), ReadQueue(1.0), 512),  # 480 tokens, to the nearest block edge (7.5 rounds to 8)
        (ReadQueue(1.0), ReadQueue(4.0, 640), 256),  # (0 + 256) / 1 = (640 + 384) / 4
    ],
)
def test_split_ends_on_both_sides_at_once(prefill: ReadQueue, decode: ReadQueue, head: int) -> None:
    assert split(HIT, prefill, decode, 64) == ReadShare(head, HIT - head)


def test_what_the_prefill_buffer_cannot_hold_is_read_by_the_decode_side() -> None:
    side = ReadSide(ReadSidePolicy.SHORTER_QUEUE, 64)
    assert side.share(HIT, ReadQueue(1.0), ReadQueue(1.0, 9), 128) == ReadShare(128, HIT - 128)


def test_recompute_compares_with_the_slower_side() -> None:
    busy, idle = ReadQueue(100.0, 900), ReadQueue(100.0)
    share = ReadShare(100, 540)  # reads end after 10 s and 5.4 s
    assert recompute_is_faster(share, busy, idle, prefill_tokens_per_s=64.1)  # 9.98 s
    assert not recompute_is_faster(share, busy, idle, prefill_tokens_per_s=64.0)  # 10 s
    assert not recompute_is_faster(ReadShare(0, 0), busy, busy, prefill_tokens_per_s=1.0)
