"""Real agents on the paper's cluster: what the second path brings them (beyond the paper, which has only its own sets)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Picture, Section, Series, Value
from dualpath.evaluation.trace_files import DEFAULT_FOLDER, FILE, VARIABLE, WINDOW_TOKENS, folder, trace

FILES = ("coding_sessions.jsonl", "swebench_runs.jsonl")
SYSTEMS = ("basic+layerwise", "dualpath", "dualpath-split", "oracle")
"""Not Basic itself: without layerwise prefill, contexts beyond 68k tokens fit into no prefill GPU."""
COPIES = 4
"""Agents for each session: the files alone hardly load the cluster."""


def _files() -> list[Path]:
    return [path for path in (folder() / name for name in FILES) if path.is_file()]


def _case(path: Path, system: str, copies: int) -> Case:
    dataset = f"{FILE}{path}"
    return Case(dataset=dataset, agents=copies * len(trace(dataset).trajectories), system=system)


def _cases() -> list[Case]:
    return [_case(path, system, copies) for path in _files() for copies in (1, COPIES) for system in SYSTEMS]


def _section(lab: Lab) -> Section:
    files = _files()
    title = "Real agents on 2P4D"
    if not files:
        where = f"No traces are in {folder()}; {VARIABLE} names their folder (default {DEFAULT_FOLDER})."
        return Section("real-traces", title, [f"Not run. {where}"])
    outcomes = lab.outcomes(_cases())
    values: list[Value] = []
    text = [
        f"Every session of each file as it was recorded, without pauses, all agents at once, and with {COPIES} agents a "
        f"session; cut before the first turn beyond the model's window of {WINDOW_TOKENS:,} tokens. Compared with Basic that "
        "streams layers: without that, contexts beyond 68k tokens fit into no prefill GPU, and Basic refuses the longer "
        "sessions."
    ]
    for path in files:
        cut = trace(f"{FILE}{path}")
        text.append(
            f"{path.name}: {len(cut.trajectories)} sessions, {sum(len(one.turns) for one in cut.trajectories):,} turns; "
            f"{cut.turns_dropped:,} turns are beyond the window, {cut.dropped} sessions as a whole."
        )
        for copies in (1, COPIES):
            found = {system: outcomes[_case(path, system, copies)] for system in SYSTEMS}
            values += _values(f"{path.stem} x {copies}", found)
            text.append(_conclusion(f"{path.stem} x {copies}", found))
    points = {
        system: [
            (f"{path.stem} x {copies}", outcomes[_case(path, system, copies)].jct_s) for path in files for copies in (1, COPIES)
        ]
        for system in SYSTEMS
    }
    picture = Picture("JCT of real agents", "trace", "JCT (s)", [Series(name, found) for name, found in points.items()])
    return Section("real-traces", title, text, values, [picture])


def _values(name: str, found: dict[str, Outcome]) -> list[Value]:
    basic, dualpath = found["basic+layerwise"], found["dualpath"]
    return [
        *(Value(f"{name}: JCT {system}", "s", outcome.jct_s) for system, outcome in found.items()),
        Value(f"{name}: gain of DualPath", "x", basic.jct_s / dualpath.jct_s),
        Value(f"{name}: TTFT mean, Basic with layers", "s", basic.ttft_s.mean or 0.0),
        Value(f"{name}: TTFT mean, DualPath", "s", dualpath.ttft_s.mean or 0.0),
        Value(f"{name}: hit rate achieved", "", dualpath.hit_rate or 0.0),
        Value(f"{name}: hit rate in theory (exact)", "", dualpath.theoretical_hit_rate or 0.0),
        Value(f"{name}: turns refused", "", dualpath.failed),
    ]


def _conclusion(name: str, found: dict[str, Outcome]) -> str:
    basic, dualpath, oracle = (found[system] for system in ("basic+layerwise", "dualpath", "oracle"))
    gain, left = basic.jct_s / dualpath.jct_s, dualpath.jct_s / oracle.jct_s
    if gain < 1.05:
        reason = (
            "storage NICs are no bottleneck here" if basic.jct_s / oracle.jct_s < 1.1 else "another bottleneck hides the NICs"
        )
        return (
            f"{name}: the second path brings {gain:.2f} x, hardly anything: {reason}; Oracle would bring {gain * left:.2f} x."
        )
    return f"{name}: the second path brings {gain:.2f} x, of the {gain * left:.2f} x that Oracle would."


REAL_TRACES: Sequence[Experiment] = (Experiment("real-traces", "Real agents on 2P4D", _cases, _section),)
