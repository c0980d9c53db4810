"""Any small cluster gives the reference's tokens in any conversation of several agents, and ends up idle."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.turn_reference import Ask, SmallCluster, TinyModel, random_tokens, run_together, wait_idle

from dualpath.control.turns import SamplingParams
from dualpath.settings import Dtype

LONGEST_CONTEXT = 240
"""Tokens of prompt and output: what the smallest memories drawn here can just hold."""

SYSTEMS = ("basic", "basic+layerwise", "basic+layerwise+dual-path", "dualpath", "dualpath-split")


@dataclass(frozen=True)
class Move:
    """What one agent does next: its context is cut to ``keep`` of its length, then ``append`` tokens follow.

    ``seed`` decides which: agents that append the same to the same context share its blocks.
    """

    agent: int
    keep: float
    append: int
    seed: int
    output: int
    give_up_tokens: int | None


moves = st.builds(
    Move,
    agent=st.integers(0, 2),
    keep=st.sampled_from([1.0, 1.0, 1.0, 0.6, 0.0]),
    append=st.sampled_from([0, 1, 7, 16, 33, 64, 90]),
    seed=st.integers(0, 2),
    output=st.sampled_from([1, 2, 9, 17]),
    give_up_tokens=st.sampled_from([None, None, None, None, 1, 3]),
)
"""Moves of the same round are simultaneous."""
scripts = st.lists(st.lists(moves, min_size=1, max_size=4, unique_by=lambda move: move.agent), min_size=2, max_size=5)


@st.composite
def clusters(draw: st.DrawFn, model: TinyModel) -> SmallCluster:
    """Every memory from just enough for one longest context to several."""
    block_tokens = draw(st.sampled_from([8, 16, 64]))
    longest = -(-LONGEST_CONTEXT // block_tokens)
    blocks = st.integers(longest, 3 * longest)
    prefill, decode = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    return SmallCluster(
        model,
        block_tokens=block_tokens,
        system=draw(st.sampled_from(SYSTEMS)),
        pages=draw(blocks) + 3,
        decode_buffer=draw(blocks),
        prefill_buffer=draw(blocks),
        staging=draw(st.integers(1, 4)),
        rows=draw(blocks) * block_tokens,
        knobs={
            "prefill": prefill,
            "decode": decode,
            "max_batch_tokens": draw(st.sampled_from([8, 48, 8192])),
            "quota_s": draw(st.sampled_from([1e-9, 0.3])),
            "max_decode_batch": draw(st.sampled_from([1, 64])),
            "store_capacity": draw(st.sampled_from([longest // 2 + 1, 50 * longest]))
            * model.geometry(block_tokens).full_block_bytes,
            "storage_threads": draw(st.integers(1, 3)),
        },
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    sizes: dict[str, object] = {"architecture": "Qwen3ForCausalLM", "kv_heads": 1, "head_dim": 12, "tied": False, "seed": 9}
    return TinyModel.create(directory, Dtype.FLOAT64, **sizes)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), script=scripts)
def test_every_turn_of_every_conversation_is_right(model: TinyModel, data: st.DataObject, script: list[list[Move]]) -> None:
    setup = data.draw(clusters(model))
    contexts = [random_tokens(0, 40) for _ in range(3)]
    with setup.open() as cluster:
        for number, round_of_moves in enumerate(script):
            asks = []
            for move in round_of_moves:
                contexts[move.agent] = _moved(contexts[move.agent], move, number)
                sampling = SamplingParams(max_tokens=move.output, ignore_eos=True, logprobs=1)
                asks.append(Ask(contexts[move.agent], sampling, move.give_up_tokens))
            for move, turn in zip(round_of_moves, run_together(model, cluster, asks), strict=True):
                if turn is not None:
                    assert turn.cached_tokens <= max(0, len(turn.prompt) - 1)
                    contexts[move.agent] = [*turn.prompt, *turn.tokens]
        status = wait_idle(cluster)
    assert status.restarts == 0


def _moved(context: list[int], move: Move, number: int) -> list[int]:
    kept = context[: int(len(context) * move.keep)]
    moved = [*kept, *random_tokens(10 * number + move.seed, move.append)] or [1]
    return moved if len(moved) + move.output <= LONGEST_CONTEXT else moved[: LONGEST_CONTEXT // 3]
