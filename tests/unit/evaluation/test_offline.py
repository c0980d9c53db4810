"""Offline experiments, on outcomes that are made up; the tables that need none, in full."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from tests.support.canned_lab import CannedLab, named, text

from dualpath.costmodel.calibration import DEFAULT
from dualpath.evaluation.ablation import ABLATION
from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.figures_static import STATIC
from dualpath.evaluation.lab import Case, Lab, run_case
from dualpath.evaluation.offline import OFFLINE
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.scale import LARGE, SCALE
from dualpath.evaluation.section import Section
from dualpath.evaluation.small_model import SMALL_MODEL
from dualpath.types import Role
from dualpath.workload.metrics import Summary
from dualpath.workload.report import NodeCounters, Utilisation
from dualpath.workload.timeline import StageDurations

SIMULATED = (*OFFLINE, *SMALL_MODEL, *ABLATION, *SCALE)
EXPERIMENTS = {experiment.key: experiment for experiment in (*STATIC, *SIMULATED)}
SIMULATED_KEYS = [experiment.key for experiment in SIMULATED]
RATE = 30e9
FLAT = Summary(1.0, 1.0, 1.0, 1.0)
LADDER_JCT_S = {"basic": 10_000.0, "basic+layerwise": 8000.0, "basic+layerwise+dual-path": 6500.0, "dualpath": 5000.0}
EVEN_READS = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def outcome(jct_s: float = 5000.0, reads: tuple[float, ...] = EVEN_READS, prefill_read_share: float = 0.95) -> Outcome:
    """A run of 2P4D whose storage NICs read so much in its first window, and half as much in the second."""
    read_bytes = round(prefill_read_share * jct_s * RATE)
    names = ["prefill-node-0", "prefill-node-1", *(f"decode-node-{number}" for number in range(4))]
    return Outcome(
        jct_s=jct_s,
        turns=1000,
        failed=0,
        preempted=0,
        ttft_s=FLAT,
        ttst_s=FLAT,
        tpot_s=FLAT,
        latency_s=FLAT,
        stages=StageDurations(0.5, 0.0, 0.1, 0.4),
        agent_s=600.0,
        turn_agent_s=600.0,
        prompt_tokens=10**9,
        prompt_tokens_per_s=6e7,
        storage_max_over_mean=1.5,
        storage_windows=1.5,
        attention_max_over_mean=1.06,
        working_set_bytes=1e11,
        nodes=[NodeCounters(name, Role(name.split("-")[0]), read_bytes, 0, RATE, 0.0) for name in names],
        utilisation=Utilisation(
            10.0, {f"{name} SNIC read": [share, share / 2] for name, share in zip(names, reads, strict=True)}
        ),
        prefill_busy=0.96,
        decode_busy=0.9,
        wall_s=1.0,
        scheduler_cpu_s=500.0,
    )


def like_the_paper(case: Case) -> Outcome:
    """Basic takes twice as long as DualPath; the time goes with the agents."""
    return outcome(LADDER_JCT_S.get(case.system, 4500.0) * case.agents / 2048 / (case.prefill / 2))


def section(key: str, made: Callable[[Case], Outcome] = like_the_paper) -> Section:
    return EXPERIMENTS[key].section(CannedLab(made=made))


@cache
def static(key: str) -> Section:
    return EXPERIMENTS[key].section(Lab())


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda one: one.key)
def test_sections_ask_for_the_cases_that_are_announced(experiment: Experiment) -> None:
    lab = CannedLab(made=like_the_paper)
    made = experiment.section(lab) if experiment in SIMULATED else static(experiment.key)
    assert made.key == experiment.key
    assert lab.asked == set(experiment.cases())
    assert made.text
    assert all(made.text)
    names = [value.name for value in made.values]
    assert len(names) == len(set(names))
    assert all(picture.series for picture in made.pictures)


@pytest.mark.parametrize("experiment", SIMULATED, ids=lambda one: one.key)
def test_what_was_not_measured_is_no_error(experiment: Experiment) -> None:
    bare = replace(
        outcome(),
        storage_max_over_mean=None,
        storage_windows=None,
        attention_max_over_mean=None,
        utilisation=None,
        nodes=(),
        scheduler_cpu_s=None,
    )
    assert experiment.section(CannedLab(made=lambda case: bare)).text


@pytest.mark.parametrize("experiment", SIMULATED, ids=lambda one: one.key)
def test_all_agents_start_together_and_nothing_is_tuned(experiment: Experiment) -> None:
    for case in experiment.cases():
        assert case.rate is None
        assert case.free == DEFAULT


def test_keys_are_unique() -> None:
    assert len(EXPERIMENTS) == len((*STATIC, *SIMULATED))


def test_table_1() -> None:
    judged = [value for value in static("table1").values if value.holds is not None]
    assert len(judged) == 11
    assert all(value.holds for value in judged)
    inexact = [value for value in judged if value.name.startswith("DeepSeek-V3,")]
    assert all(value.error is not None and -0.11 < value.error < -0.08 for value in inexact)


def test_table_2() -> None:
    values = static("table2").values
    assert len(values) == 15
    assert all(value.error is not None and abs(value.error) < 0.02 for value in values)


def test_two_readings_give_the_trend() -> None:
    found = static("fig3")
    assert named(found, "fall of I/O to compute, with the NIC unchanged").holds
    assert named(found, "fall of I/O to compute, with twice the NIC and fp4").holds
    batches = next(picture for picture in found.pictures if "throughput" in picture.title)
    for series in batches.series:
        heights = [y for _, y in series.points]
        assert heights == sorted(heights)
        assert heights[-1] == 1.0


def test_only_the_three_points_are_calibrated() -> None:
    calibrated = {(key, value.name) for key in SIMULATED_KEYS for value in section(key).values if value.calibrated}
    assert calibrated == {
        ("fig7", "JCT Basic, 2,048 agents"),
        ("fig7", "JCT Oracle, 4,096 agents"),
        ("fig7", "JCT Oracle, 512 agents"),
        ("fig12-right", "JCT Basic"),
    }


def test_the_ladder_cuts_what_it_cuts() -> None:
    found = section("fig12-right")
    assert named(found, "JCT cut, + layerwise").ours == pytest.approx(20.0)
    assert named(found, "JCT cut, + dual path").ours == pytest.approx(35.0)
    assert named(found, "JCT + scheduling").holds
    assert "It cannot gain" not in text(found)


def test_layer_by_layer_gains_no_more_than_nics_are_idle() -> None:
    found = section("fig12-right", lambda case: outcome(9800.0 if "+" in case.system else 10_000.0, prefill_read_share=0.9))
    assert "cuts 2.0 %" in text(found)
    assert "at most 10.0% can be won" in text(found)


def test_reads_count_by_window_and_by_what_is_read() -> None:
    found = section("fig13", lambda case: outcome(reads=(1.0, 1.0, 0.5, 0.5, 0.5, 0.5)))
    value = named(found, "SNIC max/mean in windows, round robin")
    assert value.ours == pytest.approx(1.5)
    assert value.holds
    assert named(found, "SNIC max/mean in windows, DualPath").holds is False
    over_time = found.pictures[0]
    assert [series.paper for series in over_time.series] == [False, True, False, True]
    assert over_time.series[0].points == [(5.0, 1.5), (15.0, 1.5)]


def test_equal_numbers_of_nics_are_compared() -> None:
    found = section("fig8", lambda case: outcome(1000.0 if case.system == "dualpath" else 1000.0 * case.decode))
    assert named(found, "Basic 1P1D / Basic 1P2D, 64K").ours == pytest.approx(0.5)
    assert named(found, "DualPath 2P1D / DualPath 1P2D, 64K").holds
    assert named(found, "best JCT ratio Basic / DualPath").ours == pytest.approx(2.0)


def test_storage_that_does_not_limit_is_named_where_equalities_fail() -> None:
    idle = section("fig8", lambda case: outcome(1000.0 * case.decode, prefill_read_share=0.5))
    assert "Storage is not the only limit" in text(idle)
    assert "Storage is not the only limit" not in text(section("fig8", lambda case: outcome(prefill_read_share=0.5)))


def test_nics_that_read_unevenly_are_named() -> None:
    uneven = outcome(1000.0, prefill_read_share=0.4)
    nodes = [replace(node, storage_read_bytes=round(2.25 * node.storage_read_bytes)) for node in uneven.nodes[2:]]
    uneven = replace(uneven, nodes=[*uneven.nodes[:2], *nodes])
    assert "40% of what prefill nodes' NICs could and 90% of decode nodes'" in text(section("fig8", lambda case: uneven))
    assert "unevenly" not in text(section("fig8"))


def test_scaled_lengths_say_how_trajectories_are_cut() -> None:
    found = section("fig9", lambda case: outcome(2000.0 / case.append_scale if case.system == "basic" else 1000.0))
    assert named(found, "largest ratio").ours == pytest.approx(4.0)
    assert named(found, "ratio at append x 2 / at x 1").ours == pytest.approx(0.5)
    assert named(found, "ratio at append x 1 / at x 0.5").holds
    assert "0.5 and 1: 100% of the turns" in text(found)


def test_failed_turns_are_told() -> None:
    found = section("fig7", lambda case: replace(outcome(), failed=1))
    assert "12 turns failed" in text(found)


def test_the_scheduler_s_cores_are_processor_time_over_virtual_time() -> None:
    found = section("scheduler", lambda case: outcome(1000.0))
    assert named(found, "scheduler at 48P96D").ours == pytest.approx(0.5)
    assert named(found, "scheduler at 48P96D").holds


def test_a_timed_scheduler_decides_the_same() -> None:
    case = Case(agents=4, dataset="32K")
    timed, plain = run_case(replace(case, time_scheduler=True)), run_case(case)
    assert timed.jct_s == plain.jct_s
    assert timed.turns == plain.turns
    assert plain.scheduler_cpu_s is None
    assert timed.scheduler_cpu_s is not None
    assert 0 < timed.scheduler_cpu_s < timed.wall_s


def test_the_large_cluster_is_24_times_the_small_one() -> None:
    assert (LARGE.prefill, LARGE.decode, LARGE.agents) == (48, 96, 24 * 2048)
