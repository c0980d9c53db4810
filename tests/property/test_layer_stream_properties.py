"""Whatever the geometry, the share and the chunks: every layer is where compute and decode look for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.dataflow.classes import TrafficClass
from dualpath.dataflow.plan import Plan, forward_moves, plan
from dualpath.kvcache.layout import BlockGeometry
from dualpath.traffic.copies import copy, handoff_batch, staging_batch
from dualpath.traffic.layers import ChunkTransfer, LayerFrames, LayerStream
from dualpath.traffic.slices import PagePool
from dualpath.transport.memory import MemoryBoard, MemoryTransport
from dualpath.types import ReadShare

WAIT_S = 20.0
Bytes = npt.NDArray[np.uint8]

geometries = st.builds(BlockGeometry, st.integers(1, 5), st.integers(1, 6), st.integers(1, 9))


@dataclass
class Request:
    """A turn, its true KV ``[layers, prompt, token_layer_bytes]``, its slots and where its chunks end."""

    plan: Plan
    kv: Bytes
    prefill_slots: list[int]
    decode_slots: list[int]
    chunk_ends: list[int]


@st.composite
def requests(draw: st.DrawFn, geometry: BlockGeometry, layerwise: bool, first_slot: int) -> Request:
    prompt = draw(st.integers(1, 40))
    hit_blocks = draw(st.integers(0, geometry.max_hit_blocks(prompt)))
    head = draw(st.integers(0, hit_blocks)) * geometry.block_tokens
    hit = hit_blocks * geometry.block_tokens
    cuts = draw(st.lists(st.integers(hit + 1, prompt), max_size=3, unique=True))
    blocks = geometry.blocks(prompt)
    slots = [first_slot + slot for slot in draw(st.permutations(range(blocks)))]
    seed = draw(st.integers(0, 2**32 - 1))
    kv = np.random.default_rng(seed).integers(
        0, 256, size=(geometry.layers, prompt, geometry.token_layer_bytes), dtype=np.uint8
    )
    turn = plan(prompt, ReadShare(head, hit - head), geometry, layerwise=layerwise)
    return Request(turn, kv, slots[: head // geometry.block_tokens], slots, sorted({*cuts, prompt}))


def slot_tokens(memory: Bytes, geometry: BlockGeometry, slot: int) -> Bytes:
    """``[layers, block_tokens, token_layer_bytes]`` of a slot."""
    start = slot * geometry.slot_bytes
    full = memory[start : start + geometry.full_block_bytes]
    return full.reshape(geometry.layers, geometry.block_tokens, geometry.token_layer_bytes)


def fill(memory: Bytes, request: Request, slots: list[int], first: int, end: int) -> None:
    """What storage reads would have put there: whole blocks."""
    geometry = request.plan.geometry
    size = geometry.block_tokens
    for block in range(first // size, end // size):
        slot_tokens(memory, geometry, slots[block])[:] = request.kv[:, block * size : (block + 1) * size]


class Engines:
    """A prefill engine's and a decode engine's memory."""

    def __init__(self, geometry: BlockGeometry, frames: int, rows: int, slots: int) -> None:
        board = MemoryBoard()
        self.prefill, self.decode = MemoryTransport(board), MemoryTransport(board)
        self.geometry = geometry
        self.frames = LayerFrames("prefill-kv", frames, rows)
        frame_bytes = rows * geometry.token_layer_bytes
        kv = np.full(frames * frame_bytes, 0xEE, dtype=np.uint8)
        self.prefill.register("prefill-kv", kv)
        self.kv = kv.reshape(frames, rows, geometry.token_layer_bytes)
        self.prefill_buffer = np.frombuffer(self.prefill.allocate("pe", slots * geometry.slot_bytes), dtype=np.uint8)
        self.decode_buffer = np.frombuffer(self.decode.allocate("de", slots * geometry.slot_bytes), dtype=np.uint8)
        self.prefill.attach(self.decode.descriptor("de"))

    def forward(self, batch: list[tuple[Request, int, int]]) -> LayerStream:
        """One forward batch of (request, cached, new); checks what every layer finds in its frame."""
        rows = np.cumsum([0] + [cached + new for _, cached, new in batch]).tolist()
        chunks = [
            ChunkTransfer(request.plan, cached, new, row, request.prefill_slots, request.decode_slots, "de")
            for (request, cached, new), row in zip(batch, rows, strict=False)
        ]
        stream = LayerStream(
            self.prefill, chunks, geometry=self.geometry, frames=self.frames, prefill_region="pe", timeout_s=WAIT_S
        )
        stream.start()
        for layer in range(self.geometry.layers):
            stream.wait_loaded(layer)
            frame = self.kv[layer % self.frames.count]
            for (request, cached, new), row in zip(batch, rows, strict=False):
                assert np.array_equal(frame[row : row + cached], request.kv[layer, :cached])
                frame[row + cached : row + cached + new] = request.kv[layer, cached : cached + new]
            stream.computed(layer)
        stream.finish().result(WAIT_S)
        stream.abort()
        return stream

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_chunks_of_a_batch_meet_their_kv_and_leave_the_whole_prompt_in_the_decode_buffer(data: st.DataObject) -> None:
    geometry = data.draw(geometries)
    layerwise = data.draw(st.booleans())
    batch = [data.draw(requests(geometry, layerwise, first_slot=40 * i)) for i in range(data.draw(st.integers(1, 3)))]
    frames = data.draw(st.integers(1, 3)) if layerwise else geometry.layers
    engines = Engines(geometry, frames, rows=sum(request.plan.prompt_tokens for request in batch) + 1, slots=120)
    for request in batch:
        share = request.plan.share
        fill(engines.prefill_buffer, request, request.prefill_slots, 0, share.prefill_tokens)
        fill(engines.decode_buffer, request, request.decode_slots, share.prefill_tokens, share.hit_tokens)
    starts = [request.plan.hit_tokens for request in batch]
    while any(start < request.plan.prompt_tokens for request, start in zip(batch, starts, strict=True)):
        ends = [
            min(end for end in (*request.chunk_ends, 10**9) if end > start)
            for request, start in zip(batch, starts, strict=True)
        ]
        chunks = [(request, start, end - start) for request, start, end in zip(batch, starts, ends, strict=True) if end < 10**9]
        stream = engines.forward(chunks)
        moves = [move for request, cached, new in chunks for move in forward_moves(request.plan, cached, new)]
        for traffic_class in (TrafficClass.LAYER_LOAD, TrafficClass.LAYER_STORE):
            expected = sum(move.bytes for move in moves if move.traffic_class is traffic_class)
            assert stream.statistics.bytes.get(traffic_class, 0) == expected
        for request, cached, _ in chunks:
            if cached == request.plan.hit_tokens:
                # The first chunk is over: nothing may need the PE buffer any more.
                for slot in request.prefill_slots:
                    slot_tokens(engines.prefill_buffer, geometry, slot)[:] = 0xDD
        starts = [min(end, request.plan.prompt_tokens) for request, end in zip(batch, ends, strict=True)]
    for request in batch:
        size, prompt = geometry.block_tokens, request.plan.prompt_tokens
        for block, slot in enumerate(request.decode_slots):
            tokens = min(size, prompt - block * size)
            found = slot_tokens(engines.decode_buffer, geometry, slot)[:, :tokens]
            assert np.array_equal(found, request.kv[:, block * size : block * size + tokens])
    engines.close()


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_handoff_and_staging_move_exactly_the_tokens_there_are(data: st.DataObject) -> None:
    geometry = data.draw(geometries)
    request = data.draw(requests(geometry, True, first_slot=0))
    prompt, size = request.plan.prompt_tokens, geometry.block_tokens
    blocks = geometry.blocks(prompt)
    pages = data.draw(st.permutations(range(blocks + 2)))[:blocks]
    transport = MemoryTransport(MemoryBoard())
    buffer = np.frombuffer(transport.allocate("de", 40 * geometry.slot_bytes), dtype=np.uint8)
    pool = PagePool("pages", blocks + 2)
    device = np.full((geometry.layers, pool.pages, size, geometry.token_layer_bytes), 0xEE, dtype=np.uint8)
    transport.register("pages", device.reshape(-1))
    for block, slot in enumerate(request.decode_slots):
        tokens = min(size, prompt - block * size)
        slot_tokens(buffer, geometry, slot)[:, :tokens] = request.kv[:, block * size : block * size + tokens]
    moved = asyncio.run(copy(transport, handoff_batch(geometry, pool, pages, "de", request.decode_slots, prompt)))
    assert moved == prompt * geometry.token_bytes
    linear = device[:, pages].reshape(geometry.layers, blocks * size, geometry.token_layer_bytes)
    assert np.array_equal(linear[:, :prompt], request.kv)
    assert (linear[:, prompt:] == 0xEE).all()
    unused = [page for page in range(pool.pages) if page not in pages]
    assert (device[:, unused] == 0xEE).all()

    staging = np.frombuffer(transport.allocate("staging", blocks * geometry.slot_bytes), dtype=np.uint8)
    whole = geometry.whole_blocks(prompt)
    asyncio.run(copy(transport, staging_batch(geometry, pool, pages[:whole], "staging", range(whole))))
    for block in range(whole):
        assert np.array_equal(slot_tokens(staging, geometry, block), request.kv[:, block * size : (block + 1) * size])
    transport.close()
