"""Results of systems to report on: a few turns with round numbers."""

import dataclasses
from typing import Any

from dualpath.types import Role
from dualpath.workload.report import NodeCounters, SystemResult
from dualpath.workload.timeline import StageDurations, TurnId, TurnTimeline, digest
from dualpath.workload.turn_table import TurnTable

NODES = (
    NodeCounters("p0", Role.PREFILL, 300, 0, 100.0, 2.0),
    NodeCounters("p1", Role.PREFILL, 100, 0, 100.0, 1.0),
    NodeCounters("d0", Role.DECODE, 200, 50, None, 0.0),
)


def turn(agent: str, number: int, start_s: float, output: list[int], **changes: Any) -> TurnTimeline:
    """A turn whose first token takes 1 s and every further one 0.5 s."""
    last_s = start_s + 1 + 0.5 * (len(output) - 1)
    base = TurnTimeline(
        id=TurnId(agent, number),
        submitted_s=start_s,
        first_token_s=start_s + 1,
        second_token_s=start_s + 1.5,
        last_token_s=last_s,
        finished_s=last_s,
        prompt_tokens=100,
        output_tokens=len(output),
        cached_tokens=64,
        hit_tokens=90,
        tokens_digest=digest(output),
        stages=StageDurations(0.1, 0.2, 0.3, 0.4),
    )
    return dataclasses.replace(base, **changes)


def result(system: str, *turns: TurnTimeline, **changes: Any) -> SystemResult:
    base = SystemResult(system, TurnTable.of(turns), NODES, wall_s=8.0, block_tokens=64, timelines=turns)
    return dataclasses.replace(base, **changes)


BASIC = result("basic", turn("a", 0, 0.0, [1, 2, 3]), turn("a", 1, 2.0, [4, 5, 6]), turn("b", 0, 0.0, [7, 8, 9]))
FAILED = turn("b", 0, 0.5, [], first_token_s=None, second_token_s=None, cached_tokens=0, error="lost")
OTHER = result("dualpath", turn("a", 0, 0.0, [1, 2, 3]), turn("a", 1, 1.0, [4, 5, 7]), FAILED)
ORACLE = result("oracle", turn("a", 0, 0.0, [0, 0]), transfers=False)
