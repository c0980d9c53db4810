"""Timelines and the numbers drawn from them."""

import dataclasses
import math
from statistics import quantiles

import pytest

from dualpath.workload import metrics
from dualpath.workload.timeline import StageDurations, TurnId, TurnRecorder, TurnTimeline, digest
from dualpath.workload.turn_table import TurnTable

STAGES = StageDurations(0.1, 0.2, 0.3, 0.4)


def recorded(agent: str, turn: int, start_s: float, tokens: list[int], step_s: float = 0.5) -> TurnTimeline:
    recorder = TurnRecorder(TurnId(agent, turn), prompt_tokens=200, hit_tokens=150, submitted_s=start_s)
    now_s = start_s + 1
    for token in tokens:
        recorder.token(token, now_s)
        now_s += step_s
    assert recorder.tokens == tokens
    return recorder.finished(now_s, cached_tokens=128, stages=STAGES)


def table(*turns: TurnTimeline) -> TurnTable:
    return TurnTable.of(turns)


def test_stamps_of_a_turn() -> None:
    turn = recorded("a", 0, 10.0, [1, 2, 3, 4])
    assert (turn.ttft_s, turn.ttst_s, turn.tpot_s) == (1.0, 0.5, 0.5)
    assert (turn.latency_s, turn.output_tokens, turn.completed) == (3.0, 4, True)


def test_a_turn_of_one_token_has_no_second() -> None:
    turn = recorded("a", 0, 10.0, [1])
    assert (turn.ttft_s, turn.ttst_s, turn.tpot_s, turn.decode_s) == (1.0, None, None, None)


def test_a_failed_turn() -> None:
    recorder = TurnRecorder(TurnId("a", 0), 10, 0, 1.0)
    turn = recorder.failed(3.0, "engine lost")
    assert (turn.completed, turn.error, turn.ttft_s, turn.output_tokens, turn.latency_s) == (False, "engine lost", None, 0, 2.0)


def test_tpot_is_last_minus_first_over_the_steps() -> None:
    recorder = TurnRecorder(TurnId("a", 0), 10, 0, 0.0)
    for token, now_s in enumerate((1.0, 4.0, 4.5)):
        recorder.token(token, now_s)
    turn = recorder.finished(5.0, 0, STAGES)
    assert (turn.ttst_s, turn.tpot_s) == (3.0, 1.75)


def test_percentile_agrees_with_the_standard_library() -> None:
    values = [3.0, 1.5, 9.0, 2.25, 7.0, 7.0, 0.5]
    cuts = quantiles(values, n=100, method="inclusive")
    assert [metrics.percentile(values, percent) for percent in range(1, 100)] == pytest.approx(cuts)
    assert (metrics.percentile(values, 0), metrics.percentile(values, 100)) == (0.5, 9.0)
    assert metrics.percentile([4.0], 99) == 4.0


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_no_percentile(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError):
        metrics.percentile(values, percent)


def test_summary() -> None:
    assert tuple(metrics.summary(iter([4.0, 2.0]))) == pytest.approx((3.0, 3.0, 3.8, 3.98))
    assert metrics.summary([]) == metrics.Summary(None, None, None, None)


def test_completion_times() -> None:
    turns = table(recorded("a", 0, 10.0, [1, 2]), recorded("b", 0, 11.0, [1]), recorded("a", 1, 20.0, [1, 2, 3]))
    assert metrics.jct_s(turns) == 12.5
    assert metrics.agent_durations_s(turns) == {0: 12.5, 1: 1.5}
    assert (metrics.jct_s(table()), metrics.agent_durations_s(table())) == (0.0, {})


def test_agents_with_a_failed_turn_are_not_complete() -> None:
    failed = dataclasses.replace(recorded("a", 1, 20.0, [1]), error="timed out")
    turns = table(recorded("a", 0, 10.0, [1]), failed, recorded("b", 0, 1.0, [1]))
    assert metrics.agents_completed(turns) == 1


def test_rates() -> None:
    turns = table(recorded("a", 0, 0.0, [1]), recorded("a", 1, 5.0, [1]))
    assert metrics.hit_rate(turns) == 256 / 400
    assert metrics.theoretical_hit_rate(turns) == 0.75
    assert metrics.theoretical_hit_rate(turns, 64) == 256 / 400
    assert metrics.hit_rate(table()) is None


def test_itl_weighs_steps_and_tpot_weighs_turns() -> None:
    turns = table(recorded("a", 0, 0.0, [1, 2], step_s=1.0), recorded("a", 1, 5.0, [1, 2, 3, 4], step_s=2.0))
    assert metrics.mean_itl_s(turns) == 7 / 4
    assert metrics.summary(turns.tpot_s()).mean == 1.5


def test_mean_stages() -> None:
    other = dataclasses.replace(recorded("a", 1, 0.0, [1]), stages=StageDurations(0.3, 0.2, 0.5, 0.0))
    mean = metrics.mean_stages(table(recorded("a", 0, 0.0, [1]), other))
    assert dataclasses.astuple(mean) == pytest.approx((0.2, 0.2, 0.4, 0.2))
    assert metrics.mean_stages(table()) == StageDurations()


def test_numbers_of_completed_turns_leave_failed_ones_out() -> None:
    completed = recorded("a", 0, 0.0, [1, 2, 3])
    failed = dataclasses.replace(recorded("b", 0, 9.0, [1, 2], step_s=7.0), error="lost")
    for number in (metrics.mean_itl_s, metrics.hit_rate, metrics.theoretical_hit_rate, metrics.mean_stages):
        assert number(table(completed, failed)) == number(table(completed))


def test_max_over_mean() -> None:
    assert metrics.max_over_mean([1.0, 2.0, 3.0]) == 1.5
    assert metrics.max_over_mean([5.0, 0.0]) == 2.0
    assert metrics.max_over_mean([0.0, 0.0]) is None
    assert metrics.max_over_mean([]) is None
    assert not math.isnan(metrics.max_over_mean([1e-300]) or 0)


def test_tokens_digest_ignores_order_and_time_but_nothing_else() -> None:
    one, two = recorded("a", 0, 0.0, [1, 2]), recorded("b", 0, 0.0, [3])
    same = metrics.tokens_digest([one, two])
    assert metrics.tokens_digest([recorded("b", 0, 9.0, [3], step_s=3.0), one]) == same
    assert metrics.tokens_digest([one]) != same
    assert metrics.tokens_digest([recorded("a", 0, 0.0, [2, 1]), two]) != same
    assert metrics.tokens_digest([recorded("a", 0, 0.0, [3]), recorded("b", 0, 0.0, [1, 2])]) != same
    assert metrics.tokens_digest([recorded("a", 1, 0.0, [1, 2]), two]) != same


def test_digest_is_stable() -> None:
    assert digest([1, 23]) != digest([12, 3])
    assert digest([]) == "cae66941d9efbd404e4d88758ea67670"


def test_identical_turns() -> None:
    ours = [recorded("a", 0, 0.0, [1]), recorded("a", 1, 0.0, [2]), recorded("b", 0, 0.0, [3])]
    theirs = [recorded("a", 1, 0.0, [2]), recorded("a", 0, 0.0, [9]), dataclasses.replace(ours[2], error="lost")]
    assert metrics.identical_turns(ours, theirs) == 1
    assert metrics.identical_turns(ours, ours) == 3
