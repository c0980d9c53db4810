"""What moves cost, and that a token's share of it adds up to the plans' own moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.dataflow.charges import Charge, Stage, charge, per_token
from dualpath.dataflow.plan import forward_moves, plan
from dualpath.kvcache.layout import BlockGeometry
from dualpath.types import ReadShare

GEOMETRY = BlockGeometry(layers=3, block_tokens=4, token_layer_bytes=5)
BLOCK, TOKEN = GEOMETRY.block_tokens, GEOMETRY.token_bytes


def test_a_read_charges_the_storage_nic_and_the_memory_of_its_side() -> None:
    turn = plan(3 * BLOCK, ReadShare(BLOCK, 0), GEOMETRY)
    assert charge(turn.storage_reads()) == Charge(pe_snic_read=BLOCK * TOKEN, pe_dram=BLOCK * TOKEN)
    turn = plan(3 * BLOCK, ReadShare(0, BLOCK), GEOMETRY)
    assert charge(turn.storage_reads()) == Charge(de_snic_read=BLOCK * TOKEN, de_dram=BLOCK * TOKEN)


def test_local_copies_charge_both_directions_of_the_own_compute_nic() -> None:
    size = 3 * BLOCK * TOKEN
    handoff = charge(plan(3 * BLOCK, ReadShare(BLOCK, 0), GEOMETRY).handoff())
    assert handoff == Charge(de_cnic_read=size, de_cnic_write=size, de_dram=size)


def test_an_oracle_is_charged_nothing() -> None:
    assert {value for one in per_token(GEOMETRY, transfers=False).values() for part in one for value in part} == {0.0}


@given(
    head=st.integers(0, 9),
    tail=st.integers(0, 9),
    new=st.integers(1, 50),
    layerwise=st.booleans(),
)
def test_tokens_add_up_to_the_moves(head: int, tail: int, new: int, layerwise: bool) -> None:
    share = ReadShare(head * BLOCK, tail * BLOCK)
    turn = plan(share.hit_tokens + new, share, GEOMETRY, layerwise=layerwise)
    stages = per_token(GEOMETRY, layerwise=layerwise)
    forward = stages[Stage.LOAD].plus(stages[Stage.STORE])
    counts = share.prefill_tokens, share.decode_tokens, new
    assert stages[Stage.READ].of(*counts) == pytest.approx(charge(turn.storage_reads()))
    assert forward.of(*counts) == pytest.approx(charge(forward_moves(turn, turn.hit_tokens, new)))
    assert stages[Stage.HANDOFF].of(*counts) == pytest.approx(charge(turn.handoff()))
    missed = GEOMETRY.whole_blocks(turn.prompt_tokens) * BLOCK - turn.hit_tokens
    assert stages[Stage.WRITE_BACK].of(0, 0, missed) == pytest.approx(charge(turn.write_back()))


@given(hit=st.integers(0, 9), first=st.integers(1, 20), later=st.integers(1, 50))
def test_later_chunks_load_what_is_there_as_a_tail(hit: int, first: int, later: int) -> None:
    turn = plan(hit * BLOCK + first + later, ReadShare(hit * BLOCK, 0), GEOMETRY)
    stages = per_token(GEOMETRY)
    cached = turn.hit_tokens + first
    forward = stages[Stage.LOAD].plus(stages[Stage.STORE])
    assert forward.of(0, cached, later) == pytest.approx(charge(forward_moves(turn, cached, later)))
