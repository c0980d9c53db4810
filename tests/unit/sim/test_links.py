"""Links by hand: first in, first out, at the rate that collectives leave."""

from __future__ import annotations

import pytest

from dualpath.sim.links import LEAST_SHARE, Link


def test_what_is_posted_is_carried_first_in_first_out() -> None:
    link = Link("link", 100.0)
    assert link.carry(0.0, 50.0) == 0.5
    assert link.carry(0.0, 100.0) == 1.5
    assert link.carry(1.0, 50.0) == 2.0, "it waits for what was posted before"
    assert link.carry(5.0, 10.0) == 5.1, "an idle link starts at once"


def test_bytes_are_carried_while_they_are_on_the_link() -> None:
    link = Link("link", 100.0)
    link.carry(1.0, 200.0)
    assert [link.kv_bytes(at_s) for at_s in (1.0, 1.5, 2.0, 3.0, 9.0)] == [0.0, 50.0, 100.0, 200.0, 200.0]


def test_collectives_take_what_they_ask_for_first() -> None:
    link = Link("link", 100.0)
    link.set_collective_rate(0.0, 60.0)
    assert link.carry(0.0, 40.0) == 1.0
    assert link.carried_bytes(1.0) == pytest.approx(100.0)
    assert link.kv_bytes(1.0) == pytest.approx(40.0)


def test_a_new_rate_holds_for_what_is_already_waiting() -> None:
    link = Link("link", 100.0)
    link.carry(0.0, 200.0)
    link.set_collective_rate(1.0, 50.0)  # 100 bytes are left, at 50 a second
    assert link.busy_until_s == pytest.approx(3.0)
    link.set_collective_rate(2.0, 0.0)  # 50 bytes are left, at full rate
    assert link.busy_until_s == pytest.approx(2.5)
    assert link.carry(2.0, 100.0) == pytest.approx(3.5)
    assert link.carried_bytes(3.5) == pytest.approx(300.0 + 50.0)


def test_kv_traffic_keeps_its_weights_share_whatever_collectives_ask_for() -> None:
    link = Link("link", 1930.0)
    assert pytest.approx(1 / 193) == LEAST_SHARE
    link.set_collective_rate(0.0, 1e9)
    assert link.carry(0.0, 20.0) == pytest.approx(2.0)
    assert link.carried_bytes(2.0) == pytest.approx(2 * 1930.0), "the link is full, not more"


def test_collectives_are_counted_while_they_run() -> None:
    link = Link("link", 100.0)
    link.set_collective_rate(1.0, 10.0)
    link.set_collective_rate(3.0, 0.0)
    assert [link.carried_bytes(at_s) for at_s in (3.0, 9.0)] == [20.0, 20.0]
    assert link.kv_bytes(9.0) == 0.0
