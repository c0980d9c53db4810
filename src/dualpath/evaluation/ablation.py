"""What each part of DualPath brings, and how evenly it loads NICs and engines (paper Figs. 12 right, 13 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.load import storage_share, verdict
from dualpath.evaluation.offline import JCT_TOLERANCE, cut_off, limits
from dualpath.evaluation.outcome import FIRST_PART, Outcome
from dualpath.evaluation.section import Picture, Section, Series, Value, Within

AGENTS = 2048
LADDER = {
    "basic": "Basic",
    "basic+layerwise": "+ layerwise",
    "basic+layerwise+dual-path": "+ dual path",
    "dualpath": "+ scheduling",
}
_JCT_PAPER = {"basic": 10100.0, "basic+layerwise": 8750.0, "basic+layerwise+dual-path": 6500.0, "dualpath": 5450.0}
"""Read off the chart by others; about."""
_CUT_PAPER = {"basic+layerwise": 17.21, "basic+layerwise+dual-path": 38.19, "dualpath": 45.62}
"""Percent of Basic's completion time."""

ROUND_ROBIN, ADAPTIVE = "basic+layerwise+dual-path", "dualpath"
_BALANCED = {ROUND_ROBIN: "round robin", ADAPTIVE: "DualPath"}
_SNIC_PAPER = {ROUND_ROBIN: 1.53, ADAPTIVE: 1.18}
_ATTENTION_PAPER = 1.06
ATTENTION_TOLERANCE = 0.05


def _case(system: str) -> Case:
    return Case(system=system, agents=AGENTS)


def _ladder_cases() -> list[Case]:
    return [_case(system) for system in LADDER]


def _ladder(lab: Lab) -> Section:
    outcomes = lab.outcomes(_ladder_cases())
    of = {system: outcomes[_case(system)] for system in LADDER}
    cuts = {system: 100 * (1 - of[system].jct_s / of["basic"].jct_s) for system in _CUT_PAPER}
    values = [
        Value(
            f"JCT {name}",
            "s",
            of[system].jct_s,
            _JCT_PAPER[system],
            Within.RELATIVE,
            JCT_TOLERANCE,
            calibrated=system == "basic",
            note="set on this" if system == "basic" else "",
        )
        for system, name in LADDER.items()
    ]
    values += [Value(f"JCT cut, {LADDER[system]}", "%", cut, _CUT_PAPER[system]) for system, cut in cuts.items()]
    series = [
        Series("JCT", [(name, of[system].jct_s) for system, name in LADDER.items()]),
        Series("JCT", [(name, _JCT_PAPER[system]) for system, name in LADDER.items()], paper=True),
    ]
    return Section(
        "fig12-right",
        "Fig. 12 right: what each part brings, DS 660B on 2P4D, 64K",
        [
            f"{AGENTS:,} agents; each system adds one thing to the one before: KV streamed layer by layer, the second read "
            f"path (sides and engines in turn), the scheduler.",
            *verdict(value for value in values if not value.calibrated),
            _layerwise_gain(of["basic"], of["basic+layerwise"], cuts["basic+layerwise"]),
            *(f"{name}: {limits(of[system])}." for system, name in LADDER.items()),
            *cut_off(outcomes),
        ],
        values,
        [Picture("JCT by system", "", "JCT (s)", series)],
    )


def _layerwise_gain(basic: Outcome, layerwise: Outcome, cut: float) -> str:
    """Why layer by layer cannot gain more than NICs are idle."""
    paper = _CUT_PAPER["basic+layerwise"]
    text = f"Layerwise prefill alone cuts {cut:.1f} %, the paper's {paper:.1f} %."
    idle = 1 - storage_share(basic)
    if cut < paper and 100 * idle < paper:
        return (
            f"{text} It cannot gain as much here: it overlaps the prefill engines' transfers and allows larger batches, but "
            f"Basic's prefill nodes' NICs already read for {1 - idle:.1%} of the run, so at most {idle:.1%} can be won, the "
            f"last agents' time included. The rate of storage was set so that this Basic takes as long as the paper's. In the "
            f"paper's Basic, NICs must be idle for {paper:.0f} % of the time or more while they wait for engines."
        )
    return (
        f"{text} Basic's prefill nodes' NICs are idle for {idle:.1%} of the run, with layerwise prefill for "
        f"{1 - storage_share(layerwise):.1%}."
    )


def _snic_cases() -> list[Case]:
    return [_case(system) for system in _BALANCED]


def _snic(lab: Lab) -> Section:
    outcomes = lab.outcomes(_snic_cases())
    values, pictures = [], []
    lines = []
    for system, name in _BALANCED.items():
        outcome, paper = outcomes[_case(system)], _SNIC_PAPER[system]
        weighted = _weighted(outcome)
        if weighted is not None:
            values.append(Value(f"SNIC max/mean in windows, {name}", "x", weighted, paper, Within.RELATIVE, JCT_TOLERANCE))
        if outcome.storage_windows is not None:
            plain = Value(f"SNIC max/mean, plain mean of windows, {name}", "x", outcome.storage_windows, paper)
            values.append(plain)
        if outcome.storage_max_over_mean is not None:
            values.append(Value(f"SNIC max/mean of the whole run, {name}", "x", outcome.storage_max_over_mean, paper))
        lines.append(Series(name, _unevenness(outcome)))
        end_s = lines[-1].points[-1][0] if lines[-1].points else outcome.jct_s
        lines.append(Series(name, [(0.0, paper), (end_s, paper)], paper=True))
        pictures.append(_by_node(outcome, name))
    return Section(
        "fig13",
        "Fig. 13: how evenly storage NICs read, DS 660B on 2P4D, 64K",
        [*_snic_text([outcomes[_case(system)] for system in _BALANCED]), *verdict(values), *cut_off(outcomes)],
        values,
        [Picture("Storage NICs, largest over mean", "seconds", "x", lines), *pictures],
    )


def _snic_text(found: Sequence[Outcome]) -> list[str]:
    prefill, decode = 2, 4
    alternating = (1 / 2 / prefill) * (prefill + decode)
    interval_s = max((one.utilisation.interval_s for one in found if one.utilisation is not None), default=0.0)
    return [
        f"{AGENTS:,} agents. The run is cut into windows of up to {interval_s:g} s. Compared is the busiest NIC's reads in "
        f"each window, summed over windows, over the mean NIC's: as attention in Fig. 14, so that windows count by what is "
        f"read in them. The paper shows it over time and does not say how it averages; this way was chosen with the results in "
        f"sight. A plain mean of the windows' ratios also counts the end of the run, when a few agents' reads cannot be even, "
        f"as much as the rest; the sum of the whole run hides that now one NIC and now another is busier. Both are shown. "
        f"Shorter windows would be less even.",
        f"Read sides in turn give each side half of all reads, so each of {prefill} prefill nodes {1 / 2 / prefill:.0%} and "
        f"each of {decode} decode nodes {1 / 2 / decode:.1%}: {alternating:g} times the mean whatever else happens, against "
        f"the paper's {_SNIC_PAPER[ROUND_ROBIN]:g}.",
    ]


def _reads(outcome: Outcome) -> dict[str, Sequence[float]]:
    if outcome.utilisation is None:
        return {}
    return {name: shares for name, shares in outcome.utilisation.series.items() if name.endswith("SNIC read")}


def _weighted(outcome: Outcome) -> float | None:
    """Of each window the busiest NIC's reads, summed, over the mean NIC's."""
    windows = list(zip(*_reads(outcome).values(), strict=True))
    mean = sum(map(fmean, windows))
    return sum(map(max, windows)) / mean if mean else None


def _unevenness(outcome: Outcome) -> list[tuple[float | str, float]]:
    interval_s = outcome.utilisation.interval_s if outcome.utilisation is not None else 0.0
    windows = enumerate(zip(*_reads(outcome).values(), strict=True))
    return [((at + 0.5) * interval_s, max(shares) / fmean(shares)) for at, shares in windows if sum(shares) > 0]


def _by_node(outcome: Outcome, name: str) -> Picture:
    interval_s = outcome.utilisation.interval_s if outcome.utilisation is not None else 0.0
    series = [
        Series(node.removesuffix(" SNIC read"), [((at + 0.5) * interval_s, share) for at, share in enumerate(shares)])
        for node, shares in _reads(outcome).items()
    ]
    return Picture(f"Reads of each storage NIC, {name}", "seconds", "of what it could", series)


def _attention_cases() -> list[Case]:
    return [_case(system) for system in LADDER]


def _attention(lab: Lab) -> Section:
    outcomes = lab.outcomes(_attention_cases())
    found = {system: outcomes[_case(system)].attention_max_over_mean for system in LADDER}
    values = []
    for system, ratio in found.items():
        if ratio is None:
            continue
        name = f"attention time max/mean, {'DualPath' if system == ADAPTIVE else LADDER[system]}"
        if system == ADAPTIVE:
            values.append(Value(name, "x", ratio, _ATTENTION_PAPER, Within.RELATIVE, ATTENTION_TOLERANCE))
        else:
            values.append(Value(name, "x", ratio))
    bars = [(LADDER[system], ratio) for system, ratio in found.items() if ratio is not None]
    return Section(
        "fig14",
        "Fig. 14: how evenly engines in step compute attention, DS 660B on 2P4D, 64K",
        [
            f"{AGENTS:,} agents, steps that began in the first {FIRST_PART:.0%} of the run: the slowest engine's attention "
            f"over the mean's of its group, summed over steps. What the slowest takes longer, the others wait.",
            *_attention_text(found[ROUND_ROBIN], found[ADAPTIVE]),
            *verdict(values),
        ],
        values,
        [
            Picture(
                "Attention time, largest over mean of the group",
                "",
                "x",
                [Series("max/mean", bars), Series("max/mean", [(LADDER[ADAPTIVE], _ATTENTION_PAPER)], paper=True)],
            )
        ],
    )


def _attention_text(in_turn: float | None, adaptive: float | None) -> list[str]:
    if in_turn is None or adaptive is None:
        return []
    saved = 1 - adaptive / in_turn
    return [
        f"Engines in turn have {in_turn:.3f}, DualPath {adaptive:.3f}: choosing engines by their tokens "
        f"{'saves' if saved > 0 else 'costs'} {abs(saved):.1%} of the attention time of steps. More than an even load, that is "
        f"{adaptive - 1:.1%} of it, the paper's {_ATTENTION_PAPER - 1:.0%}. At the start prompts are short "
        f"and everything is ready at once, so the quota fills every batch and there is little to be uneven."
    ]


ABLATION: Sequence[Experiment] = (
    Experiment("fig12-right", "what each part brings, DS 660B", _ladder_cases, _ladder),
    Experiment("fig13", "how evenly storage NICs read, DS 660B", _snic_cases, _snic),
    Experiment("fig14", "how evenly engines compute attention, DS 660B", _attention_cases, _attention),
)
"""Figs. 12 right, 13 and 14."""
