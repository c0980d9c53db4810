"""One forward batch's KV, streamed layer by layer between buffers and the prefill engine's device (paper section 2, Fig. 4)."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

import numpy as np

from dualpath.clock import Clock, MonotonicClock
from dualpath.dataflow.classes import TrafficClass
from dualpath.dataflow.plan import Place, Plan, forward_moves
from dualpath.errors import DeadlineExceeded
from dualpath.kvcache.layout import BlockGeometry
from dualpath.traffic.slices import Slices, frame_slices
from dualpath.transport.base import Completion, CopyBatch, Operation, Transport
from dualpath.transport.slice_list import SliceList


@dataclass(frozen=True, slots=True)
class ChunkTransfer:
    """One request's part of a forward batch.

    Attributes:
        plan: the turn's plan, with the share that was really read.
        cached: tokens before the chunk.
        new: tokens that the chunk computes.
        kv_row: row of the request's token 0 in the batch's KV (its rows are ``[kv_row, kv_row + cached + new)``).
        prefill_slots: PE buffer slots of the head's blocks (may be empty after the first chunk).
        decode_slots: DE buffer slots of the whole prompt's blocks.
        decode_region: the DE buffer as an attached region.
    """

    plan: Plan
    cached: int
    new: int
    kv_row: int
    prefill_slots: Sequence[int]
    decode_slots: Sequence[int]
    decode_region: str


@dataclass(frozen=True, slots=True)
class LayerFrames:
    """The device's KV as a region of frames ``[count, rows, token_layer_bytes]`` uint8; layer l is in frame ``l % count``."""

    region: str
    count: int
    rows: int


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """What one stream did.

    ``exposed_s`` is how long compute waited for loads, ``transfer_s`` how long bytes were on the move (of completed
    posts), ``bytes`` what was posted.
    """

    exposed_s: float
    transfer_s: float
    bytes: dict[TrafficClass, int]


@dataclass(frozen=True, slots=True)
class _Direction:
    """Layer 0's slices of all loads, or all stores, by remote region; ``layer_bytes`` together."""

    operation: Operation
    slices: dict[str, SliceList]
    layer_bytes: int

    def batches(self, frames: LayerFrames, geometry: BlockGeometry, layer: int) -> list[CopyBatch]:
        frame_bytes = frames.rows * geometry.token_layer_bytes
        shift = layer % frames.count * frame_bytes, layer * geometry.layer_block_bytes
        return [CopyBatch(self.operation, frames.region, remote, base, shift) for remote, base in self.slices.items()]


class LayerStream:
    """Executes ``forward_moves`` of all chunks of a batch, loads ahead of compute and stores behind it.

    The compute thread calls ``start``, then for each layer in order ``wait_loaded`` and ``computed``, then ``finish``; or
    ``abort`` at any point. Layerwise, a frame is loaded again right after the store out of it was posted: the transport
    executes one thread's posts in order, so the store has read the frame before the load writes it. Compute writes the
    frame too, so that ``wait_loaded`` also waits for that store, which matters where there is nothing to load.
    """

    def __init__(
        self,
        transport: Transport,
        chunks: Sequence[ChunkTransfer],
        *,
        geometry: BlockGeometry,
        frames: LayerFrames,
        prefill_region: str,
        timeout_s: float,
        after: Future[None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``prefill_region`` is the PE buffer; ``timeout_s`` bounds each wait; ``after`` is the ``finish`` of the stream that
        used the frames before, whose last stores this one's first layers wait for.

        Raises:
            ValueError: a chunk's rows are outside the frames, the chunks' plans differ in being layerwise, or the frames
                are too few to hold every layer of a batch that is not.
        """
        self._transport = transport
        self._geometry = geometry
        self._frames = frames
        self._timeout_s = timeout_s
        self._clock = clock or MonotonicClock()
        self._layerwise = _layerwise(chunks, frames, geometry)
        self._loads, self._stores = _directions(chunks, geometry, prefill_region)
        self._after = after
        self._loading: dict[int, Completion] = {}
        self._storing: dict[int, Completion] = {}
        self._posted: list[Completion] = []
        self._bytes: Counter[TrafficClass] = Counter()
        self._exposed_s = 0.0

    @property
    def statistics(self) -> StreamStatistics:
        transfer_s = sum(completion.busy_s for completion in self._posted if completion.done())
        return StreamStatistics(self._exposed_s, transfer_s, dict(self._bytes))

    def start(self) -> None:
        """Load the first layers: as many as there are frames."""
        for layer in range(min(self._frames.count, self._geometry.layers)):
            self._load(layer)

    def wait_loaded(self, layer: int) -> None:
        """Returns when the layer's frame holds what the plan loads into it, and nothing reads what was there before.

        Raises:
            DeadlineExceeded: that was not so within the timeout.
            TransportError: a region is gone.
        """
        # Not layerwise, everything is there before the first layer is computed.
        loads = [self._loading.get(layer)] if self._layerwise else list(self._loading.values())
        own = [one for one in (self._storing.get(layer - self._frames.count), *loads) if one is not None]
        started_s = self._clock.now()
        pending = wait(own if self._after is None else [self._after, *own], self._timeout_s).not_done
        self._exposed_s += self._clock.now() - started_s
        if pending:
            raise DeadlineExceeded(
                f"layer {layer} could not be computed within {self._timeout_s:g} s: {self._loads.layer_bytes} bytes to load, "
                f"{self._stores.layer_bytes} to store before"
            )
        for completion in own:
            completion.result()

    def computed(self, layer: int) -> None:
        """The layer's new KV is in its frame: store it, and load the frame's next layer."""
        if self._layerwise:
            self._store(layer)
            self._load(layer + self._frames.count)
        elif layer == self._geometry.layers - 1:
            for stored in range(self._geometry.layers):
                self._store(stored)

    def finish(self) -> Future[None]:
        """Done when every store is; carries the first failure (TransportError)."""
        return _all_done(list(self._storing.values()))

    def abort(self) -> None:
        """Returns when nothing of the stream is in flight any more; no other call may follow.

        Raises:
            DeadlineExceeded: something still is after the timeout; the slots must not be used again.
        """
        in_flight = wait(self._posted, self._timeout_s).not_done
        if in_flight:
            raise DeadlineExceeded(f"{len(in_flight)} posts of a forward batch are in flight after {self._timeout_s:g} s")

    def _load(self, layer: int) -> None:
        if layer < self._geometry.layers and self._loads.slices:
            self._loading[layer] = self._post(self._loads, layer, TrafficClass.LAYER_LOAD)

    def _store(self, layer: int) -> None:
        if self._stores.slices:
            self._storing[layer] = self._post(self._stores, layer, TrafficClass.LAYER_STORE)

    def _post(self, direction: _Direction, layer: int, traffic_class: TrafficClass) -> Completion:
        completion = self._transport.post(direction.batches(self._frames, self._geometry, layer))
        self._bytes[traffic_class] += direction.layer_bytes
        self._posted.append(completion)
        return completion


def _layerwise(chunks: Sequence[ChunkTransfer], frames: LayerFrames, geometry: BlockGeometry) -> bool:
    kinds = {chunk.plan.layerwise for chunk in chunks}
    if len(kinds) > 1:
        raise ValueError("a forward batch is layerwise or not, for all of its requests")
    for chunk in chunks:
        if chunk.kv_row < 0 or chunk.kv_row + chunk.cached + chunk.new > frames.rows:
            raise ValueError(f"rows [{chunk.kv_row}, +{chunk.cached}+{chunk.new}) are outside a frame of {frames.rows}")
    if kinds == {False} and frames.count < geometry.layers:
        raise ValueError(f"{frames.count} frames cannot hold {geometry.layers} layers at a time")
    return kinds != {False}


def _directions(chunks: Iterable[ChunkTransfer], geometry: BlockGeometry, prefill_region: str) -> tuple[_Direction, _Direction]:
    """Loads and stores: the device's frames are the local side of both."""
    loads: defaultdict[str, list[Slices]] = defaultdict(list)
    stores: defaultdict[str, list[Slices]] = defaultdict(list)
    for chunk in chunks:
        ends = {
            Place.PE_BUFFER: (prefill_region, chunk.prefill_slots),
            Place.DE_BUFFER: (chunk.decode_region, chunk.decode_slots),
        }
        for move in forward_moves(chunk.plan, chunk.cached, chunk.new):
            loading = move.destination is Place.PE_HBM
            region, slots = ends[move.source if loading else move.destination]
            slices = frame_slices(geometry, move.first_token, move.tokens, chunk.kv_row, slots)
            (loads if loading else stores)[region].append(slices)
    return _direction(Operation.READ, loads), _direction(Operation.WRITE, stores)


def _direction(operation: Operation, slices: dict[str, list[Slices]]) -> _Direction:
    lists = {region: SliceList(np.concatenate(parts)) for region, parts in slices.items()}
    return _Direction(operation, lists, sum(one.bytes for one in lists.values()))


def _all_done(completions: Sequence[Completion]) -> Future[None]:
    """Done when all are; with the first failure in their order, if any."""
    everything = Completion()
    left = len(completions)
    lock = threading.Lock()

    def one_done(_: Future[None]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        failures = [error for error in (completion.exception() for completion in completions) if error is not None]
        if failures:
            everything.set_exception(failures[0])
        else:
            everything.set_result(None)

    if not completions:
        everything.set_result(None)
    for completion in completions:
        completion.add_done_callback(one_done)
    return everything
