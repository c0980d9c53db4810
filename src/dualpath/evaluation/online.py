"""Online experiments: agents arrive at a rate, and what counts is how many of them are served in time (paper Fig. 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Lab
from dualpath.evaluation.load import (
    DATASET,
    DS_27B,
    DS_660B,
    NAMES,
    NEAR_CAPACITY,
    PAPER_CAPACITY,
    SYSTEMS,
    TPOT_LIMIT_S,
    TTFT_LIMIT_S,
    Capacity,
    Curve,
    Setting,
    agent_read_bytes,
    load_reached,
    near_capacity,
    near_capacity_cases,
    storage_share,
    through,
    ttft_parts,
    verdict,
)
from dualpath.evaluation.online_tables import TABLES
from dualpath.evaluation.online_times import TIMES
from dualpath.evaluation.section import Picture, Section, Series, Value, Within
from dualpath.evaluation.tool_latency import TOOL_LATENCY

TOLERANCE = 0.15
COLLAPSED = 0.95
"""Of the most that gets through; less at a higher rate is worth a sentence."""
SETTINGS = (DS_660B, DS_27B)
_FIG10_RATIOS = {DS_660B: 2.25, DS_27B: 1.67}


def _fig10(lab: Lab) -> Section:
    curves = {key: near_capacity(lab, *key) for key in NEAR_CAPACITY}
    found = {key: one.capacity() for key, one in curves.items()}
    values = [_capacity_value(key, found[key]) for key in PAPER_CAPACITY]
    values += [
        Value(
            f"capacity {setting.label}, DualPath / Basic",
            "x",
            found[setting, "dualpath"].rate / found[setting, "basic"].rate,
            paper,
            Within.RELATIVE,
            TOLERANCE,
        )
        for setting, paper in _FIG10_RATIOS.items()
    ]
    text = [_fig10_setup(curves), *verdict(values), *(_beyond(key, curves[key], found[key]) for key in PAPER_CAPACITY)]
    for statistic in ("p90", "p99"):
        values += [
            _capacity_value(key, one.capacity(statistic), f" by {statistic} of TTFT and TPOT") for key, one in curves.items()
        ]
    values += [
        Value(f"sustained, {_name(key)}", "agents/s", most, PAPER_CAPACITY[key], note="the most that gets through at any rate")
        for key, one in curves.items()
        if (most := _sustained(key[0], one))
    ]
    pictures = [_capacities(found), *(_waits(setting, curves) for setting in SETTINGS)]
    return Section("fig10", "Fig. 10: agents a second within the objective, 64K", text, values, pictures)


def _fig10_setup(curves: Mapping[tuple[Setting, str], Curve]) -> str:
    reached = min(_load_reached(key[0], one) for key, one in curves.items())
    return (
        f"Agents arrive at random (Poisson) for {DS_660B.until_s:,.0f} virtual seconds ({DS_660B.label}) or "
        f"{DS_27B.until_s:,.0f} s ({DS_27B.label}); turns that end in the second half count, when at least {reached:.0%} of "
        f"the final load is there. A rate is within the objective while the mean TTFT is at most {TTFT_LIMIT_S:g} s and the "
        f"mean TPOT at most {TPOT_LIMIT_S * 1e3:g} ms; the paper does not say which statistic it takes, so the 90th and 99th "
        f"percentiles are shown too. A capacity lies between two rates that were run, interpolated by the logarithm of TTFT."
    )


def _load_reached(setting: Setting, one: Curve) -> float:
    """When measuring begins, below the capacity."""
    turn_s = one.lowest.latency_s.mean
    return load_reached(DATASET, setting.until_s / 2 / turn_s) if turn_s else 1.0


def _name(key: tuple[Setting, str]) -> str:
    return f"{key[0].label} {NAMES[key[1]]}"


def _capacity_value(key: tuple[Setting, str], capacity: Capacity, by: str = "") -> Value:
    name, note = f"capacity {_name(key)}{by}", capacity.bounded and f"{capacity.bounded} this"
    if by:
        return Value(name, "agents/s", capacity.rate, note=note)
    return Value(name, "agents/s", capacity.rate, PAPER_CAPACITY[key], Within.RELATIVE, TOLERANCE, note=note)


def _sustained(setting: Setting, one: Curve) -> float:
    """The most agents a second that get through in the second half of any run."""
    return max(through(setting, outcome) for outcome in one.by_rate.values())


def _beyond(key: tuple[Setting, str], one: Curve, capacity: Capacity) -> str:
    """What limits a system: what happens at the highest rate."""
    rate, outcome = max(one.by_rate), one.highest
    if capacity.bounded:
        return f"{_name(key)}: the capacity is {capacity.bounded} {capacity.rate:g} agents/s; the rates do not bracket it."
    parts = ttft_parts(outcome)
    longest = max(parts, key=parts.__getitem__)
    text = (
        f"{_name(key)} at {rate:g} agents/s, beyond its capacity: the longest part of TTFT is {longest} ({parts[longest]:.1f} "
        f"of {sum(parts.values()):.1f} s), and the prefill nodes' storage NICs read {storage_share(outcome):.0%} of what they "
        f"could."
    )
    return f"{text} {_going_on(key, one, capacity)} {_needs(key, outcome.nodes[0].storage_bytes_per_s)}"


def _going_on(key: tuple[Setting, str], one: Curve, capacity: Capacity) -> str:
    """The capacity against what could go on for ever."""
    most, last = _sustained(key[0], one), through(key[0], one.highest)
    text = f"At most {most:.3f} agents/s get through in the second half of any of these runs."
    if capacity.rate > most > 0:
        text += (
            f" The capacity is above that ({capacity.rate:.3f}) because agents wait for their own turns: the queue grows so "
            f"slowly that the mean TTFT stays below the limit for as long as is simulated, not for ever."
        )
    if last < COLLAPSED * most:
        text += f" At the highest rate it is less, {last:.3f}: overload costs throughput."
    return text


def _needs(key: tuple[Setting, str], node_bytes_per_s: float | None) -> str:
    """What the paper's capacity asks of a node's storage."""
    setting, system = key
    nodes = setting.prefill + (setting.decode if system == "dualpath" else 0)
    needed = PAPER_CAPACITY[key] * agent_read_bytes(setting) / nodes
    return (
        f"The paper's {PAPER_CAPACITY[key]:g} agents/s read {needed / 1e9:.1f} GB/s on {_each_of(nodes)}, of the "
        f"{(node_bytes_per_s or 0.0) / 1e9:.1f} GB/s that the simulation gives every node of either model."
    )


def _each_of(nodes: int) -> str:
    return "its one node" if nodes == 1 else f"each of {nodes} nodes"


def _capacities(found: Mapping[tuple[Setting, str], Capacity]) -> Picture:
    ours = [Series(NAMES[of], [(one.label, found[one, of].rate) for one in SETTINGS]) for of in SYSTEMS]
    paper = [Series(NAMES[of], [(one.label, PAPER_CAPACITY[one, of]) for one in SETTINGS], paper=True) for of in SYSTEMS]
    return Picture("Capacity", "model", "agents/s", [*ours, *paper])


def _waits(setting: Setting, curves: Mapping[tuple[Setting, str], Curve]) -> Picture:
    series = [Series(NAMES[of], curves[setting, of].points(lambda one: one.ttft_s.mean)) for of in SYSTEMS]
    rates = [rate for of in SYSTEMS for rate in curves[setting, of].by_rate]
    limit = Series("objective", [(min(rates), TTFT_LIMIT_S), (max(rates), TTFT_LIMIT_S)])
    return Picture(f"Mean TTFT, {setting.label}", "agents/s", "TTFT (s)", [*series, limit], log_y=True)


ONLINE: Sequence[Experiment] = (
    Experiment("fig10", "agents a second within the objective, DS 660B and DS 27B", near_capacity_cases, _fig10),
    *TIMES,
    *TABLES,
    TOOL_LATENCY,
)
