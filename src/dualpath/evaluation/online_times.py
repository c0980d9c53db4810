"""How long agents take, and what they wait for, by arrival rate (paper Figs. 11 and 12 left)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.load import (
    DATASET,
    DS_660B,
    NAMES,
    PAPER_CAPACITY,
    PARTS,
    SYSTEMS,
    Curve,
    all_rates_cases,
    case_at,
    curve,
    equal_load,
    life_s,
    mean_agent,
    ttft_parts,
    verdict,
)
from dualpath.evaluation.outcome import Outcome, Window
from dualpath.evaluation.section import Picture, Section, Series, Value, Within

TOLERANCE = 0.15
_FIG11_PAPER = {0.1: 575.0, 0.45: 1100.0}
"""Mean time of an agent in seconds, by rate; the higher rate is the paper's capacity."""
_ENDING = {0.1: (10_000.0, Window(2000.0, 8000.0)), 0.45: (6000.0, Window(2000.0, 4000.0))}
"""By rate: seconds of arrivals, and when agents have to begin to count, in runs until every agent has ended."""
EXPLODES, FLAT = 3.0, 1.5
"""Factors on a time, over the rates that are compared."""


def _ending_case(rate: float) -> Case:
    """Until every agent has ended; arrivals go on for long after those that count."""
    seconds, window = _ENDING[rate]
    case = replace(case_at(DS_660B, "dualpath", rate), until_s=None, window=window)
    return replace(case, agents=round(rate * seconds), dram_tier_bytes=())


def _fig11_cases() -> list[Case]:
    curves = [case for system in SYSTEMS for case in all_rates_cases(DS_660B, system)]
    return [*curves, *map(_ending_case, _ENDING)]


def _fig11(lab: Lab) -> Section:
    curves = {of: curve(lab, all_rates_cases(DS_660B, of)) for of in SYSTEMS}
    ended = {rate: lab.outcome(_ending_case(rate)).agent_s for rate in _ENDING}
    dualpath = curves["dualpath"]
    more = equal_load(lab)
    values = []
    for rate, paper in _FIG11_PAPER.items():
        for at, how in ((rate, "literal"), (rate * more, f"at {rate * more:.3f}/s, an equal load")):
            mean_s = dualpath.at(at, life_s)
            if mean_s is not None:
                values.append(Value(f"mean agent time, {rate:g}/s, {how}", "s", mean_s, paper, Within.RELATIVE, TOLERANCE))
        if (direct_s := ended[rate]) is not None:
            values.append(Value(f"mean agent time, {rate:g}/s, of agents that ended", "s", direct_s, paper))
    ours = [Series(NAMES[of], one.points(life_s)) for of, one in curves.items()]
    direct = Series("DualPath, agents that ended", [(rate, at) for rate, at in ended.items() if at is not None])
    picture = Picture(
        "Mean agent time, DS 660B",
        "agents/s",
        "mean agent time (s)",
        [*ours, direct, Series("DualPath", list(_FIG11_PAPER.items()), paper=True)],
        log_y=True,
    )
    return Section(
        "fig11", "Fig. 11: mean time of an agent by rate, DS 660B, 64K", _fig11_text(dualpath, more, values), values, [picture]
    )


def _fig11_text(dualpath: Curve, more: float, values: Sequence[Value]) -> list[str]:
    lowest = dualpath.lowest
    stages, agent = lowest.stages, mean_agent(DATASET)
    text = [
        "While agents still arrive, those that have ended are the short ones. So an agent's time is its mean number of turns "
        "times the mean latency of the turns that ended in the second half of the run, which favours nobody; runs in which "
        "every agent ends, with the mean over those that began well before arrivals stop, check this.",
        f"The paper's 0.45/s is its capacity. Ours is {more:.2f} times that (Fig. 10), so both the literal rate and the equal "
        f"share of the capacity are compared.",
        *verdict(values),
    ]
    if lowest.latency_s.mean:
        decode_s = lowest.latency_s.mean - sum(ttft_parts(lowest).values())
        text.append(
            f"At {min(dualpath.by_rate):g}/s nothing waits: {agent.turns:.0f} turns of {lowest.latency_s.mean:.2f} s, of which "
            f"{stages.scheduling_s:.2f} s until placement (mostly the fixed time of a client's turn), "
            f"{stages.allocation_s + stages.read_s:.2f} s allocation and read, {stages.prefill_s:.2f} s prefill and "
            f"{decode_s:.2f} s hand-off and decoding. The paper's {_FIG11_PAPER[0.1]:.0f} s leave "
            f"{_FIG11_PAPER[0.1] / agent.turns:.2f} s a turn."
        )
    return text


def _fig12_cases() -> list[Case]:
    return [case for system in SYSTEMS for case in all_rates_cases(DS_660B, system)]


def _fig12(lab: Lab) -> Section:
    curves = {of: curve(lab, all_rates_cases(DS_660B, of)) for of in SYSTEMS}
    ends = {"basic": max(curves["basic"].by_rate), "dualpath": PAPER_CAPACITY[DS_660B, "dualpath"]}
    growth = {of: _growth(curves[of], end) for of, end in ends.items()}
    values = []
    for of, one in curves.items():
        for rate in (min(one.by_rate), ends[of]):
            parts = ttft_parts(one.by_rate[rate])
            values += [Value(f"{part}, {NAMES[of]}, {rate:g}/s", "s", seconds) for part, seconds in parts.items()]
        values.append(Value(f"growth of TTFT before prefill, {NAMES[of]}, up to {ends[of]:g}/s", "x", growth[of]))
    pictures = [
        Picture(
            f"Parts of TTFT, {NAMES[of]}",
            "agents/s",
            "seconds",
            [Series(part, [(rate, ttft_parts(one.by_rate[rate])[part]) for rate in sorted(one.by_rate)]) for part in PARTS],
        )
        for of, one in curves.items()
    ]
    return Section(
        "fig12-left", "Fig. 12 left: parts of TTFT by rate, DS 660B, 64K", _fig12_text(curves, ends, growth), values, pictures
    )


def _before_prefill_s(outcome: Outcome) -> float:
    return sum(ttft_parts(outcome).values()) - outcome.stages.prefill_s


def _growth(one: Curve, end: float) -> float:
    start_s, end_s = (_before_prefill_s(one.by_rate[rate]) for rate in (min(one.by_rate), end))
    return end_s / start_s if start_s else 0.0


def _fig12_text(curves: Mapping[str, Curve], ends: Mapping[str, float], growth: Mapping[str, float]) -> list[str]:
    text = [
        "The runs of Fig. 11. Scheduling is the time until both engines are known and holds the fixed time of a client's turn; "
        "allocation is the wait for DRAM buffers; read is the storage read with its queue; prefill ends with the first token."
    ]
    for of, one in curves.items():
        grown = {
            part: (ttft_parts(one.by_rate[min(one.by_rate)])[part], ttft_parts(one.by_rate[ends[of]])[part]) for part in PARTS
        }
        listed = ", ".join(f"{part} {start:.2f} → {end:.2f} s" for part, (start, end) in grown.items())
        text.append(f"{NAMES[of]} from {min(one.by_rate):g} to {ends[of]:g} agents/s: {listed}.")
    held = growth["basic"] >= EXPLODES and growth["dualpath"] <= FLAT
    text.append(
        f"What comes before prefill grows {growth['basic']:.1f}-fold in Basic and {growth['dualpath']:.2f}-fold in DualPath. "
        f"The paper's picture, that Basic's queueing explodes (at least {EXPLODES:g}-fold) while DualPath's stays flat (at "
        f"most {FLAT:g}-fold), {'holds' if held else 'does not hold'}."
    )
    return text


TIMES: Sequence[Experiment] = (
    Experiment("fig11", "mean time of an agent by rate, DS 660B", _fig11_cases, _fig11),
    Experiment("fig12-left", "parts of TTFT by rate, DS 660B", _fig12_cases, _fig12),
)
