"""The decision log: every call on the central scheduler as a line of JSON that replays to the same decisions
(paper section 6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dualpath.clock import Clock, ManualClock
from dualpath.errors import ProtocolError
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import (
    Decision,
    EngineDescription,
    EngineLoad,
    LossReason,
    Lost,
    Placed,
    Refused,
    RequestDescription,
)
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.status import SchedulerStatus
from dualpath.settings import Placement, ReadSidePolicy
from dualpath.types import EngineName, GroupName, ReadShare, RequestId, Role, Side

START = "start"


@dataclass(frozen=True, slots=True)
class Call:
    """One line: a method of the scheduler, when it was called, with what, and what it answered.

    The first line's method is ``start``, its only argument the limits.
    """

    method: str
    time_s: float
    arguments: tuple[Any, ...]
    decisions: tuple[Decision, ...] = ()


_TYPES: dict[str, type[Any]] = {
    noun.__name__: noun
    for noun in (
        *(SchedulerLimits, EngineDescription, EngineLoad, RequestDescription, Placed, Refused, Lost, ReadShare),
        *(Role, Side, LossReason, ReadSidePolicy, Placement),
    )
}


def encode(call: Call) -> str:
    """One line of JSON, without its end."""
    row = [call.method, call.time_s, [_plain(a) for a in call.arguments], [_plain(d) for d in call.decisions]]
    return json.dumps(row, separators=(",", ":"))


def decode(line: str) -> Call:
    """The call that ``encode`` wrote.

    Raises:
        ProtocolError: the line is none.
    """
    try:
        method, time_s, arguments, decisions = json.loads(line)
        return Call(method, time_s, tuple(map(_typed, arguments)), tuple(map(_typed, decisions)))
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"no line of a decision log: {line[:200]!r} ({error})") from error


class RecordingScheduler:
    """A ``CentralScheduler`` that hands every call to ``emit`` as a line, once it has returned."""

    def __init__(self, limits: SchedulerLimits, clock: Clock, emit: Callable[[str], None]) -> None:
        self._clock = clock
        self._emit = emit
        self._scheduler = CentralScheduler(limits, clock)
        self._emit(encode(Call(START, clock.now(), (limits,))))

    @property
    def limits(self) -> SchedulerLimits:
        return self._scheduler.limits

    @property
    def has_waiting(self) -> bool:
        return self._scheduler.has_waiting

    def waiting_for(self, role: Role) -> int:
        return self._scheduler.waiting_for(role)

    def backlogged(self) -> list[GroupName]:
        return self._scheduler.backlogged()

    def engine_joined(self, engine: EngineDescription) -> list[Decision]:
        return self._record("engine_joined", engine)

    def engine_lost(self, name: EngineName) -> list[Decision]:
        return self._record("engine_lost", name)

    def submit(self, description: RequestDescription) -> list[Decision]:
        return self._record("submit", description)

    def fetch_prefill(self, group: GroupName, loads: Sequence[EngineLoad]) -> list[Decision]:
        return self._record("fetch_prefill", group, list(loads))

    def fetch_decode(self, group: GroupName, loads: Sequence[EngineLoad]) -> list[Decision]:
        return self._record("fetch_decode", group, list(loads))

    def resumed(self, description: RequestDescription, decode: EngineName) -> None:
        self._record("resumed", description, decode)

    def read_progress(self, request_id: RequestId, side: Side, tokens_read: int) -> None:
        self._record("read_progress", request_id, side, tokens_read)

    def prefilled(self, request_id: RequestId) -> None:
        self._record("prefilled", request_id)

    def finished(self, request_id: RequestId) -> None:
        self._record("finished", request_id)

    def failed(self, request_id: RequestId) -> list[Decision]:
        return self._record("failed", request_id)

    def cancel(self, request_id: RequestId) -> list[Decision]:
        return self._record("cancel", request_id)

    def leave(self, request_id: RequestId, reason: LossReason) -> list[Decision]:
        return self._record("leave", request_id, reason)

    def status(self) -> SchedulerStatus:
        """Not recorded: it changes nothing."""
        return self._scheduler.status()

    def _record(self, method: str, *arguments: Any) -> list[Decision]:
        time_s = self._clock.now()
        decisions: list[Decision] = getattr(self._scheduler, method)(*arguments) or []
        self._emit(encode(Call(method, time_s, arguments, tuple(decisions))))
        return decisions


def replay(lines: Iterable[str]) -> list[str]:
    """Run a log through a fresh scheduler; what it decides otherwise, a sentence each (empty: nothing).

    Raises:
        ProtocolError: the log does not begin with its limits, or holds a line that is none.
    """
    mismatches: list[str] = []
    clock = ManualClock()
    scheduler: CentralScheduler | None = None
    for number, line in enumerate(lines, 1):
        call = decode(line)
        clock.advance(max(0.0, call.time_s - clock.now()))
        if call.method == START:
            (limits,) = call.arguments
            scheduler = CentralScheduler(limits, clock)
            continue
        if scheduler is None:
            raise ProtocolError(f"line {number}: a decision log begins with its limits, not with {call.method!r}")
        decided = tuple(getattr(scheduler, call.method)(*call.arguments) or ())
        if decided != call.decisions:
            mismatches.append(f"line {number}: {call.method} decided {decided}, not {call.decisions}")
    return mismatches


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return {"type": type(value).__name__, "value": value.value}
    noun = type(value)
    if _TYPES.get(noun.__name__) is noun:
        return {"type": noun.__name__} | {name: _plain(getattr(value, name)) for name in noun.__match_args__}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if not isinstance(value, dict) or "type" not in value:
        return value
    noun = _TYPES[value["type"]]
    return noun(**{name: _typed(item) for name, item in value.items() if name != "type"})
