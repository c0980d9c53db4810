"""Layer streams: order, overlap, deadlines, failures and the plan without moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dualpath.clock import ManualClock
from dualpath.dataflow.classes import TrafficClass
from dualpath.dataflow.plan import Plan, plan
from dualpath.errors import DeadlineExceeded, TransportError
from dualpath.kvcache.layout import BlockGeometry
from dualpath.traffic.layers import ChunkTransfer, LayerFrames, LayerStream
from dualpath.transport.base import Completion, CopyBatch, Operation
from dualpath.transport.memory import MemoryBoard, MemoryTransport
from dualpath.transport.slice_list import SliceList
from dualpath.types import ReadShare

GEOMETRY = BlockGeometry(layers=4, block_tokens=2, token_layer_bytes=8)


class HeldTransport:
    """A transport whose posts end when the test says so."""

    def __init__(self) -> None:
        self.posts: list[tuple[Sequence[CopyBatch], Completion]] = []

    def post(self, batches: Sequence[CopyBatch]) -> Completion:
        completion = Completion()
        self.posts.append((batches, completion))
        return completion

    def end(self, index: int, error: Exception | None = None) -> None:
        completion = self.posts[index][1]
        completion.busy_s = 0.5
        if error is None:
            completion.set_result(None)
        else:
            completion.set_exception(error)

    @property
    def order(self) -> list[tuple[str, int]]:
        """Load or store, and layer (by the buffer offset of block 0 in slot 0)."""
        names = {Operation.READ: "load", Operation.WRITE: "store"}
        return [
            (names[batches[0].operation], _slices(batches[0])[0][1] // GEOMETRY.layer_block_bytes) for batches, _ in self.posts
        ]


def _slices(batch: CopyBatch) -> list[list[int]]:
    assert isinstance(batch.copies, SliceList)
    slices: list[list[int]] = batch.copies.at(batch.shift).tolist()
    return slices


def _chunk(turn: Plan, kv_row: int = 0) -> ChunkTransfer:
    blocks = GEOMETRY.blocks(turn.prompt_tokens)
    return ChunkTransfer(turn, turn.hit_tokens, turn.miss_tokens, kv_row, range(blocks), range(blocks), "de")


def _stream(transport: object, *chunks: ChunkTransfer, frames: int = 2, rows: int = 16, timeout_s: float = 10.0) -> LayerStream:
    return LayerStream(
        transport,  # type: ignore[arg-type]
        chunks,
        geometry=GEOMETRY,
        frames=LayerFrames("prefill-kv", frames, rows),
        prefill_region="pe",
        timeout_s=timeout_s,
    )


PREFILL_READ = plan(5, ReadShare(4, 0), GEOMETRY)


def test_loads_run_two_layers_ahead_and_behind_the_store_out_of_their_frame() -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(PREFILL_READ))
    stream.start()
    for layer in range(4):
        stream.computed(layer)
    assert transport.order == [
        ("load", 0),
        ("load", 1),
        ("store", 0),
        ("load", 2),
        ("store", 1),
        ("load", 3),
        ("store", 2),
        ("store", 3),
    ]


def test_not_layerwise_everything_is_loaded_before_and_stored_after() -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(replace(PREFILL_READ, layerwise=False)), frames=4)
    stream.start()
    assert transport.order == [("load", layer) for layer in range(4)]
    for index in range(3):
        transport.end(index)
    with pytest.raises(DeadlineExceeded):
        _stream_wait(stream, 0)
    transport.end(3)
    for layer in range(4):
        assert len(transport.posts) == 4
        stream.wait_loaded(layer)
        stream.computed(layer)
    assert transport.order[4:] == [("store", layer) for layer in range(4)]


def _stream_wait(stream: LayerStream, layer: int) -> None:
    stream._timeout_s = 0.02
    stream.wait_loaded(layer)


def test_loads_and_stores_name_their_regions() -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(plan(9, ReadShare(2, 4), GEOMETRY)))
    stream.start()
    stream.computed(0)
    regions = [[(batch.local, batch.remote) for batch in batches] for batches, _ in transport.posts]
    assert regions[0] == [("prefill-kv", "pe"), ("prefill-kv", "de")]
    assert regions[2] == [("prefill-kv", "de")]


def test_slices_are_blocks_of_the_right_frame_and_layer() -> None:
    transport = HeldTransport()
    chunk = ChunkTransfer(PREFILL_READ, 4, 1, 3, [7, 5], [1, 2, 0], "de")
    stream = _stream(transport, chunk)
    stream.start()
    stream.computed(0)
    slot, frame = GEOMETRY.slot_bytes, 16 * 8
    assert _slices(transport.posts[1][0][0]) == [
        [frame + 24, 7 * slot + 16, 16],
        [frame + 40, 5 * slot + 16, 16],
    ]
    assert _slices(transport.posts[2][0][0]) == [
        [24, slot, 16],
        [40, 2 * slot, 16],
        [56, 0, 8],
    ]


def test_finish_is_done_with_the_last_store_and_statistics_say_what_it_took() -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(PREFILL_READ))
    stream.start()
    for layer in range(4):
        stream.computed(layer)
    finished = stream.finish()
    for index in (0, 1, 3, 5, 7, 2, 4):
        transport.end(index)
    assert not finished.done()
    transport.end(6)
    assert finished.done()
    assert stream.statistics.transfer_s == pytest.approx(8 * 0.5)
    assert stream.statistics.bytes == {TrafficClass.LAYER_LOAD: 4 * 4 * 8, TrafficClass.LAYER_STORE: 5 * 4 * 8}


def test_a_failed_store_fails_the_finish_after_everything_has_ended() -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(PREFILL_READ))
    stream.start()
    stream.computed(0)
    stream.computed(1)
    finished = stream.finish()
    transport.end(2, TransportError("the peer is gone"))
    assert not finished.done()
    transport.end(4)
    with pytest.raises(TransportError, match="the peer is gone"):
        finished.result(0)


def test_a_load_that_does_not_come_has_a_deadline_and_a_failed_one_its_error() -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(PREFILL_READ), timeout_s=0.02)
    stream.start()
    with pytest.raises(DeadlineExceeded, match=r"layer 0 .*32 bytes to load"):
        stream.wait_loaded(0)
    assert stream.statistics.exposed_s >= 0.02
    transport.end(1, TransportError("the peer is gone"))
    with pytest.raises(TransportError, match="the peer is gone"):
        stream.wait_loaded(1)


@pytest.mark.parametrize("failing", range(4))
def test_not_layerwise_any_load_that_fails_is_noticed(failing: int) -> None:
    transport = HeldTransport()
    turn = plan(5, ReadShare(4, 0), GEOMETRY, layerwise=False)
    stream = _stream(transport, _chunk(turn), frames=4)
    stream.start()
    for layer in range(4):
        transport.end(layer, TransportError("the device is broken") if layer == failing else None)
    with pytest.raises(TransportError, match="the device is broken"):
        stream.wait_loaded(0)


def test_a_frame_is_not_computed_into_while_it_is_stored_from_even_if_nothing_is_loaded() -> None:
    transport = HeldTransport()
    cold = _chunk(plan(5, ReadShare(), GEOMETRY))
    stream = _stream(transport, cold, timeout_s=0.02)
    stream.start()
    for layer in range(2):
        stream.wait_loaded(layer)
        stream.computed(layer)
    with pytest.raises(DeadlineExceeded, match="40 to store before"):
        stream.wait_loaded(2)
    transport.end(0)
    stream.wait_loaded(2)
    # The next batch uses the same frames.
    following = LayerStream(
        transport,  # type: ignore[arg-type]
        [cold],
        geometry=GEOMETRY,
        frames=LayerFrames("prefill-kv", 2, 16),
        prefill_region="pe",
        timeout_s=0.02,
        after=stream.finish(),
    )
    following.start()
    with pytest.raises(DeadlineExceeded):
        following.wait_loaded(0)
    transport.end(1, TransportError("its peer is gone"))
    following.wait_loaded(0)


def test_abort_waits_for_what_is_in_flight() -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(PREFILL_READ), timeout_s=0.02)
    stream.start()
    transport.end(0, TransportError("the peer is gone"))
    with pytest.raises(DeadlineExceeded, match="1 posts"):
        stream.abort()
    transport.end(1)
    stream.abort()


@pytest.mark.parametrize(
    ("turn", "loads"),
    [
        (plan(5, ReadShare(4, 0), GEOMETRY, transfers=False), False),
        (plan(5, ReadShare(), GEOMETRY), False),
        (PREFILL_READ, True),
    ],
)
def test_a_plan_without_moves_posts_nothing(turn: Plan, loads: bool) -> None:
    transport = HeldTransport()
    stream = _stream(transport, _chunk(turn), timeout_s=0.02)
    stream.start()
    assert bool(transport.posts) == loads
    if loads:
        return
    for layer in range(4):
        stream.wait_loaded(layer)
        stream.computed(layer)
        if turn.transfers:
            transport.end(layer)
    assert len(transport.posts) == (4 if turn.transfers else 0)
    assert stream.finish().done()


def test_exposed_time_is_what_compute_waited() -> None:
    board, clock = MemoryBoard(), ManualClock()
    with_clock = MemoryTransport(board, clock)
    with_clock.register("prefill-kv", bytearray(2 * 16 * 8))
    with_clock.allocate("pe", 4 * GEOMETRY.slot_bytes)
    with_clock.allocate("de", 4 * GEOMETRY.slot_bytes)
    stream = _stream(with_clock, _chunk(PREFILL_READ))
    stream.start()
    stream.wait_loaded(0)
    assert 0 <= stream.statistics.exposed_s < 5
    assert stream.statistics.transfer_s == 0
    stream.abort()
    with_clock.close()


def test_chunks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="outside a frame of 16"):
        _stream(HeldTransport(), _chunk(PREFILL_READ, kv_row=12))
    with pytest.raises(ValueError, match="layerwise or not"):
        _stream(HeldTransport(), _chunk(PREFILL_READ), _chunk(replace(PREFILL_READ, layerwise=False), 5), frames=4)
    with pytest.raises(ValueError, match="3 frames cannot hold 4 layers"):
        _stream(HeldTransport(), _chunk(replace(PREFILL_READ, layerwise=False)), frames=3)
