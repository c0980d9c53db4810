"""Buffers grant first in, first out, and never more than they have."""

from __future__ import annotations

from dualpath.sim.memory import Buffer


def buffer(capacity: int) -> tuple[Buffer[str], list[str]]:
    granted: list[str] = []
    return Buffer(capacity, granted.append), granted


def test_who_fits_is_granted_at_once() -> None:
    memory, granted = buffer(10)
    memory.ask(4, "a")
    memory.ask(6, "b")
    assert (granted, memory.used, memory.waiting) == (["a", "b"], 10, 0)


def test_nobody_overtakes_who_does_not_fit() -> None:
    memory, granted = buffer(10)
    memory.ask(6, "a")
    memory.ask(5, "large")
    memory.ask(1, "small")
    assert (granted, memory.waiting) == (["a"], 2)
    memory.give_back(1)  # of the six
    assert (granted, memory.used, memory.waiting) == (["a", "large"], 10, 1)
    memory.give_back(1)
    assert granted == ["a", "large", "small"]


def test_what_is_given_back_goes_to_all_who_fit_now() -> None:
    memory, granted = buffer(10)
    for tokens, holder in ((10, "a"), (4, "b"), (6, "c"), (1, "d")):
        memory.ask(tokens, holder)
    memory.give_back(10)
    assert (granted, memory.used, memory.waiting) == (["a", "b", "c"], 10, 1)
    memory.give_back(4)
    assert (granted, memory.used, memory.most_used) == (["a", "b", "c", "d"], 7, 10)


def test_a_holder_may_give_back_as_soon_as_it_is_granted() -> None:
    granted: list[str] = []

    def use(holder: str) -> None:
        granted.append(holder)
        memory.give_back(10)

    memory: Buffer[str] = Buffer(10, use)
    for holder in "abc":
        memory.ask(10, holder)
    assert (granted, memory.used, memory.waiting) == (["a", "b", "c"], 0, 0)
