"""Online experiments, on outcomes that are made up."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.canned_lab import CannedLab, named, text

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case
from dualpath.evaluation.load import (
    DS_660B,
    PAPER_CAPACITY,
    Capacity,
    Curve,
    agent_read_bytes,
    case_at,
    load_reached,
    mean_agent,
)
from dualpath.evaluation.online import ONLINE
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Section
from dualpath.types import Role
from dualpath.workload.metrics import Summary
from dualpath.workload.report import NodeCounters, Utilisation
from dualpath.workload.timeline import StageDurations

EXPERIMENTS = {experiment.key: experiment for experiment in ONLINE}
CAPACITIES = {(setting.model, system): rate for (setting, system), rate in PAPER_CAPACITY.items()}
FLAT = StageDurations(0.5, 0.0, 0.1, 0.4)
RATE = 30e9
NODES = (
    NodeCounters("prefill-0", Role.PREFILL, round(900 * RATE), 0, RATE, 0.0),
    NodeCounters("decode-0", Role.DECODE, 0, 0, RATE, 0.0),
)


def flat(value: float | None) -> Summary:
    return Summary(value, value, value, value)


def outcome(ttft_s: float | None, agent_s: float | None = 600.0, tpot_s: float = 0.039) -> Outcome:
    return Outcome(
        jct_s=1000.0,
        turns=1000,
        failed=0,
        preempted=0,
        ttft_s=flat(ttft_s),
        ttst_s=flat(0.228),
        tpot_s=flat(None if ttft_s is None else tpot_s),
        latency_s=flat(None if ttft_s is None else ttft_s + 3),
        stages=FLAT,
        agent_s=agent_s,
        turn_agent_s=agent_s,
        prompt_tokens=1,
        prompt_tokens_per_s=1.0,
        storage_max_over_mean=None,
        storage_windows=None,
        attention_max_over_mean=None,
        working_set_bytes=100e9,
        nodes=NODES,
        utilisation=None,
        prefill_busy=1.0,
        decode_busy=1.0,
        wall_s=1.0,
    )


def like_the_paper(case: Case, faster: float = 1.0) -> Outcome:
    """The mean TTFT passes 4 s at the paper's capacity, or at so many times of it; a life passes the paper's times."""
    nodes = 22 if case.prefill == 44 else 1
    load = (case.rate or 0.0) / nodes / faster / CAPACITIES[case.model, case.system]
    life_s = 575.0 * (1100.0 / 575.0) ** ((load * 0.45 - 0.1) / 0.35)
    made = outcome(4.0 * 2.5 ** (8 * (load - 1)), life_s)
    return replace(made, dram_hit_rates=tuple(min(1.0, size / 1e12) for size in case.dram_tier_bytes))


def section(key: str, made: Callable[[Case], Outcome] = like_the_paper) -> Section:
    return EXPERIMENTS[key].section(CannedLab(made=made))


@pytest.mark.parametrize("experiment", ONLINE, ids=lambda one: one.key)
def test_sections_ask_for_the_cases_that_are_announced(experiment: Experiment) -> None:
    lab = CannedLab(made=like_the_paper)
    made = experiment.section(lab)
    assert made.key == experiment.key
    assert lab.asked == set(experiment.cases())
    assert all(paragraph for paragraph in made.text)


@pytest.mark.parametrize("experiment", ONLINE, ids=lambda one: one.key)
def test_nothing_within_any_window_is_no_error(experiment: Experiment) -> None:
    assert experiment.section(CannedLab(made=lambda case: outcome(None, None))).text


def test_arrivals_last_longer_than_what_is_measured() -> None:
    for case in {case for experiment in ONLINE for case in experiment.cases()}:
        assert case.rate is not None
        assert case.window is not None
        assert case.agents / case.rate > 1.05 * case.window.end_s


def test_a_capacity_lies_where_the_objective_is_passed() -> None:
    curve = Curve({0.2: outcome(1.0), 0.3: outcome(2.0), 0.4: outcome(8.0)})
    assert curve.capacity().rate == pytest.approx(0.35)
    assert not curve.capacity().bounded
    assert Curve({0.2: outcome(1.0), 0.3: outcome(2.0)}).capacity() == Capacity(0.3, "at least")
    assert Curve({0.2: outcome(5.0), 0.3: outcome(6.0)}).capacity() == Capacity(0.2, "at most")
    assert Curve({0.2: outcome(None), 0.3: outcome(None)}).capacity() == Capacity(0.3, "at least")


def test_the_time_of_a_token_bounds_a_capacity_too() -> None:
    curve = Curve({0.2: outcome(1.0, tpot_s=0.025), 0.4: outcome(1.0, tpot_s=0.1)})
    assert curve.capacity().rate == pytest.approx(0.3)


def test_percentiles_have_capacities_of_their_own() -> None:
    tail = replace(outcome(1.0), ttft_s=Summary(1.0, 1.0, 2.0, 16.0))
    curve = Curve({0.2: outcome(1.0), 0.3: tail})
    assert curve.capacity("p90") == Capacity(0.3, "at least")
    assert curve.capacity("p99").rate == pytest.approx(0.25)


def test_values_between_rates_are_interpolated_by_their_logarithm() -> None:
    curve = Curve({0.2: outcome(1.0), 0.4: outcome(4.0), 0.3: outcome(None)})
    assert curve.at(0.3, lambda one: one.ttft_s.mean) == pytest.approx(2.0)
    assert curve.at(0.4, lambda one: one.ttft_s.mean) == pytest.approx(4.0)
    assert curve.at(0.5, lambda one: one.ttft_s.mean) is None


def test_fig10_on_the_papers_own_capacities() -> None:
    made = section("fig10")
    judged = [value for value in made.values if value.holds is not None]
    assert len(judged) == 6
    assert all(value.holds and value.error == pytest.approx(0, abs=0.01) for value in judged)
    assert "Missed" not in text(made)


def test_fig10_says_what_is_missed_and_what_could_go_on() -> None:
    def fast_basic(case: Case) -> Outcome:
        return like_the_paper(case, 1.3 if case.system == "basic" else 1.0)

    def reading(case: Case) -> Outcome:
        share = 0.2 * agent_read_bytes(DS_660B) / RATE
        busy = share if case.rate != 0.3 else share / 2
        return replace(fast_basic(case), utilisation=Utilisation(1.0, {"a SNIC read": [9.0, busy], "a SNIC write": [9.0, 9.0]}))

    made = section("fig10", reading)
    assert named(made, "capacity DS 660B, DualPath / Basic").ours == pytest.approx(2.25 / 1.3, rel=0.01)
    assert "Missed: capacity DS 660B Basic (+30%)" in text(made)
    assert "DS 660B Basic at 0.3 agents/s, beyond its capacity: the longest part of TTFT is scheduling" in text(made)
    assert "storage NICs read 90%" in text(made)
    assert "At most 0.200 agents/s get through" in text(made)
    assert "The capacity is above that (0.260)" in text(made)
    assert "At the highest rate it is less, 0.100" in text(made)
    assert "The paper's 0.2 agents/s read 24.6 GB/s on each of 2 nodes, of the 30.0 GB/s" in text(made)
    assert named(made, "sustained, DS 660B Basic").ours == pytest.approx(0.2)


def test_fig10_says_when_no_rate_is_too_high() -> None:
    made = section("fig10", lambda case: outcome(1.0))
    assert [value.note for value in made.values if value.name == "capacity DS 660B DualPath"] == ["at least this"]
    assert "the rates do not bracket it" in text(made)


def test_fig11_compares_the_literal_rate_and_an_equal_load() -> None:
    made = section("fig11", lambda case: like_the_paper(case, 1.1))
    assert named(made, "mean agent time, 0.45/s, at 0.495/s").ours == pytest.approx(1100, rel=0.01)
    assert named(made, "mean agent time, 0.45/s, literal").ours < 1050
    assert named(made, "mean agent time, 0.1/s, of agents that ended").ours == pytest.approx(575, rel=0.03)
    assert "Ours is 1.10 times that" in text(made)


@pytest.mark.parametrize(("waits_s", "holds"), [(9.0, True), (0.1, False)])
def test_fig12_judges_how_queues_grow(waits_s: float, holds: bool) -> None:
    def made(case: Case) -> Outcome:
        queue_s = waits_s if case.system == "basic" and (case.rate or 0) > 0.25 else 0.0
        return replace(outcome(1.0), stages=replace(FLAT, allocation_s=queue_s))

    assert ("does not hold" in text(section("fig12-left", made))) is not holds


def test_table3_at_an_equal_load_and_at_scale() -> None:
    made = section("table3-online", lambda case: like_the_paper(case, 1.1))
    equal = named(made, "TTFT, 2P4D 0.440/s, an equal load")
    assert equal.ours == pytest.approx(4 * 2.5 ** (8 * (0.4 / 0.45 - 1)), rel=0.01)
    assert named(made, "TPOT, 44P88D 8.8/s").holds
    assert named(made, "TTFT, 2P4D 0.4/s, literal").holds is None
    assert "44P88D over 2P4D at 22 times the rate, in brackets the paper's: TTFT 1.00 (1.06)" in text(made)


def test_working_set_of_both_layouts() -> None:
    made = section("working-set")
    assert named(made, "formula with the paper's T̄, 0.1/s, 48,068 B").ours == pytest.approx(0.1 * 575 * 55958 / 2 * 48068 / 1e9)
    assert named(made, "formula with the simulated T̄, 0.45/s, 48,068 B").ours == pytest.approx(665.7, rel=0.01)
    assert named(made, "formula with the paper's T̄, 0.45/s, 40,016 B").holds is False
    assert named(made, "measured, 0.1/s").ours == pytest.approx(100)
    assert "length bias" in text(made)


def test_contexts_are_longer_than_half_of_their_end() -> None:
    agent = mean_agent("64K")
    assert agent.turns_total == pytest.approx(agent.turns * agent.total_tokens, rel=0.05)
    assert agent.prompt_tokens > 1.1 * agent.turns_total / 2


def test_load_grows_with_the_age_of_the_oldest_agents() -> None:
    assert load_reached("64K", 0) == 0
    assert 0.5 < load_reached("64K", 157) < load_reached("64K", 800) < 1
    assert load_reached("64K", 2000) == 1


def test_pauses_leave_the_rate_and_stretch_the_rest() -> None:
    def made(case: Case) -> Outcome:
        return replace(like_the_paper(case), working_set_bytes=100e9 * (1 + case.gap_s / 5))

    found = section("tool-latency", made)
    assert named(found, "capacity, pauses of 15 s").ours == pytest.approx(0.45, rel=0.01)
    assert named(found, "working set, pauses of 15 s").ours == pytest.approx(400)
    assert named(found, "hits of 0.5 TB of DRAM, no pauses").ours == pytest.approx(50)
    assert "k^0.00" in text(found)
    assert "does not hold for agents a second; the k²-fold working set does not hold" in text(found)
    assert "agents that pause do not need fewer of them" in text(found)


def test_laws_are_judged_by_the_outcomes() -> None:
    def made(case: Case) -> Outcome:
        stretch = 1 + case.gap_s / 5
        return replace(outcome(5.0 if case.rate == 0.45 and stretch == 1 else 1.0, 785.0), working_set_bytes=1e9 * stretch**2)

    found = text(section("tool-latency", made))
    assert "the k²-fold working set holds" in found


def test_a_rate_runs_with_the_tiers_for_dualpath_only() -> None:
    assert case_at(DS_660B, "dualpath", 0.1).dram_tier_bytes
    assert not case_at(DS_660B, "basic", 0.1).dram_tier_bytes
