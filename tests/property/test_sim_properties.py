"""The simulator on random clusters and workloads: nothing is lost, bytes add up, nothing is over its capacity."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.sim_cases import Case, Run, cases, posted_bytes, run

from dualpath.dataflow.charges import Charge, charge
from dualpath.dataflow.plan import Plan, forward_moves
from dualpath.scheduling.decisions import Placed, Refused
from dualpath.scheduling.log import replay

SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large]
quick = settings(deadline=None, max_examples=25, suppress_health_check=SLOW_TO_DRAW)
all_cases = st.one_of(cases(), cases(crowded=True))
STAMP_ROUNDING_S = 1e-6
LATEST_ROUNDING = 1e-6


@dataclass(frozen=True)
class Attempt:
    """One placement of one turn, and what it moved outside of its forwards."""

    placed: Placed
    plan: Plan
    generated: int
    """Tokens that it has generated when it finished or had to leave."""


def attempts(finished: Run) -> Iterator[Attempt]:
    """Every attempt that was placed, with the number of tokens that it generated."""
    requests = {call.arguments[0].request_id: call.arguments[0] for call in finished.calls if call.method == "submit"}
    outputs = {name: request.max_output_tokens for name, request in requests.items()} | finished.restarted
    placements = [decision for call in finished.calls for decision in call.decisions if isinstance(decision, Placed)]
    spec = finished.case.spec
    for placed in placements:
        prompt_tokens = requests[placed.request_id].prompt_tokens
        plan = Plan(prompt_tokens, placed.share, spec.geometry, spec.prefill.layerwise, spec.transfers)
        yield Attempt(placed, plan, outputs[placed.request_id])


def charges_of(attempt: Attempt, finished: Run) -> Charge:
    """What an attempt has cost, by the moves of its plan, of its chunks, and of its output's whole blocks."""
    plan, chunks = attempt.plan, finished.chunks
    total = charge([*plan.storage_reads(), *plan.write_back()])
    for chunk in chunks:
        if chunk.request_id == attempt.placed.request_id:
            total = total.plus(charge(forward_moves(plan, chunk.cached, chunk.new)))
    if attempt.generated > 1:  # the first token was not the last
        total = total.plus(charge(plan.handoff()))
    return total.plus(output_charge(attempt, finished))


def output_charge(attempt: Attempt, finished: Run) -> Charge:
    """Writing the blocks that the output has completed."""
    geometry, prompt = finished.case.spec.geometry, attempt.plan.prompt_tokens
    stored = geometry.whole_blocks(prompt + attempt.generated - 1) - geometry.whole_blocks(prompt)
    written = stored * geometry.full_block_bytes if finished.case.spec.transfers else 0
    return Charge(de_snic_write=written, de_dram=written)


def expected_bytes(finished: Run) -> Mapping[str, float]:
    """By the name of a link what the plans of all attempts post on it."""
    prefills = {engine.name: engine for engine in finished.prefill_engines()}
    decodes = {engine.name: engine for engine in finished.decode_engines()}
    expected: defaultdict[str, float] = defaultdict(float)
    for attempt in attempts(finished):
        cost = charges_of(attempt, finished)
        prefill, decode = prefills[attempt.placed.prefill], decodes[attempt.placed.decode]
        for link, size in (
            (prefill.node.snic_read, cost.pe_snic_read),
            (decode.node.snic_read, cost.de_snic_read),
            (decode.node.snic_write, cost.de_snic_write),
            (prefill.cnic.read, cost.pe_cnic_read),
            (prefill.cnic.write, cost.pe_cnic_write),
            (decode.cnic.read, cost.de_cnic_read),
            (decode.cnic.write, cost.de_cnic_write),
            (prefill.node.dram, cost.pe_dram),
            (decode.node.dram, cost.de_dram),
        ):
            expected[link.name] += size
    return expected


def turns_of(finished: Run) -> dict[int, list[int]]:
    """Rows of the table by agent."""
    rows: dict[int, list[int]] = {}
    for row, agent in enumerate(finished.result.result.turns.columns.agent):
        rows.setdefault(agent, []).append(row)
    return rows


@quick
@given(case=all_cases)
def test_every_turn_is_answered_with_the_tokens_of_its_trajectory(case: Case) -> None:
    finished = run(case)
    table, block = finished.result.result.turns, case.spec.geometry.block_tokens
    columns, rows = table.columns, turns_of(finished)
    assert finished.simulation.progress.agents_done == len(case.workload.trajectories)
    assert finished.result.reasons == {}
    assert sorted(rows) == list(range(len(case.workload.trajectories)))
    for number, trajectory in enumerate(case.workload.trajectories):
        steps = list(trajectory.steps())
        mine = rows[number]
        assert [columns.turn[row] for row in mine] == list(range(len(steps)))
        assert [columns.prompt_tokens[row] for row in mine] == [step.prompt_tokens for step in steps]
        assert [columns.output_tokens[row] for row in mine] == [step.turn.requested_tokens for step in steps]
        assert [columns.hit_tokens[row] for row in mine] == [step.hit_tokens for step in steps]
        hits = [step.hit_tokens // block * block for step in steps]
        recomputes = case.spec.limits.recompute_when_faster
        assert all(
            columns.cached_tokens[row] in ({0, hit} if recomputes else {hit}) for row, hit in zip(mine, hits, strict=True)
        )
    assert all(columns.completed)
    generated = [attempt.generated for attempt in attempts(finished)]
    assert sum(generated) == sum(columns.output_tokens)
    steps_tokens = sum(group.tokens for group in finished.simulation.cluster.decode_groups)
    assert steps_tokens == sum(generated) - len(generated), "each attempt's first token comes from its prefill"


@quick
@given(case=cases(may_refuse=True))
def test_an_agent_ends_with_its_last_turn_or_its_first_refused_one(case: Case) -> None:
    finished = run(case)
    columns, rows = finished.result.result.turns.columns, turns_of(finished)
    assert finished.simulation.progress.agents_done == len(case.workload.trajectories)
    assert sum(finished.result.reasons.values()) == columns.completed.count(0)
    assert all("tokens" in reason for reason in finished.result.reasons)
    for number, trajectory in enumerate(case.workload.trajectories):
        completed = [columns.completed[row] for row in rows[number]]
        assert [columns.turn[row] for row in rows[number]] == list(range(len(completed)))
        assert all(completed[:-1])
        assert not completed[-1] or len(completed) == len(trajectory.turns)
    refused = sum(isinstance(decision, Refused) for call in finished.calls for decision in call.decisions)
    assert refused <= columns.completed.count(0)


@quick
@given(case=st.one_of(cases(transfers=True), cases(transfers=True, crowded=True)))
def test_every_link_carries_what_the_moves_of_all_turns_charge(case: Case) -> None:
    finished = run(case)
    expected = expected_bytes(finished)
    for link in finished.links():
        assert posted_bytes(link) == pytest.approx(expected[link.name], rel=1e-9, abs=1e-3), link.name


@quick
@given(case=cases(transfers=True))
def test_storage_reads_the_hits_and_writes_every_new_whole_block(case: Case) -> None:
    finished = run(case)
    if finished.result.preempted:
        return
    geometry, columns = case.spec.geometry, finished.result.result.turns.columns
    nodes = finished.simulation.cluster.nodes
    read = sum(posted_bytes(node.snic_read) for node in nodes)
    written = sum(posted_bytes(node.snic_write) for node in nodes)
    assert read == pytest.approx(sum(columns.cached_tokens) * geometry.token_bytes)
    counts = zip(columns.prompt_tokens, columns.output_tokens, columns.cached_tokens, strict=True)
    new_blocks = sum(geometry.whole_blocks(prompt + output - 1) - geometry.whole_blocks(hit) for prompt, output, hit in counts)
    assert written == pytest.approx(new_blocks * geometry.full_block_bytes)


@settings(quick, max_examples=20)
@given(case=st.one_of(cases(transfers=False), cases(transfers=False, crowded=True)))
def test_an_oracle_moves_no_bytes_and_holds_no_buffers(case: Case) -> None:
    finished = run(case)
    assert not any(posted_bytes(link) for link in finished.links())
    assert not any(node.buffer.most_used for node in finished.simulation.cluster.nodes)
    assert finished.simulation.progress.agents_done == len(case.workload.trajectories)


@quick
@given(case=st.one_of(all_cases, cases(may_refuse=True)))
def test_nothing_is_over_its_capacity_and_all_is_given_back(case: Case) -> None:
    finished = run(case, watched=True)
    for node in finished.simulation.cluster.nodes:
        assert node.buffer.most_used <= node.buffer.capacity
        assert (node.buffer.used, node.buffer.waiting) == (0, 0), node.name
    for decode in finished.decode_engines():
        assert decode.most_used_blocks <= case.spec.decode.kv_blocks
        held = (decode.used_blocks, decode.promised_blocks, decode.admitted, decode.unread_tokens, decode.context_tokens)
        assert held == (0, 0, 0, 0, 0), decode.name
        assert not decode.running
        assert not decode.waiting
    assert not any(prefill.ready for prefill in finished.prefill_engines())
    assert not finished.simulation.cluster.unfinished
    utilisation = finished.result.result.utilisation
    assert utilisation is not None
    for name, series in utilisation.series.items():
        assert all(-LATEST_ROUNDING <= share <= 1 + LATEST_ROUNDING for share in series), name


@quick
@given(case=all_cases)
def test_prefill_batches_keep_to_their_rows_and_compute_every_miss_once(case: Case) -> None:
    finished = run(case)
    for group in finished.simulation.cluster.prefill_groups:
        assert group.most_kv_rows <= case.spec.prefill_kv_rows
    for attempt in attempts(finished):
        mine = [chunk for chunk in finished.chunks if chunk.request_id == attempt.placed.request_id]
        ends = [attempt.plan.hit_tokens, *(chunk.cached + chunk.new for chunk in mine)]
        assert [chunk.cached for chunk in mine] == ends[:-1]
        assert ends[-1] == attempt.plan.prompt_tokens
        assert [chunk.last for chunk in mine] == [False] * (len(mine) - 1) + [True]


@quick
@given(case=all_cases)
def test_the_stamps_of_a_turn_are_in_order(case: Case) -> None:
    finished = run(case)
    columns = finished.result.result.turns.columns
    latencies = case.spec.latencies
    for row, output in enumerate(columns.output_tokens):
        sent_s, first_s, last_s = columns.submitted_s[row], columns.first_token_s[row], columns.last_token_s[row]
        stages = [getattr(columns, f"{name}_s")[row] for name in ("scheduling", "allocation", "read", "prefill")]
        assert all(stage >= 0 for stage in stages)
        assert stages[0] >= latencies.turn_s - STAMP_ROUNDING_S
        assert sum(stages) == pytest.approx(first_s - sent_s, rel=1e-5, abs=STAMP_ROUNDING_S)
        if output == 1:
            assert math.isnan(columns.second_token_s[row])
            assert first_s == last_s
        else:
            assert first_s < columns.second_token_s[row] <= last_s
        assert columns.finished_s[row] == last_s + latencies.finish_s
    for mine in turns_of(finished).values():
        for before, after in pairwise(mine):
            assert columns.finished_s[before] <= columns.submitted_s[after] + STAMP_ROUNDING_S
    assert list(columns.last_token_s) == sorted(columns.last_token_s), "turns are listed as they end"


@settings(quick, max_examples=20)
@given(case=st.one_of(all_cases, cases(may_refuse=True)))
def test_the_same_case_runs_alike_and_its_decisions_replay(case: Case) -> None:
    first, second = run(case), run(case, watched=True)
    assert first.lines == second.lines
    mine, others = first.result.result.turns.columns, second.result.result.turns.columns
    assert all(getattr(mine, name).tobytes() == getattr(others, name).tobytes() for name in mine._fields)
    assert replay(first.lines) == []
    status = first.simulation.cluster._scheduler.status()
    assert (status.waiting, status.placed, status.late_events) == (0, 0, 0)
    for engine in status.engines.values():
        assert (engine.requests, engine.tokens, engine.unread_tokens, engine.reserved_blocks) == (0, 0, 0, 0)
