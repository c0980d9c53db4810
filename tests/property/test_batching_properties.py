"""Batching over random requests and limits: order, tokens, edges, quota."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.scheduling.batching import Batching, Chunk, ReadyRequest
from dualpath.types import RequestId

BLOCK = 16


def attention_time(cached: int, new: int) -> float:
    return 1e-3 + new * (1e-5 + 1e-8 * (cached + new))


requests = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 900)).map(lambda pair: (pair[0] * BLOCK, pair[1])), min_size=1, max_size=12
)
packers = st.builds(
    lambda quota_s, tokens, rows: (quota_s, tokens, rows),
    st.floats(0, 0.1),
    st.integers(1, 3000),
    st.integers(2000, 6000),
)


def ready(pairs: list[tuple[int, int]]) -> list[ReadyRequest]:
    return [ReadyRequest(RequestId(str(index)), cached, new) for index, (cached, new) in enumerate(pairs)]


def within(chunks: list[Chunk], limits: tuple[float, int, int]) -> bool:
    quota_s, tokens, rows = limits
    return (
        sum(attention_time(c.cached, c.new) for c in chunks) <= quota_s + 1e-9
        and sum(c.new for c in chunks) <= tokens
        and sum(c.cached + c.new for c in chunks) <= rows
    )


@settings(deadline=None, max_examples=200)
@given(pairs=requests, limits=packers)
def test_every_batch_keeps_its_limits_and_everything_is_computed_once_in_order(
    pairs: list[tuple[int, int]], limits: tuple[float, int, int]
) -> None:
    quota_s, tokens, rows = limits
    batching = Batching(attention_time, quota_s=quota_s, max_batch_tokens=tokens, kv_rows=rows, block_tokens=BLOCK)
    left, done = ready(pairs), {request.request_id: request.cached for request in ready(pairs)}
    while left:
        chunks = batching.pack(left)
        assert chunks
        assert [chunk.request_id for chunk in chunks] == [request.request_id for request in left[: len(chunks)]]
        assert all(chunk.last for chunk in chunks[:-1])
        assert within(chunks, limits) or (len(chunks) == 1 and chunks[0].new <= BLOCK)
        for chunk, request in zip(chunks, left, strict=False):
            assert chunk.cached == request.cached == done[chunk.request_id]
            assert 0 < chunk.new <= request.new
            assert chunk.last == (chunk.new == request.new)
            assert chunk.last or (chunk.cached + chunk.new) % BLOCK == 0
            done[chunk.request_id] += chunk.new
        cut = chunks[-1]
        rest = [] if cut.last else [ReadyRequest(cut.request_id, cut.cached + cut.new, left[len(chunks) - 1].new - cut.new)]
        left = rest + left[len(chunks) :]
    assert done == {str(index): cached + new for index, (cached, new) in enumerate(pairs)}


@settings(deadline=None, max_examples=200)
@given(pairs=requests, limits=packers)
def test_a_batch_is_as_full_as_a_block_allows(pairs: list[tuple[int, int]], limits: tuple[float, int, int]) -> None:
    quota_s, tokens, rows = limits
    batching = Batching(attention_time, quota_s=quota_s, max_batch_tokens=tokens, kv_rows=rows, block_tokens=BLOCK)
    everything = ready(pairs)
    chunks = batching.pack(everything)
    if chunks[-1].last and len(chunks) == len(everything):
        return
    at = len(chunks) if chunks[-1].last else len(chunks) - 1
    cut = everything[at]
    taken = 0 if chunks[-1].last else chunks[-1].new
    more = Chunk(cut.request_id, cut.cached, min(cut.new, taken + BLOCK), last=False)
    assert not within([*chunks[:at], more], limits)
