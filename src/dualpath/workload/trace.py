"""Traces of agents: reading any known format, recognised by its content, and writing two (paper A.3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dualpath.errors import TraceError
from dualpath.workload.formats import derived
from dualpath.workload.formats.derived import read_coding_sessions, read_repair_runs
from dualpath.workload.formats.fields import Record
from dualpath.workload.formats.kv_cache_tester import read_kv_cache_tester
from dualpath.workload.formats.mini_swe_agent import read_mini_swe_agent
from dualpath.workload.formats.mooncake import read_mooncake, write_mooncake
from dualpath.workload.formats.native import read_native, write_native
from dualpath.workload.trajectory import Trajectory, Turn, clipped, scaled

__all__ = ["Trajectory", "Turn", "clipped", "read_trace", "scaled", "write_mooncake", "write_trace"]


class TraceFormat(NamedTuple):
    """``recognises`` looks at the first object of a trace, ``read`` takes all of them."""

    name: str
    recognises: Callable[[dict[str, Any]], bool]
    read: Callable[[Sequence[Record]], list[Trajectory]]


def _turns_are(kind: type[Any], columns: int = 0) -> Callable[[dict[str, Any]], bool]:
    """Whether the first entry of ``turns`` is of ``kind``, and a list of so many columns if any."""

    def recognises(value: dict[str, Any]) -> bool:
        turns = value.get("turns")
        first: Any = turns[0] if isinstance(turns, list) and turns else None
        return isinstance(first, kind) and (not columns or len(first) == columns)

    return recognises


FORMATS = (
    TraceFormat("dualpath JSONL", _turns_are(dict), read_native),
    TraceFormat("coding sessions JSONL", _turns_are(list, len(derived.CODING_COLUMNS)), read_coding_sessions),
    TraceFormat("repair runs JSONL", _turns_are(list, len(derived.REPAIR_COLUMNS)), read_repair_runs),
    TraceFormat("kv-cache-tester JSON", lambda value: "requests" in value, read_kv_cache_tester),
    TraceFormat("mini-swe-agent JSON", lambda value: "messages" in value, read_mini_swe_agent),
    TraceFormat("Mooncake JSONL", lambda value: "input_length" in value or "output_length" in value, read_mooncake),
)


def read_trace(lines: Iterable[str], name: str) -> list[Trajectory]:
    """The trajectories of a trace, whichever of ``FORMATS`` it is in; ``name`` is the file's, for messages.

    Raises:
        TraceError: the trace is empty, in no known format, or has holes; names file, line and field.
    """
    records = _records(list(lines), name)
    first = records[0]
    for trace_format in FORMATS:
        if trace_format.recognises(first.value):
            return trace_format.read(records)
    if first.value.get("turns") == []:
        raise first.error("turns", "must be a list with at least one entry")
    known = ", ".join(trace_format.name for trace_format in FORMATS)
    raise TraceError(f"{name}:{first.line}: no known trace format; it has to be one of {known}")


def write_trace(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """Lines, without line feeds, in this project's own format (``formats/native.py`` has the schema)."""
    return write_native(trajectories)


def _records(lines: Sequence[str], name: str) -> list[Record]:
    """The JSON objects of a file: one a line, or, if the first line is none, the file as a whole."""
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise TraceError(f"{name}:1: the trace is empty")
    if not _is_json(filled[0][1]):
        filled = [(1, "\n".join(line.rstrip("\n") for line in lines))]
    return [_record(line, number, name) for number, line in filled]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _record(text: str, line: int, name: str) -> Record:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        where = line + problem.lineno - 1
        raise TraceError(f"{name}:{where}: no JSON: {problem.msg} at column {problem.colno}") from problem
    if not isinstance(value, dict):
        raise TraceError(f"{name}:{line}: must be a JSON object, not {type(value).__name__}")
    return Record(name, line, value)
