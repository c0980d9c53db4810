"""``dualpath plan --search``: other clusters of as many nodes, simulated; the best with its margin."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.table import Table

from dualpath.cli.traces import read_trajectories
from dualpath.costmodel.calibration import DEFAULT
from dualpath.costmodel.catalogue import Node
from dualpath.costmodel.serving import Placement, served
from dualpath.costmodel.shapes import ModelCost, ModelSize
from dualpath.errors import SettingsError
from dualpath.knobs import with_knobs
from dualpath.scheduling.baselines import apply_system
from dualpath.settings import Settings
from dualpath.sim.presets import Sheet, cluster_of, mean_turn
from dualpath.sim.run import SimWorkload, simulate
from dualpath.sim.search import Candidate, Tried, best_of, search
from dualpath.workload import metrics
from dualpath.workload.agent import assigned

SYSTEM = "dualpath"


@dataclass(frozen=True, slots=True)
class Task:
    """What every candidate has to do: agents of a trace, all at once, with a model on nodes of one kind."""

    model: str | None
    cost: ModelCost
    size: ModelSize
    hardware: str
    node: Node
    trace: str
    agents: int


def search_clusters(task: Task, prefill: int, decode: int, jobs: int | None, console: Console) -> list[Tried]:
    """Everything that was tried, the cluster itself first."""
    with ProcessPoolExecutor(jobs or len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:

        def run(candidates: Sequence[Candidate]) -> list[Tried]:
            tried = []
            for one in pool.map(partial(attempt, task), candidates):
                tried.append(one)
                console.print(f"  {one.candidate.text}: {_outcome(one)}", style="dim", highlight=False)
            return tried

        return search(Candidate(prefill, decode), run)


def attempt(task: Task, candidate: Candidate) -> Tried:
    """Simulate one candidate."""
    read = read_trajectories(task.trace)
    placement = Placement(task.hardware, task.node, candidate.prefill_nodes, candidate.decode_nodes)
    knobs = {"alpha_s": candidate.alpha_s, "beta_s": candidate.beta_s, "quota_s": candidate.quota_s}
    try:
        model = served(task.model, task.cost, task.size, placement, DEFAULT)
        sheet = Sheet(
            model, task.node, candidate.prefill_nodes, candidate.decode_nodes, mean_turn(read), candidate.buffer_bytes
        )
        spec = cluster_of(sheet, apply_system(with_knobs(Settings(), knobs), SYSTEM))
    except SettingsError as error:
        return Tried(candidate, None, str(error))
    agents = assigned(read, task.agents, random.Random(0))
    found = simulate(spec, SimWorkload(agents, [0.0] * len(agents)))
    if found.reasons:
        return Tried(candidate, None, next(iter(found.reasons)))
    return Tried(candidate, metrics.jct_s(found.result.turns))


def search_report(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    """As JSON values."""
    return [asdict(one.candidate) | {"jct_s": one.jct_s, "reason": one.reason} for one in tried]


def show_search(console: Console, tried: Sequence[Tried]) -> None:
    """All that was tried, fastest first, and what the best one gains."""
    table = Table("P/D", "alpha", "beta", "quota", "buffer", "JCT", title="simulated: all agents start together")
    first = tried[0]
    for one in sorted(tried, key=lambda one: float("inf") if one.jct_s is None else one.jct_s):
        tried_one = one.candidate
        table.add_row(
            f"{tried_one.prefill_nodes}P{tried_one.decode_nodes}D{'  as asked' if one is first else ''}",
            f"{tried_one.alpha_s:g} s",
            f"{tried_one.beta_s:g} s",
            f"{tried_one.quota_s * 1e3:g} ms",
            f"{tried_one.buffer_bytes / 1e9:g} GB",
            "does not fit" if one.jct_s is None else f"{one.jct_s:,.0f} s",
        )
    console.print(table)
    for reason in dict.fromkeys(one.reason for one in tried if one.reason):
        console.print(f"does not fit: {reason}")
    best = best_of(tried)
    if best is None or best.jct_s is None:
        console.print("Nothing fits.")
    elif first.jct_s is None:
        console.print(f"Best: {best.candidate.text}; the cluster that was asked for cannot be: {first.reason}.")
    elif best is first:
        console.print("Nothing that was tried is faster than the cluster that was asked for.")
    else:
        console.print(f"Best: {best.candidate.text}, {first.jct_s / best.jct_s:.2f} x as fast as {first.candidate.text}.")


def _outcome(one: Tried) -> str:
    return f"does not fit: {one.reason}" if one.jct_s is None else f"{one.jct_s:,.0f} s"
