"""This project's own trace format: JSON Lines, a trajectory a line.

Schema of a line: ``{"id": text, "turns": [turn, …]}``, a turn being an object with the fields of ``Turn``:
``appended_tokens`` and ``output_tokens`` always, ``gap_s``, ``reasoning_tokens`` and ``kept_tokens`` where they differ
from 0, 0 and null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from dualpath.workload.formats.fields import Record
from dualpath.workload.trajectory import Trajectory, Turn


def read_native(records: Sequence[Record]) -> list[Trajectory]:
    """Trajectories as ``write_native`` wrote them."""
    return [_trajectory(record) for record in records]


def _trajectory(record: Record) -> Trajectory:
    return record.trajectory(record.text("id"), [_turn(entry) for entry in record.children("turns")])


def _turn(entry: Record) -> Turn:
    output, reasoning = entry.count("output_tokens"), entry.count("reasoning_tokens", 0)
    if reasoning > output:
        raise entry.error("reasoning_tokens", f"{reasoning} exceed the {output} output tokens")
    return Turn(
        appended_tokens=entry.count("appended_tokens"),
        output_tokens=output,
        gap_s=entry.duration("gap_s", 0.0),
        reasoning_tokens=reasoning,
        kept_tokens=None if entry.value.get("kept_tokens") is None else entry.count("kept_tokens"),
    )


def write_native(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """One line, without its line feed, a trajectory."""
    for trajectory in trajectories:
        turns = [
            {field.name: getattr(turn, field.name) for field in fields(turn) if getattr(turn, field.name) != field.default}
            for turn in trajectory.turns
        ]
        yield json.dumps({"id": trajectory.id, "turns": turns}, separators=(",", ":"))
