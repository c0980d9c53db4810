"""A fetch that places one request chooses as one that places many would."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from dualpath.scheduling.decode import DecodeChoice, balance_limit, decode_engine
from dualpath.scheduling.prefill import PrefillChoice, prefill_engine
from dualpath.scheduling.readside import ReadQueue

small = st.integers(0, 6)


@dataclass(eq=False)
class Engine:
    requests: int
    tokens: int
    room_blocks: int
    reserved_blocks: int
    allowance: int
    read_queue: ReadQueue = field(default_factory=lambda: ReadQueue(1.0))


@dataclass
class Waiting:
    prompt_tokens: int
    demand_blocks: int


engines = st.lists(
    st.builds(
        Engine,
        requests=small,
        tokens=small,
        room_blocks=small,
        reserved_blocks=small,
        allowance=st.sampled_from([0, 2, 1000]),
        read_queue=st.builds(ReadQueue, st.just(2.0), small),
    ),
    min_size=1,
    max_size=6,
)


@given(engines, st.integers(0, 3), st.integers(0, 5))
def test_prefill(some: list[Engine], alpha_s: int, beta_tokens: int) -> None:
    assert prefill_engine(some, alpha_s, beta_tokens) is PrefillChoice(some, alpha_s, beta_tokens).engine()


@given(engines, st.integers(1, 8), st.integers(1, 4))
def test_decode(some: list[Engine], prompt_tokens: int, demand_blocks: int) -> None:
    request = Waiting(prompt_tokens, demand_blocks)
    expected = DecodeChoice(some, balance_limit([request], some)).engine(prompt_tokens, demand_blocks)
    assert decode_engine(some, prompt_tokens, demand_blocks) is expected
