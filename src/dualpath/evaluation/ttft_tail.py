"""A question beyond the paper: what makes the slowest first tokens at scale, and a knob against it (paper section 7)."""

from __future__ import annotations

from dataclasses import replace

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
ONLINE = {"11P22D": _QUARTER, "11P22D, a quarter more load": _BUSY, "44P88D": _WHOLE}
LOST = 0.01
"""Of the throughput: more counts as a loss."""


def _cases() -> list[Case]:
    return [replace(case, policy=policy) for case in (*ONLINE.values(), _OFFLINE) for policy in POLICIES]


def _ttft_tail(lab: Lab) -> Section:
    outcomes = lab.outcomes(_cases())
    client_s = _QUARTER.free.turn_s
    values: list[Value] = []
    findings: list[str] = []
    pictures = []
    for label, case in ONLINE.items():
        before, after = (outcomes[replace(case, policy=policy)] for policy in POLICIES)
        for policy, outcome in zip(POLICIES, (before, after), strict=True):
            values += [Value(f"TTFT {name} {NAMES[policy]}, {label}", "s", at) for name, at in _percentiles(outcome)]
            values.append(Value(f"turns {NAMES[policy]}, {label}", "", float(outcome.turns)))
        pictures.append(
            Picture(
                f"TTFT, {label}",
                "percentile",
                "TTFT (s)",
                [Series(NAMES[p], _percentiles(outcomes[replace(case, policy=p)])) for p in POLICIES],
            )
        )
        findings.append(_finding(label, before, after, client_s))
    jct = [outcomes[replace(_OFFLINE, policy=policy)].jct_s for policy in POLICIES]
    values += [Value(f"JCT {NAMES[p]}, 2P4D, 2,048 agents", "s", one) for p, one in zip(POLICIES, jct, strict=True)]
    findings.append(f"Offline, 2,048 agents on 2P4D, JCT changes by {jct[1] / jct[0] - 1:+.1%}.")
    return Section("ttft-tail", "A shorter tail of TTFT at scale", [*_reasons(client_s), *findings], values, pictures)


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


def _finding(label: str, before: Outcome, after: Outcome, client_s: float) -> str:
    """What the knob does there, in percent of what is not the client's."""
    (_, p50), _, (_, p99) = _percentiles(before)
    (_, new_p50), _, (_, new_p99) = _percentiles(after)
    change = new_p99 / p99 - 1
    own = (new_p99 - client_s) / (p99 - client_s) - 1
    throughput = after.turns / before.turns - 1
    verdict = "helps" if change < 0 and throughput > -LOST else "does not pay"
    return (
        f"{label}: the knob {verdict}: p99 {p99:.2f} to {new_p99:.2f} s ({change:+.1%}; {own:+.1%} without the client's), "
        f"p50 {p50:.2f} to {new_p50:.2f} s, turns served {throughput:+.2%}."
    )


def _percentiles(outcome: Outcome) -> list[tuple[float | str, float]]:
    ttft = outcome.ttft_s
    return [("p50", ttft.p50 or 0.0), ("p90", ttft.p90 or 0.0), ("p99", ttft.p99 or 0.0)]


TTFT_TAIL = Experiment("ttft-tail", "TTFT percentiles at scale, and a knob", _cases, _ttft_tail)
