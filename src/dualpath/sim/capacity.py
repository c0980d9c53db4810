"""The highest arrival rate within a service level objective (paper section 7, Fig. 10)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dualpath.errors import SettingsError
from dualpath.sim.run import SimProgress, Simulation, SimWorkload, without_collector
from dualpath.sim.spec import ClusterSpec
from dualpath.workload.agent import assigned
from dualpath.workload.arrivals import arrivals
from dualpath.workload.metrics import Summary, agent_durations_s, summary
from dualpath.workload.trajectory import Trajectory
from dualpath.workload.turn_table import TurnTable

_BOUND = re.compile(r"(ttft|ttst|tpot)(?:\.(mean|p50|p90|p99))?\s*=\s*(\d+(?:\.\d+)?)\s*(ms|s)", re.IGNORECASE)
WARM_UP, MEASURED = 1.5, 2.0
"""In mean lives of an unloaded agent: how long a rate runs before it is measured, and for how long it is."""
UNLOADED_AGENTS = 24
RELATIVE_PRECISION = 0.02
HOPELESS = 10.0
"""A turn that has waited for its first token so many times as long as the objective allows ends the measurement."""
MOST_RATE = 1e6


@dataclass(frozen=True, slots=True)
class Bound:
    """``metric`` (ttft, ttst, tpot), as ``statistic`` (mean, p50, …), is at most ``seconds``."""

    metric: str
    statistic: str
    seconds: float


Objective = Sequence[Bound]


@dataclass(frozen=True, slots=True)
class Level:
    """What a rate gives: agents a second, and the summaries of the turns that ended while it was measured.

    ``tpot_s`` counts from the second token on: the hand-off is in ``ttst_s``.
    """

    rate: float
    ttft_s: Summary
    ttst_s: Summary
    tpot_s: Summary
    turns: int

    def meets(self, objective: Objective) -> bool:
        """Whether every bound holds; without any finished turn none does."""
        return all(self._value(bound) <= bound.seconds for bound in objective)

    def _value(self, bound: Bound) -> float:
        value = getattr(getattr(self, f"{bound.metric}_s"), bound.statistic)
        return float("inf") if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Capacity:
    """``best`` is the highest rate that was found to meet the objective (None: not even one agent at a time does)."""

    objective: Objective
    best: Level | None
    levels: Sequence[Level]

    def sentence(self, system: str) -> str:
        """For people."""
        wanted = ", ".join(f"{one.metric.upper()} {one.statistic} <= {one.seconds:g} s" for one in self.objective)
        if self.best is None:
            return f"{system}: {wanted} is not met even by one agent at a time"
        found = self.best
        ttft, tpot = found.ttft_s.mean or 0.0, found.tpot_s.mean or 0.0
        return (
            f"{system}: {found.rate:.3f} agents/s within {wanted} (TTFT mean {ttft:.2f} s, TPOT mean {tpot * 1e3:.1f} ms there)"
        )


def parse_objective(text: str) -> list[Bound]:
    """Bounds from text such as ``ttft=4s,tpot=50ms`` or ``ttft.p99=8s``; the mean where no statistic is named.

    Raises:
        SettingsError: a part is no bound, or there is none.
    """
    bounds = []
    for part in (one.strip() for one in text.split(",") if one.strip()):
        match = _BOUND.fullmatch(part)
        if match is None:
            raise SettingsError(f"--slo: {part!r} is no bound such as ttft=4s, tpot=50ms or ttft.p99=8s")
        metric, statistic, number, unit = match.groups()
        seconds = float(number) / (1000 if unit.lower() == "ms" else 1)
        if seconds <= 0:
            raise SettingsError(f"--slo: {part!r} must be positive")
        bounds.append(Bound(metric.lower(), (statistic or "mean").lower(), seconds))
    if not bounds:
        raise SettingsError("--slo: no bound given")
    return bounds


def at_rate(
    spec: ClusterSpec,
    trajectories: Sequence[Trajectory],
    rate: float,
    warm_up_s: float,
    measured_s: float,
    seed: int = 0,
    on_progress: Callable[[SimProgress], None] | None = None,
    longest_wait_s: float = float("inf"),
) -> Level:
    """Poisson arrivals at ``rate``, from an empty cluster; turns that end within the measured time count.

    It ends early, and no turn counts, once one has waited longer than ``longest_wait_s`` for its first token.
    """
    end_s = warm_up_s + measured_s
    agents = max(2, int(rate * end_s * 1.2) + 20)
    chosen = assigned(trajectories, agents, random.Random(seed))
    workload = SimWorkload(chosen, arrivals(agents, rate, random.Random(seed + 1)))

    def stop(progress: SimProgress, _: TurnTable) -> bool:
        return progress.virtual_s >= end_s or simulation.cluster.longest_wait_s() > longest_wait_s

    simulation = Simulation(spec, workload, on_progress, stop=stop)
    with without_collector():
        turns = simulation.run().result.turns
    hopeless = simulation.cluster.longest_wait_s() > longest_wait_s
    window = TurnTable() if hopeless else turns.ended_within(warm_up_s, end_s)
    return Level(
        rate,
        summary(window.ttft_s()),
        summary(window.ttst_s()),
        summary(window.tpot_after_second_s()),
        len(window),
    )


def find_capacity(
    spec: ClusterSpec,
    trajectories: Sequence[Trajectory],
    objective: Objective,
    seed: int = 0,
    on_progress: Callable[[SimProgress], None] | None = None,
    precision: float = RELATIVE_PRECISION,
) -> Capacity:
    """Double the rate until the objective is missed, then bisect.

    A rate is measured long enough for a queue that grows to show: one that only just cannot be sustained counts as met
    for a while, so the result is right within a few percent, not more.
    """
    life_s = unloaded_life_s(spec, trajectories, seed)
    levels: list[Level] = []
    longest_wait_s = max((HOPELESS * one.seconds for one in objective if one.metric == "ttft"), default=float("inf"))
    longest_wait_s += HOPELESS * spec.latencies.turn_s

    def level(rate: float) -> Level:
        times_s = WARM_UP * life_s, MEASURED * life_s
        levels.append(at_rate(spec, trajectories, rate, *times_s, seed, on_progress, longest_wait_s))
        return levels[-1]

    best: Level | None = None
    rate = 1.0 / life_s
    found = level(rate)
    while found.meets(objective) and rate < MOST_RATE:
        best, rate = found, 2 * rate
        found = level(rate)
    if best is None:
        return Capacity(objective, None, levels)
    low, high = best.rate, rate
    while high - low > precision * high:
        middle = (low + high) / 2
        found = level(middle)
        if found.meets(objective):
            best, low = found, middle
        else:
            high = middle
    return Capacity(objective, best, levels)


def unloaded_life_s(spec: ClusterSpec, trajectories: Sequence[Trajectory], seed: int = 0) -> float:
    """Mean time of an agent in a cluster that is nearly empty."""
    chosen = random.Random(seed).sample(list(trajectories), min(UNLOADED_AGENTS, len(trajectories)))
    turns = Simulation(spec, SimWorkload(chosen, [0.0] * len(chosen))).run().result.turns
    lives = agent_durations_s(turns.ended_within(0.0))
    if not lives:
        raise SettingsError("no agent can run here: every first turn is refused")
    return fmean(lives.values())
