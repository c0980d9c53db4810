"""Mooncake's JSON Lines, a request a line, and the sessions that AIPerf adds to them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dualpath.workload.formats.fields import Record
from dualpath.workload.formats.requests import PrefixTree, Request, turns_of
from dualpath.workload.trajectory import Trajectory, Turn

BLOCK_TOKENS = 512
LEAST_SHARED_BLOCKS = 2
"""A line that shares only the first block with another shares the system prompt, not the conversation."""


@dataclass(slots=True)
class _Session:
    """Requests of one inferred session; gaps are between arrivals, since Mooncake records no durations."""

    first: Record
    requests: list[Request] = field(default_factory=list)
    seen: PrefixTree = field(default_factory=PrefixTree)
    last_arrival_s: float = 0.0


def read_mooncake(records: Sequence[Record]) -> list[Trajectory]:
    """Lines ``{"timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay"}``; times in ms.

    With ``session_id`` (AIPerf) a session's lines are its turns, in order. As AIPerf replays them, ``input_length`` is
    what the turn appends to the history of prompts and live answers, and ``delay`` the gap before it.

    Without it, a line's ``input_length`` is its whole prompt. It continues the session of the earlier line all of whose
    full 512-token blocks it begins with (the longest such, of at least two blocks); other lines begin a session.
    Trajectories come in the order of their first lines; a first turn's gap is its arrival.
    """
    sessions: dict[str, list[Record]] = {}
    loose: list[Record] = []
    for record in records:
        if record.text("context_mode", "deltas_without_responses") != "deltas_without_responses":
            raise record.error("context_mode", "only deltas_without_responses can be replayed")
        if record.value.get("session_id") is None:
            loose.append(record)
        else:
            sessions.setdefault(record.text("session_id"), []).append(record)
    named = [(turns[0].line, _named(session, turns)) for session, turns in sessions.items()]
    inferred = [(session.first.line, _inferred(session)) for session in _sessions(loose)]
    return [trajectory for _, trajectory in sorted(named + inferred, key=lambda pair: pair[0])]


def _named(session: str, records: Sequence[Record]) -> Trajectory:
    turns: list[Turn] = []
    arrival_ms = 0.0
    for record in records:
        # Without a delay, the gap is between arrivals; without either, the turn follows at once.
        stamp_ms = record.duration("timestamp", arrival_ms)
        gap_ms = record.duration("delay", max(0.0, stamp_ms - arrival_ms))
        turns.append(Turn(record.count("input_length"), record.count("output_length"), gap_ms / 1000))
        arrival_ms = stamp_ms
    return records[0].trajectory(session, turns)


def _sessions(records: Iterable[Record]) -> list[_Session]:
    tree = PrefixTree()
    owners: dict[int, _Session] = {}
    sessions: list[_Session] = []
    for record in records:
        hash_ids = record.counts("hash_ids", [])
        ends = reversed(tree.known(hash_ids)[LEAST_SHARED_BLOCKS - 1 :])
        session = next((owners[node] for node in ends if node in owners), None)
        if session is None:
            session = _Session(record)
            sessions.append(session)
        full_blocks = hash_ids[: record.count("input_length") // BLOCK_TOKENS]
        owners[tree.add(full_blocks)] = session
        _extend(session, record, full_blocks)
    return sessions


def _extend(session: _Session, record: Record, full_blocks: list[int]) -> None:
    arrival_s = record.duration("timestamp") / 1000
    session.requests.append(
        Request(
            prompt_tokens=record.count("input_length", least=1),
            output_tokens=record.count("output_length"),
            gap_s=max(0.0, arrival_s - session.last_arrival_s),
            shared_tokens=len(session.seen.known(full_blocks)) * BLOCK_TOKENS,
        )
    )
    session.seen.add(full_blocks)
    session.last_arrival_s = arrival_s


def _inferred(session: _Session) -> Trajectory:
    return session.first.trajectory(f"line-{session.first.line}", turns_of(session.requests, BLOCK_TOKENS))


def write_mooncake(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """One line, without its line feed, a turn, with ``session_id`` and ``delay`` as AIPerf replays them.

    AIPerf only ever appends to a session's history. A turn that keeps part of it therefore begins a session of its own,
    ``<id>/<turn>``, whose first prompt has the right length but shares nothing; it arrives when the gaps so far have
    passed. Reasoning stays part of ``output_length``. Times are rounded to milliseconds.
    """
    for trajectory in trajectories:
        session, arrival_s = trajectory.id, 0.0
        for index, step in enumerate(trajectory.steps()):
            arrival_s += step.turn.gap_s
            begins = index == 0 or step.turn.kept_tokens is not None
            if index and begins:
                session = f"{trajectory.id}/{index}"
            time = {"timestamp": round(arrival_s * 1000)} if begins else {"delay": round(step.turn.gap_s * 1000)}
            tokens = step.prompt_tokens if begins else step.turn.appended_tokens
            yield json.dumps(
                {"session_id": session, **time, "input_length": tokens, "output_length": step.turn.requested_tokens}
            )
