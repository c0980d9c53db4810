"""Turns that go on where their context is: by hand, and on random clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from tests.support.sim_cases import Case, Run, cases, plain_cluster, run

from dualpath.scheduling.log import replay
from dualpath.sim.agents import SimAgent
from dualpath.sim.nodes import DecodeEngine, SimNode
from dualpath.sim.request import SimRequest
from dualpath.sim.resident import Residents
from dualpath.sim.run import SimWorkload
from dualpath.sim.spec import ClusterSpec
from dualpath.types import RequestId, Role
from dualpath.workload.trajectory import Trajectory, Turn

CHUNK = 1024


def resident(chunk_tokens: int = CHUNK, kv_blocks: int = 100) -> ClusterSpec:
    return replace(plain_cluster(kv_blocks=kv_blocks), resident=True, resident_chunk_tokens=chunk_tokens)


def ran(spec: ClusterSpec, *agents: Sequence[Turn]) -> Run:
    trajectories = [Trajectory(f"a{number}", tuple(turns)) for number, turns in enumerate(agents)]
    return run(Case(spec, SimWorkload(trajectories, [0.0] * len(agents), gaps=True)), watched=True)


def ttft_s(finished: Run, agent: int, turn: int) -> float:
    columns = finished.result.result.turns.columns
    row = list(zip(columns.agent, columns.turn, strict=True)).index((agent, turn))
    return columns.first_token_s[row] - columns.submitted_s[row]


def resumed(finished: Run) -> int:
    path = finished.simulation.cluster.resident
    assert path is not None
    return path.residents.resumed


def bytes_read(finished: Run) -> int:
    return sum(node.storage_read_bytes for node in finished.result.result.nodes)


def parts(finished: Run) -> list[tuple[int, int, bool]]:
    return [(chunk.cached, chunk.new, chunk.last) for chunk in finished.chunks]


TURNS = (Turn(8, 5), Turn(4, 3))
"""The second prompt has 17 tokens; 12 have KV, since the last generated one has none."""


def test_a_resumed_turn_computes_what_is_new_in_a_step_of_its_decode_engine() -> None:
    finished = ran(resident(), TURNS)
    assert ttft_s(finished, 0, 1) == pytest.approx(0.1 + 5 * 0.1)
    assert resumed(finished) == 1
    assert bytes_read(finished) == 0
    assert parts(finished)[-1:] == [(12, 5, True)]


def test_without_it_the_hit_is_read() -> None:
    finished = ran(plain_cluster(), TURNS)
    assert finished.simulation.cluster.resident is None
    assert bytes_read(finished) == 12 * 10


def test_chunks_are_cut_at_block_edges_and_take_a_step_each() -> None:
    finished = ran(resident(4), TURNS)
    assert ttft_s(finished, 0, 1) == pytest.approx((0.1 + 4 * 0.1) + (0.1 + 0.1))
    assert parts(finished)[-2:] == [(12, 4, False), (16, 1, True)]


def test_chunks_lengthen_the_steps_of_whoever_decodes_there() -> None:
    alone = ran(resident(), (Turn(4, 60),), TURNS[:1])
    beside = ran(resident(), (Turn(4, 60),), TURNS)
    ends = [max(one.result.result.turns.columns.last_token_s) for one in (alone, beside)]
    # Five new tokens take 0.5 s, and a second request makes each of its two decode steps 0.1 s longer.
    assert ends[1] - ends[0] == pytest.approx(0.5 + 2 * 0.1)


def test_a_turn_of_one_token_ends_with_its_prefill_and_stays() -> None:
    finished = ran(resident(), (Turn(8, 5), Turn(4, 1), Turn(4, 2)))
    assert resumed(finished) == 2
    assert finished.result.result.turns.completed() == 3
    # 8 + 4 + 0 tokens of the first turn, up to 17 of the second, and 22 of the third: five whole blocks in all.
    assert sum(node.storage_write_bytes for node in finished.result.result.nodes) == 5 * 40


def test_evicted_contexts_are_read_again() -> None:
    turns = (Turn(16, 5), Turn(4, 3, gap_s=20.0))
    roomy, tight = (ran(resident(kv_blocks=blocks), *[turns] * 4) for blocks in (100, 9))
    assert (resumed(roomy), bytes_read(roomy)) == (4, 0)
    assert resumed(tight) < 4
    assert bytes_read(tight) == (4 - resumed(tight)) * 20 * 10


def context(agent: SimAgent, engine: DecodeEngine, prompt: int, output: int) -> SimRequest:
    request = SimRequest(RequestId(f"{agent.number}"), agent, 0, prompt, 0, output, 0.0)
    request.decode = engine
    return request


def test_the_least_recently_used_context_goes_first() -> None:
    node = SimNode(Role.DECODE, 0, plain_cluster().node, 100, lambda _: None)
    (engine,) = (one for one in node.engines if isinstance(one, DecodeEngine))
    residents = Residents(kv_blocks=10, block_tokens=4)
    a, b, c = agents = [SimAgent(number, ()) for number in range(3)]
    for agent in agents:
        residents.keep(context(agent, engine, 8, 5))  # 12 tokens with KV: 3 blocks
    residents.keep(context(a, engine, 8, 5))
    assert (residents.blocks(engine), residents.evicted) == (9, 0)
    engine.take_blocks(2)
    residents.make_room(engine)
    assert (residents.blocks(engine), residents.evicted) == (6, 1)
    assert residents.drop(b) is None
    assert residents.drop(c) is not None
    assert residents.drop(a) is not None
    assert residents.blocks(engine) == 0


def test_promised_blocks_are_nobodys_to_take() -> None:
    node = SimNode(Role.DECODE, 0, plain_cluster().node, 100, lambda _: None)
    (engine,) = (one for one in node.engines if isinstance(one, DecodeEngine))
    residents = Residents(kv_blocks=10, block_tokens=4)
    agent = SimAgent(0, ())
    residents.keep(context(agent, engine, 8, 5))
    engine.promised_blocks = 5
    assert not residents.resume(context(agent, engine, 17, 3), 9)  # six blocks
    assert residents.blocks(engine) == engine.used_blocks == residents.resumed == 0


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_nothing_is_lost_and_hbm_is_never_over(case: Case) -> None:
    spec = replace(case.spec, resident=True, resident_chunk_tokens=2 * case.spec.geometry.block_tokens)
    make_room = Residents.make_room

    def watched(residents: Residents, engine: DecodeEngine) -> None:
        make_room(residents, engine)
        assert engine.used_blocks + residents.blocks(engine) <= spec.decode.kv_blocks

    with mock.patch.object(Residents, "make_room", watched):
        finished = run(replace(case, spec=spec), watched=True)
    cluster, turns = finished.simulation.cluster, finished.result.result.turns
    assert turns.completed() == len(turns) == sum(len(one.turns) for one in case.workload.trajectories)
    assert not cluster.unfinished
    assert cluster.resident is not None
    assert cluster.resident.residents.most_blocks <= spec.decode.kv_blocks
    for engine in finished.decode_engines():
        assert engine.used_blocks == engine.promised_blocks == engine.admitted == 0
        assert not engine.running
    assert replay(finished.lines) == []
