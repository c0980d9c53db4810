"""Sessions condensed to rows of numbers: coding agents with hits, and repair agents with reasoning."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.workload.formats.fields import Record
from dualpath.workload.formats.requests import Request, turns_of
from dualpath.workload.trajectory import Trajectory

CODING_COLUMNS = ("start_s", "input_tokens", "hit_tokens", "output_tokens", "think_s", "api_s")
REPAIR_COLUMNS = ("start_s", "prompt_tokens", "completion_tokens", "reasoning_tokens")
HIT_BLOCK_TOKENS = 64


def read_coding_sessions(records: Sequence[Record]) -> list[Trajectory]:
    """Lines ``{"id", "turns": [[start_s, input_tokens, hit_tokens, output_tokens, think_s, api_s], …]}``.

    ``hit_tokens`` counts 64-token blocks of earlier inputs of the session; ``think_s`` is the gap before the turn.
    """
    return [record.trajectory(record.text("id"), turns_of(_coding(record), HIT_BLOCK_TOKENS)) for record in records]


def _coding(record: Record) -> list[Request]:
    return [
        Request(
            prompt_tokens=row.count("input_tokens", least=1),
            output_tokens=row.count("output_tokens"),
            gap_s=row.duration("think_s"),
            shared_tokens=row.count("hit_tokens"),
        )
        for row in record.rows("turns", CODING_COLUMNS)
    ]


def read_repair_runs(records: Sequence[Record]) -> list[Trajectory]:
    """Lines ``{"id", "turns": [[start_s, prompt_tokens, completion_tokens, reasoning_tokens], …]}``.

    The trace has no durations: a gap lasts from start to start and so includes the previous answer.
    """
    return [record.trajectory(record.text("id"), turns_of(_repairs(record))) for record in records]


def _repairs(record: Record) -> list[Request]:
    requests: list[Request] = []
    previous_start_s = 0.0
    for row in record.rows("turns", REPAIR_COLUMNS):
        start_s = row.number("start_s")
        gap_s = max(0.0, start_s - previous_start_s) if requests else 0.0
        requests.append(
            Request(
                prompt_tokens=row.count("prompt_tokens", least=1),
                output_tokens=row.count("completion_tokens"),
                gap_s=gap_s,
                reasoning_tokens=row.count("reasoning_tokens"),
            )
        )
        previous_start_s = start_s
    return requests
