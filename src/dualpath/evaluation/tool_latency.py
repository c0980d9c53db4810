"""Beyond the paper: agents that pause between turns, as tools take their time (paper section 8.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.load import (
    DATASET,
    DS_660B,
    TIERS_BYTES,
    Capacity,
    Curve,
    case_at,
    curve,
    lasting,
    life_s,
    mean_agent,
)
from dualpath.evaluation.section import Picture, Section, Series, Value

TURN_S = 5.0
"""A turn without a pause takes about this long near the capacity; pauses are multiples of it."""
STRETCHES = (1, 2, 4)
RATES = (0.45, 0.55)
BELOW, BEYOND = RATES
LAW = 0.15
"""A law holds when its exponent is met within this."""
STRETCHED_SHARE = 0.6
"""Of the run's length that would be in proportion to longer lives: these runs are the longest of all."""


def _case(stretch: int, rate: float) -> Case:
    """Turns ``stretch`` times as far apart; the run is longer with the lives."""
    case = case_at(DS_660B, "dualpath", rate)
    if stretch == 1:
        return case
    return lasting(replace(case, gap_s=(stretch - 1) * TURN_S), DS_660B.until_s * stretch * STRETCHED_SHARE)


def _cases() -> list[Case]:
    return [_case(stretch, rate) for stretch in STRETCHES for rate in RATES]


@dataclass(frozen=True, slots=True)
class Paused:
    """What pauses of one length do.

    Attributes:
        stretch: mean time of an agent against no pauses, below the capacity.
        capacity: agents a second within the objective.
        at_once: agents under way, below the capacity.
        working_set_bytes, hits: of all agents, of the tiers, below the capacity.
    """

    stretch: float
    capacity: Capacity
    at_once: float
    working_set_bytes: float
    hits: tuple[float, ...]


def _section(lab: Lab) -> Section:
    curves = {stretch: curve(lab, [_case(stretch, rate) for rate in RATES]) for stretch in STRETCHES}
    unpaused_s = _agent_s(curves[1], 1, BELOW)
    found = {stretch: _paused(one, stretch, unpaused_s) for stretch, one in curves.items()}
    return Section(
        "tool-latency",
        "Beyond the paper: pauses between turns, and what a DRAM tier would hit, DS 660B, 64K",
        list(_text(found)),
        list(_values(found)),
        [_hits_picture(found), _growth_picture(found)],
    )


def _paused(one: Curve, stretch: int, unpaused_s: float) -> Paused:
    agent_s, below = _agent_s(one, stretch, BELOW), one.by_rate[BELOW]
    return Paused(
        agent_s / unpaused_s if unpaused_s else float(stretch),
        one.capacity(),
        BELOW * agent_s,
        below.working_set_bytes,
        below.dram_hit_rates,
    )


def _agent_s(one: Curve, stretch: int, rate: float) -> float:
    """Mean time of an agent with its pauses."""
    return (one.at(rate, life_s) or 0.0) + (stretch - 1) * TURN_S * (mean_agent(DATASET).turns - 1)


def _values(found: Mapping[int, Paused]) -> Iterator[Value]:
    for stretch, one in found.items():
        pause = _pause(stretch)
        yield Value(f"time of an agent, {pause}", "x", one.stretch, note=f"at {BELOW:g} agents/s, against no pauses")
        yield Value(f"capacity, {pause}", "agents/s", one.capacity.rate, note=one.capacity.bounded)
        yield Value(f"agents at once, {pause}", "agents", one.at_once, note=f"at {BELOW:g} agents/s")
        yield Value(f"working set, {pause}", "GB", one.working_set_bytes / 1e9, note=f"at {BELOW:g} agents/s")
        for size, hit in zip(TIERS_BYTES, one.hits, strict=False):
            yield Value(f"hits of {size / 1e12:g} TB of DRAM, {pause}", "%", 100 * hit, note=f"at {BELOW:g} agents/s")


def _pause(stretch: int) -> str:
    return f"pauses of {(stretch - 1) * TURN_S:g} s" if stretch > 1 else "no pauses"


def _text(found: Mapping[int, Paused]) -> Iterator[str]:
    longest = found[max(found)]
    yield (
        f"The paper replays without tool latency and says that with agents k times as slow the capacity grows k-fold and the "
        f"working set k²-fold. Here agents pause between turns, "
        f"{' or '.join(f'{(at - 1) * TURN_S:g}' for at in STRETCHES[1:])} s on average (exponential), which makes their time "
        f"{longest.stretch:.1f} times as long at most. Each is run at {BELOW:g} and {BEYOND:g} agents/s, for longer as lives "
        f"are longer; the capacity is within the objective of Fig. 10."
    )
    if longest.stretch > 1:
        yield _laws(found[min(found)], longest)
    yield from _tiers(found)


def _laws(without: Paused, longest: Paused) -> str:
    """Exponents of k, from no pauses to the longest."""

    def exponent(paused: float, unpaused: float) -> float:
        return math.log(paused / unpaused) / math.log(longest.stretch) if paused > 0 and unpaused > 0 else 0.0

    rate = exponent(longest.capacity.rate, without.capacity.rate)
    at_once = exponent(longest.at_once, without.at_once)
    held = exponent(longest.working_set_bytes, without.working_set_bytes)
    text = (
        f"With k = {longest.stretch:.2f} the capacity in agents a second grows as k^{rate:.2f}; at {BELOW:g} agents/s the "
        f"agents at once grow as k^{at_once:.2f}, the working set as k^{held:.2f}. So the k-fold capacity {_holds(at_once, 1)} "
        f"for agents at once and {_holds(rate, 1)} for agents a second; the k²-fold working set {_holds(held, 2)}, a k-fold "
        f"one {_holds(held, 1)}."
    )
    if abs(rate) > LAW:
        return text
    return (
        f"{text} NICs and GPUs serve turns, {_turns(without):.0f} a second without pauses and {_turns(longest):.0f} with the "
        f"longest: agents that pause do not need fewer of them, so more are under way at once, but no more end a second. The "
        f"working set would only grow k²-fold if agents came k times as often, too."
    )


def _turns(one: Paused) -> float:
    return one.capacity.rate * mean_agent(DATASET).turns


def _holds(exponent: float, law: float) -> str:
    return "holds" if abs(exponent - law) <= LAW else "does not hold"


def _tiers(found: Mapping[int, Paused]) -> Iterator[str]:
    """What the hit rates are."""
    nodes = DS_660B.prefill + DS_660B.decode
    for stretch, one in found.items():
        if one.hits:
            listed = ", ".join(f"{size / 1e12:g} TB {hit:.0%}" for size, hit in zip(TIERS_BYTES, one.hits, strict=True))
            yield (
                f"A DRAM tier of whole contexts before the storage, least recently used first, of all {nodes} nodes together, "
                f"at {BELOW:g} agents/s with {_pause(stretch)}, would hit of the tokens that agents send again: {listed}."
            )


def _hits_picture(found: Mapping[int, Paused]) -> Picture:
    series = [
        Series(_pause(stretch), [(size / 1e12, 100 * hit) for size, hit in zip(TIERS_BYTES, one.hits, strict=False)])
        for stretch, one in found.items()
    ]
    return Picture(f"Hits of a DRAM tier at {BELOW:g} agents/s", "DRAM of the cluster (TB)", "% of tokens", series, log_x=True)


def _growth_picture(found: Mapping[int, Paused]) -> Picture:
    first = found[min(found)]
    kinds: Mapping[str, Callable[[Paused], float]] = {
        "agents a second": lambda one: one.capacity.rate / first.capacity.rate,
        "agents at once": lambda one: one.at_once / first.at_once if first.at_once else 0.0,
        "working set": lambda one: one.working_set_bytes / first.working_set_bytes if first.working_set_bytes else 0.0,
    }
    ours = [Series(name, [(one.stretch, of(one)) for one in found.values()]) for name, of in kinds.items()]
    laws = [
        Series("capacity as k", [(one.stretch, one.stretch) for one in found.values()], paper=True),
        Series("working set as k²", [(one.stretch, one.stretch**2) for one in found.values()], paper=True),
    ]
    return Picture("Growth with the time of an agent", "k", "times", [*ours, *laws], log_x=True, log_y=True)


TOOL_LATENCY = Experiment("tool-latency", "pauses between turns, and what a DRAM tier would hit", _cases, _section)
