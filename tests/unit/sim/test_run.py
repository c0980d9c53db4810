"""Whole runs by hand: exact stamps of turns on every read path, refusals, preemption, and clusters that are stuck."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.sim_cases import Case, plain_cluster, posted_bytes, run

from dualpath.costmodel.timing import DecodeTime
from dualpath.errors import ClusterError, SettingsError
from dualpath.settings import ReadSidePolicy
from dualpath.sim.run import SimProgress, Simulation, SimWorkload, simulate
from dualpath.sim.spec import ClusterSpec, Latencies
from dualpath.workload.agent import theoretical_hits
from dualpath.workload.trajectory import Trajectory, Turn

LATENCIES = Latencies(turn_s=0.5, read_s=0.25, handoff_s=0.125, finish_s=1.0)
TWO_TURNS = Trajectory("a", (Turn(9, 1), Turn(3, 3, gap_s=7.0)))
"""The second turn's prompt has 13 tokens, 8 of them a hit."""


def workload(*trajectories: Trajectory, arrivals_s: list[float] | None = None, gaps: bool = False) -> SimWorkload:
    return SimWorkload(trajectories, arrivals_s or [0.0] * len(trajectories), gaps)


def once(name: str, prompt: int, output: int) -> Trajectory:
    return Trajectory(name, (Turn(prompt, output),))


def stamps(spec: ClusterSpec, given: SimWorkload, row: int) -> dict[str, float]:
    """A turn's stamps, in seconds since it was sent."""
    columns = simulate(spec, given).result.turns.columns
    sent_s = columns.submitted_s[row]
    placed_s = columns.scheduling_s[row]
    granted_s = placed_s + columns.allocation_s[row]
    return {
        "placed": placed_s,
        "granted": granted_s,
        "read": granted_s + columns.read_s[row],
        "first": columns.first_token_s[row] - sent_s,
        "second": columns.second_token_s[row] - sent_s,
        "last": columns.last_token_s[row] - sent_s,
        "finished": columns.finished_s[row] - sent_s,
    }


def expected(read_s: float, step_s: float, copy_s: float) -> dict[str, float]:
    """Placed at once; then the read, the prefill step, the copy into HBM, and two decode steps of 0.2 s."""
    read = 0.5 + read_s
    first = read + step_s
    second = first + copy_s + 0.125 + 0.2
    return {
        "placed": 0.5,
        "granted": 0.5,
        "read": read,
        "first": first,
        "second": second,
        "last": second + 0.2,
        "finished": second + 0.2 + 1.0,
    }


PATHS: list[tuple[str, dict[str, Any], dict[str, float]]] = [
    # 8 tokens at 10 a second; 5 new ones, behind 8 + 8 + 5 tokens on the prefill engine's NIC; 13 tokens into HBM
    ("prefill side", {"read_side": ReadSidePolicy.PREFILL}, expected(0.8 + 0.25, 0.5 + 0.21 / 2, 0.13)),
    # a prefill buffer too small for anything; 8 tokens in through the decode engine's NIC
    ("decode side", {"prefill_buffer": 0}, expected(0.8 + 0.25, 0.5 + 0.08 / 2, 0.13)),
    # 4 tokens on each side; the prefill engine's NIC reads 4 + 4 + 5
    ("both sides", {"read_side": ReadSidePolicy.SPLIT}, expected(0.4 + 0.25, 0.5 + 0.13 / 2, 0.13)),
    # 8 tokens in, compute, 13 tokens out
    ("not layerwise", {"layerwise": False}, expected(0.8 + 0.25, 0.08 + 0.5 + 0.13, 0.13)),
    # nothing moves
    ("oracle", {"transfers": False}, expected(0.0, 0.5, 0.0)),
]


@pytest.mark.parametrize(("changes", "found"), [path[1:] for path in PATHS], ids=[path[0] for path in PATHS])
def test_every_stamp_of_a_turn_with_a_hit(changes: dict[str, Any], found: dict[str, float]) -> None:
    assert stamps(plain_cluster(latencies=LATENCIES, **changes), workload(TWO_TURNS), 1) == pytest.approx(found)


def test_a_turn_without_a_hit_reads_nothing_and_one_token_needs_no_decoding() -> None:
    found = stamps(plain_cluster(latencies=LATENCIES), workload(TWO_TURNS), 0)
    first = 0.5 + 0.9 + 0.09 / 2
    assert found.pop("second") != found.get("second"), "never"
    assert found == pytest.approx(
        {"placed": 0.5, "granted": 0.5, "read": 0.5, "first": first, "last": first, "finished": first + 1.0}
    )


@pytest.mark.parametrize("gaps", [False, True])
def test_an_agent_sends_its_next_turn_when_it_has_the_answer_and_has_paused(gaps: bool) -> None:
    columns = simulate(
        plain_cluster(latencies=LATENCIES), workload(TWO_TURNS, arrivals_s=[2.0], gaps=gaps)
    ).result.turns.columns
    assert columns.submitted_s[0] == pytest.approx(2.0)
    assert columns.submitted_s[1] == pytest.approx(columns.finished_s[0] + (7.0 if gaps else 0.0))


def test_a_hit_that_is_still_being_written_is_waited_for() -> None:
    slow = plain_cluster()
    slow = replace(slow, node=replace(slow.node, snic_write=8.0))  # 8 tokens of 10 bytes in 10 s
    columns = simulate(slow, workload(TWO_TURNS)).result.turns.columns
    assert columns.submitted_s[1] + columns.scheduling_s[1] == pytest.approx(columns.last_token_s[0] + 10.0)


def test_a_buffer_that_is_taken_is_waited_for() -> None:
    spec = plain_cluster(decode_buffer=12)
    found = stamps(spec, workload(once("a", 9, 1), once("b", 7, 1)), 1)
    # Its place is free when 8 of the 9 tokens are written, at 20 a second.
    first_s = 0.9 + 0.09 / 2
    assert found["placed"] == 0.0
    assert found["granted"] == pytest.approx(first_s + 0.4)


def test_engines_that_are_free_work_side_by_side() -> None:
    spec = plain_cluster(prefill_nodes=2, decode_nodes=2, transfers=False)
    spec = replace(spec, prefill=replace(spec.prefill, step_nodes=1))
    columns = simulate(spec, workload(once("a", 10, 3), once("b", 10, 3))).result.turns.columns
    assert list(columns.first_token_s) == pytest.approx([1.0, 1.0])
    assert list(columns.last_token_s) == pytest.approx([1.4, 1.4])


def test_what_no_engine_could_hold_is_refused_with_a_reason() -> None:
    agent = Trajectory("a", (Turn(9, 1), Turn(50, 3), Turn(1, 1)))
    outcome = simulate(plain_cluster(kv_blocks=12), workload(agent, once("b", 4, 1)))
    (reason,) = outcome.reasons
    assert "needs 16 KV blocks above the watermark of a decode engine, the most there is 12" in reason
    columns = outcome.result.turns.columns
    rows = {(agent, turn): done for agent, turn, done in zip(columns.agent, columns.turn, columns.completed, strict=True)}
    assert rows == {(0, 0): 1, (0, 1): 0, (1, 0): 1}, "its agent gives up"


def test_a_prompt_beyond_a_prefill_engines_memory_is_refused_with_a_reason() -> None:
    spec = plain_cluster()
    spec = replace(spec, prefill=replace(spec.prefill, kv_bytes=20 * 5.0))  # layerwise: 20 tokens of one layer
    assert list(simulate(spec, workload(once("a", 21, 2))).reasons) == [
        "a prompt of 21 tokens exceeds the 20 tokens of KV that a prefill batch may hold"
    ]
    assert simulate(spec, workload(once("a", 20, 2))).reasons == {}


def test_a_preempted_turn_keeps_its_tokens_and_its_first_stamps() -> None:
    finished = run(Case(plain_cluster(kv_blocks=4, transfers=False), workload(once("old", 4, 8), once("young", 3, 8))))
    assert finished.restarted == {"2": 3}, "the young one's first token and two steps'"
    assert finished.result.preempted == 1
    columns = finished.result.result.turns.columns
    assert list(columns.output_tokens) == [8, 8]
    old_s, young_s = 0.4, 0.7  # first tokens; two steps alone, two together until the old one needs a block, three alone
    together_s = old_s + 2 * 0.2
    left_s = together_s + 2 * 0.3
    assert list(columns.first_token_s) == pytest.approx([old_s, young_s])
    assert list(columns.second_token_s) == pytest.approx([old_s + 0.2, together_s + 0.3])
    old_ends_s = left_s + 3 * 0.2
    # Placed again by the next fetch, it computes 2 of its 6 tokens of prompt; that is its fourth token, four steps follow.
    fetch_s, young_ends_s = 0.05, old_ends_s + 0.2 + 4 * 0.2
    assert columns.last_token_s[0] == pytest.approx(old_ends_s)
    assert young_ends_s < columns.last_token_s[1] <= young_ends_s + fetch_s + 1e-9


def test_a_place_in_the_buffer_outlives_a_preemption_until_it_is_written() -> None:
    """A prompt that is still being written back when its request has to leave keeps its place, and gives that back once."""
    spec = plain_cluster(kv_blocks=4)
    spec = replace(spec, node=replace(spec.node, snic_write=4.0))  # 10 s a block
    finished = run(Case(spec, workload(once("a", 4, 8), once("b", 4, 8))), watched=True)
    assert finished.result.preempted == 1
    (decode,) = finished.simulation.cluster.decode_nodes
    assert (decode.buffer.used, decode.buffer.most_used) == (0, 4 + 4)
    assert finished.result.result.turns.completed() == 2


@pytest.mark.parametrize("output", [4, 5, 6])
def test_a_long_wait_for_a_busy_engine_is_not_a_stuck_cluster(output: int) -> None:
    spec = plain_cluster(prefill_nodes=3, kv_blocks=4)  # of four fetches, one can place the second turn
    outcome = simulate(spec, workload(once("a", 11, output), once("b", 11, 6)))
    first, second = sorted(
        zip(outcome.result.turns.columns.first_token_s, outcome.result.turns.columns.last_token_s, strict=True)
    )
    assert second[0] > first[1]
    assert outcome.result.turns.completed() == 2


def test_a_cluster_that_takes_nothing_is_an_error_not_an_endless_run() -> None:
    with pytest.raises(ClusterError, match="the cluster is stuck"):
        simulate(plain_cluster(beta_s=-1.0), workload(once("a", 9, 1)))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_cluster_without_a_rate_is_no_cluster(rate: float) -> None:
    spec = plain_cluster()
    with pytest.raises(SettingsError, match="snic read rate must be positive"):
        replace(spec, node=replace(spec.node, snic_read=rate))


def test_a_cluster_whose_engines_decode_nothing_is_no_cluster() -> None:
    spec = plain_cluster()
    with pytest.raises(SettingsError, match="decode batch must be positive"):
        replace(spec, decode=replace(spec.decode, max_batch=0))


def test_a_hit_that_is_computed_anew_is_not_reported_as_cached() -> None:
    spec = plain_cluster()
    spec = replace(spec, limits=replace(spec.limits, recompute_when_faster=True, prefill_tokens_per_s=1e6))
    columns = simulate(spec, workload(TWO_TURNS)).result.turns.columns
    assert list(columns.cached_tokens) == [0, 0]
    assert columns.first_token_s[1] - columns.submitted_s[1] >= 1.3, "all 13 tokens"


def test_the_run_ends_when_the_last_agent_has_its_answer() -> None:
    result = simulate(plain_cluster(latencies=LATENCIES), workload(TWO_TURNS)).result
    assert result.wall_s == pytest.approx(max(result.turns.columns.finished_s))


def test_a_run_may_be_stopped_early() -> None:
    spec = plain_cluster()
    slow = replace(spec, decode=replace(spec.decode, time=DecodeTime(2, 5.0, 0.0)))
    seen: list[int] = []

    def enough(progress: SimProgress, _: object) -> bool:
        seen.append(progress.turns_done)
        return progress.turns_done > 0

    many = Trajectory("a", tuple(Turn(1, 3) for _ in range(50)))
    outcome = Simulation(slow, workload(many), stop=enough).run()
    assert 0 < outcome.result.turns.completed() < 50
    assert seen[-1] == outcome.result.turns.completed()


def test_counters_of_nodes_are_the_bytes_of_their_links() -> None:
    finished = run(Case(plain_cluster(), workload(TWO_TURNS)))
    prefill, decode = finished.result.result.nodes
    assert (prefill.storage_read_bytes, prefill.storage_write_bytes) == (80, 0)
    assert (decode.storage_read_bytes, decode.storage_write_bytes) == (0, 80 + 40)
    assert prefill.cnic_read_bytes == (9 + 21) * 10
    assert prefill.cnic_write_bytes == 8 * 10
    assert decode.cnic_read_bytes == 13 * 10
    assert decode.cnic_write_bytes == (9 + 13 + 13) * 10
    assert prefill.attention_s == pytest.approx(0.9 + 0.5)
    assert decode.attention_s == pytest.approx(0.4)
    assert prefill.peak_kv_bytes == 13 * 5
    assert sum(map(posted_bytes, finished.links())) > 0


def test_theoretical_hits_are_whole_blocks() -> None:
    assert theoretical_hits([TWO_TURNS, TWO_TURNS], 4) == 16


def test_a_workload_has_an_arrival_for_each_agent() -> None:
    with pytest.raises(ValueError, match="1 trajectories with 0 arrivals"):
        SimWorkload([TWO_TURNS], [])


def test_hits_that_wait_for_a_buffer_stay_in_the_schedulers_read_queue() -> None:
    """Reports may take off the ledger only what has been read, not what still waits for a decode buffer."""
    turns = (Turn(41, 1), Turn(4, 1), Turn(4, 1), Turn(4, 1))
    spec = plain_cluster(decode_buffer=60, read_side=ReadSidePolicy.ROUND_ROBIN)
    crowd = workload(*(Trajectory(str(number), turns) for number in range(12)))
    simulation = Simulation(spec, crowd)
    compared = 0

    def compare(progress: SimProgress, _: object) -> bool:
        nonlocal compared
        cluster = simulation.cluster
        unread = sum(engine.unread_tokens for group in cluster.decode_groups for engine in group.engines)
        known = cluster._scheduler.status().read_queue_tokens
        assert known[cluster.decode_nodes[0].name] == unread
        compared += unread > 0
        return False

    simulation.stop = compare
    simulation.run()
    assert compared > 3
