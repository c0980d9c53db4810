"""Virtual time goes forward only, and one instant's actions run in the order in which they were asked for."""

from __future__ import annotations

import pytest

from dualpath.sim.kernel import Kernel


def test_actions_run_in_the_order_of_their_times_and_ties_in_the_order_of_asking() -> None:
    kernel, ran = Kernel(), list[tuple[float, str]]()

    def note(name: str) -> None:
        ran.append((kernel.now(), name))

    kernel.at(2.0, note, "b")
    kernel.at(1.0, note, "a")
    kernel.at(2.0, note, "c")
    kernel.after(2.0, note, "d")
    assert not kernel.run()
    assert ran == [(1.0, "a"), (2.0, "b"), (2.0, "c"), (2.0, "d")]


def test_an_action_may_ask_for_more_even_at_once() -> None:
    kernel, ran = Kernel(), list[float]()

    def again(left: int) -> None:
        ran.append(kernel.now_s)
        if left:
            kernel.after(0.5 * (left % 2), again, left - 1)

    kernel.at(1.0, again, 3)
    kernel.run()
    assert ran == [1.0, 1.5, 1.5, 2.0]


def test_a_run_stops_before_what_is_later_and_goes_on_from_there() -> None:
    kernel, ran = Kernel(), list[str]()
    kernel.at(1.0, ran.append, "a")
    kernel.at(3.0, ran.append, "b")
    assert kernel.run(until_s=1.0)
    assert (ran, kernel.now_s) == (["a"], 1.0)
    assert kernel.run(until_s=2.0)
    assert kernel.now_s == 1.0, "time is that of the last event"
    assert not kernel.run(until_s=3.0)
    assert ran == ["a", "b"]


def test_the_past_is_refused() -> None:
    kernel = Kernel()
    kernel.at(2.0, lambda _: kernel.at(1.0, print))
    with pytest.raises(ValueError, match=r"1\.0 s was asked for at 2\.0 s"):
        kernel.run()
