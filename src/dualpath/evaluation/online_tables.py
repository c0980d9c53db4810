"""Table 3's online rows, and the working set of section 8.2 (paper sections 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dualpath.costmodel.catalogue import MODELS
from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.load import (
    DATASET,
    DS_660B,
    PAPER_CAPACITY,
    Curve,
    Number,
    all_rates_cases,
    curve,
    equal_load,
    lasting,
    life_s,
    load_reached,
    mean_agent,
    verdict,
)
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Picture, Section, Series, Value, Within

TOLERANCE = 0.15
FACTOR = 1.5
_METRICS: Mapping[str, Number] = {
    "TTFT": lambda outcome: outcome.ttft_s.mean,
    "TTST": lambda outcome: outcome.ttst_s.mean,
    "TPOT": lambda outcome: outcome.tpot_s.mean,
}
"""TPOT is after the second token: the hand-off is in TTST."""
_SMALL_RATE, _LARGE_RATE = 0.4, 8.8
_SMALL_PAPER = {"TTFT": 1.739, "TTST": 0.228, "TPOT": 0.039}
_LARGE_PAPER = {"TTFT": 1.847, "TTST": 0.194, "TPOT": 0.036}
_LARGE = lasting(Case(prefill=44, decode=88, rate=_LARGE_RATE), 2500.0)
_OTHER_SET = lasting(Case(dataset="48K", rate=_SMALL_RATE), DS_660B.until_s)

_WORKING_SET_PAPER = {0.1: 69e9, 0.45: 681e9}
_AGENT_PAPER_S = {0.1: 575.0, 0.45: 1100.0}
_TOTAL_PAPER = 55_958
_LAYOUTS = (MODELS["ds-660b"].token_bytes, 61 * 656)
"""Bytes a token, with the indexer's keys, which a store must keep, and without."""


def _table3_cases() -> list[Case]:
    return [*all_rates_cases(DS_660B, "dualpath"), _LARGE, _OTHER_SET]


def _table3(lab: Lab) -> Section:
    small = curve(lab, all_rates_cases(DS_660B, "dualpath"))
    large, other = lab.outcome(_LARGE), lab.outcome(_OTHER_SET)
    more = equal_load(lab)
    values = [
        *_judged(f"2P4D {_SMALL_RATE * more:.3f}/s, an equal load", _at(small, _SMALL_RATE * more), _SMALL_PAPER),
        *_shown(f"2P4D {_SMALL_RATE:g}/s, literal", _at(small, _SMALL_RATE), _SMALL_PAPER),
        *_judged(f"44P88D {_LARGE_RATE:g}/s, literal", _of(large), _LARGE_PAPER),
        *_shown(f"2P4D {_SMALL_RATE:g}/s, 48K set", _of(other), _SMALL_PAPER),
    ]
    return Section(
        "table3-online",
        "Table 3, online: waiting times at 0.4 agents/s on 2P4D and 8.8 on 44P88D, DS 660B, 64K",
        [_table3_setup(more, large), *verdict(values), *_at_scale(small, large)],
        values,
        [_table3_picture(_at(small, _SMALL_RATE), _of(large))],
    )


def _table3_setup(more: float, large: Outcome) -> str:
    begun = _LARGE.window.start_s if _LARGE.window else 0.0
    reached = load_reached(DATASET, begun / large.latency_s.mean) if large.latency_s.mean else 1.0
    return (
        f"TTST is from the first to the second token and holds the hand-off, TPOT the time of a token after that. 2P4D is "
        f"compared at an equal share of its capacity (ours is {more:.2f} times the paper's, Fig. 10), interpolated between "
        f"rates, and at the literal rate. 44P88D is run once, at the literal rate, with arrivals for {_LARGE.until_s:,.0f} s "
        f"and the second half measured, at whose begin {reached:.0%} of the final load is there. The 48K set, which fits Table "
        f"3's offline rows, is shown as well."
    )


def _at_scale(small: Curve, large: Outcome) -> Iterator[str]:
    ours = {name: (_METRICS[name](large), small.at(_SMALL_RATE, _METRICS[name])) for name in _METRICS}
    ratios = {name: above / below for name, (above, below) in ours.items() if above and below}
    if ratios:
        listed = ", ".join(f"{name} {at:.2f} ({_LARGE_PAPER[name] / _SMALL_PAPER[name]:.2f})" for name, at in ratios.items())
        yield f"44P88D over 2P4D at 22 times the rate, in brackets the paper's: {listed}."


def _at(small: Curve, rate: float) -> dict[str, float]:
    found = {name: small.at(rate, metric) for name, metric in _METRICS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _of(outcome: Outcome) -> dict[str, float]:
    found = {name: metric(outcome) for name, metric in _METRICS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _judged(where: str, ours: Mapping[str, float], paper: Mapping[str, float]) -> Iterator[Value]:
    """TPOT against its tolerance, the others within a factor."""
    for name, value in ours.items():
        target = (Within.RELATIVE, TOLERANCE) if name == "TPOT" else (Within.FACTOR, FACTOR)
        yield Value(f"{name}, {where}", "s", value, paper[name], *target)


def _shown(where: str, ours: Mapping[str, float], paper: Mapping[str, float]) -> Iterator[Value]:
    return (Value(f"{name}, {where}", "s", value, paper[name]) for name, value in ours.items())


def _table3_picture(small: Mapping[str, float], large: Mapping[str, float]) -> Picture:
    series = [
        Series("2P4D, 0.4/s", list(small.items())),
        Series("44P88D, 8.8/s", list(large.items())),
        Series("2P4D, 0.4/s", list(_SMALL_PAPER.items()), paper=True),
        Series("44P88D, 8.8/s", list(_LARGE_PAPER.items()), paper=True),
    ]
    return Picture("Waiting times at the literal rates", "", "seconds", series, log_y=True)


def _working_set_cases() -> Sequence[Case]:
    return all_rates_cases(DS_660B, "dualpath")


def _working_set(lab: Lab) -> Section:
    found = curve(lab, all_rates_cases(DS_660B, "dualpath"))
    more = equal_load(lab)
    values = [*_of_the_paper(), *_of_ours(found, more), *_measured(found)]
    return Section(
        "working-set",
        "§8.2: the KV of all agents under way, DS 660B, 64K",
        [
            f"The paper's formula is λ·T̄·total/2: arrival rate, mean time of an agent, and half of its tokens, times the "
            f"bytes of a token: {_LAYOUTS[0]:,} with the indexer's keys (what the simulation stores), {_LAYOUTS[1]:,} without. "
            f"It is taken with the paper's T̄ and total, and with the simulated T̄ at an equal share of the capacity (Fig. 11; "
            f"ours is {more:.2f} times the paper's) and the simulated total.",
            *verdict(values),
            *_why_more(found, more * PAPER_CAPACITY[DS_660B, "dualpath"]),
        ],
        values,
        [_working_set_picture(found)],
    )


def _formula(rate: float, agent_s: float, total_tokens: float, token_bytes: int) -> float:
    return rate * agent_s * total_tokens / 2 * token_bytes


def _of_the_paper() -> Iterator[Value]:
    for rate, paper in _WORKING_SET_PAPER.items():
        for layout in _LAYOUTS:
            ours = _formula(rate, _AGENT_PAPER_S[rate], _TOTAL_PAPER, layout)
            yield _gigabytes(f"formula with the paper's T̄, {rate:g}/s, {layout:,} B", ours, paper)


def _of_ours(found: Curve, more: float) -> Iterator[Value]:
    for rate, paper in _WORKING_SET_PAPER.items():
        agent_s = found.at(rate * more, life_s)
        if agent_s is not None:
            for layout in _LAYOUTS:
                ours = _formula(rate, agent_s, mean_agent(DATASET).total_tokens, layout)
                yield _gigabytes(f"formula with the simulated T̄, {rate:g}/s, {layout:,} B", ours, paper)


def _measured(found: Curve) -> Iterator[Value]:
    for rate, paper in _WORKING_SET_PAPER.items():
        ours = found.at(rate, lambda outcome: outcome.working_set_bytes or None)
        if ours is not None:
            yield Value(f"measured, {rate:g}/s, literal", "GB", ours / 1e9, paper / 1e9)


def _gigabytes(name: str, ours: float, paper: float) -> Value:
    return Value(name, "GB", ours / 1e9, paper / 1e9, Within.RELATIVE, TOLERANCE)


def _why_more(found: Curve, capacity: float) -> Iterator[str]:
    """The measured working set against the formula at the same rates and times, as long as there is a steady state."""
    agent = mean_agent(DATASET)
    ratios = []
    for rate, outcome in sorted(found.by_rate.items()):
        mean_s = life_s(outcome)
        if rate <= capacity and mean_s and outcome.working_set_bytes:
            ratios.append(outcome.working_set_bytes / _formula(rate, mean_s, agent.total_tokens, _LAYOUTS[0]))
    if not ratios:
        return
    long_lives = agent.turns_total / (agent.turns * agent.total_tokens)
    fast_growth = agent.prompt_tokens / (agent.turns_total / 2)
    yield (
        f"The simulated working set, averaged over time, is {min(ratios):.2f} to {max(ratios):.2f} times the formula at the "
        f"same rate and T̄, up to the capacity. The formula multiplies means. But agents with more turns are there for longer, "
        f"so the mean over time leans towards what they hold (length bias: a factor {long_lives:.2f} of these trajectories); "
        f"and a context grows faster at first than later, so that its mean over a life is not half of its end (a factor "
        f"{fast_growth:.2f}). Together that is {long_lives * fast_growth:.2f}."
    )


def _working_set_picture(found: Curve) -> Picture:
    total = mean_agent(DATASET).total_tokens
    lives = found.points(life_s)
    series = [
        Series(f"formula, {layout:,} B", [(rate, _formula(rate, at, total, layout) / 1e9) for rate, at in lives])
        for layout in _LAYOUTS
    ]
    measured = [(rate, outcome.working_set_bytes / 1e9) for rate, outcome in sorted(found.by_rate.items())]
    paper = Series("paper", [(rate, value / 1e9) for rate, value in _WORKING_SET_PAPER.items()], paper=True)
    return Picture("Working set, DualPath", "agents/s", "GB", [*series, Series("measured", measured), paper])


TABLES: Sequence[Experiment] = (
    Experiment("table3-online", "waiting times at Table 3's rates, 2P4D and 44P88D", _table3_cases, _table3),
    Experiment("working-set", "the KV of all agents under way, DS 660B", _working_set_cases, _working_set),
)
