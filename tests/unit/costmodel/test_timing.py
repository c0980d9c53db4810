"""Step times: what grows with what, and what a step takes at least."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.costmodel.attention import pairs
from dualpath.costmodel.timing import DecodeTime, PrefillTime

tokens = st.integers(0, 1 << 20)
few = st.integers(0, 512)
seconds = st.floats(0, 1e-2)
layers = st.integers(1, 100)

prefills = st.builds(
    PrefillTime,
    layers=layers,
    token_s=st.floats(0, 1e-5),
    pair_s=st.floats(0, 1e-9),
    floor_s=seconds,
    request_context_s=st.floats(0, 1e-6),
    mixture_s=seconds,
    mixture_token_s=st.floats(0, 1e-5),
    step_s=seconds,
)
decodes = st.builds(
    DecodeTime,
    layers=layers,
    layer_s=seconds,
    request_s=st.floats(0, 1e-4),
    context_s=st.floats(0, 1e-8),
    shared_request_s=st.floats(0, 1e-4),
    step_s=seconds,
)


def at_least(value: float, bound: float) -> bool:
    """Up to rounding."""
    return value >= bound * (1 - 1e-12)


@given(prefills, tokens, tokens, tokens, tokens)
def test_attention_grows_with_cached_and_new_tokens(
    time: PrefillTime, cached: int, new: int, more_cached: int, more_new: int
) -> None:
    assert at_least(time(cached + more_cached, new), time(cached, new))
    assert at_least(time(cached, new + more_new), time(cached, new))


@given(prefills, tokens, tokens)
def test_attention_is_what_its_tokens_and_pairs_take_or_the_least(time: PrefillTime, cached: int, new: int) -> None:
    work = time.layers * (time.token_s * new + time.pair_s * pairs(cached, new))
    least = time.layers * time.request_context_s * (cached + new)
    assert time(cached, new) == pytest.approx(max(work, least))


@given(prefills, tokens, tokens, tokens)
def test_a_prompt_in_two_parts_takes_no_less(time: PrefillTime, cached: int, first: int, second: int) -> None:
    """Chunks read each other's keys; they save no pair, and each pays the least time of a request."""
    whole = time(cached, first + second)
    assert time(cached, first) + time(cached + first, second) >= whole * (1 - 1e-9)


@given(prefills, seconds, tokens)
def test_a_prefill_step_takes_at_least_its_attention_its_floor_and_its_mixture(
    time: PrefillTime, attention_s: float, mean_new: int
) -> None:
    step_s = time.step(attention_s, mean_new)
    mixture_s = time.step_s + time.layers * (time.mixture_s + time.mixture_token_s * mean_new)
    assert at_least(step_s, attention_s + mixture_s)
    assert at_least(step_s, time.layers * time.floor_s + mixture_s)
    assert step_s == pytest.approx(mixture_s + max(attention_s, time.layers * time.floor_s))


@given(prefills, seconds, seconds, tokens, tokens)
def test_a_prefill_step_grows(time: PrefillTime, attention_s: float, more_s: float, mean_new: int, more_new: int) -> None:
    step_s = time.step(attention_s, mean_new)
    assert at_least(time.step(attention_s + more_s, mean_new), step_s)
    assert at_least(time.step(attention_s, mean_new + more_new), step_s)


@given(decodes, few, tokens, few, tokens)
def test_decode_attention_adds_up_over_requests(time: DecodeTime, n: int, context: int, m: int, other: int) -> None:
    """So that totals of an engine can be kept as requests come and go."""
    assert time.engine_s(n + m, context + other) == pytest.approx(time.engine_s(n, context) + time.engine_s(m, other))


@given(decodes, few, tokens, st.floats(0, 512), few, tokens)
def test_a_decode_step_grows(time: DecodeTime, n: int, context: int, mean: float, more: int, more_context: int) -> None:
    step_s = time.step(time.engine_s(n, context), mean)
    assert at_least(step_s, time.step_s + time.layers * (time.layer_s + time.engine_s(n, context)))
    assert at_least(time.step(time.engine_s(n + more, context + more_context), mean), step_s)
    assert at_least(time.step(time.engine_s(n, context), mean + more), step_s)


def test_coefficients_mean_what_their_names_say() -> None:
    prefill = PrefillTime(
        10, token_s=1.0, pair_s=0.5, floor_s=100.0, request_context_s=0.1, mixture_s=2.0, mixture_token_s=3.0, step_s=7.0
    )
    assert prefill(4, 2) == 10 * (2 + 0.5 * 2 * (4 + 1))
    assert prefill(1000, 0) == 10 * 0.1 * 1000
    assert prefill.step(prefill(4, 2), 2) == 7 + 10 * 100 + 10 * (2 + 3 * 2)
    assert prefill.step(2000.0, 2) == 7 + 2000 + 10 * (2 + 3 * 2)
    decode = DecodeTime(10, layer_s=1.0, request_s=2.0, context_s=0.25, shared_request_s=3.0, step_s=5.0)
    assert decode.engine_s(3, 8) == 3 * 2 + 8 * 0.25
    assert decode.step(8.0, 2.0) == 5 + 10 * (1 + 8 + 3 * 2)


def test_an_idle_step_takes_its_fixed_parts() -> None:
    assert PrefillTime(2, 1.0, 1.0, mixture_s=3.0, step_s=1.0).step(0.0, 0.0) == 7.0
    assert DecodeTime(2, 3.0, 1.0, step_s=1.0).step(0.0, 0.0) == 7.0
