"""Agents that arrive at a rate: the cases, what lies between two rates, and the capacity within an objective (paper section 7).

Agents live for hundreds of seconds, some for thousands, so a rate runs for about twelve mean lives of an unloaded agent,
and turns count that end in the second half of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import fmean

from dualpath.costmodel.catalogue import MODELS
from dualpath.evaluation.lab import TRAJECTORIES, Case, Lab, workload_of
from dualpath.evaluation.outcome import Outcome, Window, prefill_nodes
from dualpath.evaluation.section import Value
from dualpath.settings import Settings
from dualpath.workload.agent import theoretical_hits
from dualpath.workload.metrics import Summary
from dualpath.workload.trajectory import Trajectory

TTFT_LIMIT_S, TPOT_LIMIT_S = 4.0, 0.050
"""The paper's objective."""
SPARE_AGENTS = 1.1
"""Arrivals are random: so many times the mean number, that they do not end before the run."""
TIERS_BYTES = (0.25e12, 0.5e12, 1e12, 2e12, 4e12)
"""DRAM tiers that every run of DualPath on DS 660B is asked about."""
Number = Callable[[Outcome], float | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """A model with its cluster, and how long a rate runs.

    Attributes:
        label: for people.
        until_s: virtual seconds of arrivals; the second half is measured.
    """

    label: str
    model: str
    prefill: int
    decode: int
    until_s: float


DS_660B = Setting("DS 660B", "ds-660b", 2, 4, 8000.0)
DS_27B = Setting("DS 27B", "ds-27b", 1, 1, 4000.0)
SYSTEMS = ("basic", "dualpath")
NAMES = {"basic": "Basic", "dualpath": "DualPath"}
DATASET = "64K"
BLOCK_TOKENS = Settings().cache.block_tokens
PARTS = ("scheduling", "allocation", "read", "prefill")
"""Of TTFT."""
PAPER_CAPACITY: Mapping[tuple[Setting, str], float] = {
    (DS_660B, "basic"): 0.2,
    (DS_660B, "dualpath"): 0.45,
    (DS_27B, "basic"): 0.3,
    (DS_27B, "dualpath"): 0.5,
}
"""Agents a second, read off Fig. 10; about."""
NEAR_CAPACITY: Mapping[tuple[Setting, str], Sequence[float]] = {
    (DS_660B, "basic"): (0.2, 0.25, 0.3),
    (DS_660B, "dualpath"): (0.45, 0.5, 0.55),
    (DS_27B, "basic"): (0.2, 0.25, 0.3, 0.35),
    (DS_27B, "dualpath"): (0.45, 0.5, 0.55, 0.6),
}
"""Agents a second, around what each can serve."""
BELOW_CAPACITY: Mapping[tuple[Setting, str], Sequence[float]] = {
    (DS_660B, "basic"): (0.1, 0.15),
    (DS_660B, "dualpath"): (0.1, 0.2, 0.3, 0.4),
}


def case_at(setting: Setting, system: str, rate: float) -> Case:
    """One rate of one system."""
    tiers = TIERS_BYTES if setting is DS_660B and system == "dualpath" else ()
    case = Case(setting.model, prefill=setting.prefill, decode=setting.decode, system=system, rate=rate, dram_tier_bytes=tiers)
    return lasting(case, setting.until_s)


def lasting(case: Case, until_s: float) -> Case:
    """The case with arrivals for so many seconds, of which the second half is measured."""
    agents = math.ceil((case.rate or 0.0) * until_s * SPARE_AGENTS)
    return replace(case, agents=agents, until_s=until_s, window=Window(until_s / 2, until_s))


def near_capacity_cases() -> list[Case]:
    """The rates from which capacities are interpolated."""
    return [case_at(setting, system, rate) for (setting, system), rates in NEAR_CAPACITY.items() for rate in rates]


def all_rates_cases(setting: Setting, system: str) -> list[Case]:
    """Every rate of one system, low ones too, in their order."""
    rates = (*BELOW_CAPACITY.get((setting, system), ()), *NEAR_CAPACITY[setting, system])
    return [case_at(setting, system, rate) for rate in rates]


@dataclass(frozen=True, slots=True)
class Capacity:
    """A rate within the objective.

    Attributes:
        rate: agents a second.
        bounded: "" when it lies between two rates that were run, else what is known: "at least", "at most".
    """

    rate: float
    bounded: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Outcomes of one system, by arrival rate."""

    by_rate: Mapping[float, Outcome]

    def points(self, value: Number) -> list[tuple[float, float]]:
        """``(rate, value)`` in order of the rates, where there is a value."""
        found = ((rate, value(self.by_rate[rate])) for rate in sorted(self.by_rate))
        return [(rate, at) for rate, at in found if at is not None]

    def at(self, rate: float, value: Number) -> float | None:
        """The value at a rate, interpolated by its logarithm; None outside of the rates that were run."""
        points = self.points(value)
        for (low, below), (high, above) in pairwise(points):
            if low <= rate <= high:
                share = (rate - low) / (high - low)
                return math.exp((1 - share) * math.log(below) + share * math.log(above))
        return None

    def capacity(self, statistic: str = "mean") -> Capacity:
        """The highest rate within the objective, that statistic of TTFT and of TPOT taken; one without turns is idle."""
        by_ttft = self._within(lambda outcome: _share(outcome.ttft_s, statistic, TTFT_LIMIT_S))
        by_tpot = self._within(lambda outcome: _share(outcome.tpot_s, statistic, TPOT_LIMIT_S))
        return min(by_ttft, by_tpot, key=lambda capacity: capacity.rate)

    def _within(self, share: Number) -> Capacity:
        """The highest rate at which no more than all of a limit is used."""
        points = self.points(share)
        if not points:
            return Capacity(max(self.by_rate), "at least")
        if points[0][1] > 1:
            return Capacity(points[0][0], "at most")
        for (low, below), (high, above) in pairwise(points):
            if above > 1:
                return Capacity(low - (high - low) * math.log(below) / math.log(above / below))
        return Capacity(points[-1][0], "at least")

    @property
    def lowest(self) -> Outcome:
        """At the lowest rate."""
        return self.by_rate[min(self.by_rate)]

    @property
    def highest(self) -> Outcome:
        """At the highest rate."""
        return self.by_rate[max(self.by_rate)]


def curve(lab: Lab, cases: Sequence[Case]) -> Curve:
    """The outcomes of these cases, one a rate."""
    outcomes = lab.outcomes(cases)
    return Curve({case.rate or 0.0: outcomes[case] for case in cases})


def near_capacity(lab: Lab, setting: Setting, system: str) -> Curve:
    """Of the rates near the capacity only."""
    return curve(lab, [case_at(setting, system, rate) for rate in NEAR_CAPACITY[setting, system]])


def _share(of: Summary, statistic: str, limit_s: float) -> float | None:
    """How much of a limit is used; above 1 it is missed."""
    seconds: float | None = getattr(of, statistic)
    return None if seconds is None else seconds / limit_s


@dataclass(frozen=True, slots=True)
class Agents:
    """What the agents of a case are on average; the numbers of a life.

    Attributes:
        turns: of an agent.
        total_tokens: appended and generated.
        prompt_tokens: of all its prompts.
        hit_tokens: of all its prompts, in whole blocks.
        turns_total: mean of turns × total tokens, for what long lives weigh.
    """

    turns: float
    total_tokens: float
    prompt_tokens: float
    hit_tokens: float
    turns_total: float


def load_reached(dataset: str, turns: float) -> float:
    """Share of the final load that is there when the oldest agents have had so many turns: the rest is of longer lives."""
    lengths = [len(one.turns) for one in _all_agents(dataset)]
    return fmean(min(length, turns) for length in lengths) / fmean(lengths)


def _all_agents(dataset: str) -> Sequence[Trajectory]:
    return workload_of(Case(dataset=dataset, agents=TRAJECTORIES)).trajectories


@lru_cache(maxsize=4)
def mean_agent(dataset: str) -> Agents:
    """Of one of Table 2's sets."""
    trajectories = _all_agents(dataset)
    return Agents(
        fmean(len(one.turns) for one in trajectories),
        fmean(one.total_tokens for one in trajectories),
        fmean(sum(step.prompt_tokens for step in one.steps()) for one in trajectories),
        fmean(theoretical_hits([one], BLOCK_TOKENS) for one in trajectories),
        fmean(len(one.turns) * one.total_tokens for one in trajectories),
    )


def life_s(outcome: Outcome) -> float | None:
    """Mean time of an agent, its pauses left out: by the time of its turns, so that long lives count before they end."""
    return outcome.turn_agent_s


def equal_load(lab: Lab) -> float:
    """How many times the paper's our capacity of DualPath on DS 660B is: a rate times this is an equal share of it."""
    capacity = near_capacity(lab, DS_660B, "dualpath").capacity()
    return capacity.rate / PAPER_CAPACITY[DS_660B, "dualpath"]


def ttft_parts(outcome: Outcome) -> dict[str, float]:
    """Mean seconds of each part of TTFT, in their order."""
    stages = outcome.stages
    return dict(zip(PARTS, (stages.scheduling_s, stages.allocation_s, stages.read_s, stages.prefill_s), strict=True))


def agent_read_bytes(setting: Setting) -> float:
    """What an agent's turns read from the storage, all together."""
    return mean_agent(DATASET).hit_tokens * MODELS[setting.model].token_bytes


def through(setting: Setting, outcome: Outcome) -> float:
    """Agents a second that get through in the second half of a run, by what all storage NICs read; 0: not measured."""
    if outcome.utilisation is None:
        return 0.0
    series = [shares for name, shares in outcome.utilisation.series.items() if name.endswith("SNIC read")]
    busy = sum(fmean(shares[len(shares) // 2 :]) for shares in series if shares)
    return busy * (outcome.nodes[0].storage_bytes_per_s or 0.0) / agent_read_bytes(setting)


def storage_share(outcome: Outcome) -> float:
    """Of what the prefill nodes' storage NICs could have read during the run."""
    nodes = [node for node in prefill_nodes(outcome.nodes) if node.storage_bytes_per_s]
    could = sum(node.storage_bytes_per_s or 0.0 for node in nodes) * outcome.jct_s
    return sum(node.storage_read_bytes for node in nodes) / could if could else 0.0


def verdict(values: Iterable[Value]) -> list[str]:
    """Which targets hold and which are missed, by how much: a paragraph each, without those that have none."""
    judged = [value for value in values if value.holds is not None]
    held = [_with_error(value) for value in judged if value.holds]
    missed = [_with_error(value) for value in judged if not value.holds]
    return [f"{name}: {'; '.join(these)}." for name, these in (("Within the tolerance", held), ("Missed", missed)) if these]


def _with_error(value: Value) -> str:
    return value.name if value.error is None else f"{value.name} ({value.error:+.0%})"
