"""Turns as columns."""

import math
import pickle
import struct

import pytest

from dualpath.workload.timeline import StageDurations, TurnId, TurnTimeline
from dualpath.workload.turn_table import TurnColumns, TurnTable

NAN = math.nan


def appended(turns: int) -> TurnTable:
    table = TurnTable(["a", "b"])
    for turn in range(turns):
        table.append(turn % 2, turn, 1.0 * turn, turn + 1.0, turn + 1.5, turn + 2.5, turn + 3.0, 100, 4, 64, 90, 0.5, 1.5, 2, 3)
    return table


def test_every_value_lands_in_its_column() -> None:
    table = TurnTable(["a"])
    table.append(0, 1, 2.1, 3.1, 4.1, 5.1, 6.1, 7, 8, 9, 10, 11.5, 12.5, 13.5, 14.5)
    columns = table.columns
    values = (0, 1, 2.1, 3.1, 4.1, 5.1, 6.1, 7, 8, 9, 10, 11.5, 12.5, 13.5, 14.5, 1)
    assert {name: list(getattr(columns, name)) for name in TurnColumns._fields} == {
        name: [value] for name, value in zip(TurnColumns._fields, values, strict=True)
    }


def test_rows_that_wait_to_be_cut_are_there_all_the_same() -> None:
    table = appended(2500)
    assert (len(table), table.completed()) == (2500, 2500)
    assert list(table.columns.turn) == list(range(2500))
    assert list(table.columns.agent) == [0, 1] * 1250
    assert list(table.columns.last_token_s) == [turn + 2.5 for turn in range(2500)]


def test_at_most_90_bytes_a_turn() -> None:
    assert sum(column.itemsize for column in appended(1).columns) <= 90


def test_times_of_turns() -> None:
    table = appended(2)
    assert list(table.ttft_s()) == [1.0, 1.0]
    assert list(table.ttst_s()) == [0.5, 0.5]
    assert list(table.latency_s()) == [3.0, 3.0]
    assert list(table.decodes()) == [(1.5, 3), (1.5, 3)]
    assert list(table.tpot_s()) == [0.5, 0.5]


def test_what_never_came_has_no_time() -> None:
    table = TurnTable(["a"])
    table.append(0, 0, 0.0, 1.0, NAN, 1.0, 1.0, 100, 1, 0, 0, 0, 0, 0, 0)
    table.append(0, 1, 0.0, NAN, NAN, NAN, 2.0, 100, 0, 0, 0, 0, 0, 0, 0)
    assert list(table.ttft_s()) == [1.0]
    assert list(table.latency_s()) == [1.0, 2.0]
    assert (list(table.ttst_s()), list(table.tpot_s())) == ([], [])


def test_failed_turns_are_counted_and_left_out() -> None:
    table = appended(1)
    table.append_failed(1, 0, 5.0, 9.0, 100, 90, first_token_s=6.0, second_token_s=7.0, last_token_s=7.0, output_tokens=2)
    table.append_failed(1, 1, 5.0, 9.0, 100, 90)
    assert (len(table), table.completed(), list(table.columns.completed)) == (3, 1, [1, 0, 0])
    assert list(table.columns.output_tokens) == [4, 2, 0]
    assert list(table.columns.last_token_s)[:2] == [2.5, 7.0]
    assert math.isnan(table.columns.first_token_s[2])
    assert list(table.of_completed(table.columns.prompt_tokens)) == [100]
    assert [len(list(times)) for times in (table.ttft_s(), table.ttst_s(), table.tpot_s(), table.latency_s())] == [1] * 4


def timeline(agent: str, turn: int, error: str | None = None) -> TurnTimeline:
    stages = StageDurations(0.5, 0.25, 0.125, 1.0)
    return TurnTimeline(TurnId(agent, turn), 0.5, 1.0, 2.0, 3.0, 4.0, 10, 3, 5, 6, "digest", stages, error)


def test_a_table_of_timelines() -> None:
    table = TurnTable.of([timeline("b", 0), timeline("a", 0), timeline("b", 1, "lost")])
    assert table.agent_names == ["b", "a"]
    assert [tuple(row) for row in zip(*table.columns, strict=True)] == [
        (0, 0, 0.5, 1.0, 2.0, 3.0, 4.0, 10, 3, 5, 6, 0.5, 0.25, 0.125, 1.0, 1),
        (1, 0, 0.5, 1.0, 2.0, 3.0, 4.0, 10, 3, 5, 6, 0.5, 0.25, 0.125, 1.0, 1),
        (0, 1, 0.5, 1.0, 2.0, 3.0, 4.0, 10, 3, 0, 6, 0.0, 0.0, 0.0, 0.0, 0),
    ]


def test_a_value_that_does_not_fit_leaves_the_table_as_it_was() -> None:
    table = appended(1)
    with pytest.raises(struct.error):
        table.append(0, 0, 0.0, 1.0, NAN, 1.0, 1.0, 2**31, 1, 0, 0, 0, 0, 0, 0)
    assert len(table) == 1


def test_a_table_goes_between_processes_and_grows_on() -> None:
    table = appended(1500)
    copy: TurnTable = pickle.loads(pickle.dumps(table))
    copy.append_failed(0, 7, 0.0, 1.0, 1, 0)
    assert (len(copy), copy.columns.turn[-1], copy.agent_names) == (1501, 7, ["a", "b"])
    assert copy.columns.submitted_s[:1500] == table.columns.submitted_s


def test_the_time_of_later_tokens_leaves_out_the_second() -> None:
    table = TurnTable(["a"])
    stages = (0.0, 0.0, 0.0, 0.0)
    table.append(0, 0, 0.0, 1.0, 3.0, 7.0, 7.0, 10, 4, 0, 0, *stages)
    table.append(0, 1, 0.0, 1.0, 3.0, 3.0, 3.0, 10, 2, 0, 0, *stages)
    assert list(table.tpot_after_second_s()) == [2.0]
    assert list(table.tpot_s()) == [2.0, 2.0]


def test_turns_that_ended_within_a_time() -> None:
    table = TurnTable(["a", "b"])
    for turn, finished_s in enumerate((1.0, 2.0, 3.0)):
        table.append(0, turn, 0.0, 0.5, 0.6, finished_s, finished_s, 10, 2, 3, 4, 0.1, 0.2, 0.3, 0.4)
    table.append_failed(1, 0, 0.0, 2.5, 10, 4)
    within = table.ended_within(2.0, 3.0)
    assert within.agent_names == ["a", "b"]
    assert list(within.columns.turn) == [1]
    assert [column[0] for column in within.columns] == [column[1] for column in table.columns]
    assert list(table.ended_within(2.0).columns.turn) == [1, 2]
