"""A question beyond the paper: what makes the slowest first tokens at scale, and a knob against it (paper section 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import NEW_WEIGHT, Case, Lab
from dualpath.evaluation.outcome import Outcome, Window
from dualpath.evaluation.section import Picture, Section, Series, Value

WEIGHTED = "new-weight"
POLICIES = ("", WEIGHTED)
NAMES = {"": "DualPath", WEIGHTED: f"weight {NEW_WEIGHT:g}"}
RATE = 0.2
"""Agents a second and prefill node, as the paper has it at scale."""
UNTIL_S = 2000.0
WINDOW = Window(1200.0, UNTIL_S)
_QUARTER = Case(prefill=11, decode=22, agents=int(1.1 * 11 * RATE * UNTIL_S), rate=11 * RATE, until_s=UNTIL_S, window=WINDOW)
_BUSY = replace(_QUARTER, rate=1.25 * 11 * RATE, agents=int(1.25 * _QUARTER.agents))
_WHOLE = replace(_QUARTER, prefill=44, decode=88, rate=44 * RATE, agents=4 * _QUARTER.agents)
_OFFLINE = Case(agents=2048)
SEEDS = (0, 1, 2)
_LABELS = ("11P22D", "11P22D, a quarter more load", "44P88D")
ONLINE: Mapping[str, Sequence[Case]] = {
    _LABELS[0]: [replace(_QUARTER, seed=seed) for seed in SEEDS],
    _LABELS[1]: [replace(_BUSY, seed=seed) for seed in SEEDS],
    _LABELS[2]: [_WHOLE],
}
"""Runs of each load, one a seed."""
LOST = 0.01
"""Of the throughput: more counts as a loss."""


def _cases() -> list[Case]:
    online = [case for runs in ONLINE.values() for case in runs]
    return [replace(case, policy=policy) for case in (*online, _OFFLINE) for policy in POLICIES]


def _ttft_tail(lab: Lab) -> Section:
    outcomes = lab.outcomes(_cases())
    client_s = _QUARTER.free.turn_s
    values: list[Value] = []
    findings: list[str] = []
    pictures = []
    for label, runs in ONLINE.items():
        series = []
        for policy in POLICIES:
            found = [outcomes[replace(case, policy=policy)] for case in runs]
            mean = [(name, fmean(dict(_percentiles(one))[name] for one in found)) for name, _ in _percentiles(found[0])]
            values += [Value(f"TTFT {name} {NAMES[policy]}, {label}", "s", at, note=_seeds(found)) for name, at in mean]
            values.append(Value(f"turns {NAMES[policy]}, {label}", "", fmean(one.turns for one in found)))
            series.append(Series(NAMES[policy], [(str(name), at) for name, at in mean]))
        pictures.append(Picture(f"TTFT, {label}", "percentile", "TTFT (s)", series))
        before, after = ([outcomes[replace(case, policy=policy)] for case in runs] for policy in POLICIES)
        findings.append(_finding(label, before, after, client_s))
    jct = [outcomes[replace(_OFFLINE, policy=policy)].jct_s for policy in POLICIES]
    values += [Value(f"JCT {NAMES[p]}, 2P4D, 2,048 agents", "s", one) for p, one in zip(POLICIES, jct, strict=True)]
    findings.append(f"Offline, 2,048 agents on 2P4D, JCT changes by {jct[1] / jct[0] - 1:+.1%}.")
    return Section("ttft-tail", "A shorter tail of TTFT at scale", [*_reasons(client_s), *findings], values, pictures)


def _seeds(found: Sequence[Outcome]) -> str:
    return f"mean of {len(found)} seeds" if len(found) > 1 else "one seed"


def _reasons(client_s: float) -> list[str]:
    return [
        f"DS 660B, 64K, {RATE:g} agents/s for each prefill node; turns that end between {WINDOW.start_s:,.0f} and "
        f"{WINDOW.end_s:,.0f} s. Of every TTFT {client_s:g} s are the client's, which no scheduler can change.",
        "The reason, from a run of 11P22D that was taken apart once (not again here): there was no burst to one group and no "
        "wait for reads; the slowest percent of turns missed a step or were cut in two, because their engine had more than "
        "one quota's attention. Algorithm 1 compares "
        "engines by prompt tokens, in which a hit token counts as much as one to compute, though the latter takes several "
        "dozen times as long: turns with thousands of new tokens are spread badly, and whoever is placed behind one waits. "
        f"The knob prefill_new_weight lets a request count as max(prompt, {NEW_WEIGHT:g} · new) tokens.",
        "Tried besides in that study and not kept: the best engine of all groups instead of the fetching one's, or of two "
        "groups (requests then go to the group that has just begun a step, and just miss it); the shortest attention first, "
        "with ageing (others wait less, the long ones more); the group whose step is predicted to end next (a lower median, "
        "the same p99).",
    ]


def _finding(label: str, before: Sequence[Outcome], after: Sequence[Outcome], client_s: float) -> str:
    """What the knob does there: it helps or harms only where all seeds say so."""
    p99 = [(one.ttft_s.p99 or 0.0, other.ttft_s.p99 or 0.0) for one, other in zip(before, after, strict=True)]
    changes = [new / old - 1 for old, new in p99]
    own = [(new - client_s) / (old - client_s) - 1 for old, new in p99]
    p50 = [(other.ttft_s.p50 or 0.0) / (one.ttft_s.p50 or 1.0) - 1 for one, other in zip(before, after, strict=True)]
    throughput = fmean(other.turns for other in after) / fmean(one.turns for one in before) - 1
    verdict = f"has no clear effect, with a longer tail in {sum(change > 0 for change in changes)} of {len(changes)} seeds"
    if throughput < -LOST or all(change > 0 for change in changes):
        verdict = "does not pay"
    elif all(change < 0 for change in changes):
        verdict = "helps"
    return (
        f"{label}: the knob {verdict}: p99 {fmean(old for old, _ in p99):.2f} to {fmean(new for _, new in p99):.2f} s; by seed "
        f"{_list(changes)} ({_list(own)} without the client's), p50 {_list(p50)}; turns served {throughput:+.2%}."
    )


def _list(changes: Sequence[float]) -> str:
    return ", ".join(f"{change:+.1%}" for change in changes)


def _percentiles(outcome: Outcome) -> list[tuple[float | str, float]]:
    ttft = outcome.ttft_s
    return [("p50", ttft.p50 or 0.0), ("p90", ttft.p90 or 0.0), ("p99", ttft.p99 or 0.0)]


TTFT_TAIL = Experiment("ttft-tail", "TTFT percentiles at scale, and a knob", _cases, _ttft_tail)
