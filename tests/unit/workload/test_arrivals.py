"""When agents begin."""

from __future__ import annotations

import random

import pytest

from dualpath.workload.arrivals import arrivals


def test_arrivals_are_poisson_at_the_rate_asked_for_and_the_same_for_every_system() -> None:
    times = arrivals(2000, 50.0, random.Random(3))
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(2000 / 50.0, rel=0.1)
    assert arrivals(2000, 50.0, random.Random(3)) == times


def test_without_a_rate_all_begin_at_once() -> None:
    assert arrivals(3, None, random.Random(0)) == [0.0, 0.0, 0.0]
