"""What happened to millions of turns: the timelines' numbers as columns, 81 bytes a turn (paper section 7)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from itertools import compress
from operator import sub
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from dualpath.workload.timeline import TurnTimeline

_CODES = "iidddddiiiiffffB"
_ROW = Struct(f"={_CODES}7x")  # padded, so that every column can be cut out of packed rows with a stride
_WAITING_BYTES = 1024 * _ROW.size
_NEVER = math.nan

Value = TypeVar("Value", int, float)


class TurnColumns(NamedTuple):
    """One array a column, all of one length; a row is a turn. Read only.

    Attributes:
        agent: number of the turn's agent, an index of ``TurnTable.agent_names`` (int32).
        turn: number of the turn in its agent's trajectory, from 0 (int32).
        submitted_s: when it was submitted, seconds of the one clock of all stamps (float64).
        first_token_s: when its first token came, seconds (float64); NaN: never.
        second_token_s: when its second token came, seconds (float64); NaN: never.
        last_token_s: when its last token came, seconds (float64); NaN: never.
        finished_s: when it ended, completed or not, seconds (float64).
        prompt_tokens: tokens sent (int32).
        output_tokens: tokens generated (int32).
        cached_tokens: prompt tokens taken from the cache (int32).
        hit_tokens: theoretical hit of the tokens sent, exact, in tokens (int32).
        scheduling_s: from submission until both engines were chosen, seconds (float32).
        allocation_s: waiting for buffers, seconds (float32).
        read_s: reading the hit, seconds (float32).
        prefill_s: from the read's end to the first token, seconds (float32).
        completed: 1, or 0 where the turn failed (uint8).
    """

    agent: array[int]
    turn: array[int]
    submitted_s: array[float]
    first_token_s: array[float]
    second_token_s: array[float]
    last_token_s: array[float]
    finished_s: array[float]
    prompt_tokens: array[int]
    output_tokens: array[int]
    cached_tokens: array[int]
    hit_tokens: array[int]
    scheduling_s: array[float]
    allocation_s: array[float]
    read_s: array[float]
    prefill_s: array[float]
    completed: array[int]


class TurnTable:
    """Turns in any order, failed ones included. ``agent_names`` may grow along with the turns.

    Rows are packed one by one and cut into columns a thousand at a time: half the time of appending to each column.
    """

    def __init__(self, agent_names: Iterable[str] = ()) -> None:
        self.agent_names = list(agent_names)
        arrays: list[array[Any]] = [array(code) for code in _CODES]
        self._columns = TurnColumns(*arrays)
        self._waiting = bytearray()

    @classmethod
    def of(cls, turns: Iterable[TurnTimeline]) -> TurnTable:
        """The table of these turns; agents are numbered as they appear."""
        numbers: dict[str, int] = {}
        table = cls()
        for turn in turns:
            table._add(numbers.setdefault(turn.id.agent, len(numbers)), turn)
        table.agent_names = list(numbers)
        return table

    def append(
        self,
        agent: int,
        turn: int,
        submitted_s: float,
        first_token_s: float,
        second_token_s: float,
        last_token_s: float,
        finished_s: float,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int,
        hit_tokens: int,
        scheduling_s: float,
        allocation_s: float,
        read_s: float,
        prefill_s: float,
    ) -> None:
        """A completed turn, its values as ``TurnColumns`` describes them; a stage that it had not takes 0 s.

        Raises:
            struct.error: a count is no integer of 32 bits. The table is as before.
        """
        # fmt: off
        self._waiting += _ROW.pack(
            agent, turn, submitted_s, first_token_s, second_token_s, last_token_s, finished_s,
            prompt_tokens, output_tokens, cached_tokens, hit_tokens, scheduling_s, allocation_s, read_s, prefill_s, 1,
        )
        # fmt: on
        if len(self._waiting) >= _WAITING_BYTES:
            self._cut()

    def append_failed(
        self,
        agent: int,
        turn: int,
        submitted_s: float,
        finished_s: float,
        prompt_tokens: int,
        hit_tokens: int,
        *,
        first_token_s: float = _NEVER,
        second_token_s: float = _NEVER,
        last_token_s: float = _NEVER,
        output_tokens: int = 0,
    ) -> None:
        """A turn that ended without all of its tokens; nothing is known of its cache or its stages.

        Raises:
            struct.error: a count is no integer of 32 bits. The table is as before.
        """
        stamps = (submitted_s, first_token_s, second_token_s, last_token_s, finished_s)
        self._waiting += _ROW.pack(agent, turn, *stamps, prompt_tokens, output_tokens, 0, hit_tokens, 0.0, 0.0, 0.0, 0.0, 0)

    @property
    def columns(self) -> TurnColumns:
        """All turns so far. The arrays are the table's own and grow with it."""
        self._cut()
        return self._columns

    def __len__(self) -> int:
        return len(self._columns.agent) + len(self._waiting) // _ROW.size

    def completed(self) -> int:
        """Turns that are complete."""
        return sum(self.columns.completed)

    def ended_within(self, start_s: float, end_s: float = math.inf) -> TurnTable:
        """The completed turns that ended from ``start_s`` on and before ``end_s``, as a table of their own."""
        chosen = TurnTable(self.agent_names)
        ended = zip(self.columns.completed, self.columns.finished_s, strict=True)
        wanted = (completed and start_s <= finished_s < end_s for completed, finished_s in ended)
        for row in compress(zip(*self.columns, strict=True), wanted):
            chosen.append(*row[:-1])
        return chosen

    def of_completed(self, column: array[Value]) -> Iterator[Value]:
        """A column's values of the completed turns."""
        return compress(column, self.columns.completed)

    def ttft_s(self) -> Iterator[float]:
        """Time to the first token, from submission, of each completed turn that has one; seconds."""
        return self._between(self.columns.submitted_s, self.columns.first_token_s)

    def ttst_s(self) -> Iterator[float]:
        """Time from the first to the second token of each completed turn that has two; seconds."""
        return self._between(self.columns.first_token_s, self.columns.second_token_s)

    def latency_s(self) -> Iterator[float]:
        """Time from submission to the end of each completed turn; seconds."""
        return self._between(self.columns.submitted_s, self.columns.finished_s)

    def decodes(self) -> Iterator[tuple[float, int]]:
        """Seconds from the first to the last token, and steps between them, of each completed turn of at least two."""
        columns = self.columns
        spans = zip(map(sub, columns.last_token_s, columns.first_token_s), columns.output_tokens, strict=True)
        for seconds, tokens in compress(spans, columns.completed):
            if tokens > 1 and seconds == seconds:  # not NaN
                yield seconds, tokens - 1

    def tpot_s(self) -> Iterator[float]:
        """Mean time of a token after the first, of each completed turn that has one; seconds."""
        return (seconds / steps for seconds, steps in self.decodes())

    def tpot_after_second_s(self) -> Iterator[float]:
        """Mean time of a token after the second, of each completed turn that has one; seconds.

        Unlike ``tpot_s`` it leaves out the hand-off to the decode engine, which TTST measures.
        """
        columns = self.columns
        spans = zip(map(sub, columns.last_token_s, columns.second_token_s), columns.output_tokens, strict=True)
        for seconds, tokens in compress(spans, columns.completed):
            if tokens > 2 and seconds == seconds:  # not NaN
                yield seconds / (tokens - 2)

    def _between(self, start_s: Iterable[float], end_s: Iterable[float]) -> Iterator[float]:
        spans = compress(map(sub, end_s, start_s), self.columns.completed)
        return (span for span in spans if span == span)  # not NaN

    def _add(self, agent: int, turn: TurnTimeline) -> None:
        first_s, second_s, last_s = map(_or_never, (turn.first_token_s, turn.second_token_s, turn.last_token_s))
        if turn.completed:
            stamps = (turn.submitted_s, first_s, second_s, last_s, turn.finished_s)
            counts = (turn.prompt_tokens, turn.output_tokens, turn.cached_tokens, turn.hit_tokens)
            self.append(agent, turn.id.turn, *stamps, *counts, *astuple(turn.stages))
            return
        self.append_failed(
            agent,
            turn.id.turn,
            turn.submitted_s,
            turn.finished_s,
            turn.prompt_tokens,
            turn.hit_tokens,
            first_token_s=first_s,
            second_token_s=second_s,
            last_token_s=last_s,
            output_tokens=turn.output_tokens,
        )

    def _cut(self) -> None:
        """Move the waiting rows to the columns."""
        if not self._waiting:
            return
        rows: Any = memoryview(bytes(self._waiting))
        columns: tuple[array[Any], ...] = self._columns
        offset = 0
        for column in columns:
            values = rows.cast(column.typecode)[offset // column.itemsize :: _ROW.size // column.itemsize]
            column.frombytes(values.tobytes())
            offset += column.itemsize
        self._waiting.clear()


def _or_never(stamp_s: float | None) -> float:
    return _NEVER if stamp_s is None else stamp_s
