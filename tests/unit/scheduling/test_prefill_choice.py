"""Algorithm 1, by hand-computed cases."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dualpath.scheduling.prefill import PrefillChoice
from dualpath.scheduling.readside import ReadQueue

ALPHA_S, RATE = 3.0, 100.0  # α is 300 tokens


@dataclass(eq=False)
class Engine:
    name: str
    tokens: int
    unread: int = 0
    requests: int = 0
    allowance: int = 1000
    read_queue: ReadQueue = field(init=False)

    def __post_init__(self) -> None:
        self.read_queue = ReadQueue(RATE, self.unread)


def chosen(engines: list[Engine], beta_tokens: float = 1000) -> str | None:
    engine = PrefillChoice(engines, ALPHA_S, beta_tokens).engine()
    return engine.name if engine else None


def test_fewest_tokens_among_short_queues() -> None:
    assert chosen([Engine("a", 500), Engine("b", 400), Engine("c", 450)]) == "b"


def test_a_short_queue_beats_fewer_tokens() -> None:
    assert chosen([Engine("a", 900, unread=300), Engine("b", 10, unread=301)]) == "a"


def test_long_queues_only_when_there_is_no_short_one() -> None:
    assert chosen([Engine("a", 900, unread=5000), Engine("b", 800, unread=301)]) == "b"


@pytest.mark.parametrize(("tokens", "expected"), [(1000, "a"), (1001, None)])
def test_beta_is_the_last_value_that_gets_more(tokens: int, expected: str | None) -> None:
    assert chosen([Engine("a", tokens)]) == expected


def test_an_engine_that_passes_beta_leaves() -> None:
    engines = [Engine("a", 0), Engine("b", 700)]
    choice = PrefillChoice(engines, ALPHA_S, 1000)
    order = []
    while (engine := choice.engine()) is not None:
        order.append(engine.name)
        engine.tokens += 600
        choice.assigned(engine)
    assert order == ["a", "a", "b"]  # 600, 1200 (leaves), then 1300


def test_tokens_are_updated_after_each_assignment() -> None:
    engines = [Engine("a", 0), Engine("b", 50), Engine("c", 250)]
    choice = PrefillChoice(engines, ALPHA_S, 10_000)
    order = []
    for _ in range(5):
        engine = choice.engine()
        assert engine is not None
        order.append(engine.name)
        engine.tokens += 100
        choice.assigned(engine)
    assert order == ["a", "b", "a", "b", "a"]  # 100, 150, 200, 250, 300


def test_read_queues_that_grow_during_the_fetch_move_an_engine_to_the_others() -> None:
    engines = [Engine("a", 0, unread=300), Engine("b", 900)]
    choice = PrefillChoice(engines, ALPHA_S, 1000)
    first = choice.engine()
    assert first is engines[0]
    first.read_queue.unread_tokens += 1
    choice.assigned(first)
    assert choice.engine() is engines[1]


def test_alpha_follows_the_nodes_own_rate() -> None:
    fast, slow = Engine("fast", 500, unread=400), Engine("slow", 100, unread=400)
    fast.read_queue.tokens_per_s = 200.0
    assert chosen([fast, slow]) == "fast"


def test_an_engine_at_its_allowance_gets_nothing() -> None:
    assert chosen([Engine("a", 0, requests=4, allowance=4), Engine("b", 900)]) == "b"
