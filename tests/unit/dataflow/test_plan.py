"""Fig. 4 as moves: what each path charges, chunk by chunk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.dataflow.classes import LANE_WEIGHTS, TrafficClass
from dualpath.dataflow.plan import Move, Place, Plan, forward_moves, plan
from dualpath.kvcache.layout import BlockGeometry
from dualpath.types import ReadShare

GEOMETRY = BlockGeometry(layers=4, block_tokens=16, token_layer_bytes=8)
TOKEN = GEOMETRY.token_bytes


def _flow(moves: tuple[Move, ...]) -> list[tuple[Place, Place, int, int]]:
    assert all(move.bytes == move.tokens * TOKEN for move in moves)
    return [(move.source, move.destination, move.first_token, move.tokens) for move in moves]


def test_prefill_read_path() -> None:
    turn = plan(100, ReadShare(64, 0), GEOMETRY)
    assert _flow(turn.moves) == [
        (Place.STORAGE, Place.PE_BUFFER, 0, 64),
        (Place.PE_BUFFER, Place.PE_HBM, 0, 64),
        (Place.PE_HBM, Place.DE_BUFFER, 0, 64),
        (Place.PE_HBM, Place.DE_BUFFER, 64, 36),
        (Place.DE_BUFFER, Place.DE_HBM, 0, 100),
        (Place.DE_BUFFER, Place.STORAGE, 64, 32),
    ]


def test_decode_read_path_stores_only_the_misses() -> None:
    turn = plan(100, ReadShare(0, 64), GEOMETRY)
    assert _flow(turn.moves) == [
        (Place.STORAGE, Place.DE_BUFFER, 0, 64),
        (Place.DE_BUFFER, Place.PE_HBM, 0, 64),
        (Place.PE_HBM, Place.DE_BUFFER, 64, 36),
        (Place.DE_BUFFER, Place.DE_HBM, 0, 100),
        (Place.DE_BUFFER, Place.STORAGE, 64, 32),
    ]


def test_split_read_takes_the_head_on_the_prefill_side() -> None:
    turn = plan(100, ReadShare(16, 48), GEOMETRY)
    assert _flow(turn.storage_reads()) == [
        (Place.STORAGE, Place.PE_BUFFER, 0, 16),
        (Place.STORAGE, Place.DE_BUFFER, 16, 48),
    ]
    assert _flow(forward_moves(turn, 64, 36)) == [
        (Place.PE_BUFFER, Place.PE_HBM, 0, 16),
        (Place.DE_BUFFER, Place.PE_HBM, 16, 48),
        (Place.PE_HBM, Place.DE_BUFFER, 0, 16),
        (Place.PE_HBM, Place.DE_BUFFER, 64, 36),
    ]


def test_later_chunks_load_everything_from_the_decode_buffer() -> None:
    turn = plan(100, ReadShare(64, 0), GEOMETRY)
    assert _flow(forward_moves(turn, 80, 20)) == [
        (Place.DE_BUFFER, Place.PE_HBM, 0, 80),
        (Place.PE_HBM, Place.DE_BUFFER, 80, 20),
    ]


def test_an_oracle_moves_nothing_and_a_cold_prompt_loads_nothing() -> None:
    assert plan(100, ReadShare(64, 0), GEOMETRY, transfers=False).moves == ()
    cold = plan(10, ReadShare(), GEOMETRY)
    assert _flow(cold.moves) == [(Place.PE_HBM, Place.DE_BUFFER, 0, 10), (Place.DE_BUFFER, Place.DE_HBM, 0, 10)]


@pytest.mark.parametrize("layerwise", [True, False])
def test_only_the_forward_is_layerwise(layerwise: bool) -> None:
    turn = plan(100, ReadShare(16, 48), GEOMETRY, layerwise=layerwise)
    per_layer = {move.traffic_class: move.per_layer for move in turn.moves}
    assert per_layer == {
        TrafficClass.STORAGE_READ: False,
        TrafficClass.LAYER_LOAD: layerwise,
        TrafficClass.LAYER_STORE: layerwise,
        TrafficClass.HANDOFF: False,
        TrafficClass.WRITE_BACK: False,
    }


@pytest.mark.parametrize("share", [ReadShare(8, 0), ReadShare(0, 8), ReadShare(96, 16), ReadShare(112, 0)])
def test_a_hit_is_whole_blocks_and_leaves_something_to_compute(share: ReadShare) -> None:
    with pytest.raises(ValueError, match=r"whole blocks|no token"):
        plan(100 if share.hit_tokens != 112 else 112, share, GEOMETRY)


@pytest.mark.parametrize(("cached", "new"), [(48, 10), (64, 0), (64, 37), (100, 1)])
def test_a_chunk_stays_within_the_misses(cached: int, new: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        forward_moves(plan(100, ReadShare(64, 0), GEOMETRY), cached, new)


def test_shrinking_loses_the_tail_first() -> None:
    turn = plan(100, ReadShare(32, 32), GEOMETRY)
    assert turn.shrunk(48).share == ReadShare(32, 16)
    assert turn.shrunk(16).share == ReadShare(16, 0)
    assert turn.shrunk(0).share == ReadShare()


@given(st.integers(1, 400), st.integers(0, 30), st.integers(0, 30), st.data())
def test_chunks_together_move_each_token_as_the_whole_does(prompt: int, head: int, tail: int, data: st.DataObject) -> None:
    most = GEOMETRY.max_hit_blocks(prompt)
    head = min(head, most)
    share = ReadShare(16 * head, 16 * min(tail, most - head))
    turn = Plan(prompt, share, GEOMETRY)
    stored = set()
    cached = share.hit_tokens
    while cached < prompt:
        new = data.draw(st.integers(1, prompt - cached))
        moves = forward_moves(turn, cached, new)
        loaded = [token for move in moves if move.destination is Place.PE_HBM for token in _tokens(move)]
        assert sorted(loaded) == list(range(cached)), "every token before the chunk is loaded exactly once"
        stored |= {token for move in moves if move.destination is Place.DE_BUFFER for token in _tokens(move)}
        cached += new
    from_storage = {token for move in turn.storage_reads() if move.destination is Place.DE_BUFFER for token in _tokens(move)}
    assert stored | from_storage == set(range(prompt)), "the decode buffer ends with the whole prompt"
    assert not stored & from_storage


def _tokens(move: Move) -> range:
    return range(move.first_token, move.first_token + move.tokens)


def test_every_class_has_a_weight_and_collectives_nearly_all() -> None:
    assert set(LANE_WEIGHTS) == set(TrafficClass)
    others = max(weight for kind, weight in LANE_WEIGHTS.items() if kind is not TrafficClass.COLLECTIVE)
    assert LANE_WEIGHTS[TrafficClass.COLLECTIVE] / (LANE_WEIGHTS[TrafficClass.COLLECTIVE] + others) > 0.99
