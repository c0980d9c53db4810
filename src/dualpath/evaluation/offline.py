"""Offline experiments: all agents start together, and the job's completion time counts (paper Figs. 7 and 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.load import verdict
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Picture, Section, Series, Value, Within
from dualpath.types import Role

JCT_TOLERANCE = 0.10
"""Of completion times and of their ratios."""
FEW = 0.2
"""Of the most that is ever read: less means that few agents are left, or that all have short contexts yet."""
SYSTEMS = ("basic", "dualpath", "oracle")
NAMES = {"basic": "Basic", "dualpath": "DualPath", "oracle": "Oracle"}

_FIG7_AGENTS = (512, 1024, 2048, 4096)
_FIG7_PAPER = {
    ("basic", 512): 2900.0,
    ("dualpath", 512): 2100.0,
    ("oracle", 512): 2000.0,
    ("basic", 2048): 10100.0,
    ("dualpath", 2048): 5400.0,
    ("basic", 4096): 19500.0,
    ("dualpath", 4096): 10400.0,
    ("oracle", 4096): 9400.0,
}
"""Read off the chart by others; about."""
CALIBRATED = {("basic", 2048), ("oracle", 4096), ("oracle", 512)}
"""The three points that free parameters were set on."""

_SCALES = (0.5, 1.0, 2.0)
_FIG9_RANGE = (1.82, 1.99)


def nic_share(outcome: Outcome, role: Role) -> float:
    """Of what the storage NICs of a role's nodes could have read during the run."""
    nodes = [node for node in outcome.nodes if node.role is role and node.storage_bytes_per_s]
    could = sum(node.storage_bytes_per_s or 0.0 for node in nodes) * outcome.jct_s
    return sum(node.storage_read_bytes for node in nodes) / could if could else 0.0


def limits(outcome: Outcome) -> str:
    """How busy what could limit a system was: storage NICs and GPUs of prefill and decode nodes."""
    prefill, decode = (nic_share(outcome, role) for role in (Role.PREFILL, Role.DECODE))
    return (
        f"storage NICs of prefill nodes read {prefill:.0%} of what they could, those of decode nodes {decode:.0%}; prefill "
        f"groups were in steps for {outcome.prefill_busy:.0%} and decode groups for {outcome.decode_busy:.0%} of the run"
    )


def trickle(outcome: Outcome) -> float:
    """Share of the run in which all storage NICs together read less than ``FEW`` of what they read at most."""
    if outcome.utilisation is None:
        return 0.0
    series = [shares for name, shares in outcome.utilisation.series.items() if name.endswith("SNIC read")]
    reads = [sum(window) for window in zip(*series, strict=True)]
    return sum(one < FEW * max(reads) for one in reads) / len(reads) if reads else 0.0


def cut_off(outcomes: Mapping[Case, Outcome]) -> Iterator[str]:
    """A paragraph if turns failed."""
    failed = sum(outcome.failed for outcome in outcomes.values())
    if failed:
        yield f"{failed:,} turns failed, whose agents gave up: the times are too short."


def _fig7_case(system: str, agents: int) -> Case:
    return Case(system=system, agents=agents)


def _fig7_cases() -> list[Case]:
    return [_fig7_case(system, agents) for system in SYSTEMS for agents in _FIG7_AGENTS]


def _fig7(lab: Lab) -> Section:
    outcomes = lab.outcomes(_fig7_cases())
    jct = {(case.system, case.agents): outcome.jct_s for case, outcome in outcomes.items()}
    values = [
        Value(
            f"JCT {NAMES[system]}, {agents:,} agents",
            "s",
            jct[system, agents],
            paper,
            Within.RELATIVE,
            JCT_TOLERANCE,
            calibrated=(system, agents) in CALIBRATED,
        )
        for (system, agents), paper in _FIG7_PAPER.items()
    ]
    best = max(jct["basic", agents] / jct["dualpath", agents] for agents in _FIG7_AGENTS)
    values.append(Value("best JCT ratio Basic / DualPath", "x", best, 1.87, Within.RELATIVE, JCT_TOLERANCE))
    behind = jct["dualpath", 4096] / jct["oracle", 4096]
    values.append(Value("DualPath / Oracle, 4,096 agents", "x", behind, 10400 / 9400))
    largest = {system: outcomes[_fig7_case(system, 4096)] for system in SYSTEMS}
    ours = [Series(NAMES[system], [(agents, jct[system, agents]) for agents in _FIG7_AGENTS]) for system in SYSTEMS]
    paper = [
        Series(NAMES[system], [(n, value) for (of, n), value in _FIG7_PAPER.items() if of == system], paper=True)
        for system in SYSTEMS
    ]
    return Section(
        "fig7",
        "Fig. 7: completion time of a batch of agents, DS 660B on 2P4D, 64K",
        [
            "All agents start together. Basic reads every hit through the two prefill nodes' storage NICs; DualPath uses all "
            "six. Free parameters were set on three of these points, which are marked and predict nothing.",
            *verdict(value for value in values if not value.calibrated),
            *(f"{NAMES[of]}, 4,096 agents: {limits(outcome)}." for of, outcome in largest.items()),
            f"DualPath is {behind - 1:.1%} behind its Oracle, the paper's {10400 / 9400 - 1:.0%}: here reads and layer "
            f"transfers hide behind compute but for the first layer's and the last one's.",
            *cut_off(outcomes),
        ],
        values,
        [Picture("JCT by agents", "agents", "JCT (s)", [*ours, *paper])],
    )


def _fig9_case(system: str, append: float, output: float) -> Case:
    return Case(agents=1024, system=system, append_scale=append, output_scale=output)


def _fig9_scales() -> list[tuple[float, float]]:
    return list(dict.fromkeys([*((append, 1.0) for append in _SCALES), *((1.0, output) for output in _SCALES)]))


def _fig9_cases() -> list[Case]:
    return [_fig9_case(system, *scales) for system in SYSTEMS[:2] for scales in _fig9_scales()]


def _fig9(lab: Lab) -> Section:
    outcomes = lab.outcomes(_fig9_cases())
    jct = {case: outcome.jct_s for case, outcome in outcomes.items()}
    ratio = {at: jct[_fig9_case("basic", *at)] / jct[_fig9_case("dualpath", *at)] for at in _fig9_scales()}
    by_append, by_output = [ratio[at, 1.0] for at in _SCALES], [ratio[1.0, at] for at in _SCALES]
    near = (Within.RELATIVE, JCT_TOLERANCE)
    values = [
        Value("least ratio Basic / DualPath over append scales", "x", min(by_append), _FIG9_RANGE[0], *near),
        Value("largest ratio Basic / DualPath over append scales", "x", max(by_append), _FIG9_RANGE[1], *near),
        *_fig9_trend("append", by_append),
        *_fig9_trend("generation", by_output),
    ]
    for append, output in _fig9_scales():
        label = f"append x {append:g}, generation x {output:g}"
        values.append(Value(f"ratio Basic / DualPath, {label}", "x", ratio[append, output]))
        values += [Value(f"JCT {NAMES[of]}, {label}", "s", jct[_fig9_case(of, append, output)]) for of in SYSTEMS[:2]]
    pictures = [
        Picture(f"JCT by {what} scale", "scale", "JCT (s)", [Series(NAMES[of], _by(jct, of, what)) for of in SYSTEMS[:2]])
        for what in ("append", "generation")
    ]
    text = [
        "DS 660B, 2P4D, 64K, 1,024 agents; the tokens that turns append, or generate, are scaled.",
        *verdict(values),
        _fig9_cut(outcomes),
        _fig9_ends(outcomes),
        *(
            f"append x {append:g}: {NAMES[of]}: {limits(outcomes[_fig9_case(of, append, 1.0)])}."
            for append in (_SCALES[0], _SCALES[-1])
            for of in SYSTEMS[:2]
        ),
        *cut_off(outcomes),
    ]
    return Section("fig9", "Fig. 9: append and generation lengths, DS 660B, 64K", text, values, pictures)


def _fig9_trend(what: str, ratios: Sequence[float]) -> Iterator[Value]:
    """Whether ratios fall from scale to scale."""
    for (low, before), (high, after) in pairwise(zip(_SCALES, ratios, strict=True)):
        yield Value(f"ratio at {what} x {high:g} / at x {low:g}", "x", after / before, 1.0, Within.AT_MOST)


def _by(jct: Mapping[Case, float], system: str, what: str) -> list[tuple[float | str, float]]:
    scales = [(at, 1.0) if what == "append" else (1.0, at) for at in _SCALES]
    return [(at, jct[_fig9_case(system, *scale)]) for at, scale in zip(_SCALES, scales, strict=True)]


def _fig9_cut(outcomes: Mapping[Case, Outcome]) -> str:
    """What scaling does to trajectories that may not pass the longest context."""
    found = {at: outcomes[_fig9_case("dualpath", *at)] for at in _fig9_scales()}
    all_turns = found[1.0, 1.0].turns
    parts = [
        f"{append:g} and {output:g}: {one.turns / all_turns:.0%} of the turns, prompts of "
        f"{one.prompt_tokens / one.turns:,.0f} tokens"
        for (append, output), one in found.items()
    ]
    return (
        f"Trajectories end before the turn that would pass 64K, so scaling up also shortens them, and scaling down makes their "
        f"contexts shorter. By append and generation scale: {'; '.join(parts)}."
    )


def _fig9_ends(outcomes: Mapping[Case, Outcome]) -> str:
    """How much of each run the ends are, which no read path shortens."""
    basic, dualpath = (trickle(outcomes[_fig9_case(of, 1.0, 1.0)]) for of in SYSTEMS[:2])
    return (
        f"Unscaled, all storage NICs together read less than {FEW:.0%} of what they read at most for {dualpath:.0%} of "
        f"DualPath's run and {basic:.0%} of Basic's: contexts are short yet, or few agents are left, with the longest "
        f"trajectories, whose turns follow one another and take their time whatever the read path. Few agents make these ends "
        f"a larger part, and the ratio smaller."
    )


OFFLINE: Sequence[Experiment] = (
    Experiment("fig7", "JCT by agents, DS 660B", _fig7_cases, _fig7),
    Experiment("fig9", "JCT by append and generation lengths, DS 660B", _fig9_cases, _fig9),
)
"""Figs. 7 and 9."""
