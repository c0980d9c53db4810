"""DS 27B offline, on one or two nodes of each role (paper Figs. 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.load import verdict
from dualpath.evaluation.offline import JCT_TOLERANCE, NAMES, SYSTEMS, cut_off, limits, nic_share
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Picture, Section, Series, Value, Within
from dualpath.types import Role

DATASETS = ("32K", "48K", "64K")
_27B = Case(model="ds-27b", prefill=1, decode=1, agents=2048)
"""The paper does not say how many agents Fig. 8 has."""
_FIG7B_AGENTS = (512, 1024, 2048)
_FIG7B_BEST, _FIG7B_BEHIND = 1.78, (1.09, 1.85)
_CLUSTERS = ((1, 1), (2, 1), (1, 2))
_FIG8_MEAN, _FIG8_BEST = 1.64, 2.46
_EQUAL = (
    (("basic", 1, 1), ("basic", 1, 2)),
    (("dualpath", 1, 1), ("basic", 2, 1)),
    (("dualpath", 2, 1), ("dualpath", 1, 2)),
)
"""Said to be about equal: as many storage NICs read."""
UNEVEN = 1.25
"""NICs of one role that read so many times what those of the other do are worth a sentence."""
FULL = 0.9
"""A NIC that is busy for this share of a run is what limits it."""


def _fig7b_points() -> dict[str, Case]:
    """What each system is run on, by label."""
    by_agents = {f"{agents:,} agents, 64K": replace(_27B, agents=agents) for agents in _FIG7B_AGENTS}
    return by_agents | {f"{_27B.agents:,} agents, {name}": replace(_27B, dataset=name) for name in DATASETS}


def _fig7b_cases() -> list[Case]:
    return [replace(case, system=system) for case in _fig7b_points().values() for system in SYSTEMS]


def _fig7b(lab: Lab) -> Section:
    outcomes = lab.outcomes(_fig7b_cases())
    points = _fig7b_points()
    jct = {(of, at): outcomes[replace(case, system=of)].jct_s for at, case in points.items() for of in SYSTEMS}
    values = [Value(f"JCT {NAMES[of]}, {at}", "s", seconds) for (of, at), seconds in jct.items()]
    ratios = {at: jct["basic", at] / jct["dualpath", at] for at in points}
    behind = {at: jct["dualpath", at] / jct["oracle", at] for at in points}
    near = (Within.RELATIVE, JCT_TOLERANCE)
    values += [
        Value("best JCT ratio Basic / DualPath", "x", max(ratios.values()), _FIG7B_BEST, *near),
        Value("least DualPath / Oracle", "x", min(behind.values()), _FIG7B_BEHIND[0], *near),
        Value("largest DualPath / Oracle", "x", max(behind.values()), _FIG7B_BEHIND[1], *near),
    ]
    busiest = max(points, key=lambda at: points[at].agents * (points[at].dataset == "64K"))
    text = [
        "DS 27B on one prefill and one decode node: two storage NICs against one. Numbers of agents are assumed; the paper "
        "gives ratios only.",
        *verdict(values),
        *(f"{NAMES[of]}, {busiest}: {limits(outcomes[replace(points[busiest], system=of)])}." for of in SYSTEMS),
        *_uneven({f"DualPath, {busiest}": outcomes[replace(points[busiest], system="dualpath")]}),
        f"DualPath is furthest from its Oracle with {max(behind, key=behind.__getitem__)} ({max(behind.values()):.2f}) and "
        f"nearest with {min(behind, key=behind.__getitem__)} ({min(behind.values()):.2f}).",
        *cut_off(outcomes),
    ]
    series = [Series(NAMES[of], [(at, jct[of, at]) for at in points]) for of in SYSTEMS]
    return Section(
        "fig7b",
        "Fig. 7: completion time, DS 27B on 1P1D",
        text,
        values,
        [Picture("JCT, DS 27B", "", "JCT (s)", series)],
    )


def _fig8_case(system: str, prefill: int, decode: int, dataset: str = "64K") -> Case:
    return replace(_27B, system=system, prefill=prefill, decode=decode, dataset=dataset)


def _fig8_cases() -> list[Case]:
    compared = [_fig8_case(of, *pd, name) for of in ("basic", "dualpath") for pd in _CLUSTERS for name in DATASETS]
    return compared + [_fig8_case("oracle", *pd) for pd in _CLUSTERS]


def _fig8(lab: Lab) -> Section:
    outcomes = lab.outcomes(_fig8_cases())
    jct = {case: outcome.jct_s for case, outcome in outcomes.items()}
    ratios = {
        f"{p}P{d}D, {name}": jct[_fig8_case("basic", p, d, name)] / jct[_fig8_case("dualpath", p, d, name)]
        for p, d in _CLUSTERS
        for name in DATASETS
    }
    near = (Within.RELATIVE, JCT_TOLERANCE)
    values = [
        Value("mean JCT ratio Basic / DualPath", "x", fmean(ratios.values()), _FIG8_MEAN, *near),
        Value("best JCT ratio Basic / DualPath", "x", max(ratios.values()), _FIG8_BEST, *near),
        *(Value(f"JCT ratio Basic / DualPath, {at}", "x", ratio) for at, ratio in ratios.items()),
    ]
    equal = [
        Value(f"{_system_at(one)} / {_system_at(other)}, {name}", "x", _quotient(jct, one, other, name), 1.0, *near)
        for one, other in _EQUAL
        for name in DATASETS
    ]
    values += equal
    values += [Value(f"JCT {_system_at((of, *pd))}, 64K", "s", jct[_fig8_case(of, *pd)]) for of in SYSTEMS for pd in _CLUSTERS]
    busy = [f"{_system_at((of, *pd))}: {limits(outcomes[_fig8_case(of, *pd)])}." for of in SYSTEMS[:2] for pd in _CLUSTERS]
    text = [
        f"DS 27B, {_27B.agents:,} agents (assumed), three ratios of prefill to decode nodes, three data sets. If storage "
        f"limits everything, systems whose reads use as many NICs take equally long.",
        *verdict(values),
        f"Best ratio with {max(ratios, key=ratios.__getitem__)}, least with {min(ratios, key=ratios.__getitem__)}.",
        *_fig8_reasons(outcomes, equal),
        "64K: " + " ".join(busy),
        *cut_off(outcomes),
    ]
    series = [Series(NAMES[of], [(f"{p}P{d}D", jct[_fig8_case(of, p, d)]) for p, d in _CLUSTERS]) for of in SYSTEMS]
    return Section(
        "fig8", "Fig. 8: DS 27B by prefill and decode nodes", text, values, [Picture("JCT, 64K", "", "JCT (s)", series)]
    )


def _fig8_reasons(outcomes: Mapping[Case, Outcome], equal: Sequence[Value]) -> Iterator[str]:
    """Which systems storage does not limit, so that they need not be equal; which do not use all NICs alike."""
    found = {(of, *pd): outcomes[_fig8_case(of, *pd)] for of in SYSTEMS[:2] for pd in _CLUSTERS}
    computing = [
        f"{_system_at(key)} ({outcome.prefill_busy:.0%})"
        for key, outcome in found.items()
        if max(nic_share(outcome, role) for role in Role) < FULL
    ]
    if computing and not all(value.holds for value in equal):
        yield (
            f"Storage is not the only limit of these at 64K, as all their NICs are idle for more than {1 - FULL:.0%} of the "
            f"time (in brackets, how long prefill groups were in steps): {', '.join(computing)}. What is equal if storage is "
            f"the limit need not be equal here, as their GPUs are not."
        )
    yield from _uneven({f"{_system_at(key)}, 64K": outcome for key, outcome in found.items() if key[0] == "dualpath"})


def _uneven(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Whether reads are spread as evenly as the shorter queue should."""
    for name, outcome in outcomes.items():
        prefill, decode = (nic_share(outcome, role) for role in (Role.PREFILL, Role.DECODE))
        if max(prefill, decode) > UNEVEN * min(prefill, decode):
            yield (
                f"{name}, reads unevenly, {prefill:.0%} of what prefill nodes' NICs could and {decode:.0%} of decode nodes': "
                f"the queues that the scheduler sees are not those of the NICs. With both alike, reads alone would take "
                f"{outcome.jct_s * _mean_share(outcome):,.0f} of its {outcome.jct_s:,.0f} s."
            )


def _mean_share(outcome: Outcome) -> float:
    """Of what all storage NICs could have read."""
    rates = [node.storage_bytes_per_s or 0.0 for node in outcome.nodes]
    return sum(node.storage_read_bytes for node in outcome.nodes) / sum(rates) / outcome.jct_s if sum(rates) else 0.0


def _system_at(key: tuple[str, int, int]) -> str:
    system, prefill, decode = key
    return f"{NAMES[system]} {prefill}P{decode}D"


def _quotient(jct: Mapping[Case, float], one: tuple[str, int, int], other: tuple[str, int, int], dataset: str) -> float:
    return jct[_fig8_case(*one, dataset)] / jct[_fig8_case(*other, dataset)]


SMALL_MODEL: Sequence[Experiment] = (
    Experiment("fig7b", "JCT by agents and data set, DS 27B", _fig7b_cases, _fig7b),
    Experiment("fig8", "JCT by prefill and decode nodes, DS 27B", _fig8_cases, _fig8),
)
"""Figs. 7 and 8."""
