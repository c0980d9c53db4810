"""Experiments beyond the paper, on outcomes that are made up: their text says what the numbers say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dualpath.errors import SettingsError
from dualpath.evaluation.beyond import BEYOND
from dualpath.evaluation.elastic import bound
from dualpath.evaluation.lab import GATHERED_CHUNK_TOKENS, IN_PLACE_CHUNK_TOKENS, NEW_WEIGHT, POLICIES, Case, Lab, spec_of
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Section
from dualpath.types import Role
from dualpath.workload.metrics import Summary
from dualpath.workload.report import NodeCounters
from dualpath.workload.timeline import StageDurations

EXPERIMENTS = {experiment.key: experiment for experiment in BEYOND}


def flat(value: float) -> Summary:
    return Summary(value, value, value, value)


def outcome(jct_s: float = 1000.0, ttft_s: float = 2.0, tpot_s: float = 0.04, read: int = 100, turns: int = 1000) -> Outcome:
    return Outcome(
        jct_s=jct_s,
        turns=turns,
        failed=0,
        preempted=0,
        ttft_s=flat(ttft_s),
        ttst_s=flat(0.2),
        tpot_s=flat(tpot_s),
        latency_s=flat(6.0),
        stages=StageDurations(0.5, 0.0, ttft_s / 10, 0.4),
        agent_s=600.0,
        turn_agent_s=600.0,
        prompt_tokens=1,
        prompt_tokens_per_s=1.0,
        storage_max_over_mean=None,
        storage_windows=None,
        attention_max_over_mean=None,
        working_set_bytes=1.0,
        nodes=[NodeCounters("decode-0", Role.DECODE, read, 0, 1.0, 0.0)],
        utilisation=None,
        prefill_busy=0.75,
        decode_busy=0.9,
        wall_s=0.0,
    )


def section(key: str, made_up: Callable[[Case], Outcome]) -> Section:
    """Every picture has points, and every case is asked for once."""
    experiment = EXPERIMENTS[key]
    cases = experiment.cases()
    assert len(set(cases)) == len(cases)
    found = experiment.section(Lab(_done={case: made_up(case) for case in cases}))
    assert found.key == key
    assert found.pictures
    assert all(series.points for picture in found.pictures for series in picture.series)
    return found


def text(key: str, made_up: Callable[[Case], Outcome]) -> str:
    return " ".join(section(key, made_up).text)


def test_every_question_is_asked() -> None:
    assert list(EXPERIMENTS) == ["split", "resident", "ttft-tail", "elastic-ratio"]


def test_split_says_where_it_saves() -> None:
    def saves(case: Case) -> Outcome:
        slow = case.snic_bandwidth is not None and case.rate is None
        return outcome(jct_s=900.0 if slow and case.system == "dualpath-split" else 1000.0)

    found = text("split", saves)
    assert "Splitting saves 10.0% of the JCT of 512 agents, NICs of 10 GB/s" in found
    assert "nowhere worse by more than 2%" in found
    assert "In 8 of 10 comparisons the difference is at most 2% (the change is -0.0% to -0.0%; one seed each)" in found


def test_split_that_saves_nothing_is_not_recommended() -> None:
    assert "not worth its complication" in text("split", lambda case: outcome())


def test_split_may_cost_something() -> None:
    found = text("split", lambda case: outcome(ttft_s=2.2 if case.system == "dualpath-split" else 2.0))
    assert "It costs 10.0% of the TTFT mean at 0.2 agents/s" in found


def test_resident_names_winners_losers_and_the_objective() -> None:
    def made_up(case: Case) -> Outcome:
        if not case.policy:
            return outcome(jct_s=1000.0 if case.free.request_context_s else 500.0)
        wins = case.policy == "resident-in-place" and case.agents == 2048
        return outcome(jct_s=400.0 if wins else 1500.0, tpot_s=0.045 if wins else 0.08, read=25)

    found = text("resident", made_up)
    where = "wins at 2,048 agents, 64K, H800, 26 GB of KV a GPU (JCT"
    assert f"in place, against DualPath, in place: {where} -20%, TPOT 45 ms, 75% of reads saved)" in found
    assert f"engines only, against DualPath: {where} -60%" in found  # not the reload's alone: the control has -50 %
    assert "has a JCT of -50% (128 agents" in found
    assert "Resident, gathered, against DualPath: loses at 128 agents" in found
    assert "DualPath: 0; resident, gathered: 8; DualPath, in place: 0; resident, in place: 5" in found
    assert "by sparing the reload: 2,048 agents, 64K, H800, 26 GB of KV a GPU (resident, in place)" in found
    assert "idle, in place, 25%" in found
    assert "Nowhere is one faster within it" in text("resident", lambda case: outcome())


@pytest.mark.parametrize(("turns", "says"), [(1000, "the knob helps"), (900, "the knob does not pay")])
def test_the_tail_is_judged_by_p99_and_throughput(turns: int, says: str) -> None:
    found = text("ttft-tail", lambda case: outcome(ttft_s=1.8, turns=turns) if case.policy else outcome())
    assert f"44P88D: {says}: p99 2.00 to 1.80 s; by seed -10.0% (" in found


def test_seeds_that_disagree_are_no_effect() -> None:
    def made_up(case: Case) -> Outcome:
        return outcome(ttft_s=2.0 + (0.1 if case.seed else -0.1) * bool(case.policy))

    found = text("ttft-tail", made_up)
    assert (
        "the knob has no clear effect, with a longer tail in 2 of 3 seeds: p99 2.00 to 2.03 s; by seed -5.0%, +5.0%, +5.0%"
        in found
    )
    assert "44P88D: the knob helps" in found


def test_a_bound_changes_roles_only_where_that_pays() -> None:
    times = {("a", 1): 100.0, ("a", 2): 200.0, ("b", 1): 300.0, ("b", 2): 150.0}
    found = bound(times, ["a", "b"], 30.0)
    assert (found.fixed, found.fixed_s, found.elastic_s) == (2, 350.0, 280.0)
    assert found.best == {"a": 1, "b": 2}
    assert found.saved == pytest.approx(0.2)
    assert found.free_s == 250.0
    dear = bound(times, ["a", "b"], 1000.0)
    assert (dear.best, dear.saved) == ({"a": 2, "b": 2}, 0.0)


def test_elastic_says_what_can_be_gained() -> None:
    def made_up(case: Case) -> Outcome:
        best = 4 if case.append_scale > 1 else 2
        return outcome(jct_s=1000.0 + 500.0 * abs(case.prefill - best))

    found = text("elastic-ratio", made_up)
    assert "4P2D for the append-heavy phase, 2P4D for the generation-heavy phase" in found
    assert "at most 32.3% can be saved" in found
    assert "against 2P4D, 1P5D +33%, 3P3D +0%" in found
    same = text("elastic-ratio", lambda case: outcome(jct_s=1000.0 + case.prefill))
    assert "nothing to gain from adapting: 1P5D is the best fixed ratio" in same
    assert "would save 0.0%" in same


def test_policies_change_what_they_say_and_nothing_else() -> None:
    specs = {policy: spec_of(Case(policy=policy)) for policy in POLICIES}
    plain = specs[""]
    assert not plain.resident
    assert plain.limits.prefill_new_weight == 0
    gathered, in_place = specs["resident"], specs["resident-in-place"]
    assert (gathered.resident_chunk_tokens, in_place.resident_chunk_tokens) == (GATHERED_CHUNK_TOKENS, IN_PLACE_CHUNK_TOKENS)
    assert gathered.resident_attention is None
    assert in_place.resident_attention is not None
    assert in_place.resident_attention(32_000, 1) < plain.prefill.attention_time(32_000, 1)
    assert specs["new-weight"] == replace(plain, limits=replace(plain.limits, prefill_new_weight=NEW_WEIGHT))
    with pytest.raises(SettingsError, match="'nonsense' is none of"):
        spec_of(Case(policy="nonsense"))


def test_a_small_run_of_every_policy_serves_everyone() -> None:
    lab = Lab(effort=0.01)
    outcomes = lab.outcomes([Case(agents=800, dataset="32K", policy=policy) for policy in POLICIES])
    assert {found.failed for found in outcomes.values()} == {0}
    assert len({found.turns for found in outcomes.values()}) == 1
    reads = {case.policy: sum(node.storage_read_bytes for node in found.nodes) for case, found in outcomes.items()}
    assert reads["resident"] == reads["resident-in-place"] == 0 < reads[""]
