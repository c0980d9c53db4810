"""A question beyond the paper: would a P/D ratio that follows the work be better than the best fixed one? A bound
(paper section 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.section import Picture, Section, Series, Value

NODES = 6
ROLE_CHANGE_S = 30.0
"""A node that changes its role loads the other role's weights; the drain is in the phases' own ends."""
AGENTS = 1024
PHASES: Mapping[str, tuple[float, float]] = {"append-heavy": (3.0, 1.0), "generation-heavy": (1.0, 3.0)}
"""Factors on appended and generated tokens."""
WORTH = 0.05
"""Saving of the best fixed ratio's time from which adapting seems worth building, as the bound may not be reached."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Of one workload of phases that follow one another, each begun when the one before has ended; seconds.

    Attributes:
        fixed: P of the best single ratio, ``fixed_s`` its time.
        best: P of each phase where roles change as often as that pays; ``elastic_s`` the time with these, changes included.
        free_s: the time if a change of roles took none.
    """

    fixed: int
    fixed_s: float
    best: Mapping[str, int]
    elastic_s: float
    free_s: float

    @property
    def saved(self) -> float:
        """Share of the fixed ratio's time; no more than this can be gained."""
        return 1 - self.elastic_s / self.fixed_s


def bound(jct_s: Mapping[tuple[str, int], float], phases: Sequence[str], change_s: float) -> Bound:
    """From the times of every phase at every ratio: the best fixed ratio, and the best ratio of each phase.

    Adapting changes roles only where that pays: it is never worse than the fixed ratio.
    """
    ratios = sorted({ratio for _, ratio in jct_s})
    totals = {ratio: sum(jct_s[phase, ratio] for phase in phases) for ratio in ratios}
    fixed = min(ratios, key=totals.__getitem__)
    costs: dict[int, tuple[float, tuple[int, ...]]] = {ratio: (jct_s[phases[0], ratio], (ratio,)) for ratio in ratios}
    for phase in phases[1:]:
        costs = {
            ratio: min(
                (seconds + (change_s if path[-1] != ratio else 0.0) + jct_s[phase, ratio], (*path, ratio))
                for seconds, path in costs.values()
            )
            for ratio in ratios
        }
    elastic_s, path = min(costs.values())
    free_s = sum(min(jct_s[phase, ratio] for ratio in ratios) for phase in phases)
    return Bound(fixed, totals[fixed], dict(zip(phases, path, strict=True)), elastic_s, free_s)


def _case(phase: str, prefill: int) -> Case:
    append, output = PHASES[phase]
    return Case(
        hardware="h200",
        prefill=prefill,
        decode=NODES - prefill,
        agents=AGENTS,
        append_scale=append,
        output_scale=output,
    )


def _cases() -> list[Case]:
    return [_case(phase, prefill) for phase in PHASES for prefill in range(1, NODES)]


def _elastic(lab: Lab) -> Section:
    outcomes = lab.outcomes(_cases())
    jct_s = {(phase, p): outcomes[_case(phase, p)].jct_s for phase in PHASES for p in range(1, NODES)}
    found = bound(jct_s, list(PHASES), ROLE_CHANGE_S)
    values = [Value(f"JCT {phase}, {p}P{NODES - p}D", "s", seconds) for (phase, p), seconds in jct_s.items()]
    values += [
        Value(f"best fixed ratio, {found.fixed}P{NODES - found.fixed}D", "s", found.fixed_s),
        Value("bound of an adaptive ratio", "s", found.elastic_s),
        Value("saved at most", "%", 100 * found.saved),
    ]
    series = [Series(phase, [(f"{p}P{NODES - p}D", jct_s[phase, p]) for p in range(1, NODES)]) for phase in PHASES]
    return Section(
        "elastic-ratio",
        "A P/D ratio that adapts: an upper bound of what it gains",
        [
            f"A bound, not a policy: {AGENTS:,} agents with three times the appended tokens, and when they have ended as many "
            f"with three times the generated ones (cut at 64K), DS 660B on {NODES} H200 nodes (on 80 GB GPUs the weights "
            "forbid a single prefill node, and fewer than two decode nodes). An adaptive ratio has the best fixed ratio of "
            f"each phase from its first moment and pays {ROLE_CHANGE_S:g} s between the two; it knows the phases in advance, "
            "and a phase's own end is the drain. A real policy gains less; where phases overlap, the mix that a fixed ratio "
            "sees is more even, and there is less to gain still.",
            _verdict(found),
            _spread(jct_s),
        ],
        values,
        [Picture("JCT of each phase by ratio", "ratio", "JCT (s)", series)],
    )


def _verdict(found: Bound) -> str:
    best = ", ".join(f"{p}P{NODES - p}D for the {phase} phase" for phase, p in found.best.items())
    fixed = f"{found.fixed}P{NODES - found.fixed}D"
    if len(set(found.best.values())) == 1:
        return (
            f"There is nothing to gain from adapting: {fixed} is the best fixed ratio, and the best ratio of each phase would "
            f"save {1 - found.free_s / found.fixed_s:.1%} if a change of roles took no time, which is less than it takes."
        )
    worth = "worth building" if found.saved >= WORTH else "hardly worth its complication"
    return (
        f"Best are {best}; the best fixed ratio is {fixed} with {found.fixed_s:,.0f} s in all, adapting takes at least "
        f"{found.elastic_s:,.0f} s: at most {found.saved:.1%} can be saved. That seems {worth} for such a mix."
    )


def _spread(jct_s: Mapping[tuple[str, int], float]) -> str:
    """How much more a wrong fixed ratio costs than one that does not adapt."""
    totals = {p: sum(jct_s[phase, p] for phase in PHASES) for p in range(1, NODES)}
    best = min(totals, key=totals.__getitem__)
    others = ", ".join(f"{p}P{NODES - p}D {seconds / totals[best] - 1:+.0%}" for p, seconds in totals.items() if p != best)
    return f"Which fixed ratio it is matters: against {best}P{NODES - best}D, {others}."


ELASTIC = Experiment("elastic-ratio", "A P/D ratio that adapts: a bound", _cases, _elastic)
