"""Searching for a better cluster with an invented cost of each candidate."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.sim.search import Candidate, Tried, best_of, search


def run(candidates: Sequence[Candidate]) -> list[Tried]:
    """Best at 3P3D with a quota of 0.6 s; one prefill node does not fit."""
    tried = []
    for one in candidates:
        jct_s = 100 + 10 * abs(one.prefill_nodes - 3) + 5 * abs(one.quota_s - 0.6)
        tried.append(Tried(one, None, "no") if one.prefill_nodes == 1 else Tried(one, jct_s))
    return tried


def test_ratios_first_then_knobs_at_the_best_one() -> None:
    start = Candidate(2, 4)
    tried = search(start, run)
    assert tried[0].candidate == start
    assert [(one.candidate.prefill_nodes, one.candidate.decode_nodes) for one in tried[:5]] == [
        (2, 4),
        (1, 5),
        (3, 3),
        (4, 2),
        (5, 1),
    ]
    assert all(one.candidate.prefill_nodes == 3 for one in tried[5:])
    assert len({one.candidate for one in tried}) == len(tried)
    best = best_of(tried)
    assert best is not None
    assert (best.candidate.prefill_nodes, best.candidate.quota_s) == (3, 0.6)


def test_of_equal_candidates_the_first_is_the_best() -> None:
    first, second = Tried(Candidate(1, 1), 5.0), Tried(Candidate(2, 2), 5.0)
    assert best_of([first, second]) is first


def test_nothing_fits() -> None:
    tried = search(Candidate(1, 1), lambda candidates: [Tried(one, None, "no") for one in candidates])
    assert best_of(tried) is None
    assert len(tried) == 1
