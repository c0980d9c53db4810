"""A forward batch ends only when nothing of it is in flight; memory that stays in use ends the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.engine_rig import GEOMETRY, HeldStorage, HeldTransport, assignment

from dualpath.dataflow.plan import plan
from dualpath.engine.forward import ForwardPass, PrefillCompute
from dualpath.engine.layer_loop import FrameMemory
from dualpath.engine.prefill_turn import PrefillTurn
from dualpath.errors import ClusterError, DeadlineExceeded, TransportError
from dualpath.models.base import PrefillSegment
from dualpath.scheduling.batching import Chunk
from dualpath.settings import DeadlineSettings
from dualpath.traffic.manager import TrafficManager
from dualpath.types import ReadShare, RequestId


class CountingModel:
    """Likes the token best that is the number of new tokens in the batch."""

    shape = SimpleNamespace(layers=GEOMETRY.layers, eos_token_ids=())

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(tokens), 1)

    def begin_prefill(self, segments: Sequence[PrefillSegment]) -> None:
        self.new = sum(segment.new for segment in segments)

    def prefill_layer(self, layer: int, hidden: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.full((len(hidden),), self.new), 16).double()


class Scene:
    def __init__(self, timeout_s: float) -> None:
        self.transport = HeldTransport()
        deadlines = DeadlineSettings(transfer_timeout_s=timeout_s)
        self.traffic = TrafficManager(HeldStorage(), self.transport, GEOMETRY, deadlines)
        frames = FrameMemory.allocate("prefill/kv", GEOMETRY, 2, 64, torch.device("cpu"))
        model: Any = CountingModel()
        self.compute = PrefillCompute(model, frames, self.traffic, "prefill/buffer", torch.device("cpu"), timeout_s)


def _batch(cached: int, new: int) -> ForwardPass:
    assign = assignment("a", cached + new)
    nobody: Any = None
    turn = PrefillTurn(
        assign=assign,
        plan=plan(cached + new, ReadShare(cached, 0), GEOMETRY),
        prompt=torch.arange(cached + new),
        deadline=0.0,
        assigned_s=0.0,
        grant=nobody,
        decode_read=nobody,
        decode_slots=tuple(range(GEOMETRY.blocks(cached + new))),
        prefill_slots=tuple(range(cached // GEOMETRY.block_tokens)),
    )
    return ForwardPass([turn], [Chunk(RequestId("a"), cached, new, True)])


def test_the_first_token_says_how_much_was_cached() -> None:
    scene = Scene(timeout_s=5.0)
    (event,) = scene.compute.run(_batch(8, 3)).values()
    assert (event.position, event.token, event.cached_tokens) == (0, 3, 8)
    assert len(scene.transport.posts) == 2 * GEOMETRY.layers
    assert scene.traffic.idle()


@pytest.mark.parametrize("cached", [0, 8])
def test_memory_that_stays_in_use_is_no_failure_to_go_on_from(cached: int) -> None:
    scene = Scene(timeout_s=0.02)
    scene.transport.held = True
    with pytest.raises(ClusterError, match="in flight"):
        scene.compute.run(_batch(cached, 3))


def test_stores_that_end_too_late_fail_the_batch_when_they_have_ended() -> None:
    scene = Scene(timeout_s=0.4)
    scene.transport.held = True
    late = threading.Timer(0.6, scene.transport.end)
    late.start()
    with pytest.raises(DeadlineExceeded, match=r"not stored within 0\.4 s"):
        scene.compute.run(_batch(0, 3))
    assert all(post.done() for post in scene.transport.posts)
    assert scene.traffic.idle()
    late.join()


def test_a_failed_store_fails_the_batch() -> None:
    scene = Scene(timeout_s=5.0)
    scene.transport.held = True

    def break_down() -> None:
        while len(scene.transport.posts) < GEOMETRY.layers:
            time.sleep(0.001)
        for post in scene.transport.posts:
            post.set_exception(TransportError("gone"))

    breakdown = threading.Thread(target=break_down)
    breakdown.start()
    with pytest.raises(TransportError, match="gone"):
        scene.compute.run(_batch(0, 3))
    breakdown.join()
